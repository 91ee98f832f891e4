"""Gated MLPs of models, such as those of Llama: which modules are one, and their forward pass with both first products in one kernel."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, fx, nn

from . import _operators as ours


class Gated(NamedTuple):
    """The names of a module's parts: ``down(function(gate(x)) * up(x))``."""

    gate: str
    up: str
    down: str
    function: str


class _Tracer(fx.Tracer):
    """Follows a module's own forward pass, and no further."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


_PRODUCTS = (operator.mul, torch.mul)


def gated(module: nn.Module) -> Optional[Gated]:
    """The parts of a module whose forward pass is a gated MLP's, or None. The layers have no bias."""
    if sum(isinstance(x, nn.Linear) for x in module.children()) != 3:
        return None
    try:
        graph = _Tracer().trace(module)
    except Exception:  # noqa: BLE001
        # A forward pass that depends on values is none.
        return None
    nodes = [node for node in graph.nodes if node.op != "placeholder"]
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1 or len(nodes) != 6 or nodes[-1].op != "output":
        return None
    down = _called(nodes[-1].args[0])
    product = down and down.args[0]
    if not isinstance(product, fx.Node) or product.op != "call_function" or product.target not in _PRODUCTS or len(product.args) != 2:
        return None
    for left, right in (product.args, product.args[::-1]):
        activation, up = _called(left), _called(right)
        gate = _called(activation.args[0]) if activation and activation.args else None
        if gate is None or up is None or down is None or (*gate.args, *up.args) != (inputs[0], inputs[0]):
            continue
        function = _function(module.get_submodule(str(activation.target)))
        if function is not None and all(_plain(module.get_submodule(str(x.target))) for x in (gate, up)):
            return Gated(str(gate.target), str(up.target), str(down.target), function)
    return None


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


def parts(module: nn.Module, of: Gated) -> Optional[Tuple[Tensor, Tensor]]:
    """The weights of gate and other factor, where the layers are still those that were recognised."""
    held = module._modules
    gate, up = held.get(of.gate), held.get(of.up)
    if gate is None or up is None or not _plain(gate) or not _plain(up):
        return None
    assert isinstance(gate, nn.Linear) and isinstance(up, nn.Linear)
    return (gate.weight, up.weight) if gate.weight.shape == up.weight.shape else None


def differentiated(*tensors: Tensor) -> bool:
    """Whether a result of these tensors has a gradient."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


# What says whether we answer a call with this input and these weights.
_answers: Callable[[Tensor, Tensor, Tensor, str], bool] = lambda x, gate, up, function: False  # noqa: E731


def answer_by(answers: Callable[[Tensor, Tensor, Tensor, str], bool]) -> None:
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
        if weights is not None and _answers(x, *weights, of.function):
            hidden = torch.ops.tilewright.glu(x, weights[0], None, of.function, False, None, None, False, weights[1])
            return module.get_submodule(of.down)(hidden)
    return type(module).forward(module, *args, **kwargs)
