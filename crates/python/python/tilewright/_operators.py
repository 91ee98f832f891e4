"""`tilewright::mm`, `bmm`, `linear`, `grouped_mm` and `convolution` for PyTorch, with what torch needs to know of them: shapes, gradients.

The kernels of `mm`, `bmm` and `addmm`, and those in the place of torch's own products and convolutions, are in the compiled part, which asks
`_decide` once about each call that differs from those before. Those of `linear`, `grouped_mm` and `convolution` are here: the C interface of older versions of
torch hands over neither texts nor lists.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple, Union

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from . import _arguments as given
from . import _core, _native
from ._arrays import Array, matrix, of_shape
from ._core import Outcome

TYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}

_library = torch.library.Library("tilewright", "FRAGMENT")
_aten = torch.library.Library("aten", "IMPL")
_library.define("mm(Tensor a, Tensor b) -> Tensor")
_library.define("bmm(Tensor a, Tensor b) -> Tensor")
_library.define("addmm(Tensor bias, Tensor a, Tensor b) -> Tensor")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias=None, str? activation=None, Tensor? residual=None) -> Tensor")
_library.define("grouped_mm(Tensor mat_a, Tensor mat_b, Tensor offs) -> Tensor")
_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"
_library.define("linear_backward(Tensor x, Tensor grad, Tensor weight, bool[3] wanted) -> (Tensor, Tensor, Tensor)")
_library.define(f"convolution(Tensor x, Tensor weight, Tensor? bias, {_GEOMETRY}) -> Tensor")
_library.define(f"convolution_input(Tensor grad, Tensor weight, SymInt[] size, {_GEOMETRY}) -> Tensor")
_library.define(f"convolution_weight(Tensor grad, Tensor x, SymInt[] size, {_GEOMETRY}) -> Tensor")

# Kernels, bytes of workspace and the problem of a call that was met.
_calls: Dict[Tuple[Any, ...], Tuple[_native.Prepared, int, str]] = {}
# Calls since `choose_by`, by problem, and by shape.
_launched: Dict[str, int] = {}
_unprepared: Dict[str, int] = {}
_lock = threading.Lock()


def _not_enabled(problem: str) -> Optional[str]:
    """Why torch answers a problem; None: we do."""
    return "tilewright.torch.enable was not called"


# Why torch answers a shape that was compared, where nobody has looked at the plan for operands that begin so.
NOT_PREPARED = "was not prepared: call tilewright.torch.prepare(model, inputs)"

# Torch's own calls may look at plans: while `prepare` runs a model.
looking = False

# What decides about torch's own products and convolutions. Gradients leave the choice to torch's dispatcher where it is there.
chosen: Callable[[str], Optional[str]] = _not_enabled


# Torch's reductions that may be ours, with what they are here.
REDUCTIONS = {
    "sum": "sum",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
    "argmax": "argmax",
    "argmin": "argmin",
    "logsumexp": "logsumexp",
    # Over one dimension; indices come with them.
    "max": "max",
    "min": "min",
}
# Torch's operators that may be ours.
OVERRIDDEN = ("mm", "bmm", "convolution", "convolution_backward", *REDUCTIONS)
# Those in whose place we are.
placed: List[str] = []


# For products with a bias that are ours: the number of elements of `x`, by the shape of the layer's weight. A quick first test.
biased: Dict[Tuple[int, ...], Set[int]] = {}


def choose_by(
    choose: Optional[Callable[[str], Optional[str]]], operators: Sequence[str] = OVERRIDDEN, layers: Iterable[Tuple[int, int, int]] = ()
) -> None:
    """Sets the function that chooses who answers torch's own calls, for the given operators and for products with a bias of the given layers
    (rows, terms, columns). Other operators are not intercepted."""
    global chosen
    chosen = choose or _not_enabled
    biased.clear()
    for rows, terms, columns in layers:
        biased.setdefault((columns, terms), set()).add(rows * terms)
    _unprepared.clear()
    _launched.clear()
    _native.torch_forget()
    placed[:] = _native.torch_override(list(operators) if choose is not None else [])


def _changed() -> None:
    _native.torch_forget()
    with _lock:
        _former.append(dict(_calls))
        _calls.clear()


# CUDA graphs that captured these calls may still be replayed.
_former: List[Dict[Tuple[Any, ...], Any]] = []


def prepared() -> int:
    """Count the shapes that are compiled and kept. Each combination of sizes, strides, types and alignments counts.

    Returns
    -------
    int
    """
    return len(_calls) + sum(ours for *_, ours, _ in _native.torch_calls())


def launched() -> Dict[str, int]:
    """Number of runs of each problem by `linear` and `convolution` since `enable` or `disable`."""
    return dict(_launched)


def unprepared() -> Dict[str, int]:
    """List the shapes that torch answered because they were first seen while a CUDA graph was captured.

    Nothing can be compiled during a capture. Run these shapes once before it.

    Returns
    -------
    dict of str to int
        Number of calls per shape since `enable` or `disable`.
    """
    return dict(_unprepared)


def captured(what: str, place: Union[str, torch.device]) -> bool:
    """Whether a graph is being captured on a CUDA device, so that nothing can be compiled. Notes the call."""
    with torch.cuda.device(torch.device(place)):
        captures = torch.cuda.is_current_stream_capturing()
    if captures:
        _unprepared[what] = _unprepared.get(what, 0) + 1
        return True
    return False


def _decide(
    own: bool,
    op: str,
    place: str,
    dtype: str,
    operands: Sequence[Tuple[int, List[int], List[int]]],
    alignments: Sequence[int],
    last: bool,
    how: Sequence[int],
) -> Optional[Tuple[str, Union[str, _native.Prepared], bool]]:
    """The problem of a product, convolution or reduction, its kernels or why torch answers it, and whether torch does so wherever operands lie; None: ask
    again."""
    a, *others = (Array(at, tuple(shape), tuple(strides), dtype, place, None) for at, shape, strides in operands)
    sizes = [str(x.shape) for x in (a, *others)]
    what = f"{' @ '.join(sizes)} {dtype}" if op in ("mm", "bmm", "addmm") else f"{op} of {' and '.join(sizes)} {dtype}"
    if place != "cpu" and place not in _core._contexts and captured(what, place):
        return None
    problem = ""
    strange: Callable[[], Optional[str]] = lambda: None  # noqa: E731
    try:
        if op in REDUCTIONS:
            bits, narrow = how
            problem = reduction_problem(op, a, [at for at in range(len(a.shape)) if bits >> at & 1], bool(narrow))
            context = _core.context_for(place)
        elif op.startswith("convolution "):
            problem, strange = _convolution_of(op[12:], a, others[0], last, how)
            context = _core.context_for(place)
        else:
            (b,) = others
            bias = of_shape(b.shape[-1:], dtype, place) if op == "addmm" else None
            call = _core._gemm(a, b, out=of_shape((*a.shape[:-1], b.shape[-1]), dtype, place, alignments[2]), bias=bias)
            problem, context = call.problem, call.context
        why = None if own else chosen(problem)
        if why is None and place != "cpu" and captured(what, place):
            return None
        why = why or (None if own else strange())
        if why is not None:
            return problem, why, True
        if own or looking:
            return problem, context.prepared(problem, tuple(alignments)), False
        return problem, context.looked_at(problem, tuple(alignments)) or NOT_PREPARED, False
    except (_native.Error, RuntimeError) as e:
        if own:
            raise
        return problem, str(e), False


_SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def reduction_kinds(op: str, dtype: str, narrow: bool) -> List[str]:
    """What one of torch's reductions computes; `narrow`: its values are of the tensor's type, else of a wider one, or indices."""
    kind = REDUCTIONS[op] + (f":{_SHORT[dtype]}" if narrow and dtype in ("float16", "bfloat16") else "")
    return [kind, f"arg{op}"] if op in ("max", "min") else [kind]


def reduction_problem(op: str, x: Array, dims: Sequence[int], narrow: bool) -> str:
    """The text of one of torch's reductions."""
    ops = reduction_kinds(op, x.dtype, narrow)
    return _native.problem("reduce", dtype=x.dtype, shape=x.shape, over=list(dims), strides=x.strides, ops=ops)


