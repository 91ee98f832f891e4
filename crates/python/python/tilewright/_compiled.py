"""torch.compile: a pass over Inductor's graphs, behind differentiation, that puts our operators in the place of torch's where they are faster.

Products without a bias need none: Inductor calls `aten::mm.out` and `aten::bmm.out`, which `enable` answers.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass

from . import _native, _shapes

_aten = torch.ops.aten


class Pass(CustomGraphPass):
    """`addmm` and convolutions, of sizes that are known when compiling. `chosen` says why torch answers a problem at a place."""

    def __init__(self, chosen: Callable[[str, str], Optional[str]], told: str) -> None:
        self.chosen = chosen
        self.told = hashlib.sha256(told.encode()).hexdigest()

    def uuid(self) -> Any:
        """Graphs that were compiled for another file of shapes are not taken from the cache."""
        return ("tilewright", _native.__version__, self.told)

    def __call__(self, graph: torch.fx.graph.Graph) -> None:
        for target, ours in ((_aten.addmm.default, _linear), (_aten.convolution.default, _convolution)):
            for node in graph.find_nodes(op="call_function", target=target):
                values = torch.fx.map_arg(node.args, lambda x: x.meta.get("val"))
                # Scalars of addmm are given by name.
                if all(map(_known, values)) and not node.kwargs and self._wins(target, values):
                    _replace(graph, node, ours)

    def _wins(self, target: Any, values: Any) -> bool:
        place = _shapes.place(next(x for x in values if isinstance(x, Tensor)))
        try:
            return self.chosen(_shapes.READ[target](*values), place) is None
        except _native.Error:
            return False


def _known(x: Any) -> bool:
    """No size or stride of it is left open."""
    if isinstance(x, Tensor):
        return all(isinstance(n, int) for n in (*x.shape, *x.stride()))
    return all(map(_known, x)) if isinstance(x, (list, tuple)) else x is None or isinstance(x, (bool, int, float))


def _linear(graph: torch.fx.graph.Graph, bias: Any, a: Any, b: Any) -> Any:
    return graph.call_function(torch.ops.tilewright.addmm.default, (bias, a, b))


def _convolution(graph: torch.fx.graph.Graph, x: Any, w: Any, bias: Any, *how: Any) -> Any:
    stride, padding, dilation, _, _, groups = how
    return graph.call_function(torch.ops.tilewright.convolution.default, (x, w, bias, stride, padding, dilation, groups))


def _replace(graph: torch.fx.graph.Graph, node: Any, ours: Callable[..., Any]) -> None:
    was = node.meta["val"]
    with graph.inserting_before(node):
        new = ours(graph, *node.args)
    with was.fake_mode:
        new.meta["val"] = new.target(*torch.fx.map_arg(new.args, lambda x: x.meta["val"]))
    if new.meta["val"].stride() != was.stride():
        graph.erase_node(new)
        return
    node.replace_all_uses_with(new)
    graph.erase_node(node)
