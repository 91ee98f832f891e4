"""Existing models on our kernels: torch's products and the modules of a model, where a file of shapes says that we are faster."""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import suppress
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import _arguments as given
from . import _autocast, _core, _mlp, _native
from . import _operators as ours
from . import _shapes
from ._gated import fuse_gated_mlps
from ._loss import fuse_losses
from ._shapes import Path, Shape

# By device (as comparisons are filed) and problem.
_compared: Dict[Tuple[str, str], Shape] = {}
_margin = 1.0
# By what a gated MLP's problem follows from: whether we answer it.
_gated: Dict[Tuple[Any, ...], bool] = {}
# Inductor's `shape_padding` before it was changed.
_padding: Optional[bool] = None


def enable(path: Path, margin: float = 1.03, compiled: bool = False) -> int:
    """Let tilewright answer torch's own calls for the shapes for which it was faster.

    A shape counts if `compare` found torch's time at least `margin` times tilewright's, on the same device and driver. A call with another
    shape costs one look-up and goes to torch. An operator without any such shape is not intercepted.

    Intercepted are matrix products, also inside torch's layers, and from torch 2.10 on convolutions, their gradients and reductions (sum,
    mean, amax, amin, argmax, argmin, logsumexp, max and min with indices). Products with a bias are intercepted in
    `torch.nn.functional.linear` (which `nn.Linear` calls) and `torch.addmm`, also under autocast.

    Parameters
    ----------
    path : path
        File of shapes (CSV) that `record` wrote.
    margin : float, default 1.03
        Least ratio of torch's time to tilewright's.
    compiled : bool, default False
        Also change what torch.compile makes from now on, with bias, convolutions and gated MLPs. Sets Inductor's ``post_grad_custom_post_pass``. With
        ``max-autotune``, tilewright's products are among the measured choices.

    Returns
    -------
    int
        Number of shapes that tilewright answers.

    Raises
    ------
    RecordsError
        The file does not exist or is no file of shapes.
    ProblemError
        `compiled` is set and Inductor already has a pass of another package.
    """
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
    _gated.clear()
    won = {problem for (_, problem), row in _compared.items() if (row.gain or 0.0) >= margin}
    _compile_with(f"{margin} {sorted((at, row.problem, row.gain) for (at, _), row in _compared.items())}" if compiled else None, bool(won))
    needed = {row.set[6:].split(" ")[0] for row in rows if row.problem in won}
    layers = [json.loads(row.call)[1:3] for row in rows if row.set == "aten::addmm" and row.problem in won]
    sizes = [(*a["size"], b["size"][1]) for a, b in layers]
    ours.choose_by(_chosen, [name for name in ours.OVERRIDDEN if name in needed], sizes)
    _meet_biased(bool(sizes))
    return len(won)


def _compile_with(told: Optional[str], wins: bool = False) -> None:
    """Sets or removes our Inductor pass and our choices. A pass of another package is kept. Where we win, Inductor's padding of operands is
    switched off: padded products have other widths than the recorded ones, and the copies would cost as much as we save."""
    global _padding
    if told is None and "tilewright._compiled" not in sys.modules:
        return
    from torch._inductor import config

    from ._compiled import Pass, offer

    held = config.post_grad_custom_post_pass
    if held is not None and not isinstance(held, Pass):
        if told is not None:
            raise _native.ProblemError("Inductor already has a post_grad_custom_post_pass of another package: leave `compiled` out")
        return
    offer(None if told is None else _compared_there, told or "")
    config.post_grad_custom_post_pass = None if told is None else Pass(_chosen, told)
    if _padding is not None:
        config.shape_padding, _padding = _padding, None
    if told is not None and wins:
        _padding, config.shape_padding = config.shape_padding, False


def _compared_there(problem: str, place: str) -> bool:
    """Whether a problem was compared on the device of a place and was not slower. Inductor could choose others if a measurement fails."""
    row = _compared.get((_shapes.described(_core.context_for(place)), problem))
    return row is not None and (row.gain or 0.0) >= 1.0


def disable() -> None:
    """Let torch answer all its calls again, also those of optimised modules."""
    _compared.clear()
    _gated.clear()
    ours.choose_by(None)
    _meet_biased(False)
    _compile_with(None)
    fuse_gated_mlps(False)
    fuse_losses(False)


