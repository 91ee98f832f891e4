"""torch.compile: a pass over Inductor's graphs and further choices for max-autotune.

The pass runs after differentiation and replaces torch's operators by ours where ours are faster. The choices are products that
max-autotune measures next to its own.

Products without a bias need no pass: Inductor calls `aten::mm.out` and `aten::bmm.out`, which `enable` answers.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, List, Optional

import torch
from torch import Tensor
from torch._inductor import choices, config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.select_algorithm import ExternKernelChoice
from torch._inductor.virtualized import V

from . import _native, _patterns, _shapes
from . import _operators as ours
from ._arrays import Array

_aten = torch.ops.aten


class Pass(CustomGraphPass):
    """`addmm`, convolutions and gated MLPs, of sizes that are known when compiling. `chosen` says why torch answers a problem at a place. What
    max-autotune measures is left to it."""

    def __init__(self, chosen: Callable[[str, str], Optional[str]], told: str) -> None:
        self.chosen = chosen
        self.told = hashlib.sha256(told.encode()).hexdigest()

    def uuid(self) -> Any:
        """Graphs that were compiled for another file of shapes are not taken from the cache."""
        return ("tilewright", _native.__version__, self.told)

    def __call__(self, graph: torch.fx.graph.Graph) -> None:
        for target, ours in ((_aten.addmm.default, _linear), (_aten.convolution.default, _convolution)):
            if target is _aten.addmm.default and _measures():
                continue
            for node in graph.find_nodes(op="call_function", target=target):
                values = torch.fx.map_arg(node.args, lambda x: x.meta.get("val"))
                # Scalars of addmm are given by name.
                if all(map(_known, values)) and not node.kwargs and self._wins(lambda: _shapes.READ[target](*values), values):
                    _replace(graph, node, ours, node.args)
        for found in () if _measures() else _patterns.gated(graph):
            values = torch.fx.map_arg((found.rows, found.gate, found.up), lambda x: x.meta.get("val"))
            one_type = len({x.dtype for x in values if x is not None}) == 1
            problem = lambda: _shapes.gated_problem(*values, found.function, found.up_first)  # noqa: E731
            if one_type and all(map(_known, values)) and self._wins(problem, values):
                _replace(graph, found.result, _glu, (found,))
                # Both products are dead now, and would still be computed.
                graph.eliminate_dead_code()

    def _wins(self, problem: Callable[[], str], values: Any) -> bool:
        place = _shapes.place(next(x for x in values if isinstance(x, Tensor)))
        try:
            return self.chosen(problem(), place) is None
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


def _glu(graph: torch.fx.graph.Graph, of: _patterns.Gated) -> Any:
    return graph.call_function(
        torch.ops.tilewright.glu.default, (of.rows, of.gate, None, of.function, of.up_first, None, None, False, of.up)
    )


def _replace(graph: torch.fx.graph.Graph, node: Any, ours: Callable[..., Any], args: Any) -> None:
    was = node.meta["val"]
    with graph.inserting_before(node):
        new = _valued(ours(graph, *args), was)
        if new.meta["val"].shape != was.shape:
            new = _valued(graph.call_function(_aten.reshape.default, (new, list(was.shape))), was)
    if (new.meta["val"].stride(), new.meta["val"].dtype) != (was.stride(), was.dtype):
        graph.erase_node(new)
        return
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _valued(new: Any, was: Tensor) -> Any:
    """The node, with the shape, strides and type of its value."""
    with was.fake_mode:
        new.meta["val"] = new.target(*torch.fx.map_arg(new.args, lambda x: x.meta["val"]))
    return new


def _measures() -> bool:
    """Does Inductor measure products now?"""
    return bool(config.max_autotune or config.max_autotune_gemm)


def _tilewright_mm(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.tilewright.mm(a, b)


def _tilewright_bmm(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.tilewright.bmm(a, b)


def _tilewright_addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.tilewright.addmm(bias if bias.dim() == 1 else bias[0], a, b)


# Graphs that Inductor has kept on disk find them by name: they are there as soon as this is imported.
_KERNELS = {
    name: ExternKernelChoice(kernel, name=f"tilewright_{name}", has_out_variant=False)
    for name, kernel in (("mm", _tilewright_mm), ("bmm", _tilewright_bmm), ("addmm", _tilewright_addmm))
}
# Whether a problem at a place is offered, and what that depends on.
_offered: Callable[[str, str], bool] = lambda problem, at: False  # noqa: E731
_offered_told = ""


class Choices(choices.InductorChoices):
    """Inductor's, and ours where it measures."""

    def uuid(self) -> Any:
        """Graphs for which others were offered are not taken from the cache."""
        return ("tilewright", _native.__version__, _offered_told)

    def get_template_configs(self, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any) -> List[Any]:
        found = super().get_template_configs(kernel_inputs, templates, op_name, *args, **kwargs)
        # Inductor asks more than once for an operator, and with torch's own kernels once.
        if op_name in _KERNELS and _measures() and any(isinstance(t, ExternKernelChoice) for t in templates):
            nodes = kernel_inputs.nodes()
            if _is_offered(nodes) and all(kernel_inputs.get_scalar(name) == 1 for name in ("alpha", "beta") if op_name == "addmm"):
                found.append(_KERNELS[op_name].bind(nodes, kernel_inputs.output_layout(flexible=False)))
        return found


def _is_offered(nodes: Any) -> bool:
    try:
        *bias, a, b = (_lying(node) for node in nodes)
        return _offered(_shapes.product_of(a, b, *bias), a.device)
    except (_native.Error, TypeError, KeyError):
        return False


def _lying(node: Any) -> Array:
    """How a factor or a bias lies; raises `TypeError` where a size is left open."""
    shape, strides = (tuple(map(int, sizes)) for sizes in (node.get_size(), node.get_stride()))
    device = node.get_device()
    place = "cpu" if device.type == "cpu" else f"{device.type}:{device.index}"
    if len(shape) == 2 and strides[0] == 0:
        shape, strides = shape[1:], strides[1:]
    return Array(256, shape, strides, ours.TYPES[node.get_dtype()], place, None)


def offer(offered: Optional[Callable[[str, str], bool]], told: str) -> None:
    """What max-autotune measures beside its own from now on; None: nothing of ours."""
    global _offered, _offered_told
    _offered, _offered_told = offered or (lambda problem, at: False), told
    if hasattr(choices, "register_inductor_choices"):
        if offered is None:
            choices.unregister_inductor_choices("tilewright")
        else:
            choices.register_inductor_choices("tilewright", Choices)
        return
    if config.inductor_choices_class not in (None, Choices):
        raise _native.ProblemError("Inductor has an inductor_choices_class of somebody else: leave `compiled` out")
    config.inductor_choices_class = None if offered is None else Choices
    V.set_choices_handler(choices.InductorChoices() if offered is None else Choices())
