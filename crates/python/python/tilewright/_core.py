"""The functions on arrays."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _arguments as given
from . import _native
from ._arrays import Array, Matrix, apart, conjugated, current_stream, empty, factor, factor_of_product, float8, integer8, like, listed, look, matrix, of_shape, pack, packed, result, room, summand
from ._contexts import Context, _contexts, _tell, changed, context_for, devices, use  # noqa: F401

Progress = Union[bool, Callable[[Dict[str, Any]], Any]]


@dataclass
class Call:
    """A problem with the arrays it is to run on."""

    context: Context
    problem: str
    memories: Dict[str, Array]
    """Arrays by the roles that the library names: a, b, c, bias, scale_m, reduction_0, ..."""
    result: Any

    @property
    def alignments(self) -> Tuple[int, ...]:
        """Alignments of A, B and C in bytes."""
        return tuple(self.memories.get(role, self.memories["a"]).alignment for role in ("a", "b", "c"))

    def run(self, alpha: complex, beta: complex, stream: Optional[int]) -> Any:
        host = self.memories["a"].device == "cpu"
        prepared = self.context.prepared(self.problem, (256, 256, 256) if host else self.alignments)
        addresses = {role: x.address for role, x in self.memories.items()}
        space = None
        if not host:
            like, current = self._current(stream is None)
            if stream is not None or current is None:
                addresses["workspace"] = self.context.workspace(prepared.workspace_bytes, stream or 0, like)
            else:
                stream = current
                # The framework gives it back in the stream's order, after this launch.
                space = room(like, prepared.workspace_bytes)
                addresses["workspace"] = 0 if space is None else space.address
        prepared.launch(addresses, alpha.real, beta.real, stream or 0, host, (alpha.imag, beta.imag))
        return self.result

    def _current(self, alike: bool) -> Tuple[Any, Optional[int]]:
        """An array in whose framework memory can be allocated, and that framework's current stream. C before A, A before the others. With `alike` two
        current streams are refused."""
        roles = sorted((role for role, x in self.memories.items() if x.keep is not None), key=lambda role: ("c", "a", role).index(role))
        streams = {role: current_stream(self.memories[role].keep[0]) for role in roles}
        known = [role for role in roles if streams[role] is not None]
        for role in known[1:] if alike else ():
            if streams[role] != streams[known[0]]:
                raise _native.OperandError(
                    f"{known[0]} and {role} are of frameworks with two current streams: make one of them wait for the other, and name it by stream="
                )
        first = (known or roles)[0]
        return self.memories[first].keep[0], streams[first]


def _same_place(context: Optional[Context], arrays: Sequence[Tuple[str, Array]]) -> Context:
    (first, a), rest = arrays[0], arrays[1:]
    for name, x in rest:
        if x.device != a.device:
            raise _native.OperandError(f"{first} is on {a.device} and {name} on {x.device}: move them to one device")
    if context is None:
        return context_for(a.device)
    if not isinstance(context, Context):
        given.refuse("context", context, "a tilewright.Context is needed")
    if a.device not in ("cpu", context.device):
        raise _native.OperandError(f"{first} is on {a.device}, the context is {context.device}: leave `context` out")
    return context


def _typed(dtype: str, arrays: Sequence[Tuple[str, Array]]) -> None:
    for name, x in arrays:
        if x.dtype != dtype:
            raise _native.OperandError(f"{name} holds {x.dtype}, {dtype} is needed: convert it")


def _typed_epilogue(dtype: str, activation: Optional[str], arrays: Sequence[Tuple[str, Array]]) -> None:
    """The bias of an exponential has the type of the sums, all else that of the result."""
    accumulator = "float64" if dtype == "float64" else "float32"
    for name, x in arrays:
        _typed(accumulator if name == "bias" and activation == "exp" else dtype, [(name, x)])


def _shaped(name: str, array: Array, shape: Sequence[int]) -> None:
    if array.shape != tuple(shape):
        raise _native.OperandError(f"{name} has shape {array.shape}, {tuple(shape)} is needed")


def _blas(x: Any, name: str, looked: Callable[[Any, str], Array] = factor_of_product) -> Tuple[Array, Matrix]:
    array = looked(x, name)
    if len(array.shape) not in (2, 3):
        raise _native.OperandError(f"{name} has shape {array.shape}: a matrix, or a batch of them, is needed")
    found = matrix(array)
    if found is None:
        array = look(pack(x, name), name)
        found = matrix(array)
    if found is None:
        raise _native.OperandError(f"{name} with strides {array.strides} cannot be read")
    return array, found


def _pairs(b: Any, b_dtype: str) -> Tuple[Array, Matrix, Tuple[int, ...]]:
    """Look at bytes with two 4-bit integers each: the bytes, the matrix of integers in them, and its shape. Pairs lie along the contiguous direction."""
    if b_dtype not in ("int4", "uint4"):
        raise _native.ProblemError(f"b_dtype = {b_dtype!r}: int4 or uint4 is needed; each byte of b holds two weights, the even index in the low half")
    at = look(b, "b")
    if at.dtype != "uint8":
        raise _native.OperandError(f"b holds {at.dtype}: pairs of {b_dtype} are bytes, give uint8")
    found = matrix(at) if len(at.shape) in (2, 3) else None
    if found is None:
        raise _native.OperandError(f"b has shape {at.shape} and strides {at.strides}: the bytes must be contiguous along rows or columns")
    *batch, rows, columns = at.shape
    shape = (*batch, 2 * rows, columns) if found.trans else (*batch, rows, 2 * columns)
    pairs = found._replace(ld=2 * found.ld, batch_stride=2 * found.batch_stride)
    return at, pairs, shape


def _vector(x: Any, name: str, m: int, n: int) -> Tuple[str, Array]:
    """A vector of one value per row, (m, 1), or per column, (n,)."""
    at = look(x, name)
    if not packed(at):
        at = look(pack(x, name), name)
    along = "m" if at.shape == (m, 1) else "n"
    _shaped(name, at, (m, 1) if along == "m" else (n,))
    return along, at


def _named_scales(all_named: Dict[Any, Any], m: int, n: int, k: int) -> Dict[str, Array]:
    """Scales by kind. Scales of blocks of k have shape (blocks of k, blocks of rows or columns)."""
    shapes: Dict[str, Tuple[int, ...]] = {"m": (m, 1), "n": (n,)}
    for along, lines in (("m", m), ("n", n)):
        blocks = ((1, 128), (128, 128), (1, 64), (1, 32))
        shapes.update({f"{along}{many}x{terms}": (-(-k // terms), -(-lines // many)) for many, terms in blocks})
    found: Dict[str, Array] = {}
    for name, x in all_named.items():
        if name not in shapes:
            given.refuse("scales", name, f"one of {', '.join(shapes)} is needed")
        at = look(x, "scales")
        at = at if packed(at) else look(pack(x, "scales"), "scales")
        _shaped(f"scales {name}", at, shapes[name])
        _typed("float32", [("scales", at)])
        if any(name[0] == other[0] for other in found):
            raise _native.OperandError(f"scales are given twice along {name[0]}: {', '.join(map(str, all_named))}")
        found[name] = at
    return found


def _scales(given_scales: Any, m: int, n: int, k: int) -> Dict[str, Array]:
    """Scales by kind, from one vector, a pair of vectors, or a dict by kind."""
    if isinstance(given_scales, dict):
        return _named_scales(given_scales, m, n, k)
    several = given_scales if isinstance(given_scales, (list, tuple)) else [] if given_scales is None else [given_scales]
    found: Dict[str, Array] = {}
    for x in several:
        along, at = _vector(x, "scales", m, n)
        _typed("float32", [("scales", at)])
        if along in found:
            raise _native.OperandError(f"scales are given twice along {along}: one of shape {(m, 1)} and one of shape {(n,)} are possible")
        found[along] = at
    return found


def _zero_points(pair: Any, m: int, n: int) -> Dict[str, Array]:
    """Zero points of A and B by kind, from a pair of arrays (one value, (m, 1) or (n,)) or None."""
    if pair is None:
        return {}
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        given.refuse("zero_points", pair, "a pair is needed: zero points of a and of b, each an array or None")
    found: Dict[str, Array] = {}
    for name, each, shape, x in (("a", "m", (m, 1), pair[0]), ("b", "n", (n,), pair[1])):
        if x is None:
            continue
        at = look(x, "zero_points")
        _typed("int32", [("zero_points", at)])
        if at.shape not in ((), (1,), shape) or not packed(at):
            told = f"zero_points of {name} have shape {at.shape} and strides {at.strides}: one value, or a contiguous array of shape {shape}, is needed"
            raise _native.OperandError(told)
        found[each if at.shape == shape else name] = at
    return found


def _ends(offsets: Any, a: Matrix, b: Matrix) -> Array:
    """The ends of the groups of a grouped product: groups of rows, or (with two matrices) of terms."""
    at = look(offsets, "offsets")
    _typed("int32", [("offsets", at)])
    groups = len(at.shape) == 1 and at.shape[0] > 0 and b.batch in (None, at.shape[0])
    if a.batch is not None or not groups or not packed(at):
        told = f"offsets have shape {at.shape} and strides {at.strides}, of a {'matrix' if a.batch is None else 'batch'} a"
        needed = "a (m, k), b (groups, k, n) or (k, n), and contiguous offsets (groups,) are needed"
        raise _native.OperandError(f"{told}: {needed}")
    return at


def _gemm(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    offsets: Any = None,
    zero_points: Any = None,
    scales: Any = None,
    bias: Any = None,
    activation: Optional[str] = None,
    softcap: Optional[float] = None,
    gate: Optional[str] = None,
    up_first: bool = False,
    interleaved: bool = False,
    up: Any = None,
    preactivations: bool = False,
    gate_limit: Optional[float] = None,
    gate_slope: Optional[float] = None,
    residual: Any = None,
    a2: Any = None,
    b2: Any = None,
    b_dtype: Optional[str] = None,
    out_dtype: Optional[str] = None,
    math: str = "exact",
    reduce: Sequence[str] = (),
    store: bool = True,
    context: Optional[Context] = None,
    imaginary: Tuple[bool, bool] = (False, False),
) -> Call:
    reduce, store, out_dtype = given.words(reduce, "reduce"), given.truth(store, "store"), given.dtype(out_dtype, "out_dtype")
    b_dtype, gate = given.dtype(b_dtype, "b_dtype"), given.maybe(gate, "gate")
    up_first, interleaved = given.truth(up_first, "up_first"), given.truth(interleaved, "interleaved")
    preactivations = given.truth(preactivations, "preactivations")
    decimals = {
        name: x if x is None else repr(given.number(x, name))
        for name, x in (("softcap", softcap), ("gate_limit", gate_limit), ("gate_slope", gate_slope))
    }
    a, b = _operands(a, b)
    bias, residual = [x if x is None else like(x, a, name) for x, name in ((bias, "bias"), (residual, "residual"))]
    a2, b2 = [x if x is None else like(x, a, name) for x, name in ((a2, "a2"), (b2, "b2"))]
    offsets = offsets if offsets is None else listed(offsets, "offsets", "int32")
    (a, conj_a), (b, conj_b) = conjugated(a), conjugated(b)
    a_at, a_as = _blas(a, "a")
    if b_dtype is None:
        b_at, b_as = _blas(b, "b")
        b_shape = b_at.shape
    else:
        b_at, b_as, b_shape = _pairs(b, b_dtype)
    up_at = None if up is None else look(up, "up")
    if up_at is not None:
        _shaped("up", up_at, b_at.shape)
        _typed(b_at.dtype, [("up", up_at)])
    if up_at is not None and not _lies_alike(up_at, b_at):
        if b_dtype is not None:
            raise _native.OperandError(f"up has strides {up_at.strides}, b has {b_at.strides}: store both alike, from multiples of 16 bytes on")
        up_at, b_at = look(pack(up, "up"), "up"), look(pack(b, "b"), "b")
        b_as = _blas(b_at, "b")[1]
    m, k, columns = a_at.shape[-2], a_at.shape[-1], b_shape[-1] * (1 if up is None else 2)
    if gate is not None and columns % 2:
        raise _native.OperandError(f"b is {b_shape}: with a gate its columns are two halves of equal length")
    n = columns if gate is None else columns // 2
    if b_shape[-2] != k:
        raise _native.OperandError(f"a is {a_at.shape} and b is {b_shape}: the {k} columns of a are not the rows of b")
    ends = None if offsets is None else _ends(offsets, a_as, b_as)
    batches = {x.batch for x in (a_as, b_as) if x.batch is not None}
    if len(batches) > 1:
        raise _native.OperandError(f"a is {a_at.shape} and b is {b_at.shape}: batches of {a_as.batch} and {b_as.batch}")
    # Each group of terms has its own result.
    grouped = None if ends is None else "m" if batches else "k"
    batch = ends.shape[0] if grouped == "k" else batches.pop() if batches else None
    weights = integer8(b_at) and a_at.dtype in ("float16", "bfloat16", "float32")
    if not (weights or integer8(a_at) and integer8(b_at) or float8(a_at) and float8(b_at)):
        _typed(a_at.dtype, [("b", b_at)])
    shape = (m, n) if batch is None or grouped == "m" else (batch, m, n)
    out, c_at = _out(a, a_at, out, shape, out_dtype, store)
    c_as = matrix(c_at)
    if c_as is None or 0 in c_at.strides and m * n > 1 and c_as.batch_stride == 0 and (batch or 1) > 1:
        raise _native.OperandError(f"out with strides {c_at.strides} cannot be written: its rows must be contiguous and must not overlap")
    arrays = [("a", a_at), ("b", b_at), ("out", c_at)]
    along, bias_at, residual_at, residual_as = None, None, None, None
    if bias is not None:
        along, bias_at = _vector(bias, "bias", m, columns)
        arrays.append(("bias", bias_at))
    if residual is not None:
        residual_at, residual_as = _blas(residual, "residual", look)
        if residual_as.trans != c_as.trans:
            residual_at = look(pack(residual, "residual"), "residual")
            residual_as = matrix(residual_at)
        _shaped("residual", residual_at, shape)
        if residual_as is None or residual_as.trans != c_as.trans:
            raise _native.OperandError("residual and out have different orders: store both by rows")
        arrays.append(("residual", residual_at))
    scaled, zeros = _scales(scales, m, columns, k), _zero_points(zero_points, m, n)
    factors = [("scales", x) for x in scaled.values()] + [("zero_points", x) for x in zeros.values()]
    factors += [("offsets", ends)] if ends else []
    second = _second(a2, b2, (a_at, a_as), (b_at, b_as))
    factors += [*([("up", up_at)] if up_at else []), *second.arrays]
    apart(c_at, arrays[:2] + [x for x in arrays[3:] if x[0] == "bias"] + factors)
    context = _same_place(context, arrays + factors)
    _typed_epilogue(c_at.dtype, activation, arrays[3:])
    several = (batch or 1) > 1
    matrices = {"a": a_as, "b": b_as, "c": c_as, "r": residual_as}
    owned = {None: "abcr", "m": "b", "k": "cr"}[grouped]
    lies = {f"ld{name}": x.ld for name, x in matrices.items() if x}
    lies.update({f"stride_{name}": x.batch_stride for name, x in matrices.items() if several and x and name in owned})
    lies.update(second.lies)
    is_complex, imaginary = a_at.dtype.startswith("complex"), _pair(imaginary)
    problem = _native.problem(
        "gemm",
        m=m,
        n=n,
        k=k,
        dtype=a_at.dtype,
        b_dtype=b_at.dtype if b_dtype is None else b_dtype,
        out_dtype=c_at.dtype,
        trans_a=a_as.trans,
        trans_b=b_as.trans,
        trans_c=c_as.trans,
        batch=1 if batch is None else batch,
        zero_points=list(zeros) or None,
        scales=list(scaled) or None,
        bias=along,
        activation=given.maybe(activation, "activation"),
        gate=gate,
        up_first=up_first,
        interleaved=interleaved,
        separate_up=up is not None,
        preactivations=preactivations,
        **decimals,
        residual=residual is not None,
        math=given.word(math, "math"),
        reduce=list(reduce) or None,
        drop_c=not store,
        grouped=grouped,
        conj_a=conj_a and is_complex,
        conj_b=conj_b and is_complex,
        alpha_im=imaginary[0],
        beta_im=imaginary[1],
        **lies,
    )
    memories = {"a": a_at, "b": b_at, "c": c_at, "bias": bias_at, "residual": residual_at, "ends": ends, "up": up_at}
    memories.update({f"scale_{name[0]}": x for name, x in scaled.items()})
    memories.update(second.arrays)
    memories.update({"zero_a" if name in "am" else "zero_b": x for name, x in zeros.items()})
    call = _with_values(context, problem, memories, a, out, batch is not None)
    # A caller that names arrays by address brings memory for what is stored.
    if not preactivations or isinstance(a, Array):
        return call
    lines = (columns, m) if c_as.trans else (m, columns)
    stored = empty(a, (*shape[:-2], *lines), c_at.dtype)
    call.memories["preactivations"] = look(stored, "pre-activations")
    return replace(call, result=(out, stored.swapaxes(-1, -2) if c_as.trans else stored))


class _Second(NamedTuple):
    """The second pair of factors of a product: its arrays by role, and the fields that say where they lie."""

    arrays: List[Tuple[str, Array]]
    lies: Dict[str, int]


def _second(a2: Any, b2: Any, a: Tuple[Array, Matrix], b: Tuple[Array, Matrix]) -> _Second:
    """The second pair of factors, stored in the directions of the first."""
    if a2 is None and b2 is None:
        return _Second([], {})
    if a2 is None or b2 is None:
        raise _native.OperandError(f"{'b2' if a2 is None else 'a2'} is given alone: give a2 (m, k2) and b2 (k2, n), or neither")
    found = [_stored_as(x, name, first, needed) for x, name, (first, needed) in ((a2, "a2", a), (b2, "b2", b))]
    (left, left_as), (right, right_as) = found
    k2 = left.shape[-1]
    _shaped("a2", left, (a[0].shape[-2], k2))
    _shaped("b2", right, (k2, b[0].shape[-1]))
    return _Second([("a2", left), ("b2", right)], {"k2": k2, "lda2": left_as.ld, "ldb2": right_as.ld})


def _stored_as(x: Any, name: str, first: Array, needed: Matrix) -> Tuple[Array, Matrix]:
    """An operand of the second pair as the first one is stored: by rows or by columns, from a multiple of 16 bytes on. Copied where it is not."""
    at = look(x, name)
    if len(at.shape) != 2:
        raise _native.OperandError(f"{name} has shape {at.shape}: a matrix is needed")
    _typed(first.dtype, [(name, at)])
    if 0 in at.shape:
        raise _native.OperandError(f"{name} has shape {at.shape}: leave a2 and b2 out where they have no terms")
    lies = matrix(at._replace(shape=at.shape[::-1], strides=at.strides[::-1]) if needed.trans else at)
    if lies is not None and not lies.trans and _of_whole_vectors(at):
        return at, lies._replace(trans=needed.trans)
    if isinstance(x, Array) or not hasattr(x, "swapaxes"):
        raise _native.OperandError(f"{name} has strides {at.strides}: store it as {name[0]} is, from a multiple of 16 bytes on")
    copied = _fresh(x.swapaxes(0, 1)).swapaxes(0, 1) if needed.trans else _fresh(x)
    return _stored_as(look(copied, name), name, first, needed)


def _fresh(x: Any) -> Any:
    """A copy by rows in memory of its own."""
    if hasattr(x, "clone"):
        import torch

        return x.clone(memory_format=torch.contiguous_format)
    return x.copy(order="C")


def _lies_alike(up: Array, b: Array) -> bool:
    """Whether a kernel may read a second tensor of weights as it reads the first: with the same strides, from an address of whole vectors on."""
    return up.strides == b.strides and _of_whole_vectors(up)


def _of_whole_vectors(x: Array) -> bool:
    """Whether the array begins where kernels count on the start of a vector. Host arrays are copied."""
    return x.device == "cpu" or x.address % 16 == 0


def _operands(a: Any, b: Any) -> Tuple[Any, Any]:
    """A and B as arrays. A list gets the type of the other operand."""
    a = like(a, b, "a")
    return a, like(b, a, "b")


def _of_nothing(a: Any, b: Any, beta: complex, options: Dict[str, Any]) -> Any:
    """The product of matrices without elements, as numpy defines it: empty, or beta times the old result. None if the product is another one."""
    more = ("bias", "activation", "softcap", "residual")
    kept = ("out", "out_dtype", "context", "math", "imaginary", *more)
    if not set(options) <= set(kept):
        return None
    (a, _), (b, _) = map(conjugated, _operands(a, b))
    a_at, b_at = look(a, "a"), look(b, "b")
    if 0 not in (*a_at.shape, *b_at.shape) or not (len(a_at.shape) in (2, 3) and len(b_at.shape) in (2, 3)):
        return None
    batches = {x.shape[0] for x in (a_at, b_at) if len(x.shape) == 3}
    if a_at.shape[-1] != b_at.shape[-2] or len(batches) > 1 or a_at.dtype != b_at.dtype:
        return None
    shape = (*batches, a_at.shape[-2], b_at.shape[-1])
    if 0 not in shape and any(options.get(name) is not None for name in more):
        return None
    out, _ = _out(a, a_at, options.get("out"), shape, given.dtype(options.get("out_dtype"), "out_dtype"), True)
    if beta == 0.0:
        out[...] = 0
    else:
        out *= beta if beta.imag else beta.real
    return out


def _is_complex(a: Any) -> bool:
    return look(conjugated(listed(a, "a"))[0], "a").dtype.startswith("complex")


def _pair(value: Any) -> Tuple[bool, bool]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        given.refuse("imaginary", value, "a pair of booleans is needed: alpha is complex, beta is complex")
    return given.truth(value[0], "imaginary"), given.truth(value[1], "imaginary")


def _out(
    like: Any, like_at: Array, out: Any, shape: Sequence[int], out_dtype: Optional[str], store: bool
) -> Tuple[Any, Array]:
    """A call's result, allocated if `out` is None; with `store=False` only its shape and type. Products of 8-bit integers give int32."""
    own = "int32" if integer8(like_at) else like_at.dtype
    if not store:
        if out is not None:
            raise _native.ProblemError("out and store=False: a result that is not stored has no memory; leave one of them out")
        return None, of_shape(shape, own if out_dtype is None else out_dtype, like_at.device, like_at.address)
    if out is None:
        out = empty(like, shape, own if out_dtype is None else out_dtype)
    c_at = result(out, "out")
    _shaped("out", c_at, shape)
    if out_dtype is not None:
        _typed(out_dtype, [("out", c_at)])
    return out, c_at