def _convolution_of(
    direction: str, a: Array, b: Array, last: bool, how: Sequence[int]
) -> Tuple[str, Callable[[], Optional[str]]]:
    """The text of a convolution that the compiled part (`How` in `convolution.rs`) has met, and what says why torch must answer it."""
    dims = len(a.shape) - 2
    bias, *numbers = how
    stride, padding, dilation = (numbers[n * dims : (n + 1) * dims] for n in range(3))
    groups, *like = numbers[3 * dims :]
    third = a._replace(shape=tuple(like[: dims + 2]), strides=tuple(like[dims + 2 :]))
    x, weight = {"forward": (a, b), "backward-data": (third, b), "backward-weight": (b, third)}[direction]
    y = geometry(x.shape, weight.shape, stride, padding, dilation, groups)
    if min(y) < 1 or direction != "forward" and y != a.shape:
        raise _native.OperandError(f"convolution ({direction}) of {a.shape} and {b.shape}: the result has shape {y}")

    def strange() -> Optional[str]:
        """Compiled graphs rely on where torch's result lies."""
        with FakeTensorMode():
            kind = {name: dtype for dtype, name in TYPES.items()}[a.dtype]
            fake = [torch.empty_strided(t.shape, t.strides, dtype=kind, device=a.device) for t in (a, x, weight)]
            rest = (stride, padding, dilation, False, [0] * dims, groups)
            if direction == "forward":
                theirs = torch.ops.aten.convolution(*fake[1:], fake[2].new_empty(y[1]) if bias else None, *rest)
            else:
                at = direction == "backward-weight"
                theirs = torch.ops.aten.convolution_backward(*fake, None, *rest, [not at, at, False])[at]
            ours = torch.empty(theirs.shape, device="meta", memory_format=_format(last, dims + 2))
        apart = any(n > 1 and s != t for n, s, t in zip(theirs.shape, theirs.stride(), ours.stride()))
        return "torch's result lies otherwise in memory" if apart else None

    geometry_of = (stride, padding, dilation, groups)
    return convolution_problem(direction, x.shape, weight.shape, a.dtype, last, geometry_of, bool(bias)), strange


def array(x: Tensor) -> Array:
    """A tensor as launches see it."""
    if x.dtype not in TYPES:
        raise _native.OperandError(f"tensors are {x.dtype}: float16, bfloat16, float32 or float64 are possible")
    place = "cpu" if x.device.type == "cpu" else f"{x.device.type}:{x.device.index}"
    return Array(x.data_ptr(), tuple(x.shape), x.stride(), TYPES[x.dtype], place, x)


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


def _together(tensors: Sequence[Tuple[str, Optional[Tensor]]]) -> None:
    (name_of_first, first), *rest = tensors
    assert first is not None
    for name, x in rest:
        if x is not None and (x.dtype != first.dtype or x.device != first.device):
            told = f"{name} is {x.dtype} on {x.device}, {name_of_first} is {first.dtype} on {first.device}: bring them together"
            raise _native.OperandError(told)
    if first.dtype not in TYPES:
        raise _native.OperandError(f"tensors are {first.dtype}: float16, bfloat16, float32 or float64 are possible")


class Fused(Protocol):
    """What a pass over torch.compile's graphs has replaced."""

    count: int


def fuse(on: bool, module: str, **how: Any) -> Optional[Fused]:
    """Sets the rewriter of a module, or removes it. The module imports Inductor, so it is imported only where it is needed."""
    if not on and f"{__package__}.{module}" not in sys.modules:
        return None
    from ._before_gradients import set_rewriter

    rewriter = importlib.import_module(f".{module}", __package__).REWRITER
    made = rewriter(**how) if on else None
    set_rewriter(rewriter.name, made)
    return made


