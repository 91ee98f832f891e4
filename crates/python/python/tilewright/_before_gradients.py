"""The pass over torch.compile's graphs before differentiation, so that gradients are those of the operators that it puts in.

Inductor has room for one pass. It runs what `fuse_losses` and `fuse_gated_mlps` have set.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from . import _native

_WRITERS = {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow}
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


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
        """Graphs that were compiled otherwise are not taken from the cache."""
        return ("tilewright", _native.__version__, *((name, *one.how.items()) for name, one in sorted(self.rewriters.items())))

    def __call__(self, graph: fx.Graph) -> None:
        for one in self.rewriters.values():
            one(graph)


def set_rewriter(name: str, made: Optional[Rewriter]) -> None:
    """Sets or removes a rewriter. Passes of other packages stay."""
    held = config.pre_grad_custom_pass
    if held is not None and not isinstance(held, Pass):
        if made is not None:
            raise _native.ProblemError("Inductor already has a pre_grad_custom_pass of another package: call tilewright's operators in the model")
        return
    others = {} if held is None else {other: one for other, one in held.rewriters.items() if other != name}
    rewriters = others if made is None else {**others, name: made}
    config.pre_grad_custom_pass = Pass(rewriters) if rewriters else None


def value(node: Any) -> Optional[Tensor]:
    """The tensor that stands for a node's value."""
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return found if isinstance(found, Tensor) else None


def calls(node: Any, method: Optional[str], *functions: Any) -> bool:
    """Whether a node calls a method of a tensor or one of some functions."""
    if not isinstance(node, fx.Node):
        return False
    return node.op == "call_method" and node.target == method or node.op == "call_function" and node.target in functions


def changes(first: fx.Node, last: fx.Node, but: Optional[fx.Node] = None) -> bool:
    """Whether a node between two, other than one, writes a tensor in place. Operands of the first could then have other values at the last."""
    node = first.next
    while node is not last and node.op != "root":
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        in_place = node.target in _WRITERS or node.op.startswith("call") and name.endswith("_") and not name.endswith("__")
        if node is not but and (in_place or node.kwargs.get("inplace") or node.kwargs.get("out") is not None):
            return True
        node = node.next
    return node is not last


def layer(node: Any) -> Optional[Tuple[Any, Any, Any]]:
    """The operands of a linear layer: x, weight and perhaps a bias, all by position."""
    if not calls(node, None, torch._C._nn.linear) or node.kwargs or len(node.args) not in (2, 3):
        return None
    return (*node.args, None)[:3]
