"""`tilewright::reduce` for PyTorch: reductions of strided tensors over any of their dimensions, and their gradients."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Union

import torch
from torch import Tensor

from . import _arguments as given
from . import _core, _native
from . import _operators as ours

ours._library.define("reduce(Tensor x, str op, int[] dims) -> Tensor")

# What each is to torch, of dimensions.
_TORCH: Dict[str, Callable[[Tensor, Sequence[int]], Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "sumsq": lambda x, dims: x.square().sum(dims),
    "max": torch.amax,
    "min": torch.amin,
    "absmax": lambda x, dims: x.abs().amax(dims),
    "logsumexp": torch.logsumexp,
    "var": lambda x, dims: torch.var(x, dims, correction=0),
    "norm2": lambda x, dims: torch.linalg.vector_norm(x, 2, dims),
    "argmax": lambda x, dims: torch.argmax(_flat(x, dims), -1),
    "argmin": lambda x, dims: torch.argmin(_flat(x, dims), -1),
}


def _kept(x: Tensor, dims: Sequence[int]) -> List[int]:
    return [at for at in range(x.dim()) if at not in dims]


def _flat(x: Tensor, dims: Sequence[int]) -> Tensor:
    """With all that is reduced as the last dimension."""
    return x.permute(*_kept(x, dims), *dims).flatten(-len(dims))


def wide_type(x: Tensor) -> torch.dtype:
    """The type of sums of a tensor's elements."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def _result(x: Tensor, op: str, dims: Sequence[int]) -> Tensor:
    """An empty tensor for the values. `op` may name their type after a colon."""
    _, _, told = op.partition(":")
    dtype = torch.int64 if op.startswith("arg") else _TYPES[told] if told else wide_type(x)
    return x.new_empty([x.shape[at] for at in _kept(x, dims)], dtype=dtype)


def _by_torch(x: Tensor, op: str, dims: Sequence[int]) -> Tensor:
    return _TORCH[op.partition(":")[0]](x.to(wide_type(x)), dims).to(_result(x[:0], op, dims).dtype)


def _reduce(x: Tensor, op: str, dims: Sequence[int]) -> Tensor:
    if x.numel() == 0:
        return _by_torch(x, op, dims)
    x = x.resolve_neg()
    out = _result(x, op, dims)
    return out if _launched(x, [op], dims, [out]) else _by_torch(x, op, dims)


def with_indices(x: Tensor, kinds: List[str], dim: int) -> List[Tensor]:
    """The largest or smallest values of a tensor and their indices, as `kinds` says."""
    out = [_result(x, kind, [dim]) for kind in kinds]
    return out if _launched(x, kinds, [dim], out) else list(getattr(torch, kinds[0].partition(":")[0])(x, dim))


def _launched(x: Tensor, kinds: List[str], dims: Sequence[int], out: List[Tensor]) -> bool:
    at = ours.array(x)
    if at.address == 0:
        raise _native.OperandError("x has no memory: was it freed?")

    def prepare() -> Any:
        try:
            problem = _native.problem("reduce", dtype=at.dtype, shape=at.shape, over=list(dims), strides=at.strides, ops=kinds)
        except _native.ProblemError as e:
            raise _native.ProblemError(f"x: {e}") from None
        return _core.context_for(at.device), problem, (at.alignment,) * 3

    key = ("reduce", x.device, x.dtype, ours._lies(x), *kinds, tuple(dims))
    what = f"{' and '.join(kinds)} of {tuple(x.shape)} {x.dtype}"
    addresses = {"a": at.address, **{f"reduction_{number}": y.data_ptr() for number, y in enumerate(out)}}
    return ours._launch(key, what, x, addresses, prepare)


for _key in ("CPU", "CUDA"):
    ours._library.impl("reduce", _reduce, _key)


@torch.library.register_fake("tilewright::reduce", lib=ours._library)
def _(x, op, dims):
    return _result(x, op, dims)


def _save(ctx, inputs, output):
    x, ctx.op, ctx.dims = inputs
    ctx.save_for_backward(x, output)


def _backward(ctx, grad):
    x, y = ctx.saved_tensors
    op, dims = ctx.op.partition(":")[0], ctx.dims

    def spread(t):
        for at in dims:
            t = t.unsqueeze(at)
        return t

    grad, y = spread(grad.to(wide_type(x))), y.to(wide_type(x))
    wide = x.to(grad.dtype)
    count = x.numel() // max(1, y.numel())
    if op in ("sum", "mean"):
        found = (grad / count if op == "mean" else grad).expand(x.shape)
    elif op == "sumsq":
        found = 2 * grad * wide
    elif op == "norm2":
        # A norm of 0 has the gradient 0, as torch has it.
        length = spread(y)
        found = grad * wide / length.masked_fill(length == 0, 1)
    elif op == "logsumexp":
        found = grad * (wide - spread(y)).exp()
    elif op == "var":
        found = grad * (wide - wide.mean(dims, keepdim=True)) * (2 / count)
    else:
        # Shared among equal ones, as torch's `amax` does.
        hit = (wide.abs() if op == "absmax" else wide) == spread(y)
        found = grad * hit / hit.sum(dims, keepdim=True)
        found = found * wide.sign() if op == "absmax" else found
    return found.to(x.dtype), None, None


torch.library.register_autograd("tilewright::reduce", _backward, setup_context=_save, lib=ours._library)


def reduce(x: Tensor, op: str, dim: Union[None, int, Sequence[int]] = None, keepdim: bool = False) -> Tensor:
    """Reduce a tensor over one dimension, several, or all. Differentiable.

    ``tilewright.tune(tilewright.reduce, x, op, dim)`` searches the fastest plan for it.

    Parameters
    ----------
    x : Tensor
        float16, bfloat16, float32 or float64.
    op : {"sum", "mean", "sumsq", "max", "min", "absmax", "logsumexp", "norm2", "var", "argmax", "argmin"}
        "var" is the population variance, without correction. With several dimensions, an index counts elements in their order.
    dim : int or sequence of int, optional
        None: all dimensions.
    keepdim : bool, default False
        Keep reduced dimensions with size 1.

    Returns
    -------
    Tensor
        Values are float32 (float64 of float64), indices int64.

    Raises
    ------
    OperandError
        `x` has a type that is not listed, or nothing is reduced.

    Examples
    --------
    >>> import tilewright as tw, tilewright.torch as twt, torch
    >>> context = tw.use("emu", records="")
    >>> twt.reduce(torch.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]]), "max", 1).tolist()
    [5.0, 7.0]
    """
    if not isinstance(x, Tensor):
        raise _native.OperandError(f"x is {type(x).__name__}: a torch.Tensor is needed")
    if given.word(op, "op") not in _TORCH:
        given.refuse("op", op, f"one of {', '.join(_TORCH)}")
    dims = sorted(set(given.axes(dim, x.shape, "dim")))
    if not dims:
        raise _native.OperandError(f"x has shape {tuple(x.shape)}, dim = {dim}: nothing is reduced")
    if x.dtype not in ours.TYPES:
        raise _native.OperandError(f"x is {x.dtype}: float16, bfloat16, float32 or float64 are possible")
    keepdim = given.truth(keepdim, "keepdim")
    try:
        found = torch.ops.tilewright.reduce(x, op, dims)
    except (AttributeError, IndexError, RuntimeError, TypeError) as e:
        raise ours._named(e, {"x": x}) from None
    for at in dims if keepdim else ():
        found = found.unsqueeze(at)
    return found
