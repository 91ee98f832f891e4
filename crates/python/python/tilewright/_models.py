"""Existing models on our kernels: torch's products and the modules of a model, where a file of shapes says that we are faster."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import _core, _native
from . import _operators as ours
from . import _shapes
from ._shapes import Path, Shape

# By device (as comparisons are filed) and problem.
_compared: Dict[Tuple[str, str], Shape] = {}
_margin = 1.0
_host_us = 0.0
# Of modules' calls: whether we answer, and why not.
_modules: Dict[Tuple[Any, ...], Tuple[bool, str]] = {}


def enable(path: Path, margin: float = 1.03, host_us: float = 40.0, compiled: bool = False) -> int:
    """From now on `torch.mm` and `torch.bmm`, also within torch's own layers and gradients, are answered by tilewright for the shapes for
    which `compare` found torch's time at least `margin` times ours on the same device and driver; all else is one look-up and goes to
    torch. Gives the number of such shapes. Modules with a bias, and convolutions: `optimize`. `compiled`: also what torch.compile makes from
    now on, bias and convolutions included (as Inductor's `post_grad_custom_post_pass`); where that measures products (`max-autotune`), every
    compared one of ours is among the choices. Convolutions are called through Python: in eager mode
    they are ours where more than `host_us` microseconds are saved, what such a call costs more of the host (0 for captured graphs)."""
    global _margin, _host_us
    if not os.path.exists(path):
        raise _native.RecordsError(f"{path} does not exist: write it with tilewright.torch.record, then tune_recorded")
    rows = _shapes.shapes(path)
    _compared.clear()
    _compared.update({(row.device, row.problem): row for row in rows if row.problem and row.gain is not None})
    _margin, _host_us = margin, host_us
    _modules.clear()
    _compile_with(f"{margin} {sorted((at, row.problem, row.gain) for (at, _), row in _compared.items())}" if compiled else None)
    ours.choose_by(_chosen)
    return sum(1 for row in _compared.values() if (row.gain or 0.0) >= margin)


def _compile_with(told: Optional[str]) -> None:
    """Sets our pass of Inductor's and our choices, or takes them away. Another's pass is left alone."""
    if told is None and "tilewright._compiled" not in sys.modules:
        return
    from torch._inductor import config

    from ._compiled import Pass, offer

    held = config.post_grad_custom_post_pass
    if held is not None and not isinstance(held, Pass):
        if told is not None:
            raise _native.ProblemError("Inductor has a post_grad_custom_post_pass of somebody else: leave `compiled` out")
        return
    offer(None if told is None else _compared_there, told or "")
    config.post_grad_custom_post_pass = None if told is None else Pass(lambda problem, at: _chosen(problem, at, eager=False), told)


def _compared_there(problem: str, place: str) -> bool:
    """Have we a kernel of a problem that ran on the device of a place?"""
    return (_shapes.described(_core.context_for(place)), problem) in _compared


def disable() -> None:
    """Torch answers its own calls again, also those of optimised modules."""
    _modules.clear()
    _compared.clear()
    ours.choose_by(None)
    _compile_with(None)


def _chosen(problem: str, place: Optional[str] = None, eager: bool = True) -> Optional[str]:
    """Why torch answers a problem; None: we do."""
    for context in list(_core._contexts.values()) if place is None else [_core.context_for(place)]:
        row = _compared.get((_shapes.described(context), problem))
        if row is None:
            continue
        if eager and problem.startswith("conv") and row.torch_us - row.ours_us < _host_us:
            return f"torch takes {row.torch_us:.1f} us, tilewright {row.ours_us:.1f} and {_host_us:.0f} us more of the host"
        if (row.gain or 0.0) >= _margin:
            return None
        return f"torch takes {row.torch_us:.1f} us, tilewright {row.ours_us:.1f}"
    return "was not recorded, tuned and compared on this device"


def _answered(x: Tensor, module: Any) -> bool:
    """Is a convolution ours? One look-up after the first."""
    weight = module.weight
    how = (module.stride, module.padding, module.dilation, module.groups)
    key = (x.shape, x.stride(), x.dtype, x.device, weight.shape, module.bias is None, how)
    found = _modules.get(key)
    if found is None:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        try:
            problem = _shapes.convolution_problem("forward", x, weight, x, how, module.bias is not None)
            why = _chosen(problem, _shapes.place(x))
        except _native.Error as e:
            why = str(e)
        found = _modules.setdefault(key, (why is None, why or ""))
    return found[0]


_TENSORS = (Tensor, nn.Parameter)


def _ours_now(x: Tensor, weight: Tensor) -> bool:
    """Torch's compiler, its transforms and modes, autocast and subclasses of tensors see the module as it was."""
    return (
        not torch.compiler.is_compiling()
        and bool(_compared)
        and type(x) in _TENSORS
        and type(weight) in _TENSORS
        and x.dtype in ours.TYPES
        and not torch._C._is_any_autocast_enabled()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


class Linear(nn.Linear):
    """`nn.Linear` that runs as one kernel, bias included, where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        # Without a bias it is torch.mm, which `enable` answers by itself.
        if self.bias is not None and _ours_now(x, self.weight):
            return ours.linear_as_chosen(x, self.weight, self.bias)
        return super().forward(x)


class _Conv:
    def _conv_forward(self: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        plain = self.padding_mode == "zeros" and not isinstance(self.padding, str) and x.dim() == weight.dim()
        if plain and _ours_now(x, weight) and _answered(x, self):
            return ours.convolution(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return super()._conv_forward(x, weight, bias)  # type: ignore[misc]


class Conv1d(_Conv, nn.Conv1d):
    """`nn.Conv1d`, by our kernel where that is faster."""


class Conv2d(_Conv, nn.Conv2d):
    """`nn.Conv2d`, by our kernel where that is faster."""


class Conv3d(_Conv, nn.Conv3d):
    """`nn.Conv3d`, by our kernel where that is faster."""


_CLASSES = {nn.Linear: Linear, nn.Conv1d: Conv1d, nn.Conv2d: Conv2d, nn.Conv3d: Conv3d}


def optimize(model: nn.Module) -> nn.Module:
    """Makes a model's `nn.Linear` and `nn.Conv` modules, in place, those of the same names here: same parameters, same `state_dict`, pickled
    and copied as before. They use our kernels where `enable` knows them as faster. Subclasses of torch's modules stay what they are."""
    if not isinstance(model, nn.Module):
        raise _native.OperandError(f"{type(model).__name__} is no torch.nn.Module")
    for module in model.modules():
        module.__class__ = _CLASSES.get(type(module), type(module))
    return model


def report(path: Optional[Path] = None) -> str:
    """What was answered since `enable`, and why the rest was not; with a file of shapes, what each layer gained."""
    lines: List[str] = []
    if path is not None:
        lines.append(f"{'calls':>6} {'torch us':>10} {'ours us':>10} {'saved us':>10}  layers, operator")
        for row in sorted(_shapes.shapes(path), key=lambda row: (row.ours_us - row.torch_us) * row.calls):
            gain = row.gain
            saved = (row.torch_us - row.ours_us) * row.calls if gain is not None and gain >= _margin else 0.0
            told = f"{row.calls:6} {row.torch_us:10.1f} {row.ours_us:10.1f} {saved:10.1f}  {row.layers or '(no layer)'}, {row.set}"
            lines.append(f"{told}: {row.reason}" if row.reason else told)
    lines.append(f"{'calls':>6}  by          operator, shapes, reason")
    for op, place, dtype, shapes, calls, answered, why in sorted(_native.torch_calls(), key=lambda call: -call[4]):
        by = "tilewright" if answered else "torch"
        sizes = " @ ".join("x".join(map(str, shape)) for shape in shapes)
        lines.append(f"{calls:6}  {by:10}  {op} {sizes} {dtype} on {place}{': ' if why else ''}{why}")
    for (x, _, dtype, _, weight, *_), (answered, why) in _modules.items():
        by = "tilewright" if answered else "torch"
        lines.append(f"{'':6}  {by:10}  module conv {tuple(x)}, weight {tuple(weight)} {dtype}{': ' if why else ''}{why}")
    for what, calls in ours.unprepared().items():
        lines.append(f"{calls:6}  torch       {what}: first met while a CUDA graph was captured")
    return "\n".join(lines)