class Gate(NamedTuple):
    """A gate's function, whether the other factor comes first, limit and slope of a clamped one, whether columns take turns."""

    function: str
    up_first: bool
    limit: Optional[float] = None
    slope: Optional[float] = None
    interleaved: bool = False

    def options(self) -> Dict[str, Any]:
        """As a product takes them."""
        lie = {"up_first": self.up_first, "interleaved": self.interleaved}
        return {"gate": self.function, **lie, "gate_limit": self.limit, "gate_slope": self.slope}

    def halves(self, preactivations: Tensor) -> Tuple[Tensor, Tensor]:
        """The gate and the other factor."""
        first, second = (preactivations[..., ::2], preactivations[..., 1::2]) if self.interleaved else preactivations.chunk(2, -1)
        return (second, first) if self.up_first else (first, second)

    def joined(self, gate: Tensor, up: Tensor) -> Tensor:
        both = (up, gate) if self.up_first else (gate, up)
        return torch.stack(both, -1).flatten(-2) if self.interleaved else torch.cat(both, -1)

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.function == "clamped":
            gate, up, slope = self._clamped(gate, up)
            return gate * torch.sigmoid(slope * gate) * (up + 1)
        return _gate_function(gate, self.function) * up

    def _clamped(self, gate: Tensor, up: Tensor) -> Tuple[Tensor, Tensor, float]:
        limit = 7.0 if self.limit is None else self.limit
        return gate.clamp(max=limit), up.clamp(-limit, limit), 1.702 if self.slope is None else self.slope

    def backward(self, grad: Tensor, gate: Tensor, up: Tensor) -> Tuple[Tensor, Tensor]:
        """The gradients of both factors from that of their result."""
        if self.function != "clamped":
            return at_preactivations_of(grad * up, gate, self.function), grad * _gate_function(gate, self.function)
        return self._clamped_backward(grad, gate, up)

    def joined_backward(self, grad: Tensor, preactivations: Tensor) -> Tensor:
        """The same beside each other, as pre-activations lie."""
        gate, up = self.halves(preactivations)
        # Compilers fuse operators that have no `out`, and those with one have no derivative. Else results are written in place.
        traced = type(grad) is not Tensor or torch.is_grad_enabled() or _is_batched(grad)
        if traced or grad.dtype != preactivations.dtype or self.function == "clamped":
            return self.joined(*self.backward(grad, gate, up))
        both = torch.empty_like(preactivations)
        at_gate, at_up = self.halves(both)
        value = _gate_function(gate, self.function)
        torch.mul(grad, value, out=at_up)
        # The gate's value is needed no more, but for that of a linear gate, which is the gate.
        scaled = grad * up if value is gate else torch.mul(grad, up, out=value)
        at_preactivations_of(scaled, gate, self.function, at_gate)
        return both

    def _clamped_backward(self, grad: Tensor, gate: Tensor, up: Tensor) -> Tuple[Tensor, Tensor]:
        g, u, slope = self._clamped(gate, up)
        part = torch.sigmoid(slope * g)
        at_gate = grad * (u + 1) * part * (1 + slope * g * (1 - part))
        return torch.where(g == gate, at_gate, 0), torch.where(u == up, grad * g * part, 0)


def _is_batched(x: Tensor) -> bool:
    """Whether a tensor stands for several, as in `vmap` and in gradients of several seeds."""
    of = torch._C._functorch
    return bool(of.is_functorch_wrapped_tensor(x) or of.is_legacy_batchedtensor(x))


_Gate = Optional[Gate]
# The second pair of factors of a product.
_Pair = Optional[Tuple[Optional[Tensor], Optional[Tensor]]]


def _by_torch(
    a: Tensor,
    b: Tensor,
    bias: Optional[Tensor],
    activation: Optional[str],
    residual: Optional[Tensor],
    gate: _Gate = None,
    preactivations: Optional[Tensor] = None,
    up: Optional[Tensor] = None,
    second: _Pair = None,
) -> Tensor:
    result = torch.matmul(a, b) if up is None else torch.cat((torch.matmul(a, b), torch.matmul(a, up)), -1)
    if second is not None:
        result = result + torch.matmul(*second)
    if bias is not None:
        result = result + bias
    if activation is not None:
        result = activate(result, activation)
    if preactivations is not None:
        preactivations.copy_(result)
    if gate is not None:
        result = gate(*gate.halves(result))
    return result if residual is None else result + residual


def one_spelling(activation: str) -> str:
    """`gelutanh` of `gelu-tanh` and `gelu_tanh`."""
    return activation.replace("-", "").replace("_", "")


def activate(x: Tensor, activation: str) -> Tensor:
    """An activation by its name here."""
    activation = one_spelling(activation)
    if activation == "relu":
        return torch.relu(x)
    if activation == "silu":
        return torch.nn.functional.silu(x)
    if activation == "hardswish":
        return torch.nn.functional.hardswish(x)
    if activation == "exp":
        return torch.exp(x)
    if activation in ("gelu", "gelutanh"):
        return torch.nn.functional.gelu(x, approximate="tanh" if activation == "gelutanh" else "none")
    raise _native.ProblemError(f"activation = {activation!r}: one of relu, gelu, gelutanh, silu, hardswish, exp")


def _gate_function(x: Tensor, gate: str) -> Tensor:
    """A gate's function by its name here."""
    if gate == "linear":
        return x
    return torch.sigmoid(x) if gate == "sigmoid" else activate(x, gate)


# A context, a problem on it, and how its operands are aligned.
_Found = Tuple[_core.Context, str, Tuple[int, ...]]


def _addresses(a: Tensor, b: Tensor, c: Tensor) -> Dict[str, int]:
    return {"a": a.data_ptr(), "b": b.data_ptr(), "c": c.data_ptr()}


def _launch(
    key: Tuple[Any, ...],
    what: str,
    first: Tensor,
    addresses: Dict[str, int],
    prepare: Callable[[], _Found],
    beta: float = 0.0,
) -> bool:
    """Runs a call, which is compiled where its key is new; False where that cannot be now."""
    found = _calls.get(key)
    if found is None:
        if first.is_cuda and captured(what, first.device):
            return False
        context, problem, alignments = prepare()
        kernels = context.prepared(problem, alignments if first.is_cuda else (256, 256, 256))
        with _lock:
            found = _calls.setdefault(key, (kernels, kernels.workspace_bytes if first.is_cuda else 0, problem))
    kernels, size, problem = found
    _launched[problem] = _launched.get(problem, 0) + 1
    if not first.is_cuda:
        kernels.launch(addresses, beta=beta, host=True)
        return True
    # The allocator gives the workspace back in the stream's order, after this launch.
    space = torch.empty(size, dtype=torch.uint8, device=first.device) if size else None
    stream = torch._C._cuda_getCurrentRawStream(first.device.index)
    kernels.launch({**addresses, "workspace": 0 if space is None else space.data_ptr()}, beta=beta, stream=stream)
    return True


def _at(x: Optional[Tensor]) -> int:
    return 0 if x is None else x.data_ptr()


