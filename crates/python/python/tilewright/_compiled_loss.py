"""Losses in the graphs of torch.compile: `F.cross_entropy` of a linear layer's result becomes `linear_cross_entropy`.

A rewriter of graphs before differentiation, so that gradients are those of `linear_cross_entropy`.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import fx
from torch.nn import functional as F

from ._arguments import LEAST_CAP, MOST_CAP
from ._before_gradients import FLOATS, Rewriter, calls, changes, layer, transformed, value
from ._loss import linear_cross_entropy

# Methods that give the same elements another shape.
_SHAPES = ("view", "reshape", "flatten", "contiguous")
_NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_TORCHS_NAMES = ("input", "linear_weight", "target")


class _Logits(NamedTuple):
    """Logits of rows: the layer, the parts of its rows that are taken, the nodes from it to the loss, and their softcap."""

    layer: fx.Node
    parts: List[Any]
    via: List[fx.Node]
    softcap: Optional[float]


class Losses(Rewriter):
    """Replaces losses whose logits nobody else uses."""

    name = "losses"

    def __call__(self, graph: fx.Graph) -> None:
        if transformed(graph):
            return
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target is F.cross_entropy:
                self.count += _fused(graph, node, self.how)
            elif node.op == "call_function" and node.target is getattr(F, "linear_cross_entropy", None):
                self.count += _renamed(graph, node, self.how)


def _fused(graph: fx.Graph, loss: fx.Node, how: Dict[str, Any]) -> bool:
    """Replaces a loss of a layer's logits; False where it is another."""
    given = {**dict(zip(_NAMES, loss.args)), **loss.kwargs}
    logits = _logits(given.get("input"))
    if logits is None or given.get("size_average") is not None or given.get("reduce") is not None:
        return False
    options = _options(given, loss, given.get("target"), how)
    x, weight, bias = layer(logits.layer)
    layer_type, weight_of = value(logits.layer).dtype, value(weight)
    known = options is not None and weight_of is not None and weight_of.dim() == 2 and value(x) is not None
    if not known or layer_type not in FLOATS or changes(logits.layer, loss):
        return False
    if bias is not None and (value(bias) is None or value(bias).shape != weight_of.shape[:1]):
        return False
    with graph.inserting_before(loss):
        for part in logits.parts:
            x = graph.call_function(operator.getitem, (x, part))
        rows = graph.call_method("reshape", (x, -1, weight_of.shape[1]))
        # Under autocast the layer had another type than its operands.
        of_type = lambda node: node if node is None else graph.call_method("to", (node, layer_type))  # noqa: E731
        operands = (of_type(rows), of_type(weight), given["target"], of_type(bias))
        ours = graph.call_function(linear_cross_entropy, operands, {**options, "softcap": logits.softcap})
        ours = graph.call_method("to", (ours, value(loss).dtype))
    loss.replace_all_uses_with(ours)
    for node in (loss, *reversed(logits.via), logits.layer):
        graph.erase_node(node)
    return True


def _renamed(graph: fx.Graph, loss: fx.Node, how: Dict[str, Any]) -> bool:
    """Replaces torch's own linear cross-entropy."""
    given = {**dict(zip(_TORCHS_NAMES, loss.args)), **loss.kwargs}
    x, weight, target = (given.get(name) for name in _TORCHS_NAMES)
    options = _options({"ignore_index": -100, **given}, loss, target, how)
    values = [value(node) for node in (x, weight)]
    known = all(one is not None and one.dim() == 2 and one.dtype in FLOATS for one in values)
    if options is None or not known:
        return False
    with graph.inserting_before(loss):
        ours = graph.call_function(linear_cross_entropy, (x, weight, target, given.get("linear_bias")), options)
        ours = graph.call_method("to", (ours, value(loss).dtype))
    loss.replace_all_uses_with(ours)
    graph.erase_node(loss)
    return True


def _options(given: Dict[str, Any], loss: fx.Node, target: Any, how: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Options of `linear_cross_entropy`; None where it lacks one, or where targets are no indices of rows."""
    labels, smoothing, weight = value(target), given.get("label_smoothing", 0.0), given.get("weight")
    indices = labels is not None and labels.dim() == 1 and labels.dtype in (torch.int32, torch.int64)
    reduction, ignored = given.get("reduction", "mean"), given.get("ignore_index", -100)
    plain = isinstance(smoothing, (int, float)) and isinstance(ignored, int) and reduction in ("mean", "sum", "none")
    if not indices or not plain or value(loss) is None or weight is not None and smoothing:
        return None
    return {"reduction": reduction, "ignore_index": ignored, "label_smoothing": smoothing, "class_weight": weight, **how}


def _logits(node: Any) -> Optional[_Logits]:
    """The layer whose rows a node holds, if each node between has one user."""
    via: List[fx.Node] = []
    parts: List[Any] = []
    softcap: Optional[float] = None
    found = value(node)
    if found is None or found.dim() != 2:
        return None
    classes = found.shape[1]
    while isinstance(node, fx.Node) and len(node.users) == 1 and value(node) is not None and value(node).shape[-1] == classes:
        if layer(node) is not None:
            return _Logits(node, parts[::-1], via[::-1], softcap)
        if node.op == "call_function" and node.target is operator.getitem and _takes_rows(node.args[1]):
            parts.append(node.args[1])
        elif node.op == "call_method" and node.target in _SHAPES:
            # Rows stay rows, and before them none are taken.
            if parts and node.target != "contiguous":
                return None
        elif (cap := _cap(node)) is not None and softcap is None:
            softcap, tanh = cap.limit, cap.tanh
            via += [node, tanh]
            node = tanh.args[0]
        elif node.op != "call_method" or not _widens(node):
            return None
        via.append(node)
        node = node.args[0]
    return None


class _Cap(NamedTuple):
    """A softcap ``limit * tanh(z / limit)``."""

    limit: float
    tanh: fx.Node


def _cap(node: fx.Node) -> Optional[_Cap]:
    """The softcap that a node finishes, if nothing else uses its parts."""
    operands = list(node.args) if _calls(node, "mul", operator.mul, torch.mul) and len(node.args) == 2 else []
    limits = [x for x in operands if isinstance(x, (int, float)) and not isinstance(x, bool)]
    tanh = next((x for x in operands if isinstance(x, fx.Node)), None)
    if len(limits) != 1 or not LEAST_CAP <= limits[0] <= MOST_CAP or not _calls(tanh, "tanh", torch.tanh) or len(tanh.users) != 1 or len(tanh.args) != 1:
        return None
    inner = tanh.args[0]
    if not _calls(inner, "div", operator.truediv, torch.div) or len(inner.users) != 1 or tuple(inner.args[1:]) != (limits[0],):
        return None
    return _Cap(float(limits[0]), tanh)


def _calls(node: Any, method: str, *functions: Any) -> bool:
    """As `calls`, without options."""
    return calls(node, method, *functions) and not node.kwargs


def _takes_rows(index: Any) -> bool:
    """Whether an index keeps all columns and takes rows by slices."""
    if not isinstance(index, tuple) or len(index) < 2 or index[-1] != slice(None):
        return False
    return all(part is Ellipsis or isinstance(part, slice) for part in index)


def _widens(node: fx.Node) -> bool:
    """Whether a conversion rounds nothing."""
    rest: Sequence[Any] = node.args[1:]
    to_f32 = node.target == "float" and not rest and not node.kwargs
    return to_f32 or node.target == "to" and list(rest) == [torch.float32] and not node.kwargs


REWRITER = Losses
