"""Which neurons no longer matter: judged by what happens when their outputs are exchanged between samples, and by hand.

They are those that a plan removes. So channels that are added to each other go together or not at all, no layer loses
its last neuron, and what the network puts out stays.
"""

import copy
import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import functional as F
from quern import models
from quern import nn as qnn
from quern.compact import is_dead, plan
from quern.graph import spec_of
from quern.graph.reader import read
from quern.nn import cat
from quern.sparsity import measure
from tests import networks
from tests.networks import draw

F64 = torch.float64
CONVOLUTIONS = (qnn.QConv1d, qnn.QConv2d, qnn.QConv3d, qnn.QConvTranspose1d, qnn.QConvTranspose2d, qnn.QConvTranspose3d)
NORMS = (qnn.QBatchNorm1d, qnn.QBatchNorm2d, qnn.QBatchNorm3d, qnn.QWhiteningBatchNorm2d)
REAL_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
RECURRENT = (qnn.QRNN, qnn.QLSTM, qnn.QGRU)


class Wired(networks.Wired):
    """Here, because torch.fx knows the names of the file that forward is in."""

    def forward(self, x: Tensor) -> Any:
        return self.wiring(self, x)


def removed(model: nn.Module, *inputs: Any) -> tuple[dict[str, Tensor], list[str]]:
    """Which outputs of each layer with neurons go, by its name, and what was noted."""
    facts, _, _ = read(copy.deepcopy(model).eval(), inputs, keep_unknown=True)
    kept = facts.settle()
    records = [record for record in facts.records.values() if spec_of(record.layer).neurons(record.layer)]
    return {record.name: ~kept[record.outputs] for record in records}, facts.notes


def dead(model: nn.Module, *shape: int) -> dict[str, list[int]]:
    """The numbers of the dead neurons by layer, for a batch of inputs of this shape; everything was followed."""
    model = copy.deepcopy(model).double()
    gone, notes = removed(model, torch.randn(2, *shape, dtype=F64))
    assert notes == []
    return {name: which.nonzero().flatten().tolist() for name, which in gone.items()}


def kill(layer: nn.Module, rows: tuple[int, ...] = (), columns: tuple[int, ...] = ()) -> None:
    """Weights of neurons (``rows``) or of inputs (``columns``) of a quaternion layer to zero."""
    weight = layer.get_parameter("weight").data
    weight[:, list(rows)] = 0
    weight[:, :, list(columns)] = 0


@torch.no_grad()
def random_values(model: nn.Module) -> nn.Module:
    """Every number random and none at a special value: biases, scales, shifts and statistics too."""
    for p in model.parameters():
        p.copy_(torch.randn_like(p))
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(torch.randn_like(b))
        elif name.endswith("running_var"):
            b.copy_(torch.rand_like(b) + 0.5)
        elif name.endswith("running_cov"):
            root = torch.randn(b.shape[2], 4, 4, dtype=b.dtype) / 4 + torch.eye(4, dtype=b.dtype)
            b.copy_((root @ root.mT).permute(1, 2, 0))
    return model.double().eval()


def some(*shape: int, keep: float) -> Tensor:
    return torch.rand(shape) < keep


@torch.no_grad()
def random_zeros(model: nn.Module, keep: float = 0.7, taps: bool = False) -> nn.Module:
    """Single weights (of all positions of a kernel, or each with ``taps``), rows, columns and scales become zero."""
    for layer in model.modules():
        if isinstance(layer, RECURRENT):
            for name, p in layer.named_parameters():
                if name.startswith("weight"):
                    w = p.view(4, layer.gates, -1, p.shape[2])
                    w.mul_(some(1, *w.shape[1:], keep=keep))
                    w.mul_(some(w.shape[2], 1, keep=0.8)).mul_(some(w.shape[3], keep=0.9))
            continue
        weight = getattr(layer, "weight", None)
        if weight is None:
            continue
        if isinstance(layer, (*NORMS, *REAL_NORMS, qnn.QEmbedding)):
            weight.mul_(some(weight.shape[-1], keep=0.8))
            continue
        w = weight if isinstance(layer, (qnn.QLinear, *CONVOLUTIONS)) else weight.unsqueeze(0)
        ones = [1] * len(w.shape[3:])
        w.mul_(some(1, *w.shape[1:3], *(w.shape[3:] if taps else ones), keep=keep))
        w.mul_(some(w.shape[1], 1, *ones, keep=0.9)).mul_(some(w.shape[2], *ones, keep=0.9))
    return model