def _product(
    a: Tensor,
    b: Tensor,
    bias: Optional[Tensor],
    activation: Optional[str],
    residual: Optional[Tensor],
    gate: _Gate = None,
    preactivations: Optional[Tensor] = None,
    up: Optional[Tensor] = None,
    second: _Pair = None,
) -> Tensor:
    """`activation(a @ b + bias) + residual` of matrices, with a gate between both halves of b, or between b and up. `preactivations` receives
    `a @ b + bias`, of both. The product of `second` is added to that of a and b."""
    a2, b2 = second or (None, None)
    _together([("x", a), ("weight", b), ("bias", bias), ("residual", residual), ("up", up), ("a2", a2), ("b2", b2)])
    shape = (a.shape[0], b.shape[1] if gate is None or up is not None else b.shape[1] // 2)
    if 0 in shape or a.shape[1] == 0 or a2 is not None and a2.shape[1] == 0:
        return _by_torch(a, b, bias, activation, residual, gate, preactivations, up, second)
    a, b = _plain(a), _plain(b)
    if second is not None:
        a2, b2 = _stored_as(a2, a), _stored_as(b2, b)
    up = up if up is None else up.resolve_neg()
    if up is not None and (up.stride() != b.stride() or up.data_ptr() % 16):
        b, up = b.contiguous(), up.clone(memory_format=torch.contiguous_format)
    bias = None if bias is None else bias.contiguous()
    if bias is not None and activation == "exp" and bias.dtype != torch.float64:
        bias = bias.float()
    residual = None if residual is None else residual.contiguous()
    out = a.new_empty(shape)
    key = (a.device, a.dtype, _lies(a), _lies(b), _lies(out), _lies(bias), activation, _lies(residual), gate, preactivations is not None, up is not None, _lies(a2), _lies(b2))

    def prepare() -> _Found:
        arrays = [x if x is None else array(x) for x in (a, b, out, bias, residual)]
        kept = {"preactivations": preactivations is not None, "up": up if up is None else array(up)}
        options: Dict[str, Any] = {} if gate is None else {**gate.options(), **kept}
        if second is not None:
            options.update(a2=array(a2), b2=array(b2))
        call = _core._gemm(arrays[0], arrays[1], out=arrays[2], bias=arrays[3], activation=activation, residual=arrays[4], **options)
        return call.context, call.problem, call.alignments

    others = {"bias": bias, "residual": residual, "preactivations": preactivations, "up": up, "a2": a2, "b2": b2}
    addresses = {**_addresses(a, b, out), **{name: _at(x) for name, x in others.items()}}
    if _launch(key, f"{tuple(a.shape)} @ {tuple(b.shape)} {a.dtype}", a, addresses, prepare):
        return out
    return _by_torch(a, b, bias, activation, residual, gate, preactivations, up, second)


def _stored_as(x: Tensor, first: Tensor) -> Tensor:
    """An operand of the second pair of factors in the direction of the first one's, from a multiple of 16 bytes on. Copied where it is not."""
    by_rows = _by_rows(first)
    if _by_rows(x if by_rows else x.t()) and x.data_ptr() % 16 == 0:
        return x.resolve_neg()
    copied = (x if by_rows else x.t()).resolve_neg().clone(memory_format=torch.contiguous_format)
    return copied if by_rows else copied.t()


def _by_rows(x: Tensor) -> bool:
    lies = matrix(array(x))
    return lies is not None and not lies.trans


def _grouped_shape(a: Tensor, b: Tensor, offs: Tensor) -> Tuple[int, ...]:
    """Of rows in groups the result is a matrix, of terms in groups one for each."""
    fits = a.dim() == 2 and b.dim() in (2, 3) and offs.dim() == 1 and a.shape[1] == b.shape[-2]
    if not fits or b.dim() == 3 and b.shape[0] != offs.shape[0] or offs.dtype != torch.int32:
        told = f"grouped_mm of {tuple(a.shape)} and {tuple(b.shape)} with {offs.dtype} offs {tuple(offs.shape)}"
        raise _native.OperandError(f"{told}: (m, k), (groups, k, n) or (k, n), and int32 (groups,) are needed")
    return (*offs.shape[: 3 - b.dim()], a.shape[0], b.shape[-1])


def _grouped_by_torch(a: Tensor, b: Tensor, offs: Tensor, shape: Tuple[int, ...]) -> Tensor:
    if 0 in (*shape, a.shape[1]):
        return a.new_zeros(shape)
    return torch._grouped_mm(a, b, offs)


def _grouped_mm(mat_a: Tensor, mat_b: Tensor, offs: Tensor) -> Tensor:
    shape = _grouped_shape(mat_a, mat_b, offs)
    _together([("mat_a", mat_a), ("mat_b", mat_b)])
    if offs.device != mat_a.device:
        raise _native.OperandError(f"offs is on {offs.device}, mat_a on {mat_a.device}: bring them together")
    if 0 in (*shape, mat_a.shape[1]):
        return _grouped_by_torch(mat_a, mat_b, offs, shape)
    a, b, ends = _plain(mat_a), _plain(mat_b), offs.contiguous()
    # Kernels count on what torch's allocator gives.
    ends = ends.clone() if ends.data_ptr() % 16 else ends
    out = a.new_empty(shape)
    key = ("grouped", a.device, a.dtype, _lies(a), _lies(b), _lies(out), ends.shape)

    def prepare() -> _Found:
        where = Array(ends.data_ptr(), tuple(ends.shape), ends.stride(), "int32", array(a).device, ends)
        call = _core._gemm(array(a), array(b), out=array(out), offsets=where)
        return call.context, call.problem, call.alignments

    addresses = {**_addresses(a, b, out), "ends": ends.data_ptr()}
    what = f"{ends.shape[0]} groups of {tuple(a.shape)} @ {tuple(b.shape)} {a.dtype}"
    if _launch(key, what, a, addresses, prepare):
        return out
    return _grouped_by_torch(a, b, ends, shape)


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


def geometry(x: Sequence[int], weight: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int) -> Tuple[Any, ...]:
    """Shape of a convolution's result."""
    dims = len(x) - 2
    if dims not in (1, 2, 3) or len(weight) != dims + 2:
        told = f"convolution of {tuple(x)} and {tuple(weight)}: (n, c, ...) and (k, c / groups, ...) of 1 to 3 dimensions are needed"
        raise _native.OperandError(told)
    if any(len(value) != dims for value in (stride, padding, dilation)) or min(*stride, *dilation) < 1 or min(padding) < 0:
        told = f"stride = {list(stride)}, padding = {list(padding)}, dilation = {list(dilation)}: {dims} numbers each are needed"
        raise _native.OperandError(told)
    if groups < 1 or weight[1] * groups != x[1] or weight[0] % groups != 0:
        raise _native.OperandError(f"convolution of {tuple(x)} and {tuple(weight)} in {groups} groups: channels do not fit")
    sizes = zip(x[2:], weight[2:], stride, padding, dilation)
    return (x[0], weight[0], *((s + 2 * p - d * (t - 1) - 1) // q + 1 for s, t, q, p, d in sizes))


def channels_last(x: Tensor) -> bool:
    """Does a tensor lie with its channels innermost?"""
    if x.dim() not in (4, 5) or x.is_contiguous():
        return False
    return x.is_contiguous(memory_format=_last(x.dim()))


def _last(dims: int) -> torch.memory_format:
    return torch.channels_last if dims == 4 else torch.channels_last_3d


def _format(last: bool, dims: int) -> torch.memory_format:
    return _last(dims) if last else torch.contiguous_format


def convolution_problem(direction: str, x: Sequence[int], weight: Sequence[int], dtype: str, last: bool, how: Any, bias: bool) -> str:
    """The text of a convolution: shapes as torch has them, `how`: stride, padding, dilation, groups."""
    stride, padding, dilation, groups = how
    return _native.problem(
        "conv",
        n=x[0],
        c=x[1],
        k=weight[0],
        input=list(x[2:]),
        filter=list(weight[2:]),
        dtype=dtype,
        direction=direction,
        layout="nhwc" if last else "nchw",
        groups=groups,
        stride=list(stride),
        dilation=list(dilation),
        pad_begin=list(padding),
        pad_end=list(padding),
        bias=bias,
    )


def _convolve(
    direction: str, a: Tensor, b: Tensor, bias: Optional[Tensor], x: Sequence[int], weight: Sequence[int], how: Any
) -> Tensor:
    """One of a convolution's three directions: of input and filter, of the result's gradient and the filter, or of that and the input."""
    names = {"forward": ("x", "weight"), "backward-data": ("grad", "weight"), "backward-weight": ("grad", "x")}[direction]
    _together([*zip(names, (a, b)), ("bias", bias)])
    y = geometry(x, weight, *how)
    shapes = {"forward": (x, weight, y), "backward-data": (y, weight, x), "backward-weight": (y, x, weight)}[direction]
    if tuple(a.shape) != tuple(shapes[0]) or tuple(b.shape) != tuple(shapes[1]) or bias is not None and bias.shape != y[1:2]:
        told = f"{tuple(a.shape)} and {tuple(b.shape)}, bias {None if bias is None else tuple(bias.shape)}"
        raise _native.OperandError(f"convolution ({direction}) of {told}: {tuple(shapes[0])} and {tuple(shapes[1])} are needed")
    if min(*y, *x, *weight) < 1:
        raise _native.OperandError(f"convolution of {tuple(x)} and {tuple(weight)}: nothing is left of the result")
    last = channels_last(a) or channels_last(b)
    form = _format(last, a.dim())
    a, b = (t.resolve_neg().contiguous(memory_format=form) for t in (a, b))
    bias = None if bias is None else bias.contiguous()
    out = torch.empty(shapes[2], dtype=a.dtype, device=a.device, memory_format=form)
    key = (direction, a.device, a.dtype, _lies(a), _lies(b), _lies(out), bias is None, *map(tuple, how[:3]), how[3])

    def prepare() -> _Found:
        context = _core.context_for(array(a).device)
        problem = convolution_problem(direction, x, weight, TYPES[a.dtype], last, how, bias is not None)
        return context, problem, tuple(array(t).alignment for t in (a, b, out))

    addresses = {**_addresses(a, b, out), "bias": _at(bias)}
    if _launch(key, f"convolution {direction} of {tuple(x)} and {tuple(weight)} {a.dtype}", a, addresses, prepare):
        return out
    return _convolve_by_torch(direction, a, b, bias, x, weight, how)


def _convolve_by_torch(
    direction: str, a: Tensor, b: Tensor, bias: Optional[Tensor], x: Sequence[int], weight: Sequence[int], how: Any
) -> Tensor:
    nothing = [0] * (len(x) - 2)
    *strides, groups = how
    if direction == "forward":
        return torch.ops.aten.convolution(a, b, bias, *strides, False, nothing, groups)
    data = direction == "backward-data"
    # Of what is not read only the shape counts.
    other = a.new_empty(x if data else weight)
    operands = (a, other, b) if data else (a, b, other)
    mask = [data, not data, False]
    return torch.ops.aten.convolution_backward(*operands, None, *strides, False, nothing, groups, mask)[0 if data else 1]


def _linear_gradients(x, grad, weight, wanted):
    """Those of a layer's input, weight and bias, which may be differentiated once more."""
    rows = grad.flatten(0, -2)
    return (
        torch.matmul(grad, weight) if wanted[0] else None,
        torch.mm(rows.t(), x.flatten(0, -2)) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


def _convolution(x, weight, bias, stride, padding, dilation, groups):
    return _convolve("forward", x, weight, bias, x.shape, weight.shape, (stride, padding, dilation, groups))


def _convolution_input(grad, weight, size, stride, padding, dilation, groups):
    return _convolve("backward-data", grad, weight, None, size, weight.shape, (stride, padding, dilation, groups))


def _convolution_weight(grad, x, size, stride, padding, dilation, groups):
    return _convolve("backward-weight", grad, x, None, x.shape, size, (stride, padding, dilation, groups))


# Does torch's C interface pass lists, so that convolutions are answered in eager mode?
LISTS: bool = _native.torch_register(_decide)
if not LISTS:
    for _key in ("CPU", "CUDA"):
        _aten.impl("mkldnn_linear_backward", _linear_gradients, f"Autograd{_key}")
_library.impl("linear_backward", _linear_gradients, "CompositeImplicitAutograd")
# A layer with a bias as `enable` chooses, differentiated without Python: `crates/python/src/torch/linear.rs`.
linear_as_chosen = torch._C._nn.mkldnn_linear
_core.changed.append(_changed)
for _key in ("CPU", "CUDA"):
    _library.impl("linear", _linear, _key)
    _library.impl("grouped_mm", _grouped_mm, _key)
    _library.impl("convolution", _convolution, _key)
    _library.impl("convolution_input", _convolution_input, _key)
    _library.impl("convolution_weight", _convolution_weight, _key)


@torch.library.register_fake("tilewright::mm", lib=_library)
def _(a, b):
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "mm: two matrices are needed")
    torch._check(a.shape[1] == b.shape[0], lambda: f"mm of {a.shape} and {b.shape}")
    torch._check(a.dtype == b.dtype, lambda: f"mm of {a.dtype} and {b.dtype}")
    return a.new_empty((a.shape[0], b.shape[1]))


@torch.library.register_fake("tilewright::bmm", lib=_library)
def _(a, b):
    torch._check(a.dim() == 3 and b.dim() == 3, lambda: "bmm: two batches of matrices are needed")
    torch._check(a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1], lambda: f"bmm of {a.shape} and {b.shape}")
    torch._check(a.dtype == b.dtype, lambda: f"bmm of {a.dtype} and {b.dtype}")
    return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))


