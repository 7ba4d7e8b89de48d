from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.utils.rnn import PackedSequence

from quern.functional.products import block_weight
from quern.functional.shapes import quaternions
from quern.functional.weight_cache import WeightCache
from quern.nn import init
from quern.nn._dropout import check_probability


class QRecurrent(nn.Module):
    """Abstract: what the three recurrent layers share.

    With gates that act component-wise, a quaternion recurrence is the real recurrence with block weights. So the
    weights are expanded once per sequence and torch's own fused loops run it, packed sequences and all.
    """

    gates: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}, but there must be at least one.")
        hidden = quaternions(hidden_size, "hidden_size")
        inputs = quaternions(input_size, "input_size")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, check_probability(dropout), bidirectional
        directions = 2 if bidirectional else 1
        rows = self.gates * hidden
        self._names: list[str] = []
        self._caches: dict[str, WeightCache] = {}
        for layer in range(num_layers):
            width = inputs if layer == 0 else hidden * directions
            for suffix in ("", "_reverse")[:directions]:
                shapes = {"weight_ih": (4, rows, width), "weight_hh": (4, rows, hidden)}
                if bias:
                    shapes |= {"bias_ih": (4, rows), "bias_hh": (4, rows)}
                for kind, shape in shapes.items():
                    name = f"{kind}_l{layer}{suffix}"
                    self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
                    self._names.append(name)
                    self._caches[name] = WeightCache()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for name in self._names:
            parameter = self.get_parameter(name)
            if parameter.dim() == 2:
                nn.init.zeros_(parameter)
                continue
            for gate in parameter.unflatten(1, (self.gates, -1)).unbind(1):
                init.glorot_(gate)

    def train(self, mode: bool = True) -> "QRecurrent":
        for cache in self._caches.values():
            cache.clear()
        return super().train(mode)

    def _real(self, name: str) -> Tensor:
        """The real parameter, rows in torch's order: gate, then component, then neuron."""
        parameter: Tensor = getattr(self, name)
        if parameter.dim() == 2:
            return self._gate_major(parameter.flatten())

        def expand() -> Tensor:
            real = self._gate_major(block_weight(parameter))
            if self.bidirectional and name.startswith("weight_ih") and not name.startswith("weight_ih_l0"):
                # Between layers torch joins the two directions as they are: direction, component, neuron.
                real = real.unflatten(1, (4, 2, -1)).transpose(1, 2).flatten(1)
            return real

        return expand() if self.training else self._caches[name].get("block", parameter, expand)

    def _gate_major(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (4, self.gates, -1)).transpose(0, 1).flatten(0, 2)

    def _component_major(self, output: Tensor) -> Tensor:
        """Torch's output, direction by direction, as quaternion channels: component, direction, neuron."""
        if not self.bidirectional:
            return output
        return output.unflatten(-1, (2, 4, -1)).transpose(-3, -2).flatten(-3)

    def _run(
        self, kernel: Callable[..., tuple[Tensor, ...]], input: Tensor | PackedSequence, states: list[Tensor] | None
    ) -> tuple[Tensor | PackedSequence, list[Tensor]]:
        """Call torch's ``kernel`` and bring inputs and outputs to and from the shapes it takes.

        ``states`` are the initial states in the caller's shapes and order, or None for zeros.
        """
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        batched = packed or data.dim() == 3
        if data.shape[-1] != self.input_size or not (packed or data.dim() in (2, 3)):
            raise ValueError(
                f"{type(self).__name__} takes sequences of {self.input_size} real features, with or without a batch, "
                f"but the input's shape is {tuple(data.shape)}."
            )
        batch_axis = 0 if self.batch_first else 1
        if packed:
            batch = int(input.batch_sizes[0])
        else:
            data = data if batched else data.unsqueeze(batch_axis)
            batch = data.shape[batch_axis]
        rows = self.num_layers * (2 if self.bidirectional else 1)
        shape = (rows, batch, self.hidden_size)
        if states is None:
            states = [torch.zeros(shape, dtype=data.dtype, device=data.device)] * self._state_count
        else:
            states = [s if batched else s.unsqueeze(1) for s in states]
            for state in states:
                if tuple(state.shape) != shape:
                    raise ValueError(
                        f"an initial state must have the shape {shape if batched else (rows, self.hidden_size)}, "
                        f"but this one has {tuple(state.shape if batched else state.squeeze(1).shape)}."
                    )
            if packed and input.sorted_indices is not None:
                states = [s.index_select(1, input.sorted_indices) for s in states]
        weights = [self._real(name) for name in self._names]
        options = (weights, self.bias, self.num_layers, float(self.dropout), self.training, self.bidirectional)
        initial = states if self._state_count > 1 else states[0]
        if packed:
            output, *states = kernel(data, input.batch_sizes, initial, *options)
            output = PackedSequence(
                self._component_major(output), input.batch_sizes, input.sorted_indices, input.unsorted_indices
            )
            if input.unsorted_indices is not None:
                states = [s.index_select(1, input.unsorted_indices) for s in states]
        else:
            output, *states = kernel(data, initial, *options, self.batch_first)
            output = self._component_major(output)
            if not batched:
                output, states = output.squeeze(batch_axis), [s.squeeze(1) for s in states]
        return output, states

    _state_count = 1

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
        ):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