def _chosen(problem: str, place: Optional[str] = None) -> Optional[str]:
    """The reason why torch answers a problem, or None if we do."""
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
    """False under torch's transforms and modes, and for subclasses of tensors: torch's module runs there."""
    return (
        bool(_compared)
        and type(x) in _TENSORS
        and type(weight) in _TENSORS
        and type(bias) in _TENSORS
        and x.device == weight.device == bias.device
        and x.dtype in ours.TYPES
        and x.layout is torch.strided
        and (x.is_cuda or x.is_cpu)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A layer as `enable` chose it, with the operands that autocast would pass it."""
    if torch._C._is_any_autocast_enabled() and (dtype := _autocast.region(x)) is not None:
        x, weight, bias = (_autocast.lowered(t, dtype) for t in (x, weight, bias))
    return ours.linear_as_chosen(x, weight, bias)


# `addmm` has scalars, which do not pass torch's C interface: products with a bias are met where Python calls them.
_torchs_linear, _torchs_addmm = nn.functional.linear, torch.addmm


def _linear(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:  # noqa: A002
    if bias is not None and not torch.compiler.is_compiling() and type(weight) in _TENSORS:
        known = ours.biased.get(weight.shape)
        if known is not None and type(input) in _TENSORS and input.numel() in known and _ours_now(input, weight, bias):
            return _layer(input, weight, bias)
    return _torchs_linear(input, weight, bias)


def _addmm(*args: Any, **kwargs: Any) -> Tensor:
    if len(args) == 3 and not kwargs and not torch.compiler.is_compiling():
        bias, a, b = args
        known = ours.biased.get(b.shape[::-1]) if type(b) in _TENSORS else None
        if known is not None and type(a) in _TENSORS and a.numel() in known and _ours_now(a, b, bias):
            if a.dim() == 2 and bias.shape == b.shape[1:]:
                return _layer(a, b.t(), bias)
    return _torchs_addmm(*args, **kwargs)


# What is scripted has no Python in it.
torch.jit._builtins._register_builtin(_linear, "aten::linear")
torch.jit._builtins._register_builtin(_addmm, "aten::addmm")


def _meet_biased(wanted: bool) -> None:
    """Puts ourselves before torch's functions, or takes us away. What somebody else has put there stays."""
    places = (
        (nn.functional, "linear", _torchs_linear, _linear),
        (torch, "addmm", _torchs_addmm, _addmm),
        (torch, "clear_autocast_cache", _autocast.clear_torchs, _autocast.clear),
    )
    for module, name, theirs, here in places:
        before, after = (theirs, here) if wanted else (here, theirs)
        if getattr(module, name) is before:
            setattr(module, name, after)
    _autocast.clear()


class Linear(nn.Linear):
    """An `nn.Linear` that runs as one kernel, bias included, for the shapes that `enable` chose.

    The parameters and the constructor are those of `torch.nn.Linear`.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            # Reading a parameter as an attribute costs a microsecond, the dict does not. A replaced parameter goes to torch.
            held = self._parameters
            weight, bias = held.get("weight"), held.get("bias", self)
            if weight is not None and bias is not self:
                # Without a bias torch calls torch.mm, which `enable` intercepts.
                if bias is not None and _ours_now(x, weight, bias):
                    return _layer(x, weight, bias)
                return nn.functional.linear(x, weight, bias)
        return super().forward(x)


_mlp._FORWARDS.append(Linear.forward)


def _answers_gated(x: Tensor, weights: _mlp.Weights, of: _mlp.Gated) -> bool:
    """Whether `enable` chose a gated MLP's shape. With gradients torch answers, because only the forward pass was compared."""
    weight, up = weights
    if torch._C._is_any_autocast_enabled() or not _ours_now(x, weight, weight if up is None else up) or not _mlp.readable(x, weights):
        return False
    if _mlp.differentiated(x, *weights.tensors()) or up is not None and up.data_ptr() % 16:
        return False
    function = of.activation.function
    key = (function, of.up_first, x.dtype, x.device, *(ours._lies(t) for t in (x, weight, up)))
    known = _gated.get(key)
    if known is None:
        at = _shapes.place(x)
        if x.is_cuda and ours.captured(f"gated MLP {tuple(x.shape)} @ {tuple(weight.shape)} {x.dtype}", at):
            return False
        try:
            problem = _shapes.gated_problem(x, weight, up, function, of.up_first)
            known = _chosen(problem, at) is None
            if known and ours.looking:
                return True
            alignments = (*(min(t.data_ptr() & -t.data_ptr(), 256) for t in (x, weight)), 256) if x.is_cuda else (256, 256, 256)
            # Nothing is looked at while a model runs.
            known = known and _core.context_for(at).looked_at(problem, alignments) is not None
        except (_native.Error, RuntimeError):
            known = False
        _gated[key] = known
    return known


_mlp.answer_by(_answers_gated)
_core.changed.append(_gated.clear)


def look_at_gated(rows: Sequence[Shape]) -> None:
    """Makes the kernels of gated MLPs ready that `enable` chose, for weights at multiples of 256 bytes."""
    for row in rows:
        if row.set == _shapes.GATED and row.problem and _chosen(row.problem) is None:
            with suppress(_native.Error, RuntimeError):
                _core.context_for(_shapes._at(row)).prepared(row.problem, (256, 256, 256))
    _gated.clear()


def optimize(model: nn.Module) -> nn.Module:
    """Replace the class of a model's `nn.Linear` modules by `Linear`, and the forward pass of its gated MLPs, in place.

    Parameters and `state_dict` stay the same; the model can be pickled and copied as before. The modules use tilewright for the shapes that
    `enable` chose, with less host time per call. Subclasses of `nn.Linear` do not change.

    A gated MLP is a module that computes ``down(activation(gate(x)) * up(x))`` as those of Llama do, or with both factors from one layer by
    ``chunk(2, -1)`` as those of Phi-3. Its layers have no bias. Without gradients both factors and the activation run as one kernel, where
    `record` was given the model and `enable` chose the shape. Such a module gets a subclass of its class. A call that torch answers runs the module's own forward pass.
    The forward pass is followed with `torch.fx`, which no other thread that runs a model may do at the same time.

    Parameters
    ----------
    model : torch.nn.Module

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    OperandError
        `model` is not an instance of `torch.nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise _native.OperandError(f"model is {type(model).__name__}: an instance of torch.nn.Module is needed")
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
    _mlp.replace_classes(model)
    return model


# Reasons of `_slower` without the numbers, for summaries.
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
    """For each recorded call, the reason why torch has answered it since `enable`; empty if we did."""
    seen = _native.torch_calls()
    answered = {problem for *_, problem, calls, by_us, _ in seen if by_us and calls}.union(ours.launched())
    unprepared = {problem for *_, problem, _, _, why in seen if why == ours.NOT_PREPARED}

    def why(row: Shape) -> str:
        if not row.problem or row.gain is None:
            return row.reason or "was not compared"
        if row.gain < _margin:
            return _slower(row.gain)
        if row.problem in answered:
            return ""
        if row.problem in unprepared:
            return ours.NOT_PREPARED
        if row.set == _shapes.GATED:
            return "has not run without gradients since `enable` and `optimize`, outside of autocast, or was compiled without `compiled=True`"
        if row.set == "aten::addmm":
            return "addmm's scalars do not pass torch's C interface: call F.linear or torch.addmm"
        name = row.set[6:].split(" ")[0]
        if ours.placed and name not in ours.placed:
            return f"{name} is not intercepted with this PyTorch: 2.10 or newer is needed, because its C interface passes lists"
        if name in ours.REDUCTIONS:
            return "has not run since `enable`, or was compiled: Inductor then fuses the reduction into its own kernels"
        return "has not run since `enable`, or was compiled without `compiled=True`"

    return [why(row) for row in rows]


def _counted(rows: Sequence[Shape], whys: Sequence[str]) -> List[int]:
    """Calls of each row without those that another row stands for: a gated MLP that is answered has its factors in it, one that is not is its
    factors."""
    calls = [row.calls for row in rows]
    for i, (row, why) in enumerate(zip(rows, whys)):
        if row.set != _shapes.GATED:
            continue
        if why:
            calls[i] = 0
            continue
        x, *weights = [of for of in json.loads(row.call) if isinstance(of, dict)]
        k = x["size"][-1]
        lines = math.prod(x["size"][:-1])
        for weight in weights:
            sizes = [[lines, k], weight["size"][::-1]]
            factor = lambda of: of.set == "aten::mm" and [a["size"] for a in json.loads(of.call)] == sizes  # noqa: E731
            at = next((j for j, of in enumerate(rows) if factor(of) and calls[j] > 0), None)
            if at is not None:
                calls[at] = max(0, calls[at] - row.calls)
    return calls


def report(path: Optional[Path] = None) -> str:
    """Describe which calls tilewright has answered since `enable`, and why torch answered the others.

    Parameters
    ----------
    path : path, optional
        File of shapes (CSV) that `record` wrote. With it, the report lists the gain of each recorded call site, or why torch answers it, and
        the share of torch's time that tilewright answers.

    Returns
    -------
    str
        A table of calls.
    """
    lines: List[str] = []
    seen = sorted(_native.torch_calls(), key=lambda call: -call[5])
    if path is not None:
        rows = sorted(_shapes.shapes(path), key=lambda row: (row.ours_us - row.torch_us) * row.calls)
        lines.append(f"{'calls':>6} {'torch us':>10} {'ours us':>10} {'saved us':>10}  layers, operator")
        times = {"": 0.0}
        if any(_shapes.is_emulated(row.device) for row in rows):
            lines.insert(0, "The device is the emulator `emu`, an interpreter of kernels on the CPU: for trying the calls, not for speed.")
        whys = unanswered(rows)
        for row, why, calls in zip(rows, whys, _counted(rows, whys)):
            why = "is part of a gated MLP that tilewright answers" if why and not calls and row.set != _shapes.GATED else why
            summed = _summed(row, why)
            if calls:
                times[summed] = times.get(summed, 0.0) + row.torch_us * calls
            saved = 0.0 if why else (row.torch_us - row.ours_us) * calls
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
        lines.append(f"{calls:6}  torch       {what}: first seen while a CUDA graph was captured")
    return "\n".join(lines)
