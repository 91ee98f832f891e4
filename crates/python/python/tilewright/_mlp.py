"""Gated MLPs of models, such as those of Llama: which modules are one, and their forward pass with both first products in one kernel."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, fx, nn

from . import _operators as ours


class Gated(NamedTuple):
    """The names of a module's parts: ``down(function(gate(x)) * up(x))``. Without `up`, `gate` has the columns of both, the gate's first or second."""

    gate: str
    up: Optional[str]
    down: str
    function: str
    up_first: bool = False


class _Tracer(fx.Tracer):
    """Follows a module's own forward pass, and no further."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


_PRODUCTS = (operator.mul, torch.mul)


def gated(module: nn.Module) -> Optional[Gated]:
    """The parts of a module whose forward pass is a gated MLP's, or None. The layers have no bias."""
    if sum(isinstance(x, nn.Linear) for x in module.children()) not in (2, 3):
        return None
    try:
        graph = _Tracer().trace(module)
    except Exception:  # noqa: BLE001
        # A forward pass that depends on values is none.
        return None
    (result,) = (node for node in graph.nodes if node.op == "output")
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    down = _called(result.args[0])
    product = down and down.args[0]
    if len(inputs) != 1 or not isinstance(product, fx.Node) or product.target not in _PRODUCTS or len(product.args) != 2:
        return None
    assert down is not None
    for left, right in (product.args, product.args[::-1]):
        activation = _called(left)
        function = None if activation is None else _function(module.get_submodule(str(activation.target)))
        if activation is None or function is None:
            continue
        gate, up = _called(activation.args[0]), _called(right)
        if gate is not None and up is not None:
            layers, halves, used = [gate, up], (0, 1), {gate, up}
        else:
            (whole, first, via), (other, second, via_other) = _half(activation.args[0]), _half(right)
            if whole is None or whole is not other or {first, second} != {0, 1}:
                continue
            layers, halves, used = [whole], (first, second), {whole, *via, *via_other}
        # Nothing else is computed, and all layers read the input.
        rest = {node for node in graph.nodes if node.op != "placeholder"} - used - {activation, product, down, result}
        if rest or any(layer.args != (inputs[0],) or not _plain(module.get_submodule(str(layer.target))) for layer in layers):
            continue
        return Gated(str(layers[0].target), None if len(layers) == 1 else str(layers[1].target), str(down.target), function, halves == (1, 0))
    return None


def _half(node: Any) -> Tuple[Optional[fx.Node], int, List[fx.Node]]:
    """The layer that a node is half of the columns of, by ``chunk(2, -1)``: the layer, which half, and the nodes on the way."""
    nothing: Tuple[Optional[fx.Node], int, List[fx.Node]] = (None, -1, [])
    if not isinstance(node, fx.Node) or node.target is not operator.getitem or node.args[1] not in (0, 1):
        return nothing
    cut = node.args[0]
    if not isinstance(cut, fx.Node) or cut.target not in ("chunk", torch.chunk):
        return nothing
    rest = {**dict(zip(("chunks", "dim"), cut.args[1:])), **cut.kwargs}
    layer = _called(cut.args[0])
    return (layer, int(node.args[1]), [cut, node]) if rest == {"chunks": 2, "dim": -1} and layer is not None else nothing


def _called(node: Any) -> Optional[fx.Node]:
    """The call of a module with one argument that a node is."""
    alone = isinstance(node, fx.Node) and node.op == "call_module" and len(node.args) == 1 and not node.kwargs
    return node if alone else None


def _plain(layer: nn.Module) -> bool:
    """Torch's layer or ours, without a bias and without hooks."""
    held = layer.__dict__
    return (
        isinstance(layer, nn.Linear)
        and type(layer).forward in _FORWARDS
        and "forward" not in held
        and layer.bias is None
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
    )


# Forward passes that are a product; `_models` adds its own.
_FORWARDS: List[Callable[..., Any]] = [nn.Linear.forward]


def _function(activation: nn.Module) -> Optional[str]:
    """The name of the function that a module computes, by its values."""
    x = torch.linspace(-9.0, 9.0, 181)
    try:
        with torch.no_grad():
            y = activation(x)
    except Exception:  # noqa: BLE001
        return None
    names = ("silu", "gelu", "gelutanh", "relu", "hardswish")
    same = (name for name in names if isinstance(y, Tensor) and y.shape == x.shape and torch.allclose(y, ours.activate(x, name), 1e-6, 1e-7))
    return next(same, None)


class Weights(NamedTuple):
    """The weights of a gated MLP's first half, as one tensor or two."""

    gate: Tensor
    up: Optional[Tensor]

    def tensors(self) -> List[Tensor]:
        """Those that there are."""
        return [x for x in self if x is not None]


def parts(module: nn.Module, of: Gated) -> Optional[Weights]:
    """The weights of gate and other factor, where the layers are still those that were recognised."""
    found: List[Tensor] = []
    for name in (of.gate, of.up):
        layer = None if name is None else module._modules.get(name)
        if layer is not None and _plain(layer):
            assert isinstance(layer, nn.Linear)
            found.append(layer.weight)
    if len(found) != (1 if of.up is None else 2) or found[0].shape != found[-1].shape or of.up is None and found[0].shape[0] % 2:
        return None
    return Weights(found[0], found[1] if len(found) == 2 else None)


def first_half(x: Tensor, weights: Weights, of: Gated) -> Tensor:
    """The product of both factors by our kernel."""
    product: Tensor = torch.ops.tilewright.glu(x, weights.gate, None, of.function, of.up_first, None, None, False, weights.up)
    return product


def differentiated(*tensors: Tensor) -> bool:
    """Whether a result of these tensors has a gradient."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


# What says whether we answer a call with this input and these weights.
_answers: Callable[[Tensor, Weights, Gated], bool] = lambda x, weights, of: False  # noqa: E731


def answer_by(answers: Callable[[Tensor, Weights, Gated], bool]) -> None:
    """Who says whether we answer a call."""
    global _answers
    _answers = answers


def replace_forward(model: nn.Module) -> Dict[str, Gated]:
    """Gives the gated MLPs of a model a forward pass that asks whether we answer. A forward pass that somebody has replaced stays."""
    found: Dict[str, Gated] = {}
    for name, module in model.named_modules():
        of = gated(module) if "forward" not in module.__dict__ else None
        if of is not None:
            module.__dict__["forward"] = partial(_forward, module, of)
            found[name] = of
    return found


def _forward(module: nn.Module, of: Gated, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and not torch.compiler.is_compiling():
        (x,), weights = args, parts(module, of)
        if weights is not None and _answers(x, weights, of):
            return module.get_submodule(of.down)(first_half(x, weights, of))
    return type(module).forward(module, *args, **kwargs)
