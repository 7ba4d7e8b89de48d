"""Tables of quaternions and of real numbers."""

from typing import Any

import torch
import torch.nn.functional as TF
from torch import Tensor, nn

from quern import nn as qnn
from quern.graph.functions import FunctionRules
from quern.graph.layer_plan import LayerPlan
from quern.graph.layers.bases import factory, nonzero, order, square
from quern.graph.packing import Packed, Packer
from quern.graph.spec import Call, Nearest, Select, Spec, Writer, register, take
from quern.graph.values import Value


class Embedding(Spec):
    """Its table is seen as ``(components, entries, n)``, where one of real numbers has one component."""

    def __init__(self, components: int) -> None:
        self.components = components

    def seen(self, t: Tensor) -> Tensor:
        return t if self.components == 4 else t.unsqueeze(0)

    def weights(self, layer: Any) -> tuple[str, ...]:
        return ("weight",)

    def neurons(self, layer: Any) -> int:
        return layer.embedding_dim // self.components

    def neuron_axes(self, layer: Any) -> dict[str, tuple[int, int]]:
        return {"weight": (2 if self.components == 4 else 1, 1)}

    def silent(self, layer: Any) -> Tensor:
        return ~self.seen(nonzero(layer.weight)).any(0).any(0)

    def follow(self, reader: FunctionRules, call: Call) -> Value:
        facts, layer = reader.facts, call.layer
        facts.whole(*call.values)
        record = facts.record(call.name, layer, None, self.neurons(layer))
        assert record.outputs is not None
        if layer.max_norm is not None:  # the length of a row is that of all its columns
            facts.pin(record.outputs)
        return facts.value(call.out, record.outputs, -1, self.components, ~self.silent(layer), call.name)

    def sizes(self, layer: Any) -> tuple[int | None, int | None]:
        return None, self.neurons(layer)

    def selections(self, layer: Any, plan: LayerPlan) -> dict[str, Select]:
        return {"weight": take(-1, plan.left[1])}

    def resize(self, layer: Any, plan: LayerPlan) -> None:
        layer.embedding_dim = self.components * len(plan.left[1])

    def table(self, layer: Any) -> Tensor:
        """``(entries, components * n)``, as it is looked up."""
        table = self.seen(layer.weight).transpose(0, 1).flatten(1)
        if layer.max_norm is None:
            return table
        length = torch.linalg.vector_norm(table, layer.norm_type, dim=1, keepdim=True)
        return table * torch.where(length > layer.max_norm, layer.max_norm / length, 1)  # long rows are shortened

    def to_real(self, writer: Writer, name: str, layer: Any, input: Any) -> Any:
        if self.components == 1:
            return super().to_real(writer, name, layer, input)

        def build() -> nn.Module:
            table = self.table(layer).clone()
            return nn.Embedding.from_pretrained(table, freeze=False, padding_idx=layer.padding_idx)

        return writer.call(name, build, input)

    packs = True

    def pack(self, packer: Packer, name: str, layer: Any, out: Any, input: Packed) -> Packed:
        return packer.embed(name, input, self.table(layer))

    functions = (TF.embedding,)

    def quaternion_axis(self, layer: Any, axis: int | None, rank: int | None) -> int | None:
        return None if self.components == 1 else -1

    def quaternion_form(self, layer: Any) -> nn.Module | None:
        if self.components == 4:
            return None
        if layer.sparse:
            raise ValueError("an Embedding with sparse gradients has no quaternion form")
        names = ("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
        return qnn.QEmbedding(*(getattr(layer, name) for name in names), **factory(layer))

    def nearest(self, layer: Any, new: Any, inputs: Tensor | None = None, outputs: Tensor | None = None) -> Nearest:
        """The same numbers: a table loses nothing."""
        places, total = order(outputs, layer.embedding_dim), square(layer.weight)
        return Nearest({"weight": layer.weight.detach().cpu()[:, places].transpose(0, 1)}, total, total)


register(nn.Embedding, Embedding(1))
register(qnn.QEmbedding, Embedding(4))
