"""Gated MLPs of models, such as those of Llama: which modules are one, and their forward pass with both first products in one kernel."""

from __future__ import annotations

import copy
import copyreg
import operator
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _disable_current_modes

from . import _operators as ours


class Activation(NamedTuple):
    """A module that computes a function of each element: its name and function, and the class and settings that it must keep."""

    name: str
    function: str
    kind: type
    settings: Dict[str, Any]


class Gated(NamedTuple):
    """The names of a module's parts: ``down(function(gate(x)) * up(x))``. Without `up`, `gate` has the columns of both, the gate's first or second.
    `training` is the module's mode when it was recognised."""

    gate: str
    up: Optional[str]
    down: str
    activation: Activation
    up_first: bool
    training: bool


class _Tracer(fx.Tracer):
    """Follows a module's own forward pass, and no further."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


_PRODUCTS = (operator.mul, torch.mul)


def gated(module: nn.Module) -> Optional[Gated]:
    """The parts of a module whose forward pass is a gated MLP's, or None. The layers have no bias."""
    if sum(isinstance(x, nn.Linear) for x in module.children()) not in (2, 3):
        return None
    graph = _followed(module)
    if graph is None:
        return None
    (result,) = (node for node in graph.nodes if node.op == "output")
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    down = _called(result.args[0])
    product = down and down.args[0]
    if len(inputs) != 1 or not isinstance(product, fx.Node) or product.target not in _PRODUCTS or len(product.args) != 2:
        return None
    assert down is not None
    for left, right in (product.args, product.args[::-1]):
        activation = _called(left)
        known = None if activation is None else _activation(module, str(activation.target))
        if activation is None or known is None:
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
        if rest or any(layer.args != (inputs[0],) or _plain(module.get_submodule(str(layer.target))) is None for layer in layers):
            continue
        of_up = None if len(layers) == 1 else str(layers[1].target)
        return Gated(str(layers[0].target), of_up, str(down.target), known, halves == (1, 0), module.training)
    return None


def _followed(module: nn.Module) -> Optional[fx.Graph]:
    """A module's forward pass, or None where it depends on values, or changes the module."""
    try:
        other = copy.copy(module)
        if isinstance(other, _Optimised):
            other.__class__ = _former(type(other))
        graph = _Tracer().trace(other)
    except Exception:  # noqa: BLE001
        return None
    before, after = module.__dict__, other.__dict__
    same = before.keys() == after.keys() and all(before[name] is after[name] for name in before)
    return graph if same else None


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


def _unhooked(module: nn.Module) -> bool:
    """Calls of a module run its class's forward pass, and nothing else."""
    return "forward" not in module.__dict__ and not module._forward_hooks and not module._forward_pre_hooks


def _plain(layer: Optional[nn.Module]) -> Optional[Tensor]:
    """The weight of torch's layer or ours, without a bias and without hooks; None for others."""
    if not isinstance(layer, nn.Linear) or type(layer).forward not in _FORWARDS or not _unhooked(layer):
        return None
    # A weight that is computed, or a bias that is, is no parameter.
    held = layer._parameters
    return held.get("weight") if held.get("bias", layer) is None else None


# Forward passes that are a product; `_models` adds its own.
_FORWARDS: List[Callable[..., Any]] = [nn.Linear.forward]
# Where functions are compared: dense near 0, and far beyond where any of them is cut off.
_NEAR, _FAR = torch.linspace(-9.0, 9.0, 181), torch.tensor([-1e4, -300.0, -77.0, -25.0, -12.0, 12.0, 25.0, 77.0, 300.0, 1e4])


def _settings(module: nn.Module) -> Dict[str, Any]:
    return {name: value for name, value in module.__dict__.items() if not name.startswith("_") and name != "training"}


def _activation(parent: nn.Module, name: str) -> Optional[Activation]:
    """The activation that a module computes, by its values; None for one with a state of its own."""
    module = parent.get_submodule(name)
    settings = _settings(module)
    state = any(True for _ in module.parameters()) or any(True for _ in module.buffers()) or any(True for _ in module.children())
    if state or not _unhooked(module) or any(isinstance(value, Tensor) for value in settings.values()):
        return None
    function = function_of(module)
    return None if function is None else Activation(name, function, type(module), settings)


