"""Existing models on our kernels: torch's products and the modules of a model, where a file of shapes says that we are faster."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import _arguments as given
from . import _core, _native
from . import _operators as ours
from . import _shapes
from ._shapes import Path, Shape

# By device (as comparisons are filed) and problem.
_compared: Dict[Tuple[str, str], Shape] = {}
_margin = 1.0
# What Inductor's `shape_padding` was before.
_padding: Optional[bool] = None


def enable(path: Path, margin: float = 1.03, compiled: bool = False) -> int:
    """From now on torch's matrix products, and (from torch 2.10 on) its convolutions and their gradients and its reductions (sum, mean, amax,
    amin, argmax, argmin, logsumexp, max and min with their indices), also within torch's own layers, are answered by tilewright for the shapes for which `compare` found torch's time at least `margin` times ours on the same device and
    driver; all else is one look-up and goes to torch, and an operator without such a shape is not touched. Gives the number of such shapes.
    Products with a bias: where they are called as `torch.nn.functional.linear` (`nn.Linear` does) or `torch.addmm`, outside of autocast.
    `compiled`: also what torch.compile makes from now on, bias and convolutions included (as Inductor's `post_grad_custom_post_pass`); where that
    measures products (`max-autotune`), ours that were no slower when compared are among the choices."""
    global _margin
    margin, compiled = given.number(margin, "margin"), given.truth(compiled, "compiled")
    if margin != margin:
        given.refuse("margin", margin, "a number is needed")
    if not os.path.exists(given.path(path, "path")):
        raise _native.RecordsError(f"{path} does not exist: write it with tilewright.torch.record, then tune_recorded")
    rows = _shapes.shapes(path)
    _compared.clear()
    _compared.update({(row.device, row.problem): row for row in rows if row.problem and row.gain is not None})
    _margin = margin
    won = {problem for (_, problem), row in _compared.items() if (row.gain or 0.0) >= margin}
    _compile_with(f"{margin} {sorted((at, row.problem, row.gain) for (at, _), row in _compared.items())}" if compiled else None, bool(won))
    needed = {row.set[6:].split(" ")[0] for row in rows if row.problem in won}
    layers = [json.loads(row.call)[1:3] for row in rows if row.set == "aten::addmm" and row.problem in won]
    sizes = [(*a["size"], b["size"][1]) for a, b in layers]
    ours.choose_by(_chosen, [name for name in ours.OVERRIDDEN if name in needed], sizes)
    _meet_biased(bool(sizes))
    return len(won)


def _compile_with(told: Optional[str], wins: bool = False) -> None:
    """Sets our pass of Inductor's and our choices, or takes them away. Another's pass is left alone. Where we win, Inductor pads no factors: products
    of odd widths would reach us with other widths than were recorded and compared, and their copies would cost what ours save."""
    global _padding
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
    config.post_grad_custom_post_pass = None if told is None else Pass(_chosen, told)
    if _padding is not None:
        config.shape_padding, _padding = _padding, None
    if told is not None and wins:
        _padding, config.shape_padding = config.shape_padding, False


def _compared_there(problem: str, place: str) -> bool:
    """Was a problem compared on the device of a place, and not slower? Others would be chosen where a measurement fails."""
    row = _compared.get((_shapes.described(_core.context_for(place)), problem))
    return row is not None and (row.gain or 0.0) >= 1.0


def disable() -> None:
    """Torch answers its own calls again, also those of optimised modules."""
    _compared.clear()
    ours.choose_by(None)
    _meet_biased(False)
    _compile_with(None)


def _chosen(problem: str, place: Optional[str] = None) -> Optional[str]:
    """Why torch answers a problem; None: we do."""
    for context in list(_core._contexts.values()) if place is None else [_core.context_for(place)]:
        row = _compared.get((_shapes.described(context), problem))
        if row is None:
            continue
        if (row.gain or 0.0) >= _margin:
            return None
        return f"torch takes {row.torch_us:.1f} us, tilewright {row.ours_us:.1f}"
    return "was not recorded, tuned and compared on this device"


_TENSORS = (Tensor, nn.Parameter)


def _ours_now(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Torch's transforms and modes, autocast and subclasses of tensors see the module as it was."""
    return (
        bool(_compared)
        and type(x) in _TENSORS
        and type(weight) in _TENSORS
        and type(bias) in _TENSORS
        and x.device == weight.device == bias.device
        and x.dtype in ours.TYPES
        and x.layout is torch.strided
        and (x.is_cuda or x.is_cpu)
        and not torch._C._is_any_autocast_enabled()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


# `addmm` has scalars, which do not pass torch's C interface: products with a bias are met where Python calls them.
_torchs_linear, _torchs_addmm = nn.functional.linear, torch.addmm


def _linear(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:  # noqa: A002
    if bias is not None and not torch.compiler.is_compiling() and type(weight) in _TENSORS:
        known = ours.biased.get(weight.shape)
        if known is not None and type(input) in _TENSORS and input.numel() in known and _ours_now(input, weight, bias):
            return ours.linear_as_chosen(input, weight, bias)
    return _torchs_linear(input, weight, bias)


def _addmm(*args: Any, **kwargs: Any) -> Tensor:
    if len(args) == 3 and not kwargs and not torch.compiler.is_compiling():
        bias, a, b = args
        known = ours.biased.get(b.shape[::-1]) if type(b) in _TENSORS else None
        if known is not None and type(a) in _TENSORS and a.numel() in known and _ours_now(a, b, bias):
            if a.dim() == 2 and bias.shape == b.shape[1:]:
                return ours.linear_as_chosen(a, b.t(), bias)
    return _torchs_addmm(*args, **kwargs)


# What is scripted has no Python in it.
torch.jit._builtins._register_builtin(_linear, "aten::linear")
torch.jit._builtins._register_builtin(_addmm, "aten::addmm")


def _meet_biased(wanted: bool) -> None:
    """Puts ourselves before torch's functions, or takes us away. What somebody else has put there stays."""
    places = ((nn.functional, "linear", _torchs_linear, _linear), (torch, "addmm", _torchs_addmm, _addmm))
    for module, name, theirs, here in places:
        before, after = (theirs, here) if wanted else (here, theirs)
        if getattr(module, name) is before:
            setattr(module, name, after)


class Linear(nn.Linear):
    """`nn.Linear` that runs as one kernel, bias included, where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            # An attribute that is a parameter costs a microsecond to ask for. What is none, or was put in its place, is torch's.
            held = self._parameters
            weight, bias = held.get("weight"), held.get("bias", self)
            if weight is not None and bias is not self:
                # Without a bias it is torch.mm, which `enable` answers by itself.
                if bias is not None and _ours_now(x, weight, bias):
                    return ours.linear_as_chosen(x, weight, bias)
                return nn.functional.linear(x, weight, bias)
        return super().forward(x)


def optimize(model: nn.Module) -> nn.Module:
    """Makes a model's `nn.Linear` modules, in place, those of the same name here: same parameters, same `state_dict`, pickled and copied as before.
    They use our kernels where `enable` knows them as faster, as it makes torch's do, with less of Python on the way. Subclasses of torch's modules
    stay what they are."""
    if not isinstance(model, nn.Module):
        raise _native.OperandError(f"model is {type(model).__name__}, no torch.nn.Module: give one that was made")
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
    return model


# How a summary names all shapes that `_slower` says a number of.
_TORCH_FASTER, _NOT_ENOUGH = "torch is faster", "tilewright is faster by less than the margin"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10.0 else f"{ratio:.2f}"


def _slower(gain: float) -> str:
    """Why torch answers a shape that was compared."""
    if gain < 1.0:
        return f"torch is {_times(1.0 / gain)} times faster"
    return f"tilewright is {_times(gain)} times faster, the margin is {_margin:g}"


def _summed(row: Shape, why: str) -> str:
    """A reason without the numbers of one shape."""
    if why and row.gain is not None and why == _slower(row.gain):
        return _TORCH_FASTER if row.gain < 1.0 else _NOT_ENOUGH
    return "no verdict: repeats did not agree" if why.startswith("no verdict: ") else why


def unanswered(rows: Sequence[Shape]) -> List[str]:
    """Of each recorded call why torch has answered it since `enable`; empty: we did."""
    answered = {problem for *_, problem, calls, by_us, _ in _native.torch_calls() if by_us and calls}.union(ours.launched())

    def why(row: Shape) -> str:
        if not row.problem or row.gain is None:
            return row.reason or "was not compared"
        if row.gain < _margin:
            return _slower(row.gain)
        if row.problem in answered:
            return ""
        if row.set == "aten::addmm":
            return "addmm's scalars do not pass torch's C interface: it was called by none of F.linear, torch.addmm, or under autocast"
        name = row.set[6:].split(" ")[0]
        if ours.placed and name not in ours.placed:
            return f"{name} is not ours with this PyTorch: 2.10 or newer, whose C interface passes lists, is needed"
        if name in ours.REDUCTIONS:
            return "has not run since `enable`, or was compiled: Inductor's own kernels reduce then, together with what stands before"
        return "has not run since `enable`, or was compiled without `compiled=True`"

    return [why(row) for row in rows]


def report(path: Optional[Path] = None) -> str:
    """What was answered since `enable`, and why the rest was not. With a file of shapes: for each recorded call site what it gained or why torch
    answers it, and the share of torch's time that is ours."""
    lines: List[str] = []
    seen = sorted(_native.torch_calls(), key=lambda call: -call[5])
    if path is not None:
        rows = sorted(_shapes.shapes(path), key=lambda row: (row.ours_us - row.torch_us) * row.calls)
        lines.append(f"{'calls':>6} {'torch us':>10} {'ours us':>10} {'saved us':>10}  layers, operator")
        times = {"": 0.0}
        if any(_shapes.is_emulated(row.device) for row in rows):
            lines.insert(0, "The device is the emulator `emu`, an interpreter of kernels on the CPU: for trying the calls, not for speed.")
        for row, why in zip(rows, unanswered(rows)):
            summed = _summed(row, why)
            times[summed] = times.get(summed, 0.0) + row.torch_us * row.calls
            saved = 0.0 if why else (row.torch_us - row.ours_us) * row.calls
            told = f"{row.calls:6} {row.torch_us:10.1f} {row.ours_us:10.1f} {saved:10.1f}  {row.layers or '(no layer)'}, {row.set}"
            lines.append(f"{told}: {why}" if why else told)
        total = sum(times.values()) or 1.0
        lines.append(f"{times.pop('') / total:6.1%} of torch's time in these calls is answered by tilewright")
        lines += [f"{time / total:6.1%} is torch's: {why}" for why, time in sorted(times.items(), key=lambda each: -each[1])]
    lines.append(f"{'calls':>6}  by          operator, shapes, reason")
    for op, place, dtype, shapes, _, calls, by_us, why in seen:
        by = "tilewright" if by_us else "torch"
        sizes = " @ ".join("x".join(map(str, shape)) for shape in shapes)
        lines.append(f"{calls:6}  {by:10}  {op} {sizes} {dtype} on {place}{': ' if why else ''}{why}")
    lines += [f"{calls:6}  tilewright  {problem}" for problem, calls in ours.launched().items()]
    for what, calls in ours.unprepared().items():
        lines.append(f"{calls:6}  torch       {what}: first met while a CUDA graph was captured")
    return "\n".join(lines)