@torch.library.register_fake("tilewright::addmm", lib=_library)
def _(bias, a, b):
    torch._check(a.dim() == 2 and b.dim() == 2 and bias.dim() == 1, lambda: "addmm: a vector and two matrices are needed")
    torch._check(a.shape[1] == b.shape[0], lambda: f"addmm of {a.shape} and {b.shape}")
    torch._check(bias.shape[0] == b.shape[1], lambda: f"addmm: bias is {bias.shape}")
    torch._check(a.dtype == b.dtype, lambda: f"addmm of {a.dtype} and {b.dtype}")
    return a.new_empty((a.shape[0], b.shape[1]))


@torch.library.register_fake("tilewright::grouped_mm", lib=_library)
def _(mat_a, mat_b, offs):
    torch._check(mat_a.dim() == 2 and mat_b.dim() in (2, 3) and offs.dim() == 1, lambda: "grouped_mm: two or three dimensions are needed")
    torch._check(mat_a.shape[1] == mat_b.shape[-2], lambda: f"grouped_mm of {mat_a.shape} and {mat_b.shape}")
    torch._check(mat_a.dtype == mat_b.dtype and offs.dtype == torch.int32, lambda: f"grouped_mm of {mat_a.dtype} and {mat_b.dtype}")
    if mat_b.dim() == 3:
        torch._check(mat_b.shape[0] == offs.shape[0], lambda: f"grouped_mm of {mat_b.shape} with offs {offs.shape}")
        return mat_a.new_empty((mat_a.shape[0], mat_b.shape[2]))
    return mat_a.new_empty((offs.shape[0], mat_a.shape[0], mat_b.shape[1]))