def run_exchanged(model: nn.Module, x: Tensor, units: dict[str, Tensor]) -> Any:
    """The output of ``model`` if these neurons of these layers have the values of another sample of the batch."""

    def exchange(which: Tensor, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        axis = 1 if isinstance(layer, CONVOLUTIONS) else -1
        y = output.movedim(axis, -1).clone()
        channels = (len(which) * torch.arange(4).unsqueeze(1) + which.nonzero().flatten()).flatten()
        y[..., channels] = y.roll(1, 0)[..., channels]
        return y.movedim(-1, axis)

    handles = [
        model.get_submodule(name).register_forward_hook(partial(exchange, which))
        for name, which in units.items()
        if not isinstance(model.get_submodule(name), RECURRENT)
    ]
    with torch.no_grad():
        y = model(x)
    for handle in handles:
        handle.remove()
    return y


def assert_dead_do_not_matter(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """The law of soundness; says how many neurons were dead and alive."""
    gone, _ = removed(model, x)
    result = run_exchanged(model, x, gone)
    torch.testing.assert_close(result, run_exchanged(model, x, {}), rtol=1e-9, atol=1e-9)
    going = sum(int(which.sum()) for which in gone.values())
    return going, sum(map(len, gone.values())) - going


# ------------------------------------------------------------------------------------------------ random networks

STEPS = ("conv", "grouped", "transposed", "residual", "sum", "cat", "shared", "average", "maximum", "upsample", "real")


def block(space: int, kind: str, inner: int, out: int, norm: int, bend: Callable[[], nn.Module]) -> nn.Module:
    """One stage of a random network; ``inner`` and ``out`` count quaternions."""

    def conv(groups: int = 1, kernel: int = 3) -> nn.Module:
        return getattr(qnn, f"QConv{space}d")(4 * inner, 4 * out, kernel, padding=kernel // 2, groups=groups)

    def normalised(layer: nn.Module) -> nn.Module:
        kinds: list[Any] = [nn.Identity, getattr(qnn, f"QBatchNorm{space}d"), getattr(nn, f"BatchNorm{space}d")]
        kinds.append(qnn.QWhiteningBatchNorm2d if space == 2 else nn.Identity)
        make = kinds[norm]
        return nn.Sequential(layer, make() if make is nn.Identity else make(4 * out), bend())

    if kind == "grouped":
        return normalised(conv(groups=2))
    if kind == "transposed":
        return normalised(getattr(qnn, f"QConvTranspose{space}d")(4 * inner, 4 * out, 3, padding=1, groups=2))
    if kind == "residual" and inner == out:
        return Wired(lambda m, x: m.body(x) + x, body=normalised(conv()))
    if kind in ("residual", "sum"):
        return Wired(lambda m, x: m.one(x) + m.other(x), one=normalised(conv()), other=conv(kernel=1))
    if kind == "cat":
        joined = {"one": conv(kernel=1), "other": normalised(conv()), "last": conv(kernel=1)}
        joined["last"] = getattr(qnn, f"QConv{space}d")(8 * out, 4 * out, 1)
        return Wired(lambda m, x: m.last(qnn.cat([m.one(x), m.other(x)])), **joined)
    if kind == "shared" and inner == out:
        return Wired(lambda m, x: m.again(m.bend(m.again(x))), again=conv(), bend=bend())
    if kind == "real":
        return nn.Sequential(getattr(nn, f"Conv{space}d")(4 * inner, 4 * out, 1, groups=2), bend())
    layers = [normalised(conv())]
    if kind == "average":
        layers.append(getattr(nn, f"AvgPool{space}d")(2, stride=1))
    if kind == "maximum":
        layers += [getattr(nn, f"MaxPool{space}d")(2, stride=1), getattr(qnn, f"QMaxPool{space}d")(1)]
    if kind == "upsample":
        layers.append(nn.Upsample(scale_factor=1))
    return nn.Sequential(*layers)


def head(space: int, kind: int, inner: int, size: int) -> nn.Module:
    features = inner * size**space
    if kind == 0:
        return nn.Sequential(nn.Flatten(), qnn.QLinear(4 * features, 12), qnn.Modulus())
    if kind == 1:
        return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4 * features, 3))
    if kind == 2:
        readout = [qnn.QBatchNorm1d(16), qnn.Modulus(), nn.BatchNorm1d(4), nn.Linear(4, 3)]
        return nn.Sequential(nn.Flatten(), qnn.QLinear(4 * features, 16), *readout)
    if kind == 3:
        axes = tuple(range(2, 2 + space))
        return Wired(lambda m, x: m.fc(x.mean(axes)), fc=qnn.QLinear(4 * inner, 8))
    if kind == 4:
        conv = getattr(nn, f"Conv{space}d")(inner, 8, 1, groups=2)
        return nn.Sequential(qnn.Modulus(), conv, nn.Flatten(), qnn.QLinear(8 * size**space, 8))
    return nn.Sequential(nn.Flatten(), qnn.QBatchNorm1d(4 * features), qnn.QLinear(4 * features, 8), nn.Linear(8, 3))


def random_network(plan: dict[str, Any], bend: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(plan["seed"])
    space, size, inner = plan["space"], 4, 2 * plan["width"]
    first = {4: "rijk", 3: "ijk", 1: "r"}[plan["channels"]]
    stem = getattr(qnn, f"QConv{space}d")(plan["channels"], 4 * inner, 3, padding=1, input_parts=first)
    layers: list[nn.Module] = [stem, bend()]
    for kind, width, norm in plan["steps"]:
        layers.append(block(space, kind, inner, 2 * width, norm, bend))
        inner, size = 2 * width, size - (kind in ("average", "maximum"))
    model = random_values(nn.Sequential(*layers, head(space, plan["head"], inner, size)))
    return model, torch.randn(2, plan["channels"], *[4] * space, dtype=F64)


def plans(steps: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    step = st.tuples(st.sampled_from(steps), st.integers(1, 2), st.integers(0, 3))
    return st.fixed_dictionaries(
        {
            "seed": st.integers(0, 10**6),
            "space": st.integers(1, 3),
            "channels": st.sampled_from([1, 3, 4]),
            "width": st.integers(1, 2),
            "steps": st.lists(step, min_size=2, max_size=3),
            "head": st.integers(0, 5),
            "bend": st.integers(0, 4),
            "taps": st.booleans(),
        }
    )


def test_dead_neurons_do_not_matter() -> None:
    counts = []

    @settings(max_examples=70)
    @given(plans(STEPS))
    def law(plan: dict[str, Any]) -> None:
        bends = (nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.Identity, nn.GELU)
        model, x = random_network(plan, bends[plan["bend"]])
        counts.append(assert_dead_do_not_matter(random_zeros(model, taps=plan["taps"]), x))

    law()
    dead_ones, alive_ones = map(sum, zip(*counts, strict=True))
    assert min(dead_ones, alive_ones) > 200  # else the law says little


def test_what_is_measured_is_what_a_plan_removes() -> None:
    """The same networks with zeros, drawn for the tests of compaction: one definition of dead."""
    counts = []

    @settings(max_examples=40)
    @given(st.integers(0, 1 << 30))
    def law(seed: int) -> None:
        one = draw(random.Random(seed))
        found, size = plan(one.model, one.inputs[0], keep_unknown=True), measure(one.model, one.inputs[0])
        assert (size.neurons, size.neurons_left) == found.neurons
        for row in size.layers:
            outputs = found.layers[row.name].outputs if row.name in found.layers else None
            share = 0 if outputs is None else 1 - len(outputs.indices) / outputs.total
            assert row.dead_neurons == pytest.approx(share * row.neurons)
        counts.append(size.neurons - size.neurons_left)

    law()
    assert sum(counts) > 100  # else the law says little


# ------------------------------------------------------------------------------------------------ random sequences


def unrolled(layer: Any, x: Tensor, exchanged: Tensor) -> tuple[Tensor, Tensor]:
    """A recurrent layer, batch first, step by step, some neurons having the state of another sample after every step.

    The outputs, and the last states h of all levels and directions."""
    units = iter(exchanged.view(-1, layer.hidden_size // 4))
    last = []
    for level in range(layer.num_layers):
        sides = []
        for suffix in ("", "_reverse") if layer.bidirectional else ("",):
            cell = type(layer)(x.shape[-1], layer.hidden_size, batch_first=True).double().eval()
            own = {name: layer.get_parameter(name.replace("_l0", f"_l{level}{suffix}")) for name in cell.state_dict()}
            cell.load_state_dict(own)
            which = next(units).repeat(4)
            state, steps = None, {}
            for t in range(x.shape[1])[:: -1 if suffix else 1]:
                _, state = cell(x[:, t : t + 1], state)
                parts = state if isinstance(state, tuple) else (state,)
                parts = tuple(torch.where(which, part.roll(1, 1), part) for part in parts)
                state = parts if isinstance(state, tuple) else parts[0]
                steps[t] = parts[0][0]
            sides.append(torch.stack([steps[t] for t in range(x.shape[1])], 1))
            last.append(steps[0 if suffix else x.shape[1] - 1])
        x = qnn.cat(sides, -1)
    return x, torch.stack(last)


def recurrent_network(kind: int, levels: int, both: bool, of_state: bool) -> nn.Module:
    rnn = RECURRENT[kind](8, 12, levels, batch_first=True, bidirectional=both)
    first = qnn.QLinear(8, 8)

    def of_output(m: Any, x: Tensor) -> Tensor:
        return m.fc(m.rnn(m.first(x))[0])

    def of_last(m: Any, x: Tensor) -> Tensor:
        _, state = m.rnn(m.first(x))
        return m.fc(state[0] if kind == 1 else state)

    width = 12 if of_state or not both else 24
    return random_values(Wired(of_last if of_state else of_output, first=first, rnn=rnn, fc=qnn.QLinear(width, 8)))


@torch.no_grad()
@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(0, 2), st.integers(1, 2), st.booleans(), st.booleans())
def test_neurons_of_recurrent_layers(seed: int, kind: int, levels: int, both: bool, of_state: bool) -> None:
    torch.manual_seed(seed)
    model: Any = random_zeros(recurrent_network(kind, levels, both, of_state))
    x = torch.randn(2, 4, 8, dtype=F64)
    wanted, inner = model(x), model.first(x)
    gone, notes = removed(model, x)
    assert notes == []
    # A hidden unit has one place in all levels and directions, and leaves all of them.
    going = gone["rnn"].repeat(levels * (1 + both))
    assert len(going) == 3 * levels * (1 + both)

    def run(exchanged: Tensor) -> Tensor:
        output, last = unrolled(model.rnn, inner, exchanged)
        return model.fc(last if of_state else output)

    torch.testing.assert_close(run(torch.zeros_like(going)), wanted)
    torch.testing.assert_close(run(going), wanted)
    torch.testing.assert_close(run_exchanged(model, x, {"first": gone["first"]}), wanted)


def test_neurons_of_attention() -> None:
    counts = []

    @settings(max_examples=40)
    @given(st.integers(0, 10**6), st.integers(1, 2), *[st.booleans()] * 5)
    def law(seed: int, heads: int, crossed: bool, extra: bool, zero: bool, places: bool, weights: bool) -> None:
        def wiring(m: Any, x: Tensor) -> Any:
            y, z = m.one(x), m.other(x)
            y, z = (y + m.places, z - m.places) if places else (y, z)
            found, scores = m.attention(y, z, z if crossed else y)
            return (m.fc(found), scores) if weights else m.fc(found)

        torch.manual_seed(seed)
        attention = qnn.QMultiheadAttention(16, heads, add_bias_kv=extra, add_zero_attn=zero, batch_first=True)
        layers = {"one": qnn.QLinear(8, 16), "other": qnn.QLinear(8, 16), "fc": qnn.QLinear(16, 8)}
        model = Wired(wiring, attention=attention, places=nn.Parameter(torch.empty(4, 16)), **layers)
        model = random_zeros(random_values(model))
        counts.append(assert_dead_do_not_matter(model, torch.randn(3, 4, 8, dtype=F64)))

    law()
    dead_ones, alive_ones = map(sum, zip(*counts, strict=True))
    assert min(dead_ones, alive_ones) > 60


# --------------------------------------------------------------------------------------------------- odd networks


def attention() -> qnn.QMultiheadAttention:
    return qnn.QMultiheadAttention(8, 1, batch_first=True)


def attentions() -> dict[str, nn.Module]:
    one, other = attention(), attention()
    other.q_proj = one.q_proj
    return {"one": one, "other": other}


def linears(*sizes: tuple[int, int]) -> dict[str, nn.Module]:
    return {name: qnn.QLinear(*size) for name, size in zip("abc", sizes, strict=False)}


def convs(*sizes: tuple[int, int]) -> dict[str, nn.Module]:
    return {name: qnn.QConv2d(*size, 1) for name, size in zip("abc", sizes, strict=False)}


def moduli() -> nn.Module:
    return nn.Sequential(qnn.QLinear(8, 16), qnn.Modulus())


# The shape of a sample, the forward, and the layers it is a function of. What is heard of what is not as it looks.
ODD: dict[str, tuple[tuple[int, ...], Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "a sequence is flattened": (
        *((2, 8), lambda m, x: m.b(m.a(x).flatten(1))),
        lambda: linears((8, 8)) | {"b": nn.Linear(16, 1)},
    ),
    "a mean over the units": (
        *((16, 8), lambda m, x: m.b(m.a(x).mean(-1))),
        lambda: linears((8, 16)) | {"b": nn.Linear(16, 1)},
    ),
    "a mean over channels": (
        *((4, 16, 2), lambda m, x: m.b(m.a(x).mean(1))),
        lambda: convs((4, 16)) | {"b": qnn.QConv1d(16, 4, 1)},
    ),
    "a mean over channels counted from the end": (
        *((4, 16, 16), lambda m, x: m.b(m.a(x).mean(-3))),
        lambda: convs((4, 16)) | {"b": nn.Linear(16, 1)},
    ),
    "a linear layer over space": (
        *((4, 16), lambda m, x: m.b(m.a(x))),
        lambda: {"a": qnn.QConv1d(4, 16, 1), "b": qnn.QLinear(16, 8)},
    ),
    "a convolution over a sequence": (
        *((16, 8), lambda m, x: m.b(m.a(x))),
        lambda: {"a": qnn.QLinear(8, 16), "b": qnn.QConv1d(16, 8, 1)},
    ),
    "pooling over units": (
        *((4, 8), lambda m, x: m.b(m.pool(m.a(x)))),
        lambda: linears((8, 16), (16, 4)) | {"pool": nn.AvgPool1d(3, 1, 1)},
    ),
    "pooling over units by a function": (
        *((4, 8), lambda m, x: m.b(nn.functional.avg_pool2d(m.a(x), 3, 1, 1))),
        lambda: {"a": qnn.QConv1d(4, 16, 1), "b": qnn.QConv1d(16, 4, 1)},
    ),
    "components taken as gray images": (
        *((4, 2, 2), lambda m, x: m.b(m.a(x))),
        lambda: {"a": qnn.QConv2d(4, 8, 1), "b": qnn.QConv2d(8, 16, 1, input_parts="r")},
    ),
    "the modulus across places": (
        *((4, 8), lambda m, x: m.b(F.modulus(m.a(x)))),
        lambda: linears((8, 8)) | {"b": nn.Linear(8, 1)},
    ),
    "the modulus over space": (
        *((4, 4, 1), lambda m, x: m.b(F.modulus(m.a(x), dim=2).flatten(1))),
        lambda: convs((4, 8)) | {"b": nn.Linear(8, 1)},
    ),
    "attention weights as features": (
        *((4, 8), lambda m, x: m.b(torch.tanh(m.attention(*[m.a(x)] * 3)[1]))),
        lambda: linears((8, 8)) | {"b": nn.Linear(4, 4), "attention": attention()},
    ),
    "an attention mask from neurons": (
        *((4, 8), lambda m, x: m.attention(x, x, x, attn_mask=m.a(x))[0]),
        lambda: linears((8, 4)) | {"attention": attention()},
    ),
    "attention called by keywords": (
        *((4, 8), lambda m, x: m.attention(value=m.c(x), key=m.b(x), query=m.a(x))[0]),
        lambda: linears((8, 8), (8, 8), (8, 8)) | {"attention": attention()},
    ),
    "a projection of two attentions": (
        *((4, 8), lambda m, x: m.other(*[m.one(x, x, x)[0]] * 3)[0]),
        attentions,
    ),
    "an addition in place": (
        *((8,), lambda m, x: m.b((y := m.a(x), y.add_(m.c(x)))[0])),
        lambda: linears((8, 16), (16, 8), (8, 16)),
    ),
    "a copy in place": (
        *((8,), lambda m, x: m.b((y := m.a(x), y.copy_(m.c(x)))[0])),
        lambda: linears((8, 4), (4, 4), (8, 4)),
    ),
    "indices from neurons": (
        *((8,), lambda m, x: m.table(m.a(x).sigmoid().mul(9).to(torch.long))),
        lambda: linears((8, 8)) | {"table": qnn.QEmbedding(9, 8)},
    ),
    "a cat across places": (
        *((4, 8), lambda m, x: m.c(qnn.cat([m.a(x), m.b(x)], 1))),
        lambda: linears((8, 8), (8, 8), (8, 8)),
    ),
    "a cat over space": (
        *((4, 4, 1), lambda m, x: m.c(qnn.cat([m.a(x), m.b(x)], 2).flatten(1))),
        lambda: convs((4, 8), (4, 8)) | {"c": nn.Linear(64, 1)},
    ),
    "a cat with a parameter": (
        *((4, 2, 2), lambda m, x: m.c(qnn.cat([m.p.expand(3, 8, 2, 2), m.a(x)]).flatten(1))),
        lambda: convs((4, 8)) | {"p": nn.Parameter(torch.empty(8, 1, 1)), "c": qnn.QLinear(64, 4)},
    ),
    "a cat of flattened values": (
        *((4, 3), lambda m, x: m.c(qnn.cat([m.a(x).flatten(1), m.b(x).flatten(1)]))),
        lambda: {"a": qnn.QConv1d(4, 8, 3), "b": qnn.QConv1d(4, 8, 1), "c": qnn.QLinear(32, 4)},
    ),
    "a cat of real channels": (
        *((8,), lambda m, x: m.c(qnn.cat([m.a(x), m.b(x)]))),
        lambda: {"a": moduli(), "b": moduli(), "c": nn.Linear(8, 1)},
    ),
    "an addition across axes": (
        *((4, 1, 8), lambda m, x: m.b(m.c(x[:, 0, 0]) + m.a(x))),
        lambda: convs((4, 8)) | {"c": qnn.QLinear(8, 8), "b": qnn.QLinear(8, 4)},
    ),
    "an addition of different widths": (
        *((8,), lambda m, x: m.c(x) + m.a(x)),
        lambda: {"a": moduli(), "c": nn.Linear(8, 1)},
    ),
    "quaternions and real channels flattened alike": (
        *((4, 4, 4), lambda m, x: m.c(m.a(x).flatten(1) + F.modulus(m.b(x)).flatten(1))),
        lambda: {"a": qnn.QConv2d(4, 8, 1, 2), "b": qnn.QConv2d(4, 8, 1), "c": nn.Linear(32, 1)},
    ),
    "a reshape": (
        *((4, 8), lambda m, x: m.b(m.a(x).reshape(3, -1))),
        lambda: linears((8, 16), (64, 8)),
    ),
    "a transposition": (
        *((16, 8), lambda m, x: m.b(m.a(x).mT)),
        lambda: linears((8, 16), (16, 8)),
    ),
    "halves": (
        *((8,), lambda m, x: m.b(m.a(x).chunk(2, -1)[1])),
        lambda: linears((8, 16), (8, 8)),
    ),
    "an initial state from neurons": (
        *((4, 8), lambda m, x: m.rnn(x, m.a(x[:, 0]).unsqueeze(0))[0]),
        lambda: linears((8, 8)) | {"rnn": qnn.QGRU(8, 8, batch_first=True)},
    ),
}


@torch.no_grad()
def one_column(model: nn.Module, where: float) -> None:
    """The last layer hears one of its inputs only, the first (0) to the last (1)."""
    last = [layer for layer in model.modules() if isinstance(layer, (qnn.QLinear, *CONVOLUTIONS, nn.Linear))][-1]
    columns = last.weight.movedim(1 if isinstance(last, nn.Linear) else 2, 0)
    columns[torch.arange(len(columns)) != int(where * len(columns))] = 0


@pytest.mark.parametrize("name", ODD)
def test_odd_networks_lose_nothing(name: str) -> None:
    shape, wiring, layers = ODD[name]
    alive = 0
    for seed in range(10):
        torch.manual_seed(seed)
        model = random_zeros(random_values(Wired(wiring, **layers())), keep=(0.2, 0.6, 1.0)[seed % 3])
        if seed % 2:
            one_column(model, seed / 10)
        alive += assert_dead_do_not_matter(model, torch.randn(3, *shape, dtype=F64))[1]
    assert alive > 0


# ---------------------------------------------------------------------------------------------------------- by hand


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers "0", "1", ... with ReLU between; sizes count quaternions."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for n, (inner, out) in enumerate(pairwise(sizes)):
        model.add_module(str(n), qnn.QLinear(4 * inner, 4 * out))
        if n < len(sizes) - 2:
            model.add_module(f"relu{n}", nn.ReLU())
    return model


def layer(model: nn.Module, name: str) -> Any:
    return model.get_submodule(name)


def test_a_zero_row_kills_and_a_zero_column_before_it() -> None:
    model = mlp(2, 4, 3)
    kill(layer(model, "0"), rows=(1,))
    kill(layer(model, "1"), columns=(3,))
    assert dead(model, 8) == {"0": [1, 3], "1": []}


def test_one_component_keeps_a_neuron() -> None:
    for component in range(4):
        model = mlp(2, 2, 1)
        kill(layer(model, "0"), rows=(0,))
        layer(model, "0").weight.data[component, 0, 1] = 1e-30
        assert dead(model, 8) == {"0": [], "1": []}


def test_biases_do_not_count_as_life() -> None:
    model = random_values(mlp(2, 3, 2))
    kill(layer(model, "0"), rows=(0, 1))
    kill(layer(model, "1"), columns=(2,))
    assert dead(model, 8) == {"0": [1, 2], "1": []}  # a layer keeps one neuron, and the network its outputs


def test_death_spreads_forward_and_backward() -> None:
    model = mlp(2, 3, 3, 3, 2)
    for name in ("1", "2"):  # neuron n hears only neuron n
        layer(model, name).weight.data.mul_(torch.eye(3))
    assert dead(model, 8) == {"0": [], "1": [], "2": [], "3": []}
    kill(layer(model, "0"), rows=(0,))
    kill(layer(model, "3"), columns=(2,))
    assert dead(model, 8) == {"0": [0, 2], "1": [0, 2], "2": [0, 2], "3": []}


@pytest.mark.parametrize(
    ("convolution", "norm"),
    [
        (qnn.QConv1d, qnn.QBatchNorm1d),
        (qnn.QConv2d, qnn.QBatchNorm2d),
        (qnn.QConv3d, qnn.QBatchNorm3d),
        (qnn.QConv2d, qnn.QWhiteningBatchNorm2d),
        (qnn.QConvTranspose1d, qnn.QBatchNorm1d),
        (qnn.QConv2d, nn.BatchNorm2d),
    ],
)
def test_a_zero_scale_kills_whatever_the_shift(convolution: Any, norm: Any) -> None:
    model = random_values(nn.Sequential(convolution(4, 12, 1), norm(12), nn.ReLU(), convolution(12, 8, 1)))
    size = [2] * len(layer(model, "0").kernel_size)
    assert dead(model, 4, *size) == {"0": [], "3": []}
    scale = layer(model, "1").weight.data.unflatten(-1, (-1, 3))[..., 1]
    scale.zero_()
    assert dead(model, 4, *size) == {"0": [1], "3": []}
    scale.view(-1)[-1] = 1e-9
    assert dead(model, 4, *size) == {"0": [], "3": []}


def test_a_zero_scale_after_the_activation_and_after_flattening() -> None:
    model = random_values(
        nn.Sequential(qnn.QConv1d(4, 8, 1), nn.ReLU(), nn.Flatten(), qnn.QBatchNorm1d(24), qnn.QLinear(24, 8))
    )
    layer(model, "3").weight.data[:2] = 0
    assert dead(model, 4, 3) == {"0": [], "4": []}
    layer(model, "3").weight.data[2] = 0  # now all three places of the first neuron
    assert dead(model, 4, 3) == {"0": [0], "4": []}


@pytest.mark.parametrize("norm", [qnn.QBatchNorm1d(12, fixed_scale=True), nn.BatchNorm1d(12, affine=False)])
def test_norms_without_a_scale_keep_all(norm: nn.Module) -> None:
    assert dead(nn.Sequential(qnn.QLinear(8, 12), norm, qnn.QLinear(12, 4)), 8) == {"0": [], "2": []}


def test_a_residual_sum_keeps_what_either_side_has() -> None:
    model = Wired(
        lambda m, x: m.last(m.body(y := m.first(x)) + y),
        first=qnn.QConv2d(4, 12, 1),
        body=qnn.QConv2d(12, 12, 3, padding=1),
        last=qnn.QConv2d(12, 4, 1),
    )
    kill(layer(model, "body"), rows=(0,), columns=(1,))
    assert dead(model, 4, 3, 3) == {"first": [], "body": [], "last": []}  # added to each other
    kill(layer(model, "first"), rows=(0,))  # nothing is left on either side of it
    assert dead(model, 4, 3, 3) == {"first": [0], "body": [0], "last": []}
    kill(layer(model, "last"), columns=(1,))  # first's neuron 1 went through the sum only
    assert dead(model, 4, 3, 3) == {"first": [0, 1], "body": [0, 1], "last": []}
    kill(layer(model, "last"), columns=(2,))
    assert dead(model, 4, 3, 3) == {"first": [1, 2], "body": [1, 2], "last": []}


def test_a_gate_of_means_is_followed() -> None:
    model = Wired(
        lambda m, x: m.last((y := m.first(x)) * torch.sigmoid(m.gate(y.mean((2, 3), keepdim=True)))),
        first=qnn.QConv2d(4, 12, 1),
        gate=qnn.QConv2d(12, 12, 1),
        last=qnn.QConv2d(12, 4, 1),
    )
    kill(layer(model, "last"), columns=(0,))
    assert dead(model, 4, 3, 3) == {"first": [], "gate": [], "last": []}
    kill(layer(model, "gate"), columns=(0,))
    assert dead(model, 4, 3, 3) == {"first": [0], "gate": [0], "last": []}


def test_a_shared_layer_keeps_what_any_use_needs() -> None:
    layers = {"first": qnn.QLinear(8, 12), "twice": qnn.QLinear(12, 12), "last": qnn.QLinear(12, 4)}
    model = Wired(lambda m, x: m.last(m.twice(torch.relu(m.twice(m.first(x))))), **layers)
    kill(layer(model, "last"), columns=(0, 1))
    assert dead(model, 8) == {"first": [], "twice": [], "last": []}
    kill(layer(model, "twice"), columns=(0,))
    assert dead(model, 8) == {"first": [0], "twice": [0], "last": []}
    kill(layer(model, "twice"), columns=(1,))
    assert dead(model, 8) == {"first": [0, 1], "twice": [0, 1], "last": []}


@pytest.mark.parametrize("make", [qnn.QConv2d, qnn.QConvTranspose2d])
def test_groups_hear_only_their_channels(make: Any) -> None:
    model = nn.Sequential(qnn.QConv2d(4, 16, 1), make(16, 16, 3, groups=2), qnn.QConv2d(16, 4, 1))
    kill(layer(model, "0"), rows=(0, 1))  # all that the first group hears
    kill(layer(model, "1"), columns=(1,))  # the second input of both groups
    assert dead(model, 4, 5, 5) == {"0": [0, 1, 3], "1": [0, 1], "2": []}


def test_flattening_gives_each_channel_its_columns() -> None:
    for head in (qnn.QLinear(2 * 4 * 9, 8), nn.Linear(2 * 4 * 9, 8)):
        model = nn.Sequential(qnn.QConv2d(4, 8, 1), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), head)  # to 3 x 3
        columns = (
            head.weight.data.view(-1, 2, 9) if isinstance(head, qnn.QLinear) else head.weight.data.view(-1, 4, 2, 9)
        )
        columns[..., 1, :8] = 0
        assert dead(model, 4, 6, 6)["0"] == []
        columns[..., 1, 8] = 0
        assert dead(model, 4, 6, 6)["0"] == [1]


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: x.flatten(1),
        lambda x: torch.flatten(input=x, start_dim=1),
        lambda x: x.mean((2, 3), keepdim=True).flatten(start_dim=1),
        lambda x: x.mean(-1).sum(-1),
        lambda x: torch.amax(x, (-2, -1)),
        lambda x: nn.functional.adaptive_avg_pool2d(x, 1).flatten(1),
        lambda x: nn.functional.max_pool2d(x, 1).flatten(1),
    ],
)
def test_ways_to_vectors_are_followed(flatten: Callable[[Tensor], Tensor]) -> None:
    model = Wired(lambda m, x: m.b(flatten(m.a(x))), a=qnn.QConv2d(4, 12, 1), b=qnn.QLinear(12, 8))
    assert model(torch.randn(2, 4, 1, 1)).shape == (2, 8)
    kill(layer(model, "b"), columns=(1,))
    assert dead(model, 4, 1, 1) == {"a": [1], "b": []}


def test_a_flattened_sequence_is_not_followed() -> None:
    """Its columns are place, component, channel: not the order of quaternions."""
    model = Wired(lambda m, x: m.b(m.a(x).flatten(1)), a=qnn.QLinear(4, 8), b=nn.Linear(16, 1))
    layer(model, "b").weight.data[:, torch.arange(16) != 1] = 0
    assert dead(model, 2, 4) == {"a": []}


def test_a_scale_of_places_kills_no_unit() -> None:
    norm, linear = qnn.QBatchNorm1d(8), qnn.QLinear(8, 4)  # on (batch, 8, 8): the axis of the scale is not the last
    norm.get_parameter("weight").data[0] = 0
    kill(linear, columns=(1,))
    assert dead(nn.Sequential(norm, linear), 8, 8) == {"1": []}


def test_real_layers_after_a_readout() -> None:
    model = nn.Sequential(qnn.QLinear(4, 12), qnn.Modulus(), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    layer(model, "3").weight.data[:, 0] = 0
    layer(model, "3").weight.data.mul_(torch.eye(3))
    layer(model, "5").weight.data[:, 2] = 0
    assert dead(model, 4) == {"0": [0, 2]}
    model = nn.Sequential(
        *(
            qnn.QConv2d(4, 8, 1),
            qnn.Modulus(),
            nn.BatchNorm2d(2),
            nn.ConvTranspose2d(2, 4, 2, groups=2),
            nn.Conv2d(4, 1, 1),
        )
    )
    layer(model, "4").weight.data[:, :2] = 0  # all that came of the first neuron
    assert dead(model, 4, 3, 3) == {"0": [0]}
    layer(model, "2").weight.data[1] = 0
    assert dead(model, 4, 3, 3) == {"0": [1]}  # one stays


@pytest.mark.parametrize("real", [nn.Linear(12, 5), nn.Conv1d(12, 5, 1)])
def test_real_layers_on_quaternions_need_any_of_four_components(real: Any) -> None:
    before = qnn.QLinear(4, 12) if isinstance(real, nn.Linear) else qnn.QConv1d(4, 12, 1)
    model = nn.Sequential(before, real)
    shape = (4,) if isinstance(real, nn.Linear) else (4, 3)
    for component in (0, 1, 3):
        real.weight.data[:, 3 * component + 2] = 0
        assert dead(model, *shape) == {"0": []}
    real.weight.data[:, 3 * 2 + 2] = 0
    assert dead(model, *shape) == {"0": [2]}


def test_quaternion_layers_on_real_channels() -> None:
    real = nn.Conv2d(4, 8, 1)
    model = nn.Sequential(qnn.QConv2d(4, 16, 1), qnn.Modulus(), real, qnn.QConv2d(8, 8, 1), qnn.QConv2d(8, 4, 1))
    real.weight.data[[1, 3, 5, 7], :] = 0  # the components of quaternion 1
    kill(layer(model, "3"), columns=(0,))
    assert dead(model, 4, 2, 2) == {"0": [], "3": [], "4": []}  # quaternions out of real channels


@pytest.mark.parametrize("mix", [qnn.QModReLU(4), qnn.QMaxPool1d(2), qnn.Modulus()], ids=lambda m: type(m).__name__)
def test_quaternion_operations_mix_four_real_channels(mix: nn.Module) -> None:
    last = nn.Conv1d(1 if isinstance(mix, qnn.Modulus) else 4, 1, 1)
    model = nn.Sequential(qnn.QConv1d(4, 16, 1), qnn.Modulus(), mix, last)
    last.weight.data[:, 1:] = 0
    assert dead(model, 4, 6) == {"0": []}


def test_cat_puts_channels_side_by_side() -> None:
    for join in (lambda a, b: qnn.cat([a, b]), lambda a, b: cat((a, b), dim=-3), lambda a, b: F.cat(tensors=[a, b])):
        model = Wired(
            lambda m, x, join=join: m.last(join(m.one(x), m.other(x))),
            one=qnn.QConv2d(4, 8, 1),
            other=qnn.QConv2d(4, 12, 1),
            last=qnn.QConv2d(20, 8, 1),
        )
        kill(layer(model, "one"), rows=(0,))
        kill(layer(model, "last"), columns=(1, 3))
        assert dead(model, 4, 2, 2) == {"one": [1], "other": [1], "last": []}
        kill(layer(model, "last"), columns=(2, 4))  # it hears the dead one only
        assert dead(model, 4, 2, 2) == {"one": [1], "other": [1, 2], "last": []}


def test_levels_and_directions_of_recurrent_layers() -> None:
    """A hidden unit goes if nobody needs it in any level and direction."""
    rnn = qnn.QLSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True)
    model = Wired(lambda m, x: m.last(m.rnn(x)[0]), rnn=rnn, last=qnn.QLinear(16, 4))
    weight = {name: p.data for name, p in rnn.named_parameters()}
    kill(layer(model, "last"), columns=(0, 2))  # level 1: unit 0 of both directions still speaks to unit 1
    assert dead(model, 5, 8) == {"rnn": [], "last": []}
    for side in ("", "_reverse"):
        weight[f"weight_hh_l1{side}"][:, :, 0] = 0
    assert dead(model, 5, 8) == {"rnn": [], "last": []}  # level 0 speaks to level 1
    for side in ("", "_reverse"):
        weight[f"weight_ih_l1{side}"][:, :, ::2] = 0
    assert dead(model, 5, 8) == {"rnn": [], "last": []}  # and to its own unit 1
    weight["weight_hh_l0"][:, :, 0] = 0
    assert dead(model, 5, 8) == {"rnn": [], "last": []}
    weight["weight_hh_l0_reverse"][:, :, 0] = 0
    assert dead(model, 5, 8) == {"rnn": [0], "last": []}
    size = measure(model, torch.randn(2, 5, 8))
    assert [row.dead_neurons for row in size.layers] == [4, 0]  # in two levels and two directions


def test_last_states_keep_neurons_of_every_level() -> None:
    wirings = [(kind, lambda m, x: m.rnn(x)[1]) for kind in RECURRENT]
    wirings += [(qnn.QLSTM, lambda m, x: m.rnn(x)[1][0]), (qnn.QLSTM, lambda m, x: m.rnn(x)[1][1])]
    for kind, wiring in wirings:
        model = Wired(wiring, rnn=kind(4, 8, num_layers=2))
        assert dead(model, 3, 4) == {"rnn": []}
        layer(model, "rnn").get_parameter("weight_ih_l1").data.zero_()
        assert dead(model, 3, 4) == {"rnn": []}  # level 0 has them


def test_inputs_of_recurrent_layers() -> None:
    model = nn.Sequential(qnn.QLinear(4, 12), qnn.QGRU(12, 8))
    kill(layer(model, "0"), rows=(0,))
    layer(model, "1").weight_ih_l0.data[:, :, 2] = 0
    assert dead(model, 5, 4) == {"0": [0, 2], "1": []}
    layer(model, "1").weight_ih_l0.data[:, :, 1] = 0
    assert dead(model, 5, 4) == {"0": [1, 2], "1": []}


def test_an_unknown_initial_state_keeps_a_recurrent_layer() -> None:
    model = Wired(lambda m, x: m.rnn(x, m.first(x[:1]))[0], rnn=qnn.QRNN(8, 8), first=qnn.QLinear(8, 8))
    layer(model, "rnn").weight_ih_l0.data.zero_()
    assert dead(model, 3, 8)["rnn"] == []


def test_embedding() -> None:
    model = nn.Sequential(qnn.QEmbedding(5, 12), qnn.QLinear(12, 4))
    layer(model, "0").weight.data[..., 0] = 0
    layer(model, "0").weight.data[..., 1] = 0
    layer(model, "0").weight.data[3, 4, 1] = 1
    kill(layer(model, "1"), columns=(2,))
    gone, _ = removed(model, torch.randint(5, (2, 3)))
    assert {name: which.tolist() for name, which in gone.items()} == {"0": [True, False, True], "1": [False]}


def test_projections_of_attention() -> None:
    model = Wired(
        lambda m, x: m.attention(m.query(x), y := m.source(x), y)[0],
        query=qnn.QLinear(4, 16),
        source=qnn.QLinear(4, 16),
        attention=qnn.QMultiheadAttention(16, 2),
    )
    attention: Any = layer(model, "attention")
    clean = {f"attention.{part}_proj": [] for part in "qkv"} | {"attention.out_proj": [], "query": [], "source": []}
    assert dead(model, 5, 4) == clean
    kill(attention.v_proj, rows=(0,))
    kill(attention.out_proj, columns=(1,))  # nothing of the first head is left to weigh
    head = {f"attention.{part}_proj": [0, 1] for part in "qkv"}
    assert dead(model, 5, 4) == clean | head
    kill(attention.q_proj, columns=(3,))
    kill(attention.k_proj, columns=(2,))
    assert dead(model, 5, 4) == clean | head | {"query": [3]}  # the values hear the other
    kill(attention.v_proj, columns=(2,))
    assert dead(model, 5, 4) == clean | head | {"query": [3], "source": [2]}


def test_an_extra_key_makes_constant_values_live() -> None:
    for bias, zero in ((False, False), (True, False), (False, True)):
        attention: Any = qnn.QMultiheadAttention(8, 1, add_bias_kv=bias, add_zero_attn=zero).double()
        kill(attention.v_proj, rows=(0, 1))
        nn.init.ones_(attention.v_proj.bias)
        model = Wired(lambda m, x: m.attention(x, x, x)[0], attention=attention)
        assert not any(dead(model, 3, 8).values())  # heads go as a whole, and one has to stay
        x, y = torch.randn(2, 2, 3, 8, dtype=F64)
        depends = not torch.allclose(model(x), model(y))
        assert depends == (bias or zero)
        assert not (depends and is_dead(model, x))


@pytest.mark.parametrize("places", [False, True])
def test_a_mask_weighs_constants_that_differ_from_place_to_place(places: bool) -> None:
    def wiring(m: Any, x: Tensor, masked: bool) -> Tensor:
        y = m.first(x) + m.places if places else m.first(x)
        return m.attention(y, y, y, attn_mask=m.mask(x) if masked else None)[0]

    layers: dict[str, Any] = {"first": qnn.QLinear(8, 8), "mask": qnn.QLinear(8, 4 if places else 8)}
    layers["attention"] = qnn.QMultiheadAttention(8, 1, batch_first=True, add_zero_attn=not places)
    where = nn.Parameter(torch.randn(4, 8))
    kill(layers["first"], rows=(0, 1))
    nn.init.ones_(layers["attention"].get_parameter("v_proj.bias"))
    x, y = torch.randn(2, 2, 4 if places else 8, 8, dtype=F64)
    for masked in (False, True):
        model = Wired(partial(wiring, masked=masked), places=where, **layers).double()
        assert torch.allclose(model(x), model(y)) != masked
        assert not (masked and is_dead(model, x))


def test_tolerance_counts_what_is_not_larger_as_zero() -> None:
    model = mlp(2, 3, 2)
    layer(model, "0").weight.data[:, 0] = 0.125
    layer(model, "1").weight.data[:, :, 1] = -0.125
    layer(model, "0").weight.data[:, 2], layer(model, "1").weight.data[:, :, 2] = 1, 1
    x = torch.randn(3, 8)
    for tol, gone in ((0.0, 0), (0.124, 0), (0.125, 2)):
        assert [row.dead_neurons for row in measure(model, x, tol).layers] == [gone, 0]


def test_a_tolerance_is_the_same_as_zeros() -> None:
    @settings(max_examples=15)
    @given(plans(STEPS))
    def law(plan: dict[str, Any]) -> None:
        model, x = random_network(plan, nn.ReLU)
        cut = copy.deepcopy(model)
        for name, p in cut.named_parameters():
            if name.endswith("weight"):
                p.data[p.abs() <= 0.7] = 0
        by_tol, by_zeros = measure(model, x, 0.7).layers, measure(cut, x).layers
        assert [row.dead_neurons for row in by_tol] == [row.dead_neurons for row in by_zeros]

    law()


def test_what_is_not_a_number_is_not_zero() -> None:
    model = mlp(1, 2, 1)
    kill(layer(model, "0"), rows=(1,))
    layer(model, "0").weight.data[2, 1] = float("nan")
    assert dead(model, 4) == {"0": [], "1": []}


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x: torch.fft.fft(x).real, "fft_fft"),
        (lambda x: x.softmax(1), "softmax"),
        (lambda x: nn.functional.normalize(x), "normalize"),
        (nn.Softmax(1), "op (Softmax)"),
        (nn.LayerNorm(16), "op (LayerNorm)"),
    ],
)
def test_an_operation_without_a_rule_is_noted_and_keeps_what_is_before_it(operation: Any, name: str) -> None:
    layers = {"op": operation} if isinstance(operation, nn.Module) else {}
    model = Wired(
        lambda m, x: m.last((m.op if layers else operation)(m.one(x))),
        one=qnn.QLinear(4, 16),
        last=qnn.QLinear(16, 4),
        **layers,
    )
    kill(layer(model, "one"), rows=(1,))
    kill(layer(model, "last"), columns=(0, 1, 2))
    gone, notes = removed(model.double(), torch.randn(2, 4, dtype=F64))
    assert not gone["one"].any()  # all channels that it takes are kept
    assert any(note.startswith(name) for note in notes)


