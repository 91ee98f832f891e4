"""Contexts, and the functions on arrays."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import re
import sys
import threading
from dataclasses import dataclass
from os import PathLike
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from . import _native
from ._arrays import Array, Matrix, empty, floats, look, matrix, pack, packed

Progress = Union[bool, Callable[[Dict[str, Any]], Any]]


def _find_compiler() -> None:
    """NVRTC as Python packages bring it (torch's among them), where no other is named."""
    if os.environ.get("TILEWRIGHT_NVRTC") or os.environ.get("TILEWRIGHT_CUDA_LIBS"):
        return
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found else []:
        libraries = glob.glob(os.path.join(folder, "*", "lib", "libnvrtc.so.*"))
        if libraries:
            os.environ["TILEWRIGHT_NVRTC"] = os.path.dirname(max(libraries))
            return


class Context:
    """A device with its tuning records. `device`: `cuda:0`, `opencl:0`, `hip:0`, `emu`; None is the most capable one here. `records`: a
    path; None is the user's file, `""` none on disk. `workspace`: most bytes of device memory that plans may use beside the operands.
    `atomics`: sums may vary in their last bits from run to run."""

    def __init__(
        self,
        device: Optional[str] = None,
        records: Union[None, str, PathLike] = None,
        workspace: Optional[int] = None,
        atomics: bool = False,
    ) -> None:
        _find_compiler()
        self._native = _native.Context(device, records, workspace, atomics)
        self._operations: Dict[str, _native.Operation] = {}
        self._prepared: Dict[Tuple[str, Tuple[int, ...]], _native.Prepared] = {}
        self._workspaces: Dict[int, List[Tuple[int, Array]]] = {}

    @property
    def device(self) -> str:
        """Its id."""
        return self._native.device

    @property
    def name(self) -> str:
        """The vendor's name for it."""
        return self._native.name

    def __repr__(self) -> str:
        return f"<tilewright.Context {self.device}: {self.name}>"

    def operation(self, problem: str) -> _native.Operation:
        """A problem, by its text, on this device."""
        if problem not in self._operations:
            self._operations.setdefault(problem, self._native.operation(problem))
        return self._operations[problem]

    def prepared(self, problem: str, alignments: Tuple[int, ...]) -> _native.Prepared:
        """A problem's kernels, compiled for operands A, B and C aligned to so many bytes."""
        key = (problem, alignments)
        if key not in self._prepared:
            self._prepared[key] = self.operation(problem).prepare(alignments)
        return self._prepared[key]

    def workspace(self, size: int, stream: int, like: Any) -> int:
        """Address of so many bytes for launches on a stream, in memory of `like`'s framework."""
        if size == 0:
            return 0
        held = self._workspaces.setdefault(stream, [])
        if not held or held[-1][0] < size:
            # Smaller ones stay: launches may still use them.
            room = empty(like, (size // 4 + 1,), "float32")
            held.append((size, look(room, "workspace")))
        return held[-1][1].address

    def forget(self, problem: str) -> None:
        """Compiles a problem anew when it is asked for next: its plan has changed."""
        self._prepared = {key: kept for key, kept in self._prepared.items() if key[0] != problem}

    def records(self) -> List[Dict[str, Any]]:
        """All trials in the records."""
        return [json.loads(line) for line in self._native.export_records().splitlines()]

    def import_records(self, path: Union[str, PathLike]) -> int:
        """Takes over trials that `tilewright records export` wrote; gives their number."""
        with open(path, encoding="utf-8") as file:
            return self._native.import_records(file.read(), str(path))


_lock = threading.Lock()
_contexts: Dict[str, Context] = {}
_default: Optional[Context] = None
# Called when contexts or plans are others than before.
changed: List[Callable[[], Any]] = []


def _tell() -> None:
    for heard in changed:
        heard()


def use(
    device: Union[None, str, Context] = None,
    records: Union[None, str, PathLike] = None,
    workspace: Optional[int] = None,
    atomics: bool = False,
) -> Context:
    """Sets, and gives, the context for arrays in this process's memory, and for those on the same device."""
    global _default
    context = device if isinstance(device, Context) else Context(device, records, workspace, atomics)
    with _lock:
        _default = context
        _contexts[context.device] = context
    _tell()
    return context


def context_for(place: str) -> Context:
    """The context for arrays at a place (`cpu`, `cuda:0`)."""
    global _default
    with _lock:
        if place == "cpu":
            if _default is None:
                _default = Context()
                _contexts.setdefault(_default.device, _default)
            return _default
        if place not in _contexts:
            _contexts[place] = Context(place)
        return _contexts[place]


def devices() -> List[Tuple[str, str]]:
    """Id and name of each device here; for kinds that are not here, the reason and the remedy."""
    return _native.devices()


@dataclass
class Call:
    """A problem with the arrays it is to run on."""

    context: Context
    problem: str
    a: Array
    b: Array
    c: Array
    bias: Optional[Array]
    residual: Optional[Array]
    result: Any
    values: Sequence[Array] = ()
    """What reductions write to."""

    def run(self, alpha: float, beta: float, stream: int) -> Any:
        host = self.a.device == "cpu"
        alignments = (256, 256, 256) if host else (self.a.alignment, self.b.alignment, self.c.alignment)
        prepared = self.context.prepared(self.problem, alignments)
        space = 0 if host else self.context.workspace(prepared.workspace_bytes, stream, self.result)
        added = [x.address if x else 0 for x in (self.bias, self.residual)]
        prepared.launch([self.a.address, self.b.address, self.c.address, *added, space], alpha, beta, stream, host, [x.address for x in self.values])
        return self.result


def _same_place(context: Optional[Context], arrays: Sequence[Tuple[str, Array]]) -> Context:
    (first, a), rest = arrays[0], arrays[1:]
    for name, x in rest:
        if x.device != a.device:
            raise _native.OperandError(f"{first} lies on {a.device} and {name} on {x.device}: bring them to one device")
    if context is None:
        return context_for(a.device)
    if a.device not in ("cpu", context.device):
        raise _native.OperandError(f"{first} lies on {a.device}, the context is {context.device}: leave `context` out")
    return context


def _typed(dtype: str, arrays: Sequence[Tuple[str, Array]]) -> None:
    for name, x in arrays:
        if x.dtype != dtype:
            raise _native.OperandError(f"{name} holds {x.dtype}, {dtype} is needed: convert it")


def _shaped(name: str, array: Array, shape: Sequence[int]) -> None:
    if array.shape != tuple(shape):
        raise _native.OperandError(f"{name} has shape {array.shape}, {tuple(shape)} is needed")


def _blas(x: Any, name: str) -> Tuple[Array, Matrix]:
    array = floats(x, name)
    if len(array.shape) not in (2, 3):
        raise _native.OperandError(f"{name} has shape {array.shape}: a matrix, or a batch of them, is needed")
    found = matrix(array)
    if found is None:
        array = look(pack(x, name), name)
        found = matrix(array)
    if found is None:
        raise _native.OperandError(f"{name} with strides {array.strides} cannot be read")
    return array, found


def _gemm(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    bias: Any = None,
    activation: Optional[str] = None,
    residual: Any = None,
    out_dtype: Optional[str] = None,
    math: str = "exact",
    reduce: Sequence[str] = (),
    context: Optional[Context] = None,
) -> Call:
    (a_at, a_as), (b_at, b_as) = _blas(a, "a"), _blas(b, "b")
    m, k, n = a_at.shape[-2], a_at.shape[-1], b_at.shape[-1]
    if b_at.shape[-2] != k:
        raise _native.OperandError(f"a is {a_at.shape} and b is {b_at.shape}: the {k} columns of a are not the rows of b")
    batches = {x.batch for x in (a_as, b_as) if x.batch is not None}
    if len(batches) > 1:
        raise _native.OperandError(f"a is {a_at.shape} and b is {b_at.shape}: batches of {a_as.batch} and {b_as.batch}")
    batch = batches.pop() if batches else None
    _typed(a_at.dtype, [("b", b_at)])
    shape = (m, n) if batch is None else (batch, m, n)
    if out is None:
        out = empty(a, shape, out_dtype or a_at.dtype)
    c_at = look(out, "out")
    _shaped("out", c_at, shape)
    c_as = matrix(c_at)
    if c_as is None or 0 in c_at.strides and m * n > 1 and c_as.batch_stride == 0 and (batch or 1) > 1:
        raise _native.OperandError(f"out with strides {c_at.strides} cannot be written: its rows must be contiguous and apart")
    if out_dtype:
        _typed(out_dtype, [("out", c_at)])
    arrays = [("a", a_at), ("b", b_at), ("out", c_at)]
    along, bias_at, residual_at, residual_as = None, None, None, None
    if bias is not None:
        bias_at = look(bias, "bias")
        if not packed(bias_at):
            bias_at = look(pack(bias, "bias"), "bias")
        along = "m" if bias_at.shape == (m, 1) else "n"
        _shaped("bias", bias_at, (m, 1) if along == "m" else (n,))
        arrays.append(("bias", bias_at))
    if residual is not None:
        residual_at, residual_as = _blas(residual, "residual")
        if residual_as.trans != c_as.trans:
            residual_at = look(pack(residual, "residual"), "residual")
            residual_as = matrix(residual_at)
        _shaped("residual", residual_at, shape)
        if residual_as is None or residual_as.trans != c_as.trans:
            raise _native.OperandError("residual and out lie in different orders: store both by rows")
        arrays.append(("residual", residual_at))
    context = _same_place(context, arrays)
    _typed(c_at.dtype, arrays[3:])
    strides = [a_as.ld, b_as.ld, c_as.ld, residual_as.ld if residual_as else None]
    several = (batch or 1) > 1
    strides += [x.batch_stride if several and x else None for x in (a_as, b_as, c_as, residual_as)]
    problem = _native.gemm(
        m,
        n,
        k,
        a_at.dtype,
        out_dtype=c_at.dtype,
        trans=(a_as.trans, b_as.trans, c_as.trans),
        batch=1 if batch is None else batch,
        strides=strides,
        bias=along,
        activation=activation,
        residual=residual is not None,
        math=math,
        reduce=reduce,
    )
    if not reduce:
        return Call(context, problem, a_at, b_at, c_at, bias_at, residual_at, out)
    kept = [("b", batch)] if batch is not None else []
    kept += [("m", m), ("n", n)]
    values = [empty(a, _values_shape(text, kept), _value_type(text, a_at.dtype)) for text in reduce]
    looked = [look(x, "a reduction's values") for x in values]
    return Call(context, problem, a_at, b_at, c_at, bias_at, residual_at, (out, *values), looked)


_SHORT = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}


def _values_shape(text: str, sizes: List[Tuple[str, int]]) -> List[int]:
    """Sizes of the axes that a reduction as it is told (`max:n`, `absmax:n128`) keeps, or has blocks of."""
    over = dict(re.findall(r"([bmn])(\d*)", text.split(":")[1]))
    blocks = [(size, over.get(axis, "1")) for axis, size in sizes]
    return [size // int(block) for size, block in blocks if block]


def _value_type(text: str, dtype: str) -> str:
    """Type of the values of a reduction as it is told: `max:n`, `argmax:n:i32`, `sum`."""
    operator, *more = text.split(":")
    told = [_SHORT[word] for word in more if word in _SHORT]
    return told[0] if told else "int64" if operator.startswith("arg") else "float64" if dtype == "float64" else "float32"


def _reduce(
    x: Any,
    op: Union[str, Sequence[str]],
    axis: Union[None, int, Sequence[int]] = None,
    *,
    activation: Optional[str] = None,
    context: Optional[Context] = None,
) -> Call:
    x_at = floats(x, "x")
    if min(x_at.strides, default=0) < 0:
        x_at = look(pack(x, "x"), "x")
    dims = len(x_at.shape)
    axes = range(dims) if axis is None else [axis] if isinstance(axis, int) else axis
    if any(not -dims <= a < dims for a in axes):
        raise _native.OperandError(f"axis = {axis} of an array of shape {x_at.shape}: from {-dims} to {dims - 1} are possible")
    over = [a % dims for a in axes]
    ops = [op] if isinstance(op, str) else list(op)
    problem = _native.reduce(x_at.shape, x_at.strides, over, ops, x_at.dtype, activation=activation)
    shape = [size for a, size in enumerate(x_at.shape) if a not in over]
    values = [empty(x, shape, _value_type(text, x_at.dtype)) for text in ops]
    looked = [look(value, "a reduction's values") for value in values]
    result = values[0] if isinstance(op, str) else tuple(values)
    context = _same_place(context, [("x", x_at)])
    return Call(context, problem, x_at, x_at, x_at, None, None, result, looked)


def _conv(
    x: Any,
    w: Any,
    *,
    out: Any = None,
    bias: Any = None,
    activation: Optional[str] = None,
    residual: Any = None,
    mask: Any = None,
    stride: Union[int, Sequence[int]] = 1,
    padding: Union[int, Sequence[int]] = 0,
    dilation: Union[int, Sequence[int]] = 1,
    groups: int = 1,
    layout: str = "nchw",
    out_dtype: Optional[str] = None,
    math: str = "exact",
    context: Optional[Context] = None,
) -> Call:
    def tight(value: Any, name: str) -> Array:
        array = floats(value, name)
        return array if packed(array) else look(pack(value, name), name)

    x_at, w_at = tight(x, "x"), tight(w, "w")
    dims = len(x_at.shape) - 2
    if dims not in (1, 2, 3) or len(w_at.shape) != dims + 2:
        raise _native.OperandError(f"x is {x_at.shape} and w is {w_at.shape}: 1 to 3 spatial dimensions are needed, as many in both")
    last = layout == "nhwc"
    spatial = slice(1, -1) if last else slice(2, None)
    channel = -1 if last else 1

    def each(value: Union[int, Sequence[int]], name: str) -> List[int]:
        values = [value] * dims if isinstance(value, int) else list(value)
        if len(values) != dims:
            raise _native.OperandError(f"{name} = {value}: {dims} numbers are needed")
        return values

    stride, padding, dilation = each(stride, "stride"), each(padding, "padding"), each(dilation, "dilation")
    n, c, k = x_at.shape[0], x_at.shape[channel], w_at.shape[0]
    if w_at.shape[channel] * groups != c:
        raise _native.OperandError(f"w is {w_at.shape}: {c} channels in {groups} groups need {c // max(groups, 1)} per filter")
    sizes, taps = x_at.shape[spatial], w_at.shape[spatial]
    pixels = [(s + 2 * p - d * (t - 1) - 1) // max(q, 1) + 1 for s, p, d, t, q in zip(sizes, padding, dilation, taps, stride)]
    shape = (n, *pixels, k) if last else (n, k, *pixels)
    if min(pixels) < 1:
        raise _native.OperandError(f"x is {x_at.shape} and w is {w_at.shape}: no pixel of the result is left")
    _typed(x_at.dtype, [("w", w_at)])
    if out is None:
        out = empty(x, shape, out_dtype or x_at.dtype)
    c_at = look(out, "out")
    _shaped("out", c_at, shape)
    if not packed(c_at):
        raise _native.OperandError(f"out with strides {c_at.strides} cannot be written: it must be contiguous")
    arrays = [("x", x_at), ("w", w_at), ("out", c_at)]
    bias_at = residual_at = None
    if bias is not None:
        bias_at = tight(bias, "bias")
        _shaped("bias", bias_at, (k,))
        arrays.append(("bias", bias_at))
    if residual is not None and mask is not None:
        raise _native.ProblemError("residual and mask are one tensor: it is added, or masks; leave one of them out")
    name, third = ("mask", mask) if residual is None else ("residual", residual)
    if third is not None:
        residual_at = tight(third, name)
        _shaped(name, residual_at, shape)
        arrays.append((name, residual_at))
    context = _same_place(context, arrays)
    _typed(c_at.dtype, arrays[3:])
    problem = _native.conv(
        n,
        c,
        k,
        sizes,
        taps,
        x_at.dtype,
        out_dtype=c_at.dtype,
        layout=layout,
        groups=groups,
        stride=stride,
        dilation=dilation,
        pad_begin=padding,
        bias=bias is not None,
        activation=activation,
        residual=residual is not None,
        mask=mask is not None,
        math=math,
    )
    return Call(context, problem, x_at, w_at, c_at, bias_at, residual_at, out)


def gemm(a: Any, b: Any, *, alpha: float = 1.0, beta: float = 0.0, stream: int = 0, **options: Any) -> Any:
    """`activation(alpha * a @ b + bias + beta * out) + residual`, in `out` or a new array.

    `a` is (m, k) or (batch, m, k), `b` (k, n) or (batch, k, n); a matrix without batch serves the whole batch. Transposed and strided
    arrays are read as they lie. Options: `out`, `bias` (n,) or (m, 1), `activation` (relu, gelu, gelutanh, silu), `residual` (as
    `out`), `out_dtype`, `math` ("tf32" rounds float32 factors, "tf32x3" multiplies them as three products of
    tf32, nearly as accurately as float32), `context`. `stream`: handle of the CUDA or HIP stream for arrays there.
    """
    return _gemm(a, b, **options).run(alpha, beta, stream)


def conv(x: Any, w: Any, *, stream: int = 0, **options: Any) -> Any:
    """The convolution of input `x` with filters `w`, with bias, activation and residual as `gemm` has them.

    `layout` "nchw": `x` (n, c, ...), `w` (k, c / groups, ...); "nhwc": `x` (n, ..., c), `w` (k, ..., c / groups). Options: `out`,
    `bias` (k,), `activation`, `residual` or `mask` (as `out`: the result is 0 where it is not above 0, as the gradient behind a ReLU),
    `stride`, `padding`, `dilation`, `groups`, `out_dtype`, `math`, `context`.
    """
    return _conv(x, w, **options).run(1.0, 0.0, stream)


def reduce(
    x: Any,
    op: Union[str, Sequence[str]],
    axis: Union[None, int, Sequence[int]] = None,
    *,
    alpha: float = 1.0,
    stream: int = 0,
    **options: Any,
) -> Any:
    """`op` of `activation(alpha * x)` over an axis, several, or all: sum, mean, sumsq, max, min, absmax, argmax, argmin, logsumexp or var;
    a sequence of them gives a tuple, in one pass. Strided arrays are read as they lie. Values are float32 (float64 of such), indices
    int64; `"max:f16"` says another type. Options: `activation`, `context`.
    """
    return _reduce(x, op, axis, **options).run(alpha, 0.0, stream)


_CALLS: Dict[Callable[..., Any], Callable[..., Call]] = {gemm: _gemm, conv: _conv, reduce: _reduce}


def _operation(
    what: Union[str, Callable[..., Any]], args: Sequence[Any], options: Dict[str, Any]
) -> Tuple[Context, _native.Operation]:
    if isinstance(what, str):
        context = options.pop("context", None) or context_for("cpu")
        if args or options:
            raise _native.ProblemError(f"a problem told as text takes no further arguments: {list(args)} {options}")
        return context, context.operation(what)
    if what not in _CALLS:
        raise _native.ProblemError(f"{what!r}: tilewright.gemm, conv, reduce or the text of a problem is needed")
    call = _CALLS[what](*args, **options)
    return call.context, call.context.operation(call.problem)


@dataclass(frozen=True)
class Outcome:
    """What a search found."""

    problem: str
    plan: str
    time_us: float
    time_kind: str
    """`measured`, or `modelled` on the emulator."""
    verified: bool
    details: Dict[str, Any]
    """All that the search tells."""


def tune(
    what: Union[str, Callable[..., Any]],
    *args: Any,
    seconds: Optional[float] = None,
    trials: Optional[int] = None,
    progress: Progress = False,
    **options: Any,
) -> Outcome:
    """Searches the fastest plan with right results for a call (`tune(gemm, a, b, activation="relu", seconds=10)`) or a problem's text, and
    records it: later calls, also of other processes, run with it. Ends after so many seconds or trials (10 seconds where neither is
    given), or with Ctrl-C; what was tried is kept. `progress`: True shows a line on stderr, a function gets every event as a dict."""
    context, operation = _operation(what, args, options)
    if seconds is None and trials is None:
        seconds = 10.0
    heard: Optional[Callable[[str], Any]] = None
    if progress is True:
        heard = _Line(operation.problem)
    elif callable(progress):
        heard = lambda text: progress(json.loads(text))  # noqa: E731
    try:
        found = json.loads(operation.tune(seconds, trials, heard))
    finally:
        if isinstance(heard, _Line):
            heard.end()
    context.forget(operation.problem)
    _tell()
    plan, _ = operation.choice()
    return Outcome(operation.problem, plan, found["time_us"], found["time_kind"], found["verified"], found)


class _Line:
    """One line on stderr that follows a search."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(self, text: str) -> None:
        event = json.loads(text)
        if event.get("event") == "trial":
            best = event["best_us"]
            told = f"best {best:.1f} us" if best else "no result yet"
            sys.stderr.write(f"\r{told}; {event['tally']['trials']} trials in {event['seconds']:.0f} s; {self.title}"[:100].ljust(100))
            sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\n")


def explain(what: Union[str, Callable[..., Any]], *args: Any, candidates: int = 5, **options: Any) -> str:
    """The problem, the plan that runs it, where that comes from, and what the cost model would try, in words. `tilewright explain
    --problem TEXT` draws the same plan."""
    context, operation = _operation(what, args, options)
    plan, origin = operation.choice()
    lines = [f"{operation.problem} on {context.name}", f"  plan     {plan} ({origin})"]
    lines += [f"  model    {us:9.2f} us  {other}" for other, us in operation.candidates(candidates)]
    return "\n".join(lines)


def emit(what: Union[str, Callable[..., Any]], *args: Any, arch: Optional[str] = None, **options: Any) -> str:
    """The kernels as one source file: in this device's language, or planned by the cost model for an architecture (`sm_90a`, `gfx942`)."""
    operation = _operation(what, args, options)[1]
    if arch is not None:
        operation = Context(f"emu:{arch}", records="").operation(operation.problem)
    return operation.source()
