"""From data to a small network that meets a budget, in one call or by ``quern compress``.

    result = compress(network, train_loader, val_loader, max_params=15_000, out="runs/mine")
    print(result)                    # the table
    small = result.small_network

The stages: train the dense network; *grind* a copy of it, which is training under a penalty until neurons are zero;
*heal* it, which is fine-tuning what is left; compact, export and measure both.
"""

from quern.pipeline._compress import compress
from quern.pipeline._stages import Compressed
from quern.records import Budget, Chance, Comparison, Network, Verdict

__all__ = ["Budget", "Chance", "Comparison", "Compressed", "Network", "Verdict", "compress"]