def test_a_forward_that_cannot_be_traced_leaves_the_layers_own_zeros() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        y, _ = m.rnn(m.one(x)) if x.sum() > 0 else (x, None)
        return m.last(y)

    layers = {"one": qnn.QLinear(12, 12), "rnn": qnn.QRNN(12, 12, bidirectional=True), "last": qnn.QConv1d(12, 12, 1)}
    model = Wired(wiring, **layers, table=qnn.QEmbedding(3, 8))
    kill(layers["one"], rows=(1,))
    kill(layers["last"], rows=(0,), columns=(0, 1, 2))
    layer(model, "table").weight.data[..., 1] = 0
    found = measure(model)
    assert len(found.notes) == 1
    assert "cannot be traced" in found.notes[0]
    assert {row.name: row.dead_neurons for row in found.layers} == {"one": 1, "rnn": 0, "last": 3, "table": 1}


def test_without_an_example_a_layer_knows_its_weights_and_the_scale_behind_it() -> None:
    model = nn.Sequential(qnn.QLinear(8, 16), qnn.QBatchNorm1d(16), nn.ReLU(), qnn.QLinear(16, 16), nn.Linear(16, 3))
    kill(layer(model, "0"), rows=(0,))
    layer(model, "1").weight.data[1] = 0
    kill(layer(model, "3"), columns=(2,))  # nobody needs it, which takes an example
    kill(layer(model, "3"), rows=(3,))
    found = measure(model)
    assert [row.dead_neurons for row in found.layers] == [2, 1]
    assert len(found.notes) == 1
    assert "without an example input" in found.notes[0]
    found = measure(model, torch.randn(2, 8))
    assert [row.dead_neurons for row in found.layers] == [3, 1]
    assert found.notes == ()