@torch.library.register_fake("tilewright::linear", lib=_library)
def _(x, weight, bias=None, activation=None, residual=None):
    torch._check(x.dim() >= 1 and weight.dim() == 2, lambda: f"linear of {x.shape} and {weight.shape}")
    torch._check(x.shape[-1] == weight.shape[1], lambda: f"linear of {x.shape} and {weight.shape}")
    torch._check(x.dtype == weight.dtype, lambda: f"linear of {x.dtype} and {weight.dtype}")
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is not None:
        torch._check(bias.dim() == 1 and bias.shape[0] == shape[-1], lambda: f"linear: bias is {bias.shape}")
    if residual is not None:
        torch._check(residual.dim() == x.dim(), lambda: f"linear: residual is {residual.shape}")
    return x.new_empty(shape)


@torch.library.register_fake("tilewright::convolution", lib=_library)
def _(x, weight, bias, stride, padding, dilation, groups):
    form = _format(channels_last(x) or channels_last(weight), x.dim())
    shape = geometry(x.shape, weight.shape, stride, padding, dilation, groups)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)


@torch.library.register_fake("tilewright::convolution_input", lib=_library)
def _(grad, weight, size, stride, padding, dilation, groups):
    form = _format(channels_last(grad) or channels_last(weight), grad.dim())
    return torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=form)


@torch.library.register_fake("tilewright::convolution_weight", lib=_library)
def _(grad, x, size, stride, padding, dilation, groups):
    form = _format(channels_last(grad) or channels_last(x), grad.dim())
    return torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=form)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """A gradient's product: ours, or the faster of ours and torch's after `enable`."""
    return torch.ops.tilewright.mm(a, b) if chosen is _not_enabled else torch.mm(a, b)


def chosen_by_enable() -> bool:
    """Whether `enable` chooses who answers torch's own products."""
    return chosen is not _not_enabled


def _by_columns(x: Tensor) -> bool:
    return x.stride(0) == 1 and x.stride(1) == x.shape[0]


def _gradients(grad: Tensor, a: Tensor, b: Tensor, needs: Sequence[bool]) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """Those of a product's factors, each laid out as its factor: the same products as torch's own gradients run."""
    at_a = at_b = None
    if needs[0]:
        at_a = _multiply(b, grad.t()).t() if _by_columns(a) else _multiply(grad, b.t())
    if needs[1]:
        at_b = _multiply(grad.t(), a).t() if _by_columns(b) else _multiply(a.t(), grad)
    return at_a, at_b


