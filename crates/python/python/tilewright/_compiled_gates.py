"""Gated MLPs in the graphs of torch.compile before differentiation: ``f(linear(x, gate)) * linear(x, up)`` becomes `glu`, with its gradients."""

from __future__ import annotations

import operator
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from torch import fx
from torch.nn import functional as F

from ._before_gradients import FLOATS, Rewriter, calls, changes, layer, transformed, value
from ._gated import glu

# Functions of one tensor. Their only option is `inplace`: nobody else uses the tensor.
_GATES = {F.silu: "silu", F.hardswish: "hardswish", F.relu: "relu", torch.relu: "relu", F.sigmoid: "sigmoid", torch.sigmoid: "sigmoid"}


class _Factor(NamedTuple):
    """Columns of a layer's result: the layer, which half of its columns (None: all), and the nodes that take them."""

    layer: fx.Node
    half: Optional[int]
    via: List[fx.Node]


class Gates(Rewriter):
    """Replaces gated MLPs whose other values nobody else uses."""

    name = "gated MLPs"

    def __call__(self, graph: fx.Graph) -> None:
        if transformed(graph):
            return
        for node in list(graph.nodes):
            if not node._erased and calls(node, "mul", operator.mul, torch.mul) and len(node.args) == 2 and not node.kwargs:
                self.count += _fused(graph, node, *node.args, self.how) or _fused(graph, node, *node.args[::-1], self.how)


def _fused(graph: fx.Graph, result: fx.Node, gated: Any, plain: Any, how: Dict[str, Any]) -> bool:
    """Replaces the product of a gated factor and a plain one; False where it is another."""
    function = _function(gated)
    if result._erased or function is None or len(gated.users) != 1:
        return False
    gate, up = _factor(gated.args[0]), _factor(plain)
    if gate is None or up is None:
        return False
    together = gate.layer is up.layer
    x, weight, bias = layer(gate.layer)
    other_x, other_weight, other_bias = layer(up.layer)
    values = [value(node) for node in (result, x, weight, other_weight)]
    known = all(one is not None and one.dtype in FLOATS for one in values)
    kind = values[0].dtype if known else None
    # Under autocast both layers have its type.
    if other_x is not x or not known or values[2].dim() != 2 or {value(node).dtype for node in (gate.layer, up.layer)} != {kind}:
        return False
    if together:
        if {gate.half, up.half} != {0, 1}:
            return False
        if bias is not None and not _of_columns(bias, values[2]):
            return False
        of_glu = {"up_first": gate.half == 1}
    else:
        if (gate.half, up.half) != (None, None) or values[2].shape != values[3].shape or (bias is None) != (other_bias is None):
            return False
        if bias is not None and not (_of_columns(bias, values[2]) and _of_columns(other_bias, values[3])):
            return False
        of_glu = {}
    used = [result, gated, *gate.via, *(node for node in up.via if node not in gate.via), *{gate.layer: None, up.layer: None}]
    if any(set(node.users) - set(used) for node in used[1:]):
        return False
    order = {node: place for place, node in enumerate(graph.nodes)}
    if changes(min((gate.layer, up.layer), key=order.__getitem__), result, gated):
        return False
    with graph.inserting_before(result):
        # Under autocast a layer has another type than its operands.
        of_type = lambda node: node if node is None else graph.call_method("to", (node, kind))  # noqa: E731
        more = {} if together else {"up": of_type(other_weight)}
        if not together and bias is not None:
            # A vector of the columns of both factors, as `glu` takes it.
            bias = graph.call_function(torch.cat, ((of_type(bias), of_type(other_bias)),))
        options = {"bias": of_type(bias), "gate": function, **of_glu, **more, **how}
        ours = graph.call_function(glu, (of_type(x), of_type(weight)), options)
    ours.meta.update(result.meta)
    result.replace_all_uses_with(ours)
    # Users stand after what they use.
    for node in sorted(used, key=order.__getitem__, reverse=True):
        graph.erase_node(node)
    return True


def _of_columns(bias: fx.Node, weight: torch.Tensor) -> bool:
    """Whether a bias has a value for each column of a layer's result."""
    found = value(bias)
    return found is not None and found.shape == weight.shape[:1]


def _function(node: Any) -> Optional[str]:
    """The gate that a node computes of its first operand."""
    if not isinstance(node, fx.Node) or not node.args:
        return None
    if calls(node, None, torch._C._nn.gelu):
        known = len(node.args) == 1 and set(node.kwargs) <= {"approximate"}
        return {"none": "gelu", "tanh": "gelutanh"}.get(node.kwargs.get("approximate", "none")) if known else None
    if calls(node, "sigmoid") or calls(node, "relu"):
        return node.target
    plain = len(node.args) <= 2 and set(node.kwargs) <= {"inplace"}
    return _GATES.get(node.target) if node.op == "call_function" and plain else None


def _factor(node: Any) -> Optional[_Factor]:
    """The layer whose columns, all or a half of them, a node is."""
    if layer(node) is not None:
        return _Factor(node, None, [])
    if not calls(node, None, operator.getitem) or node.args[1] not in (0, 1) or isinstance(node.args[1], bool):
        return None
    cut = node.args[0]
    chunks = calls(cut, "chunk", torch.chunk)
    if not chunks and not calls(cut, "split", torch.split) or not cut.args or len(cut.args) > 3:
        return None
    of, found = cut.args[0], value(cut.args[0])
    if layer(of) is None or found is None or found.dim() == 0 or found.shape[-1] % 2:
        return None
    sizes = "chunks" if chunks else "split_size_or_sections" if "split_size_or_sections" in cut.kwargs else "split_size"
    given = {**dict(zip((sizes, "dim"), cut.args[1:])), **cut.kwargs}
    half = found.shape[-1] // 2
    halves = given.get(sizes) == 2 if chunks else given.get(sizes) in (half, [half, half])
    if not halves or set(given) - {sizes, "dim"} or given.get("dim", 0) not in (-1, found.dim() - 1):
        return None
    return _Factor(of, node.args[1], [node, cut])


REWRITER = Gates