def test_layers_that_are_not_reached_are_noted() -> None:
    model = Wired(lambda m, x: m.used(x), used=qnn.QLinear(4, 4), idle=qnn.QLinear(4, 8))
    kill(layer(model, "idle"), rows=(1,))
    found = measure(model, torch.randn(2, 4))
    assert [row.dead_neurons for row in found.layers] == [0, 0]
    assert found.notes == ("idle (QLinear) was not followed, so all its neurons count as alive",)
    wrapped = measure(nn.DataParallel(mlp(1, 2, 1)), torch.randn(2, 4))
    assert [row.name for row in wrapped.layers] == ["module.0", "module.1"]
    assert len(wrapped.notes) == 1
    assert "DataParallel hides the network" in wrapped.notes[0]


def test_a_layer_whose_output_is_not_used_is_dead() -> None:
    model = Wired(lambda m, x: (m.one(x), m.other(x))[0], one=qnn.QLinear(4, 4), other=qnn.QLinear(4, 8))
    assert dead(model, 4) == {"one": [], "other": [1]}


def test_asking_for_sizes_needs_no_neuron_but_computing_with_their_number_does() -> None:
    def wiring(m: Any, x: Tensor, counted: bool) -> Tensor:
        y = m.one(x)
        return m.last(y / y.size(0) - y.dim() * y + (y.shape[-1] if counted else 0))

    for counted in (False, True):
        model = Wired(partial(wiring, counted=counted), one=qnn.QLinear(4, 8), last=qnn.QLinear(8, 4))
        kill(layer(model, "last"), columns=(0,))
        assert dead(model, 4) == {"one": [] if counted else [0], "last": []}


