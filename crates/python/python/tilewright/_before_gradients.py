"""The pass over torch.compile's graphs before differentiation, so that gradients are those of the operators that it puts in.

One pass runs what `fuse_losses` and `fuse_gated_mlps` have set.
"""

from __future__ import annotations

import operator
import pathlib
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _native
from ._operators import chosen_by_enable

# A change of them changes what a graph becomes.
_SOURCES = tuple(sorted(map(str, pathlib.Path(__file__).parent.glob("*.py"))))
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_WRITERS = {getattr(operator, name) for name in dir(operator) if name == "setitem" or name.startswith("i") and hasattr(operator, f"__{name}__")}


class Rewriter:
    """Replaces nodes of a graph. `how` are the options that it gives to what it puts in, and `count` is how many it has put in."""

    name: str

    def __init__(self, **how: Any) -> None:
        self.how = how
        self.count = 0

    def __call__(self, graph: fx.Graph) -> None:
        raise NotImplementedError


class Pass(CustomGraphPass):
    """All rewriters that are set, by name."""

    def __init__(self, rewriters: Dict[str, Rewriter]) -> None:
        self.rewriters = rewriters

    def uuid(self) -> Any:
        """Graphs that were compiled otherwise are not taken from the cache. Products of gradients are ours or torch's, as `enable` says."""
        how = ((name, *one.how.items()) for name, one in sorted(self.rewriters.items()))
        return ("tilewright", _native.__version__, get_hash_for_files(_SOURCES), chosen_by_enable(), *how)

    def __call__(self, graph: fx.Graph) -> None:
        for one in self.rewriters.values():
            one(graph)


def set_rewriter(name: str, made: Optional[Rewriter]) -> None:
    """Sets or removes a rewriter. Passes of other packages stay."""
    held = config.pre_grad_custom_pass
    several = isinstance(held, (list, tuple))
    passes = list(held) if several else [] if held is None else [held]
    others = [one for one in passes if not isinstance(one, Pass)]
    if others and made is not None and not several:
        raise _native.ProblemError("Inductor already has a pre_grad_custom_pass of another package: call tilewright's operators in the model")
    rewriters = {of: one for ours in passes if isinstance(ours, Pass) for of, one in ours.rewriters.items() if of != name}
    rewriters.update({} if made is None else {name: made})
    left = others + ([Pass(rewriters)] if rewriters else [])
    config.pre_grad_custom_pass = type(held)(left) if several else left[0] if left else None


def value(node: Any) -> Optional[Tensor]:
    """The tensor that stands for a node's value, where our operators take it: no subclass such as DTensor, on the CPU or a GPU."""
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    plain = isinstance(found, Tensor) and not is_traceable_wrapper_subclass(found) and found.device.type in ("cpu", "cuda")
    return found if plain else None


def transformed(graph: fx.Graph) -> bool:
    """Whether a function transform of torch.func is inside, which takes no operator with gradients of its own."""
    return any(node.op == "call_function" and "_increment_nesting" in getattr(node.target, "__name__", "") for node in graph.nodes)


def calls(node: Any, method: Optional[str], *functions: Any) -> bool:
    """Whether a node calls a method of a tensor or one of some functions."""
    if not isinstance(node, fx.Node):
        return False
    return node.op == "call_method" and node.target == method or node.op == "call_function" and node.target in functions


def changes(first: fx.Node, last: fx.Node, but: Optional[fx.Node] = None) -> bool:
    """Whether a node between two, other than one, may write a tensor in place or change a mode, such as that of gradients. Operands of the first could
    then have other values at the last, or other gradients."""
    node = first.next
    while node is not last and node.op != "root":
        if node is not but and _changes(node):
            return True
        node = node.next
    return node is not last


def _changes(node: fx.Node) -> bool:
    target = node.target
    if node.op == "call_method":
        return target.endswith("_") and not target.endswith("__") or target.startswith("__i")
    if node.op != "call_function":
        return node.op == "call_module"
    if isinstance(target, OpOverload):
        return target._schema.is_mutable
    if isinstance(target, OpOverloadPacket):
        return any(getattr(target, name)._schema.is_mutable for name in target.overloads())
    if target in vars(operator).values():
        return target in _WRITERS
    name = getattr(target, "__name__", "")
    # Modes have functions of torch's own, whose names begin so. Autocast changes types alone, and rewriters convert what they read.
    of_mode = name.startswith("_") and name not in ("_enter_autocast", "_exit_autocast") or name.endswith("_")
    in_place = node.kwargs.get("inplace") or node.kwargs.get("out") is not None or any(x is True for x in node.args)
    return of_mode or in_place or target in _WRITERS or isinstance(target, HigherOrderOperator)


def layer(node: Any) -> Optional[Tuple[Any, Any, Any]]:
    """The operands of a linear layer: x, weight and perhaps a bias, all by position."""
    if not calls(node, None, torch._C._nn.linear) or node.kwargs or len(node.args) not in (2, 3):
        return None
    return (*node.args, None)[:3]