def _with_values(
    context: Context, problem: str, memories: Dict[str, Optional[Array]], like: Any, out: Any, batched: bool
) -> Call:
    """A call with new arrays for its reductions."""
    values = [empty(like, shape, dtype) for shape, dtype in _native.values(problem, batched)]
    results = ([] if out is None else [out]) + values
    held = {role: x for role, x in memories.items() if x is not None}
    held.update(_reduced(values))
    return Call(context, problem, held, tuple(results) if values else out)


def _reduced(values: Sequence[Any]) -> Dict[str, Array]:
    """Arrays that reductions write, by their roles."""
    return {f"reduction_{number}": look(x, "a reduction's values") for number, x in enumerate(values)}


def _reduce(
    x: Any,
    op: Union[str, Sequence[str]],
    axis: Union[None, int, Sequence[int]] = None,
    *,
    keepdims: bool = False,
    activation: Optional[str] = None,
    context: Optional[Context] = None,
) -> Call:
    keepdims, x = given.truth(keepdims, "keepdims"), listed(x, "x")
    x_at = summand(x, "x")
    if min(x_at.strides, default=0) < 0:
        x_at = look(pack(x, "x"), "x")
    over = given.axes(axis, x_at.shape)
    ops = [given.word(op, "op")] if isinstance(op, str) else given.words(op, "op")
    activation = given.maybe(activation, "activation")
    try:
        problem = _native.problem(
            "reduce", dtype=x_at.dtype, shape=x_at.shape, over=over, strides=x_at.strides, ops=ops, activation=activation
        )
    except _native.ProblemError as e:
        # Name the argument instead of the fields of a problem's text.
        raise _native.ProblemError(f"x: {e}" if str(e).startswith(("shape", "strides")) else str(e)) from None
    shape = [size for a, size in enumerate(x_at.shape) if a not in over]
    values = [empty(x, shape, dtype) for _, dtype in _native.values(problem, True)]
    memories = {"a": x_at, **_reduced(values)}
    if keepdims:
        values = [value.reshape([1 if a in over else size for a, size in enumerate(x_at.shape)]) for value in values]
    result = values[0] if isinstance(op, str) else tuple(values)
    context = _same_place(context, [("x", x_at)])
    return Call(context, problem, memories, result)


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
    padding: Union[int, str, Sequence[Union[int, Sequence[int]]]] = 0,
    dilation: Union[int, Sequence[int]] = 1,
    groups: int = 1,
    layout: str = "nchw",
    direction: str = "forward",
    size: Union[None, int, Sequence[int]] = None,
    out_dtype: Optional[str] = None,
    math: str = "exact",
    reduce: Sequence[str] = (),
    store: bool = True,
    context: Optional[Context] = None,
) -> Call:
    def tight(value: Any, name: str, looked: Callable[[Any, str], Array] = look) -> Array:
        array = looked(value, name)
        return array if packed(array) else look(pack(value, name), name)

    reduce, store, out_dtype = given.words(reduce, "reduce"), given.truth(store, "store"), given.dtype(out_dtype, "out_dtype")
    if given.word(direction, "direction") not in _DIRECTIONS:
        given.refuse("direction", direction, f"one of {', '.join(_DIRECTIONS)}")
    x_at, w_at = tight(x, "x", factor), tight(w, "w", factor)
    dims = len(x_at.shape) - 2
    if dims not in (1, 2, 3) or len(w_at.shape) != dims + 2:
        raise _native.OperandError(f"x is {x_at.shape} and w is {w_at.shape}: 1 to 3 spatial dimensions are needed, as many in both")
    last = given.word(layout, "layout") == "nhwc"
    begin, end = ([0] * dims,) * 2 if padding in ("same", "valid") else given.sides(padding, "padding", dims)
    stride, dilation = given.each(stride, "stride", dims, 1), given.each(dilation, "dilation", dims, 1)
    groups = given.whole(groups, "groups", 1)
    if direction != "forward" and size is None:
        size = _spatial(look(out, "out").shape, last) if out is not None else given.refuse("size", size, _SIZE)
    sized = None if size is None else given.each(size, "size", dims, 1)
    n, c, k, sizes, taps = _extents(direction, x_at.shape, w_at.shape, sized, groups, last)
    if padding == "same":
        if any(step != 1 for step in stride):
            given.refuse("padding", padding, f"the stride is {stride}: only a stride of 1 keeps the size")
        around = [d * (t - 1) for d, t in zip(dilation, taps)]
        begin, end = [x // 2 for x in around], [x - x // 2 for x in around]
    pixels = [(s + p + q - d * (t - 1) - 1) // r + 1 for s, p, q, d, t, r in zip(sizes, begin, end, dilation, taps, stride)]
    if min(pixels) < 1:
        raise _native.OperandError(f"x is {x_at.shape} and w is {w_at.shape}: the dilated filter is larger than the padded input")
    if direction != "forward" and pixels != list(_spatial(x_at.shape, last)):
        told = f"with size = {sized} the convolution has pixels {pixels}"
        raise _native.OperandError(f"x is {x_at.shape}, a convolution's gradient, and w is {w_at.shape}: {told}")
    _typed(x_at.dtype, [("w", w_at)])
    outer, channels, inner = {
        "forward": (n, k, pixels),
        "backward-data": (n, c, sizes),
        "backward-weight": (k, c // groups, taps),
    }[direction]
    shape = (outer, *inner, channels) if last else (outer, channels, *inner)
    out, c_at = _out(x, x_at, out, shape, out_dtype, store)
    if not packed(c_at):
        raise _native.OperandError(f"out with strides {c_at.strides} cannot be written: it must be contiguous")
    arrays = [("x", x_at), ("w", w_at), ("out", c_at)]
    bias_at = residual_at = None
    if bias is not None:
        bias_at = tight(bias, "bias")
        _shaped("bias", bias_at, (channels,))
        arrays.append(("bias", bias_at))
    if residual is not None and mask is not None:
        raise _native.ProblemError("residual and mask use the same operand: leave one of them out")
    name, third = ("mask", mask) if residual is None else ("residual", residual)
    if third is not None:
        residual_at = tight(third, name)
        _shaped(name, residual_at, shape)
        arrays.append((name, residual_at))
    apart(c_at, arrays[:2] + [x for x in arrays[3:] if x[0] == "bias"])
    context = _same_place(context, arrays)
    _typed_epilogue(c_at.dtype, activation, arrays[3:])
    problem = _native.problem(
        "conv",
        n=n,
        c=c,
        k=k,
        input=sizes,
        filter=taps,
        dtype=x_at.dtype,
        out_dtype=c_at.dtype,
        direction=direction,
        layout=layout,
        groups=groups,
        stride=stride,
        dilation=dilation,
        pad_begin=begin,
        pad_end=end,
        bias=bias is not None,
        activation=given.maybe(activation, "activation"),
        residual=residual is not None,
        mask=mask is not None,
        math=given.word(math, "math"),
        reduce=list(reduce) or None,
        drop_c=not store,
    )
    memories = {"a": x_at, "b": w_at, "c": c_at, "bias": bias_at, "residual": residual_at}
    return _with_values(context, problem, memories, x, out, direction != "backward-weight")


_DIRECTIONS = ("forward", "backward-data", "backward-weight")
_SIZE = "the spatial sizes of the gradient are needed, or `out`: several inputs have results of one size"


def _spatial(shape: Sequence[int], last: bool) -> Tuple[int, ...]:
    return tuple(shape[1:-1] if last else shape[2:])


def _extents(
    direction: str, x: Sequence[int], w: Sequence[int], size: Optional[List[int]], groups: int, last: bool
) -> Tuple[int, int, int, List[int], List[int]]:
    """Samples, input and output channels, input sizes and filter sizes of a convolution, by the shapes of its operands; `size` is that of a gradient."""
    channel = -1 if last else 1
    x_size, w_size = list(_spatial(x, last)), list(_spatial(w, last))
    if direction == "forward":
        found = (x[0], x[channel], w[0], x_size, w_size)
        fits = w[channel] * groups == x[channel]
    elif direction == "backward-data":
        found = (x[0], w[channel] * groups, w[0], size or [], w_size)
        fits = w[0] == x[channel]
    else:
        found = (x[0], w[channel], x[channel], w_size, size or [])
        fits = w[0] == x[0] and w[channel] % groups == 0
    if not fits:
        raise _native.OperandError(f"x is {tuple(x)} and w is {tuple(w)}: channels do not fit in {groups} groups ({direction})")
    return found


def gemm(a: Any, b: Any, *, alpha: complex = 1.0, beta: complex = 0.0, stream: Optional[int] = None, **options: Any) -> Any:
    """Multiply matrices: ``activation(alpha * scales * ((a - zero_a) @ (b - zero_b)) + bias + beta * out) + residual``.

    The call runs with the recorded plan of its shape, else with the plan that the cost model picks. Nothing is tuned here: see `tune`.

    Parameters
    ----------
    a : (m, k) or (batch, m, k) array
        Transposed and strided arrays, and torch's views of conjugates, are read in place.
    b : (k, n) or (batch, k, n) array
        A matrix without batch serves the whole batch. Its type is that of `a`, except for two float8 types of one kind, for int8 beside
        uint8, and for int8 or uint8 weights beside float16, bfloat16 or float32.
    alpha, beta : complex, default 1.0 and 0.0
        Complex values need complex arrays. Without `beta`, `out` is never read.
    stream : int, optional
        Handle of the CUDA or HIP stream, for arrays on such a device. By default the current stream of torch or CuPy, for their arrays, else
        the device's default stream.
    out : array, optional
        Receives the result. Its rows must be contiguous.
    out_dtype : str or dtype of numpy or torch, optional
        Type of the result; by default that of `a`, and int32 for 8-bit integers.
    b_dtype : {"int4", "uint4"}, optional
        `b` is uint8 with two weights per byte, the even index in the low half: (k, n / 2), or the transposed view of (n, k / 2).
    bias : (n,) or (m, 1) array, optional
        One value per column, or per row. With a gate: (2 n,). With "exp" it is float32, or float64 of float64 results.
    activation : {"relu", "gelu", "gelutanh" (or "gelu-tanh"), "silu", "hardswish", "exp"}, optional
    softcap : float, optional
        In the place of an activation: ``softcap * tanh(x / softcap)``, as Gemma 2 limits its logits.
    gate : {"relu", "gelu", "gelutanh", "silu", "hardswish", "sigmoid", "linear", "clamped"}, optional
        A gated MLP's product: ``gate(a @ b[:, :n] + bias[:n]) * (a @ b[:, n:] + bias[n:]) + residual``.
        `b`, `bias` and scales along n have 2 n columns, the result has n.
    up_first : bool, default False
        The gate's columns are the second half of `b`, or the second of each pair.
    interleaved : bool, default False
        Columns take turns, as in gpt-oss: the gate's are ``b[:, ::2]``, the other factor's ``b[:, 1::2]``.
    up : array of the shape of `b`, optional
        The other factor's weights as an array of their own: `b` then has the gate's n columns.
    gate_limit, gate_slope : float, default 7.0 and 1.702
        Of "clamped", gpt-oss's SwiGLU: ``g * sigmoid(slope * g) * (u + 1)``, with ``g = min(gate, limit)`` and ``u = clip(up, -limit, limit)``.
    preactivations : bool, default False
        Also return ``alpha * (a @ b) * scales + bias`` of all 2 n columns, from which a backward pass starts: the result is a pair.
    residual : array of the shape of the result, optional
        Added after the activation.
    a2, b2 : (m, k2) and (k2, n) array, optional
        A second pair of factors, whose product is added to ``a @ b`` before all else: as of a low-rank update, or of concatenated inputs.
    math : {"exact", "tf32", "tf32x3" (or "3xtf32"), "bf16x3", "bf16x6", "promoted"}, default "exact"
        How float32 is multiplied: as one tf32 number, as two, or as two or three bfloat16 numbers. The error of a product is at most
        2^-9, 2^-21, 2^-15 or 2^-24 of it. "promoted" adds each 128 terms of float8 products to a float32 accumulator.
    scales : array, pair of arrays or dict, optional
        float32: (n,), (m, 1), or both. A dict names blocks of k for promoted float8 and for integer weights:
        ``{"m1x128": (k / 128, m), "n1x32": (k / 32, n), "n128x128": (k / 128, n / 128)}``, divisions rounded up.
    zero_points : pair, optional
        int32 arrays for int8 and uint8 operands: of `a` one value or (m, 1), of `b` one value or (n,), or None.
    offsets : (groups,) int32 array, optional
        A grouped product, as ``torch._grouped_mm``: where the rows of each group end, ascending, with `b` (groups, k, n). Rows after the
        last end are not written. With `b` (k, n), where the terms of each group end; the result is (groups, m, n).
    reduce : list of str, optional
        Values of the result in the same pass, such as ``["max:n", "sum:mn"]``.
    store : bool, default True
        False: only the reductions are written.
    imaginary : (bool, bool), optional
        For `tune`: whether `alpha`, and whether `beta`, may be complex at launch.
    context : Context, optional
        The device and records; by default those of `use`, or of the arrays' device.

    Returns
    -------
    array or tuple
        The result, in the arrays' framework. With `reduce`, a tuple of the result (if it is stored) and the values.

    Raises
    ------
    OperandError
        An array has a wrong shape, type, stride or device.
    ProblemError
        An option, or a combination of options, does not exist.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> tw.gemm(np.ones((2, 3), "f4"), np.ones((3, 2), "f4"), bias=[1.0, -9.0], activation="relu").tolist()
    [[4.0, 0.0], [4.0, 0.0]]
    """
    alpha, beta = given.factor(alpha, "alpha"), given.factor(beta, "beta")
    if alpha.imag or beta.imag:
        real = [name for name, x in (("alpha", alpha), ("beta", beta)) if x.imag and not _is_complex(a)]
        if real:
            given.refuse(real[0], alpha if real[0] == "alpha" else beta, "a real number is needed: only complex arrays take complex factors")
        told = _pair(options.get("imaginary", (False, False)))
        options["imaginary"] = (told[0] or alpha.imag != 0.0, told[1] or beta.imag != 0.0)
    if beta != 0.0 and options.get("out") is None:
        given.refuse("beta", beta if beta.imag else beta.real, "beta multiplies `out`: give `out`")
    nothing = _of_nothing(a, b, beta, options)
    if nothing is not None:
        return nothing
    return _call(gemm, (a, b), options).run(alpha, beta, given.stream(stream))


def conv(x: Any, w: Any, *, stream: Optional[int] = None, **options: Any) -> Any:
    """Convolve `x` with the filters `w`, with bias, activation and residual as in `gemm`.

    Parameters
    ----------
    x : array
        Input: (n, c, ...) for "nchw", (n, ..., c) for "nhwc", with 1 to 3 spatial dimensions. For a gradient: the gradient of the result.
    w : array
        Filters: (k, c / groups, ...) for "nchw", (k, ..., c / groups) for "nhwc". For "backward-weight": the input.
    stream : int, optional
        Handle of the CUDA or HIP stream, for arrays on such a device. By default the current stream of torch or CuPy, for their arrays, else
        the device's default stream.
    direction : {"forward", "backward-data", "backward-weight"}, default "forward"
        "backward-data" gives the gradient of the input, "backward-weight" that of the filters.
    size : int or sequence of int, optional
        Spatial sizes of the gradient; needed for the two gradients, unless `out` is given.
    layout : {"nchw", "nhwc"}, default "nchw"
    stride, dilation : int or sequence of int, default 1
    padding : int, sequence of int or of pairs, "same" or "valid", default 0
        A pair holds the padding before and after a dimension.
    groups : int, default 1
    bias : (k,) array, optional
    activation : {"relu", "gelu", "gelutanh" (or "gelu-tanh"), "silu", "hardswish", "exp"}, optional
    residual, mask : array of the shape of the result, optional
        `residual` is added last. `mask` instead zeroes the result where the mask is not above 0, as the gradient of a ReLU does.
    reduce : list of str, optional
        As in `gemm`. Axes are b (samples), m (pixels) and n (channels): ``["mean:bm", "var:bm"]`` for batch normalisation.
    out, out_dtype, math, store, context
        As in `gemm`.

    Returns
    -------
    array or tuple
        As `gemm`.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> tw.conv(np.ones((1, 2, 4, 4), "f4"), np.ones((3, 2, 3, 3), "f4"), padding="same").shape
    (1, 3, 4, 4)
    """
    return _call(conv, (x, w), options).run(1.0, 0.0, given.stream(stream))


def reduce(
    x: Any,
    op: Union[str, Sequence[str]],
    axis: Union[None, int, Sequence[int]] = None,
    *,
    alpha: float = 1.0,
    stream: Optional[int] = None,
    **options: Any,
) -> Any:
    """Reduce ``activation(alpha * x)`` over one axis, several, or all.

    Parameters
    ----------
    x : array
        Strided arrays are read in place.
    op : str or sequence of str
        sum, mean, sumsq, max, min, absmax, argmax, argmin, logsumexp, var or norm2. Several are computed in one pass. ``"max:f16"`` names
        the type of the values.
    axis : int or sequence of int, optional
        None: all axes.
    alpha : float, default 1.0
    stream : int, optional
        Handle of the CUDA or HIP stream, for arrays on such a device. By default the current stream of torch or CuPy, for their arrays, else
        the device's default stream.
    keepdims : bool, default False
        Keep reduced axes with size 1.
    activation : {"relu", "gelu", "gelutanh" (or "gelu-tanh"), "silu", "hardswish", "exp"}, optional
    context : Context, optional

    Returns
    -------
    array or tuple of arrays
        A tuple for a sequence of operators. Values are float32 (float64 of float64) and indices int64. Sums of int8 and uint8 are int32,
        sums of int32 are int64.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> most, at = tw.reduce(np.array([[1, 5, 2], [7, 0, 3]], "f4"), ["max", "argmax"], 1)
    >>> most.tolist(), at.tolist()
    ([5.0, 7.0], [1, 0])
    """
    alpha = given.number(alpha, "alpha")
    return _call(reduce, (x, op, axis), options).run(alpha, 0.0, given.stream(stream))


_CALLS: Dict[Callable[..., Any], Callable[..., Call]] = {gemm: _gemm, conv: _conv, reduce: _reduce}
_SIGNATURES = {what: inspect.signature(call) for what, call in _CALLS.items()}


def _call(what: Callable[..., Any], args: Sequence[Any], options: Dict[str, Any]) -> Call:
    """Makes the call of a function. An unknown argument is an error that names the function."""
    if len(args) < 2 or not options.keys() <= _SIGNATURES[what].parameters.keys():
        try:
            _SIGNATURES[what].bind(*args, **options)
        except TypeError as e:
            names = ", ".join(_SIGNATURES[what].parameters)
            raise _native.ProblemError(f"{what.__name__}: {e}; it takes {names}") from None
    return _CALLS[what](*args, **options)


def _operation(
    what: Union[str, Callable[..., Any]], args: Sequence[Any], options: Dict[str, Any]
) -> Tuple[Context, _native.Operation]:
    if isinstance(what, str):
        context = options.pop("context", None) or context_for("cpu")
        if not isinstance(context, Context):
            given.refuse("context", context, "a tilewright.Context is needed")
        if args or options:
            raise _native.ProblemError(f"a problem given as text takes no further arguments: {list(args)} {options}")
        return context, context.operation(what)
    if not callable(what) or what not in _CALLS:
        given.refuse("what", what, "tilewright.gemm, conv, reduce or the text of a problem is needed")
    call = _call(what, args, options)
    return call.context, call.context.operation(call.problem)


@dataclass(frozen=True)
class Outcome:
    """Result of a search by `tune`.

    Attributes
    ----------
    problem : str
        Text of the problem.
    plan : str
        Text of the fastest plan.
    time_us : float
        Its time in microseconds.
    time_kind : {"measured", "modelled"}
        "modelled" on the emulator.
    verified : bool
        Whether the result was compared with a float64 reference.
    details : dict
        The whole report of the search, as ``tilewright tune --json`` prints it.
    """

    problem: str
    plan: str
    time_us: float
    time_kind: str
    verified: bool
    details: Dict[str, Any]


def tune(
    what: Union[str, Callable[..., Any]],
    *args: Any,
    seconds: Optional[float] = None,
    trials: Optional[int] = None,
    progress: Progress = False,
    **options: Any,
) -> Outcome:
    """Search the fastest plan with right results for a call, and record it.

    Later calls of the same shape run with the plan, in this process and in later ones. Each winner is compared with a float64 reference.
    Ctrl-C ends the search; what was tried is kept.

    Parameters
    ----------
    what : gemm, conv, reduce or str
        The function, or the text of a problem.
    *args, **options
        The call's arrays and options. Only shapes, types and strides matter, not the values.
    seconds, trials : number, optional
        When the search ends. Without both: after 10 seconds.
    progress : bool or callable, default False
        True shows one line on stderr. A function receives each event as a dict.

    Returns
    -------
    Outcome
        The plan, its time in microseconds, whether that is measured or modelled, and whether the result was verified.

    Raises
    ------
    TuneError
        No plan with right results was found.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> a, b = np.ones((16, 8), "f4"), np.ones((8, 16), "f4")
    >>> tw.tune(tw.gemm, a, b, activation="relu", trials=2).verified
    True
    """
    context, operation = _operation(what, args, options)
    seconds = None if seconds is None else given.number(seconds, "seconds")
    trials = _trials(trials)
    given.listener(progress, "progress")
    if seconds is None and trials is None:
        seconds = 10.0
    listener = heard_by(progress, operation.problem)
    heard = None if listener is None else lambda text: listener(json.loads(text))
    try:
        found = json.loads(operation.tune(seconds, trials, heard))
    finally:
        if isinstance(listener, Line):
            listener.end()
        # After an interrupted search as well: its trials are in the records.
        context.forget(operation.problem)
        _tell()
    plan, _ = operation.choice()
    return Outcome(operation.problem, plan, found["time_us"], found["time_kind"], found["verified"], found)


# Hears of a problem that has a winner, its first or a faster one, with the search's report, or None without a plan. Gives the microseconds of
# rivals that were timed now, by problem.
Settled = Callable[[str, Optional[Dict[str, Any]]], Dict[str, float]]


def tune_all(
    context: Context,
    problems: Dict[str, float],
    seconds: Optional[float] = None,
    trials: Optional[int] = None,
    total: Optional[float] = None,
    progress: Progress = False,
    settled: Optional[Settled] = None,
) -> int:
    """Search several problems, given with their numbers of calls; gives how many have a winner.

    `seconds` and `trials` limit the search of each problem. `total` is a time for all: first each problem gets its best picks, the heaviest first,
    then the searches go on where most time may be saved.
    """
    names = list(problems)
    if seconds is None and trials is None and total is None:
        seconds = 10.0
    line = LineOfAll(names) if progress is True else None
    listener: Optional[Callable[[Dict[str, Any]], Any]] = progress if callable(progress) else line
    campaign = context._native.campaign([context.operation(name) for name in names], list(problems.values()), seconds, trials, total)
    found: Set[int] = set()
    try:
        while True:
            told = campaign.next()
            if told is None:
                return len(found)
            number, text, asks = told
            event = json.loads(text)
            if asks:
                outcome = event.get("outcome")
                if outcome is not None:
                    found.add(number)
                context.forget(names[number])
                _tell()
                rivals = {} if settled is None else settled(names[number], outcome)
                campaign.answer({names.index(name): us for name, us in rivals.items()})
            elif listener is not None:
                listener({**event, "problem": names[number]})
    finally:
        try:
            campaign.end()
        finally:
            if line is not None:
                line.end()
            # After an interrupted search as well: its trials are in the records.
            for name in names:
                context.forget(name)
            _tell()


def _trials(trials: Any) -> Optional[int]:
    if trials is not None and given.whole(trials, "trials") == 0:
        given.refuse("trials", trials, "allows no trial at all: at least 1")
    return trials


def heard_by(progress: Progress, title: str) -> Optional[Callable[[Dict[str, Any]], Any]]:
    """The function that receives the events of a search, or None."""
    if callable(progress):
        return progress
    return Line(title) if progress else None


class Line:
    """One line on stderr that follows a search."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(self, event: Dict[str, Any]) -> None:
        if event.get("event") == "trial":
            best = event["best_us"]
            told = f"best {best:.1f} us" if best else "no result yet"
            sys.stderr.write(f"\r{told}; {event['tally']['trials']} trials in {event['seconds']:.0f} s; {self.title}"[:100].ljust(100))
            sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\n")


class LineOfAll:
    """One line on stderr that follows the searches of several problems."""

    def __init__(self, names: List[str]) -> None:
        self.names = names

    def __call__(self, event: Dict[str, Any]) -> None:
        if event.get("event") == "trial":
            at = event["standing"]
            told = f"{at['reached']} of {at['problems']} shapes, {at['share']:.0%} of the time, gain {at['gain']:.2f}; {event['problem']}"
            sys.stderr.write(f"\r{told}"[:101].ljust(101))
            sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\n")


def explain(what: Union[str, Callable[..., Any]], *args: Any, **options: Any) -> str:
    """Describe in words what a call runs with: the text of the command ``tilewright explain``.

    Parameters
    ----------
    what : gemm, conv, reduce or str
        The function, or the text of a problem.
    *args, **options
        The call's arrays and options.

    Returns
    -------
    str
        The problem, its plan and where the plan comes from; what each key of the plan does; the parts of the kernel; its numbers.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> text = tw.explain(tw.gemm, np.ones((16, 8), "f4"), np.ones((8, 16), "f4"))
    >>> "plan (picked)" in text and "macro tile" in text
    True
    """
    _, operation = _operation(what, args, options)
    return operation.explain()


def emit(what: Union[str, Callable[..., Any]], *args: Any, arch: Optional[str] = None, **options: Any) -> str:
    """Give the kernels of a call as one source file.

    Parameters
    ----------
    what : gemm, conv, reduce or str
        The function, or the text of a problem.
    *args, **options
        The call's arrays and options.
    arch : str, optional
        An architecture such as ``sm_90a`` or ``gfx942``: the cost model then picks the plan for it. By default the source is in the
        language of the context's device, with the plan that the call runs with.

    Returns
    -------
    str
        CUDA C++, HIP C++ or OpenCL C.

    Raises
    ------
    DeviceError
        The architecture is unknown.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> a, b = np.ones((64, 64), "f2"), np.ones((64, 64), "f2")
    >>> "__global__" in tw.emit(tw.gemm, a, b, arch="sm_90a")
    True
    """
    operation = _operation(what, args, options)[1]
    if arch is not None:
        try:
            operation = Context(f"emu:{given.word(arch, 'arch')}", records="").operation(operation.problem)
        except _native.DeviceError as e:
            raise _native.DeviceError(f"arch = {arch!r}: {e}") from None
    return operation.source()