def _save_factors(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _mm_backward(ctx, grad):
    return _gradients(grad, *ctx.saved_tensors, ctx.needs_input_grad)


def _bmm_backward(ctx, grad):
    a, b = ctx.saved_tensors
    needs = ctx.needs_input_grad
    times = torch.ops.tilewright.bmm if chosen is _not_enabled else torch.bmm
    return times(grad, b.transpose(1, 2)) if needs[0] else None, times(a.transpose(1, 2), grad) if needs[1] else None


def _grouped_mm_backward(ctx, grad):
    a, b, offs = ctx.saved_tensors
    needs, times = ctx.needs_input_grad, torch.ops.tilewright.grouped_mm
    if b.dim() == 3:
        at_a = times(grad, b.transpose(1, 2), offs) if needs[0] else None
        return at_a, times(a.t(), grad, offs) if needs[1] else None, None
    # Columns of a and rows of b have their groups' results.
    at_a = times(b, grad.transpose(1, 2), offs).t() if needs[0] else None
    return at_a, times(a.t(), grad, offs) if needs[1] else None, None


def _save_addmm(ctx, inputs, output):
    ctx.save_for_backward(*inputs[1:])


def _addmm_backward(ctx, grad):
    needs = ctx.needs_input_grad
    return grad.sum(0) if needs[0] else None, *_gradients(grad, *ctx.saved_tensors, needs[1:])


def _save_linear(ctx, inputs, output):
    # What has its default at the end is not among them.
    x, weight, bias, ctx.activation, _ = (*inputs, None, None, None)[:5]
    ctx.save_for_backward(x, weight, bias)


def at_preactivations_of(grad: Tensor, preactivations: Tensor, function: str, out: Optional[Tensor] = None) -> Tensor:
    """The gradient of a function's argument, of an activation or a gate, from that of its value."""
    function, aten, into = one_spelling(function), torch.ops.aten, {} if out is None else {"grad_input": out}
    if function == "linear":
        return grad if out is None else out.copy_(grad)
    if function == "sigmoid":
        return aten.sigmoid_backward(grad, torch.sigmoid(preactivations), **into)
    if function == "relu":
        return aten.threshold_backward(grad, preactivations, 0, **into)
    if function == "silu":
        return aten.silu_backward(grad, preactivations, **into)
    if function == "exp":
        return torch.mul(grad, torch.exp(preactivations), out=out)
    if function == "hardswish":
        return aten.hardswish_backward(grad, preactivations) if out is None else aten.hardswish_backward(grad, preactivations, out=out)
    return aten.gelu_backward(grad, preactivations, approximate="tanh" if function == "gelutanh" else "none", **into)


def at_linear(
    at_preactivations: Tensor, x: Tensor, weight: Tensor, bias: Optional[Tensor], needs: Sequence[bool]
) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """The gradients of x, weight and bias from that of the sums."""
    flat, needs = at_preactivations.reshape(-1, at_preactivations.shape[-1]), (*needs, False)
    return (
        _multiply(flat, weight).reshape(x.shape) if needs[0] else None,
        _multiply(flat.t(), x.reshape(-1, x.shape[-1])) if needs[1] else None,
        flat.sum(0) if bias is not None and needs[2] else None,
    )


def _linear_backward(ctx, grad):
    x, weight, bias = ctx.saved_tensors
    at_preactivations = grad
    if ctx.activation is not None:
        # The sums before the activation are computed again instead of kept.
        at_preactivations = at_preactivations_of(grad, torch.ops.tilewright.linear(x, weight, bias), ctx.activation)
    needs = ctx.needs_input_grad
    grads = (*at_linear(at_preactivations, x, weight, bias, needs), None, grad if (*needs, False, False, False)[4] else None)
    return grads[: len(needs)]


def _save_convolution(ctx, inputs, output):
    x, weight, bias, *ctx.how = inputs
    ctx.save_for_backward(x, weight)


def _convolution_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    needs = ctx.needs_input_grad[:3]
    stride, padding, dilation, groups = ctx.how
    if chosen is not _not_enabled:
        how = (stride, padding, dilation, False, [0] * len(stride), groups)
        return *torch.ops.aten.convolution_backward(grad, x, weight, grad.shape[1:2], *how, needs), *(None,) * 4
    return (
        torch.ops.tilewright.convolution_input(grad, weight, x.shape, *ctx.how) if needs[0] else None,
        torch.ops.tilewright.convolution_weight(grad, x, weight.shape, *ctx.how) if needs[1] else None,
        grad.sum([0, *range(2, grad.dim())]) if needs[2] else None,
        *(None,) * 4,
    )


torch.library.register_autograd("tilewright::mm", _mm_backward, setup_context=_save_factors, lib=_library)
torch.library.register_autograd("tilewright::bmm", _bmm_backward, setup_context=_save_factors, lib=_library)
torch.library.register_autograd("tilewright::grouped_mm", _grouped_mm_backward, setup_context=_save_factors, lib=_library)
torch.library.register_autograd("tilewright::addmm", _addmm_backward, setup_context=_save_addmm, lib=_library)
torch.library.register_autograd("tilewright::linear", _linear_backward, setup_context=_save_linear, lib=_library)
torch.library.register_autograd("tilewright::convolution", _convolution_backward, setup_context=_save_convolution, lib=_library)


def _named(e: Exception, tensors: Dict[str, Any]) -> Exception:
    """Our exception for one that torch's dispatcher or a kernel raised. A wrong argument comes first, then the name in the kernel's message."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor) and (x is not None or name not in ("bias", "residual", "up")):
            return _native.OperandError(f"{name} is {type(x).__name__}: a torch.Tensor is needed")
        if isinstance(x, Tensor) and (x.layout is not torch.strided or x.is_quantized or x.device.type not in ("cpu", "cuda", "meta")):
            told = f"{x.layout}, {x.dtype} on {x.device}"
            return _native.OperandError(f"{name} is {told}: a dense tensor on the CPU or a CUDA device is needed")
    if "Expected a value of type" in str(e):
        return _native.ProblemError(str(e).splitlines()[0])
    if not isinstance(e, RuntimeError):
        return _native.OperandError(str(e).splitlines()[0])
    found = re.match(r"tilewright\.(\w+): |(?:b|add)?mm\b", str(e))
    if found is None:
        return e
    return getattr(_native, found[1] or "OperandError", _native.Error)(str(e)[found.end(1) + 2 if found[1] else 0 :].splitlines()[0])


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices, ``a @ b``. Differentiable.

    Parameters
    ----------
    a : (m, k) Tensor
    b : (k, n) Tensor
        On the device of `a`, with the same type.

    Returns
    -------
    (m, n) Tensor

    Raises
    ------
    OperandError
        A tensor has a wrong shape, type, layout or device.

    Examples
    --------
    >>> import tilewright as tw, tilewright.torch as twt, torch
    >>> context = tw.use("emu", records="")
    >>> twt.mm(torch.ones(2, 3), torch.ones(3, 2)).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    try:
        return torch.ops.tilewright.mm(a, b)
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _named(e, {"a": a, "b": b}) from None


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two batches of matrices, ``a @ b``. Differentiable.

    Parameters
    ----------
    a : (batch, m, k) Tensor
    b : (batch, k, n) Tensor
        On the device of `a`, with the same type.

    Returns
    -------
    (batch, m, n) Tensor

    Raises
    ------
    OperandError
        A tensor has a wrong shape, type, layout or device.
    """
    try:
        return torch.ops.tilewright.bmm(a, b)
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _named(e, {"a": a, "b": b}) from None


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    residual: Optional[Tensor] = None,
) -> Tensor:
    """Compute ``activation(x @ weight.T + bias) + residual`` in one kernel. Differentiable.

    Parameters
    ----------
    x : (..., k) Tensor
    weight : (n, k) Tensor
    bias : (n,) Tensor, optional
    activation : {"relu", "gelu", "gelutanh" (or "gelu-tanh"), "silu", "hardswish"}, optional
    residual : (..., n) Tensor, optional
        Added after the activation.

    Returns
    -------
    (..., n) Tensor

    Raises
    ------
    OperandError
        A tensor has a wrong shape, type, layout or device.

    Examples
    --------
    >>> import tilewright as tw, tilewright.torch as twt, torch
    >>> context = tw.use("emu", records="")
    >>> twt.linear(torch.ones(2, 3), torch.ones(2, 3), bias=torch.tensor([1.0, -9.0]), activation="relu").tolist()
    [[4.0, 0.0], [4.0, 0.0]]
    """
    try:
        return torch.ops.tilewright.linear(x, weight, bias, activation, residual)
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _named(e, {"x": x, "weight": weight, "bias": bias, "residual": residual}) from None