@_disable_dynamo  # torch.compiler.disable would load the compiler at import: two seconds for every program
def _uncompiled_lstm(*arguments: Any) -> Any:
    return torch.lstm(*arguments)


_ELMAN = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}


class QRNN(QRecurrent):
    r"""Quaternion Elman network :math:`h_t = \tanh(W \otimes x_t + b + U \otimes h_{t-1} + b')`, or with ReLU.

    Shapes and arguments as in ``torch.nn.RNN``; sizes are real. Parameters ``weight_ih_l0 (4, hidden/4, input/4)``,
    ``weight_hh_l0``, ``bias_ih_l0 (4, hidden/4)``, ``bias_hh_l0`` and so on per layer and direction.
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if nonlinearity not in _ELMAN:
            raise ValueError(f"nonlinearity is {nonlinearity!r}, but it must be 'tanh' or 'relu'.")
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype
        )
        self.nonlinearity = nonlinearity

    def forward(
        self, input: Float[Tensor, "..."] | PackedSequence, hx: Float[Tensor, "..."] | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        output, (state,) = self._run(_ELMAN[self.nonlinearity], input, None if hx is None else [hx])
        return output, state

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity!r}")


class QLSTM(QRecurrent):
    r"""Quaternion LSTM: every gate is :math:`\sigma(W \otimes x_t + b + U \otimes h_{t-1} + b')` with component-wise
    :math:`\sigma` or tanh, and products of gates are component-wise.

    Shapes and arguments as in ``torch.nn.LSTM`` (but no ``proj_size``); sizes are real. Parameters
    ``weight_ih_l0 (4, 4*hidden/4, input/4)`` and so on, gates in torch's order (input, forget, cell, output) along
    axis 1.
    """

    gates = 4
    _state_count = 2

    def forward(
        self, input: Float[Tensor, "..."] | PackedSequence, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, Tensor]]:
        # torch.compile cannot differentiate through torch.lstm, and leaves torch's own LSTM out of its graph too.
        training_graph = torch.compiler.is_compiling() and not torch.compiler.is_exporting() and torch.is_grad_enabled()
        kernel = _uncompiled_lstm if training_graph else torch.lstm
        output, (h, c) = self._run(kernel, input, None if hx is None else list(hx))
        return output, (h, c)


class QGRU(QRecurrent):
    """Quaternion GRU with component-wise gates, in torch's form (the reset gate acts after the recurrent product).

    Shapes and arguments as in ``torch.nn.GRU``; sizes are real. Parameters ``weight_ih_l0 (4, 3*hidden/4, input/4)``
    and so on, gates in torch's order (reset, update, new) along axis 1.
    """

    gates = 3

    def forward(
        self, input: Float[Tensor, "..."] | PackedSequence, hx: Float[Tensor, "..."] | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        output, (state,) = self._run(torch.gru, input, None if hx is None else [hx])
        return output, state
