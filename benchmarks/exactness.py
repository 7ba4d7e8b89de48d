"""Random networks with zeros, made smaller: how far their outputs move.

    python -m benchmarks.exactness [COUNT] [--seed SEED]

Every network is compared with itself before, zeros and all, at up to three sizes of input. Differences are relative to
the largest output.
"""

import argparse
import random
import statistics

import torch
from tests.networks import draw, measure

from quern.compact import compact, plan


def main(count: int, seed: int) -> float:
    """Print what ``count`` networks came to. Returns the worst difference in float64."""
    rng = random.Random(seed)
    seen, removed, dead = [], [], 0
    for _ in range(count):
        drawn = draw(rng)
        found = plan(drawn.model, drawn.inputs[0])
        seen.append(measure(drawn, found, compact(drawn.model, found)))
        removed.append(1 - found.parameters[1] / found.parameters[0])
        dead += found.dead
    worst = max(one.float64 for one in seen)
    print(f"networks               {count} ({dead} of them dead), seed {seed}")
    print(f"networks x sizes       {sum(one.sizes for one in seen)}")
    print(f"worst difference       {worst:.1e} in float64, {max(one.float32 for one in seen):.1e} in float32")
    print(f"rounding to float32    {max(one.masked_float32 for one in seen):.1e} in the networks before")
    print(f"parameters removed     {statistics.mean(removed):.1%} on average, at most {max(removed):.1%}")
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    torch.set_num_threads(1)
    main(**vars(parser.parse_args()))