def grouped_mm(mat_a: Tensor, mat_b: Tensor, offs: Tensor) -> Tensor:
    """Multiply groups of matrices, as `torch._grouped_mm`, for mixtures of experts.

    Parameters
    ----------
    mat_a : (m, k) Tensor
    mat_b : (groups, k, n) or (k, n) Tensor
        With three dimensions, each group of rows of `mat_a` has its own matrix. With two, the groups are parts of k.
    offs : (groups,) int32 Tensor
        End of each group, ascending. Groups may be empty. The kernel reads the values; the host does not wait for them.

    Returns
    -------
    (m, n) or (groups, m, n) Tensor
        Rows after the last end are undefined. Terms after the last end are not added.

    Raises
    ------
    OperandError
        A tensor has a wrong shape, type, layout or device.
    """
    try:
        return torch.ops.tilewright.grouped_mm(mat_a, mat_b, offs)
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _named(e, {"mat_a": mat_a, "mat_b": mat_b, "offs": offs}) from None


def _each(value: Any, name: str, dims: int) -> List[Any]:
    if isinstance(value, int):
        return [value] * dims
    return list(value) if isinstance(value, (list, tuple)) else given.refuse(name, value, f"a whole number, or {dims} of them, are needed")


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    stride: Union[int, Sequence[int]] = 1,
    padding: Union[int, Sequence[int]] = 0,
    dilation: Union[int, Sequence[int]] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve as `torch.nn.functional.conv1d`, `conv2d` or `conv3d`, by the number of dimensions of `x`. Differentiable.

    Parameters
    ----------
    x : (n, c, ...) Tensor
        Contiguous or in torch's channels-last memory format.
    weight : (k, c / groups, ...) Tensor
    bias : (k,) Tensor, optional
    stride, dilation : int or sequence of int, default 1
    padding : int or sequence of int, default 0
    groups : int, default 1

    Returns
    -------
    (n, k, ...) Tensor

    Raises
    ------
    OperandError
        A tensor has a wrong shape, type, layout or device.
    """
    try:
        dims = max(x.dim() - 2, 1)
        how = [_each(value, name, dims) for name, value in (("stride", stride), ("padding", padding), ("dilation", dilation))]
        return torch.ops.tilewright.convolution(x, weight, bias, *how, groups)
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _named(e, {"x": x, "weight": weight, "bias": bias}) from None


# Further functions that `tune` takes, with the product that a call of each runs.
tuned: Dict[Any, Callable[[Sequence[Any], Dict[str, Any]], Tuple[Sequence[Any], Dict[str, Any]]]] = {}


def tune(
    what: Any, *args: Any, seconds: Optional[float] = None, trials: Optional[int] = None, progress: Any = False, **options: Any
) -> Outcome:
    """Search the fastest plan for a call of `mm`, `bmm`, `grouped_mm`, `linear`, `lora_linear`, `glu` or `linear_cross_entropy`, as `tilewright.tune`.

    Parameters
    ----------
    what : mm, bmm, grouped_mm, linear, lora_linear, glu, linear_cross_entropy or linear_logsumexp
        The function of this module.
    *args, **options
        The call's tensors and options. Only shapes, types and strides matter; on a CUDA device the search uses its own memory.
    seconds, trials : number, optional
        When the search ends. Without both: after 10 seconds.
    progress : bool or callable, default False
        True shows one line on stderr. A function receives each event as a dict.

    Returns
    -------
    tilewright.Outcome

    Raises
    ------
    TuneError
        No plan with right results was found.
    """
    if what is linear:
        names = ("x", "weight", "bias", "activation", "residual")
        called = {**dict(zip(names, args)), **options}
        x, weight = called.pop("x", None), called.pop("weight", None)
        if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or weight.dim() != 2:
            raise _native.OperandError("linear: x and weight are needed, a tensor and a matrix of (n, k)")
        if called.get("residual") is not None:
            called["residual"] = called["residual"].reshape(-1, weight.shape[0])
        args, options = (x.reshape(-1, x.shape[-1]), weight.t()), called
    elif what is grouped_mm:
        called = {**dict(zip(("mat_a", "mat_b", "offs"), args)), **options}
        if not {"mat_a", "mat_b", "offs"} <= called.keys():
            raise _native.OperandError("grouped_mm: mat_a, mat_b and offs are needed")
        args, options = (called.pop("mat_a"), called.pop("mat_b")), {"offsets": called.pop("offs"), **called}
    elif inspect.isfunction(what) and what in tuned:
        args, options = tuned[what](args, options)
    elif what not in (mm, bmm):
        given.refuse("what", what, "tilewright.torch.mm, bmm, grouped_mm, linear, lora_linear, glu, linear_cross_entropy or linear_logsumexp is needed")
    detached = [x.detach() if isinstance(x, Tensor) else x for x in args]
    options = {name: x.detach() if isinstance(x, Tensor) else x for name, x in options.items()}
    return _core.tune(_core.gemm, *detached, seconds=seconds, trials=trials, progress=progress, **options)
