"""Operators for PyTorch: `mm`, `bmm` and `linear` with bias, activation and residual in the same kernel.

    import tilewright.torch as twt

    y = twt.linear(x, weight, bias, activation="gelu")     # x @ weight.T + bias, then GELU; differentiable, torch.compile takes it
    twt.tune(twt.linear, x, weight, bias, activation="gelu", seconds=10)

CUDA tensors run where they are, on torch's current stream, with results and workspace from torch's allocator: a call may be captured in
a CUDA graph once its shape was seen outside of one. CPU tensors run on the context of `tilewright.use`. A shape runs with its recorded
plan, else with the cost model's pick; nothing is ever tuned inside a call.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Tuple

try:
    import torch
    from torch import Tensor
except ImportError as e:
    raise ImportError(f"tilewright.torch needs PyTorch 2.8 or newer (pip install torch): {e}") from e

from . import _core, _native
from ._core import Outcome

if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 8):
    raise ImportError(f"tilewright.torch needs PyTorch 2.8 or newer, this is {torch.__version__}: pip install --upgrade torch")

__all__ = ["bmm", "linear", "mm", "prepared", "tune", "unprepared"]

_library = torch.library.Library("tilewright", "FRAGMENT")
_library.define("mm(Tensor a, Tensor b) -> Tensor")
_library.define("bmm(Tensor a, Tensor b) -> Tensor")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias=None, str? activation=None, Tensor? residual=None) -> Tensor")

_TYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}

# What a call needs, by all that its kernels depend on.
_calls: Dict[Tuple[Any, ...], Tuple[_native.Prepared, int]] = {}
_unprepared: List[str] = []
_lock = threading.Lock()


def prepared() -> int:
    """Number of shapes (with their strides, types and alignments) that are compiled and kept."""
    return len(_calls)


def unprepared() -> List[str]:
    """Shapes that torch answered because they were first met while a CUDA graph was captured: run them once before."""
    return list(_unprepared)


def _lies(x: Optional[Tensor]) -> Tuple[Any, ...]:
    """What kernels depend on of a tensor. Alignments above 256 bytes are all the same."""
    if x is None:
        return ()
    at = x.data_ptr()
    return (x.shape, x.stride(), min(at & -at, 256)) if x.is_cuda else (x.shape, x.stride())


def _plain(x: Tensor) -> Tensor:
    """A tensor whose memory holds its values, as rows or columns that BLAS could read."""
    x = x.resolve_neg() if x.is_neg() else x
    (rows, cols), (down, right) = x.shape[-2:], x.stride()[-2:]
    if (cols <= 1 or right == 1) and (rows <= 1 or down >= cols) or (rows <= 1 or down == 1) and (cols <= 1 or right >= rows):
        return x
    return x.contiguous()


def _by_torch(a: Tensor, b: Tensor, bias: Optional[Tensor], activation: Optional[str], residual: Optional[Tensor]) -> Tensor:
    result = torch.matmul(a, b)
    if bias is not None:
        result = result + bias
    if activation is not None:
        result = _activate(result, activation)
    return result if residual is None else result + residual


def _activate(x: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return torch.relu(x)
    if activation == "silu":
        return torch.nn.functional.silu(x)
    if activation in ("gelu", "gelutanh"):
        return torch.nn.functional.gelu(x, approximate="tanh" if activation == "gelutanh" else "none")
    raise _native.ProblemError(f"activation = {activation!r}: one of relu, gelu, gelutanh, silu")


def _product(
    a: Tensor, b: Tensor, bias: Optional[Tensor] = None, activation: Optional[str] = None, residual: Optional[Tensor] = None
) -> Tensor:
    """`activation(a @ b + bias) + residual`, of matrices or batches of them."""
    for name, x in (("a", a), ("b", b), ("bias", bias), ("residual", residual)):
        if x is not None and (x.dtype != a.dtype or x.device != a.device):
            raise _native.OperandError(f"{name} is {x.dtype} on {x.device}, a is {a.dtype} on {a.device}: bring them together")
    if a.dtype not in _TYPES:
        raise _native.OperandError(f"tensors are {a.dtype}: float16, bfloat16, float32 or float64 are possible")
    shape = (*a.shape[:-1], b.shape[-1])
    if 0 in shape or a.shape[-1] == 0:
        return _by_torch(a, b, bias, activation, residual)
    a, b = _plain(a), _plain(b)
    bias = None if bias is None else bias.contiguous()
    residual = None if residual is None else residual.contiguous()
    out = a.new_empty(shape)
    key = (a.device, a.dtype, _lies(a), _lies(b), _lies(out), _lies(bias), activation, _lies(residual), id(_core._default))
    found = _calls.get(key)
    if found is None:
        if a.is_cuda and torch.cuda.is_current_stream_capturing():
            _unprepared.append(f"{tuple(a.shape)} @ {tuple(b.shape)} {a.dtype}")
            return _by_torch(a, b, bias, activation, residual)
        call = _core._gemm(a, b, out=out, bias=bias, activation=activation, residual=residual)
        alignments = (call.a.alignment, call.b.alignment, call.c.alignment) if a.is_cuda else (256, 256, 256)
        kernels = call.context.prepared(call.problem, alignments)
        with _lock:
            found = _calls.setdefault(key, (kernels, kernels.workspace_bytes if a.is_cuda else 0))
    kernels, size = found
    addresses = [a.data_ptr(), b.data_ptr(), out.data_ptr()]
    addresses += [0 if x is None else x.data_ptr() for x in (bias, residual)]
    if not a.is_cuda:
        kernels.launch([*addresses, 0], host=True)
        return out
    # The allocator gives the workspace back in the stream's order, after this launch.
    space = torch.empty(size, dtype=torch.uint8, device=a.device) if size else None
    stream = torch._C._cuda_getCurrentRawStream(a.device.index)
    kernels.launch([*addresses, 0 if space is None else space.data_ptr()], stream=stream)
    return out


def _mm(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise _native.OperandError(f"mm of {tuple(a.shape)} and {tuple(b.shape)}: (m, k) and (k, n) are needed")
    return _product(a, b)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise _native.OperandError(f"bmm of {tuple(a.shape)} and {tuple(b.shape)}: (batch, m, k) and (batch, k, n) are needed")
    return _product(a, b)


def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    residual: Optional[Tensor] = None,
) -> Tensor:
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise _native.OperandError(f"linear of {tuple(x.shape)} and {tuple(weight.shape)}: (..., k) and (n, k) are needed")
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is not None and bias.shape != shape[-1:]:
        raise _native.OperandError(f"bias is {tuple(bias.shape)}, ({shape[-1]},) is needed")
    if residual is not None and residual.shape != shape:
        raise _native.OperandError(f"residual is {tuple(residual.shape)}, {shape} is needed")
    rows = x.reshape(-1, x.shape[-1])
    added = None if residual is None else residual.reshape(-1, shape[-1])
    return _product(rows, weight.t(), bias, activation, added).reshape(shape)


for _key in ("CPU", "CUDA"):
    _library.impl("mm", _mm, _key)
    _library.impl("bmm", _bmm, _key)
    _library.impl("linear", _linear, _key)


@torch.library.register_fake("tilewright::mm", lib=_library)
def _(a, b):
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "mm: two matrices are needed")
    torch._check(a.shape[1] == b.shape[0], lambda: f"mm of {a.shape} and {b.shape}")
    return a.new_empty((a.shape[0], b.shape[1]))


@torch.library.register_fake("tilewright::bmm", lib=_library)
def _(a, b):
    torch._check(a.dim() == 3 and b.dim() == 3, lambda: "bmm: two batches of matrices are needed")
    torch._check(a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1], lambda: f"bmm of {a.shape} and {b.shape}")
    return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))


@torch.library.register_fake("tilewright::linear", lib=_library)
def _(x, weight, bias=None, activation=None, residual=None):
    torch._check(x.shape[-1] == weight.shape[1], lambda: f"linear of {x.shape} and {weight.shape}")
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _save_factors(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _mm_backward(ctx, grad):
    a, b = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return mm(grad, b.t()) if needs[0] else None, mm(a.t(), grad) if needs[1] else None


def _bmm_backward(ctx, grad):
    a, b = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return bmm(grad, b.transpose(1, 2)) if needs[0] else None, bmm(a.transpose(1, 2), grad) if needs[1] else None


def _save_linear(ctx, inputs, output):
    # What has its default at the end is not among them.
    x, weight, bias, ctx.activation, _ = (*inputs, None, None, None)[:5]
    ctx.save_for_backward(x, weight, bias)


def _linear_backward(ctx, grad):
    x, weight, bias = ctx.saved_tensors
    at_sums = grad
    if ctx.activation is not None:
        # The sums before the activation are computed again instead of kept.
        sums = linear(x, weight, bias)
        if ctx.activation == "relu":
            at_sums = torch.ops.aten.threshold_backward(grad, sums, 0)
        elif ctx.activation == "silu":
            at_sums = torch.ops.aten.silu_backward(grad, sums)
        else:
            approximate = "tanh" if ctx.activation == "gelutanh" else "none"
            at_sums = torch.ops.aten.gelu_backward(grad, sums, approximate=approximate)
    flat = at_sums.reshape(-1, at_sums.shape[-1])
    count = len(ctx.needs_input_grad)
    needs = (*ctx.needs_input_grad, False, False, False)
    grads = (
        mm(flat, weight).reshape(x.shape) if needs[0] else None,
        mm(flat.t(), x.reshape(-1, x.shape[-1])) if needs[1] else None,
        flat.sum(0) if bias is not None and needs[2] else None,
        None,
        grad if needs[4] else None,
    )
    return grads[:count]


torch.library.register_autograd("tilewright::mm", _mm_backward, setup_context=_save_factors, lib=_library)
torch.library.register_autograd("tilewright::bmm", _bmm_backward, setup_context=_save_factors, lib=_library)
torch.library.register_autograd("tilewright::linear", _linear_backward, setup_context=_save_linear, lib=_library)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of two matrices."""
    return torch.ops.tilewright.mm(a, b)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of two batches of matrices."""
    return torch.ops.tilewright.bmm(a, b)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    residual: Optional[Tensor] = None,
) -> Tensor:
    """`activation(x @ weight.T + bias) + residual` in one kernel. `x` is (..., k), `weight` (n, k), `bias` (n,), `residual` (..., n);
    `activation`: relu, gelu, gelutanh, silu."""
    return torch.ops.tilewright.linear(x, weight, bias, activation, residual)


def tune(
    what: Any, *args: Any, seconds: Optional[float] = None, trials: Optional[int] = None, progress: Any = False, **options: Any
) -> Outcome:
    """As `tilewright.tune`, for a call of `mm`, `bmm` or `linear`. On a CUDA device it searches with memory of its own."""
    if what is linear:
        names = ("x", "weight", "bias", "activation", "residual")
        given = {**dict(zip(names, args)), **options}
        x, weight = given.pop("x"), given.pop("weight")
        if given.get("residual") is not None:
            given["residual"] = given["residual"].reshape(-1, weight.shape[0])
        args, options = (x.reshape(-1, x.shape[-1]), weight.t()), given
    elif what not in (mm, bmm):
        raise _native.ProblemError(f"{what!r}: tilewright.torch.mm, bmm or linear is needed")
    detached = [x.detach() if isinstance(x, Tensor) else x for x in args]
    options = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options.items()}
    outcome = _core.tune(_core.gemm, *detached, seconds=seconds, trials=trials, progress=progress, **options)
    with _lock:
        # Compiled for the plan that was.
        _calls.clear()
    return outcome
