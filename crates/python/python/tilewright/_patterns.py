"""Gated MLPs in Inductor's graphs: two products of one input, a function of the first one's elements, and their product."""

from __future__ import annotations

import operator
from typing import Any, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import Tensor, fx

from . import _mlp

_aten, _prims = torch.ops.aten, torch.ops.prims

# Elementwise operators that activations consist of.
_ELEMENTWISE = {
    getattr(getattr(_aten, name), overload)
    for name, overload in (
        *((name, "default") for name in "neg exp tanh erf sigmoid relu silu gelu reciprocal hardsigmoid hardswish expm1 abs".split()),
        *((name, "Tensor") for name in ("add", "sub", "mul", "div")),
        *((name, "Scalar") for name in ("add", "sub", "mul", "div", "maximum", "minimum", "pow") if hasattr(getattr(_aten, name), "Scalar")),
        *((name, "default") for name in ("clamp_min", "clamp_max", "clamp", "maximum", "minimum")),
        ("pow", "Tensor_Scalar"),
    )
} | {_prims.convert_element_type.default}
# Operators that give the same elements another shape.
_VIEWS = {_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default}
# Conversions between these round, and change no function otherwise.
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# Most nodes of an activation.
_MOST = 40


class Factor(NamedTuple):
    """Columns of a product: which half of them (None: all), the product, and the nodes that take them from it."""

    half: Optional[int]
    product: fx.Node
    via: List[fx.Node]


class Gated(NamedTuple):
    """A gated MLP's first half: `result` is ``function(rows @ gate.T) * (rows @ up.T)``. Without `up`, `gate` has the rows of both."""

    result: fx.Node
    rows: fx.Node
    gate: fx.Node
    up: Optional[fx.Node]
    function: str
    up_first: bool


def gated(graph: fx.Graph) -> Iterator[Gated]:
    """The gated MLPs of a graph whose other values nobody else uses. The graph may change between two of them."""
    for result in graph.find_nodes(op="call_function", target=_aten.mul.Tensor):
        if not result._erased and len(result.args) == 2 and all(isinstance(x, fx.Node) for x in result.args) and not result.kwargs:
            found = _gated(result, *result.args) or _gated(result, *result.args[::-1])
            if found is not None:
                yield found


def _gated(result: fx.Node, left: Any, right: Any) -> Optional[Gated]:
    up = _factor(right)
    activation = None if up is None else _activation(left)
    gate = None if activation is None else _factor(activation.leaf)
    if up is None or activation is None or gate is None:
        return None
    rows, weights = gate.product.args[0], [_weight(gate.product), _weight(up.product)]
    together = gate.product is up.product
    halves = {(None, None): False, (0, 1): True, (1, 0): True}.get((gate.half, up.half))
    shapes = {_shape(node) for node in (result, activation.leaf, right)}
    if halves is not together or None in weights or len(shapes) != 1 or None in shapes or _base(rows) is not _base(up.product.args[0]):
        return None
    used = {result, *activation.nodes, *gate.via, *up.via, gate.product, up.product}
    if any(set(node.users) - used for node in used - {result}):
        return None
    return Gated(result, rows, weights[0], None if together else weights[1], activation.function, gate.half == 1)


def _shape(node: Any) -> Optional[Tuple[int, ...]]:
    """The shape of a node's value, where it is a tensor of sizes that are known."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    known = isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape)
    return tuple(value.shape) if known else None


def _factor(node: Any) -> Optional[Factor]:
    """The product whose columns a node is."""
    half, via = None, []
    if isinstance(node, fx.Node) and node.target is operator.getitem:
        half, cut = node.args[1], node.args[0]
        if not isinstance(cut, fx.Node) or cut.target is not _aten.split.Tensor or len(cut.users) != 2:
            return None
        of, size, *dim = cut.args
        shape = _shape(of)
        if not shape or dim not in ([-1], [len(shape) - 1]) or not isinstance(size, int) or shape[-1] != 2 * size:
            return None
        via, node = [node, cut], of
    if isinstance(node, fx.Node) and node.target in _VIEWS:
        # Columns stay columns.
        shapes = _shape(node), _shape(node.args[0])
        if not all(shapes) or shapes[0][-1] != shapes[1][-1]:
            return None
        via, node = [*via, node], node.args[0]
    return Factor(half, node, via) if isinstance(node, fx.Node) and node.target is _aten.mm.default else None


def _weight(product: fx.Node) -> Optional[fx.Node]:
    """The tensor of (columns, k) whose transpose is a product's second operand."""
    b = product.args[1]
    turned = isinstance(b, fx.Node) and (b.target is _aten.t.default or b.target is _aten.permute.default and list(b.args[1]) == [1, 0])
    return b.args[0] if turned else None


def _base(rows: Any) -> Any:
    """The tensor whose rows a product reads. Each product may have its own reshape of the tensor."""
    return rows.args[0] if rows.target in _VIEWS else rows


class _Activation(NamedTuple):
    function: str
    leaf: fx.Node
    nodes: Set[fx.Node]


def _activation(node: fx.Node) -> Optional[_Activation]:
    """The activation that a node computes of one other node's elements, found by its values."""
    inside: Set[fx.Node] = set()
    leaves: Set[fx.Node] = set()
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if at in inside or at in leaves:
            continue
        if not _elementwise(at):
            leaves.add(at)
            continue
        inside.add(at)
        waiting += at.all_input_nodes
        if len(inside) > _MOST or len(leaves) > 1:
            return None
    if len(leaves) != 1 or not inside:
        return None
    (leaf,), order = leaves, [at for at in node.graph.nodes if at in inside]
    function = _mlp.function_of(lambda x: _computed(order, leaf, x))
    return None if function is None else _Activation(function, leaf, set(order))


def _elementwise(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target not in _ELEMENTWISE:
        return False
    return node.target is not _prims.convert_element_type.default or node.args[1] in _FLOATS


def _computed(order: List[fx.Node], leaf: fx.Node, x: Tensor) -> Tensor:
    """The last node's value where the leaf has the value x, without rounding on the way."""
    values = {leaf: x}
    for node in order:
        args = fx.map_arg(node.args, lambda n: values[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: values[n])
        values[node] = args[0] if node.target is _prims.convert_element_type.default else node.target(*args, **kwargs)
    return values[order[-1]]