def function_of(compute: Callable[[Tensor], Tensor]) -> Optional[str]:
    """The activation that computes the same values, or None."""
    names = ("silu", "gelu", "gelutanh", "relu", "hardswish")
    try:
        # Inductor's passes run in modes that have no values.
        with _disable_current_modes(), torch.no_grad(), torch.device("cpu"):
            # In 64 bits functions that are written out cancel less.
            x = torch.cat((_NEAR, _FAR)).double()
            y = compute(x)
            same = [other for other in names if y.shape == x.shape and torch.allclose(y, ours.activate(x, other), 1e-6, 1e-7)]
    except Exception:  # noqa: BLE001
        return None
    return same[0] if same else None


class Weights(NamedTuple):
    """The weights of a gated MLP's first half, as one tensor or two."""

    gate: Tensor
    up: Optional[Tensor]

    def tensors(self) -> List[Tensor]:
        """Those that there are."""
        return [x for x in self if x is not None]


def parts(module: nn.Module, of: Gated) -> Optional[Weights]:
    """The weights of gate and other factor, where layers and activation are still those that were recognised."""
    held, known = module._modules, of.activation
    activation = held.get(known.name)
    if type(activation) is not known.kind or not _unhooked(activation) or _settings(activation) != known.settings:
        return None
    weight = _plain(held.get(of.gate))
    up = None if of.up is None else _plain(held.get(of.up))
    if weight is None or (up is None) != (of.up is None) or module.training != of.training:
        return None
    fits = weight.shape[0] % 2 == 0 if up is None else up.shape == weight.shape and up.stride() == weight.stride()
    return Weights(weight, up) if fits else None


def readable(x: Tensor, weights: Weights) -> bool:
    """Whether one kernel could read these: rows of a type, and weights of the same type and place."""
    return x.dim() >= 2 and all(
        t.layout is torch.strided and t.dtype == x.dtype and t.device == x.device for t in (x, *weights.tensors())
    )


def first_half(x: Tensor, weights: Weights, of: Gated) -> Tensor:
    """The product of both factors by our kernel."""
    product: Tensor = torch.ops.tilewright.glu(x, weights.gate, None, of.activation.function, of.up_first, None, None, False, weights.up)
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


_global = nn.modules.module


def _hooked_everywhere() -> bool:
    """Hooks that torch calls for every module."""
    return bool(_global._global_forward_hooks or _global._global_forward_pre_hooks)


class _Optimised:
    """Base of optimised gated MLPs, before the module's own class: asks whether we answer a call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        of, module = self.__dict__.get(_HELD), self
        assert isinstance(module, nn.Module)
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and of is not None:
            weights = None if torch.compiler.is_compiling() or torch.jit.is_tracing() or _hooked_everywhere() else parts(module, of)
            if weights is not None and _answers(args[0], weights, of):
                return module.get_submodule(of.down)(first_half(args[0], weights, of))
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        make, args, *rest = super().__reduce_ex__(protocol)
        return (_made, (_former(type(self)), *args[1:]), *rest) if make is copyreg.__newobj__ else (make, args, *rest)  # type: ignore[attr-defined]


# The attribute in which an optimised module holds its parts, and optimised classes by those that they come from.
_HELD = "_tilewright_gated"
_classes: Dict[type, type] = {}


def _former(cls: type) -> type:
    return cls.__mro__[cls.__mro__.index(_Optimised) + 1]


def _optimised(cls: type) -> type:
    made = _classes.get(cls)
    if made is None:
        named = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
        made = _classes.setdefault(cls, type(cls.__name__, (_Optimised, cls), named))
    return made


def _made(cls: type, *args: Any) -> Any:
    """A module of an optimised class, without its state: what a pickled one begins with."""
    made = _optimised(cls)
    return made.__new__(made, *args)


def replace_classes(model: nn.Module) -> None:
    """Puts a forward pass that asks whether we answer before that of a model's gated MLPs."""
    for module in model.modules():
        of = gated(module) if _HELD not in module.__dict__ and _unhooked(module) else None
        if of is not None:
            module.__dict__[_HELD] = of
            module.__class__ = _optimised(type(module))