def test_operations_on_the_input_are_not_noted() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        x = (x.permute(0, 3, 1, 2) / 255).clamp(-1, 1)
        return m.one(qnn.encode_rgb(x).reshape(2, 4, -1).mean(-1))

    model = Wired(wiring, one=qnn.QLinear(4, 8))
    assert model(torch.randn(2, 5, 5, 3)).shape == (2, 8)
    assert dead(model, 5, 5, 3) == {"one": []}


@pytest.mark.parametrize(
    ("one", "inputs"),
    [
        (qnn.QLinear(8, 8), (torch.ones(2, 8),)),
        (qnn.QConv2d(8, 8, 3), (torch.ones(2, 8, 4, 4),)),
        (qnn.QLSTM(8, 8), (torch.ones(2, 3, 8),)),
        (qnn.QEmbedding(3, 8), (torch.ones(2, 3, dtype=torch.long),)),
        (qnn.QMultiheadAttention(8, 2), (torch.ones(2, 3, 8),) * 3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_layer_is_a_network(one: nn.Module, inputs: tuple[Any, ...]) -> None:
    gone, notes = removed(one, *inputs)
    assert gone
    assert notes == []
    assert not any(which.any() for which in gone.values())


@pytest.mark.parametrize("name", models.BUILDERS)
def test_fresh_networks_are_all_alive(name: str) -> None:
    model = models.BUILDERS[name]()
    gone = dead(model, *{"m": (1, 28, 28), "d": (1, 8, 8)}.get(name[0], (3, 32, 32)))
    quaternion = [n for n, m in model.named_modules() if isinstance(m, (qnn.QLinear, qnn.QConv2d))]
    assert gone == {n: [] for n in quaternion}


def test_the_network_is_left_as_it_was() -> None:
    model = models.digits_qcnn().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    measure(model, torch.randn(2, 1, 8, 8), 1e-3)
    measure(model, tol=1e-3)
    assert all(m.training for m in model.modules())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert qnn.cat is F.cat is cat
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 10)
