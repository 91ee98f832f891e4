"""Arrays of any framework: where their elements are, how they lie, and what can be made beside them."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from . import _native

_TYPES = {"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128", "i1": "int8", "u1": "uint8", "i4": "int32", "i8": "int64"}
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}
_BYTES.update(complex64=8, complex128=16)
_FLOATS8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_BYTES.update((name, 1) for name in _FLOATS8)
_FORMATS = {"e": "float16", "f": "float32", "d": "float64", "b": "int8", "B": "uint8", "Zf": "complex64", "Zd": "complex128"}
_POSSIBLE = "float16, bfloat16, float32, float64, int8, uint8, float8 of torch, and of gemm complex64 and complex128 are possible"
# DLPack's kinds of devices: process memory (also pinned), CUDA, ROCm.
_CPU, _PINNED, _CUDA, _ROCM, _ROCM_PINNED = 1, 3, 2, 10, 11


class Array(NamedTuple):
    """An array as launches see it. Shape and strides in elements."""

    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: str
    device: str
    """`cpu`, `cuda:0`, `hip:0`."""
    keep: Any
    """What must live as long as the address is used."""
    readonly: bool = False

    @property
    def alignment(self) -> int:
        """Largest power of two that divides the address, at most 256."""
        return min(self.address & -self.address, 256) or 256


def look(x: Any, name: str) -> Array:
    """Describes an operand: shape, strides, type, address, device. Errors use `name`."""
    if isinstance(x, Array):
        return x
    kind = str(getattr(x, "dtype", "")).replace("torch.", "")
    if kind in _FLOATS8 and hasattr(x, "requires_grad"):
        # DLPack has no such types before its version 1.1: the same bytes.
        import torch

        return look(x.detach().view(torch.uint8), name)._replace(dtype=kind)
    if hasattr(x, "__array_interface__") and not hasattr(x, "requires_grad"):
        found = _from_interface(x, name)
    elif hasattr(x, "__dlpack__"):
        found = _from_dlpack(x, name)
    else:
        try:
            view = memoryview(x)
        except TypeError:
            told = f"{name} is {type(x).__name__}: give an array with DLPack, __array_interface__ or the buffer protocol"
            raise _native.OperandError(told) from None
        found = _from_buffer(view, name)
    if found.address == 0 and 0 not in found.shape:
        raise _native.OperandError(f"{name} has shape {found.shape} and no memory: was it freed?")
    return found


def listed(x: Any, name: str, dtype: Optional[str] = None) -> Any:
    """A list as an array of numpy, of this type where one is given; all else as it is."""
    # Not what is a tuple of its own kind, as `Array` is.
    if type(x) not in (list, tuple):
        return x
    try:
        import numpy

        found = numpy.asarray(x, dtype=dtype)
    except (ImportError, TypeError, ValueError, OverflowError) as e:
        raise _native.OperandError(f"{name} is {type(x).__name__} and no array can be made of it: {e}") from None
    return found.astype("float64") if dtype is None and found.dtype.kind in "iu" else found


def like(x: Any, other: Any, name: str) -> Any:
    """A list as an array of another operand's type, where that is numpy's; numpy's own rule for plain numbers."""
    dtype = getattr(other, "dtype", None)
    return listed(x, name, dtype if type(other).__module__.split(".")[0] == "numpy" and dtype is not None else None)


def result(x: Any, name: str) -> Array:
    """What an array is that is written to."""
    found = look(x, name)
    if found.readonly:
        raise _native.OperandError(f"{name} is read-only: give a writable array")
    return found


def apart(out: Array, arrays: Sequence[Tuple[str, Array]]) -> None:
    """Refuses a result that shares memory with an operand, because the operand is read while the result is written. Host arrays are copied,
    and arrays that are known by shape only have no memory: both are exempt."""
    if out.device == "cpu" or out.keep is None:
        return
    first, end = _range(out)
    for name, x in arrays:
        begin, behind = _range(x)
        if x.device == out.device and begin < end and first < behind:
            raise _native.OperandError(f"out and {name} share memory: give another array")


def _range(x: Array) -> Tuple[int, int]:
    """First address, and the address after the last element."""
    ends = [(n - 1) * s * _BYTES[x.dtype] for n, s in zip(x.shape, x.strides)]
    return x.address + sum(min(e, 0) for e in ends), x.address + sum(max(e, 0) for e in ends) + _BYTES[x.dtype]


def of_shape(shape: Sequence[int], dtype: str, place: str, address: int = 256) -> Array:
    """A contiguous array that is known by shape, type and place only."""
    return Array(address, tuple(shape), contiguous(shape, 1), dtype, place, None)


def _from_interface(x: Any, name: str) -> Array:
    told = x.__array_interface__
    try:
        whole = (tuple(map(int, told["shape"])), tuple(map(int, told.get("strides") or told["shape"])), int(told["data"][0]), str(told["typestr"]))
        if min(whole[0], default=0) < 0 or len(whole[0]) != len(whole[1]):
            raise ValueError(f"shape {whole[0]}, strides {told.get('strides')}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        raise _native.OperandError(f"{name} has an __array_interface__ that says nothing: {type(e).__name__} {e}") from None
    kind = str(getattr(x, "dtype", ""))
    native = "<" if sys.byteorder == "little" else ">"
    dtype = kind if kind == "bfloat16" else _TYPES.get(told["typestr"][1:])
    if dtype is None or told["typestr"][0] not in (native, "|", "="):
        raise _native.OperandError(f"{name} holds {kind or told['typestr']}: {_POSSIBLE}")
    shape, size = tuple(told["shape"]), _BYTES[dtype]
    strides = told.get("strides") or contiguous(shape, size)
    if any(s % size for s in strides):
        raise _native.OperandError(f"{name} has strides of {strides} bytes, which are no multiples of an element")
    return Array(told["data"][0], shape, tuple(s // size for s in strides), dtype, "cpu", x, bool(told["data"][1]))


def _current(x: Any) -> Any:
    """The device of a torch tensor as the current one, which torch asks for to hand out a tensor of another CUDA device."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor) or not x.is_cuda:
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)


def current_stream(x: Any) -> Optional[int]:
    """Handle of the stream that torch or CuPy queues work on, on the device of an array of theirs; None for other arrays."""
    torch, cupy = (sys.modules.get(name) for name in ("torch", "cupy"))
    if torch is not None and isinstance(x, torch.Tensor):
        return torch._C._cuda_getCurrentRawStream(x.device.index)
    if cupy is not None and isinstance(x, cupy.ndarray):
        with x.device:
            return cupy.cuda.get_current_stream().ptr
    return None


def _from_dlpack(x: Any, name: str) -> Array:
    x = x.detach() if getattr(x, "requires_grad", False) else x
    try:
        with _current(x):
            capsule = x.__dlpack__()
        address, shape, strides, dtype, kind, number = _native.dlpack(capsule)
    except _native.Error as e:
        raise _native.OperandError(f"{name} has {e}") from None
    except Exception as e:
        raise _native.OperandError(f"{name} gives no DLPack tensor: {e}") from e
    if kind in (_CPU, _PINNED, _ROCM_PINNED):
        device = "cpu"
    elif kind in (_CUDA, _ROCM):
        device = f"{'cuda' if kind == _CUDA else 'hip'}:{number}"
    else:
        raise _native.OperandError(f"{name} lies on a device of DLPack's kind {kind}: memory of this process, CUDA or ROCm are possible")
    return Array(address, tuple(shape), tuple(strides), dtype, device, (x, capsule))


def _from_buffer(view: memoryview, name: str) -> Array:
    dtype = _FORMATS.get(view.format.lstrip("@=<"))
    if dtype is None or not view.c_contiguous:
        raise _native.OperandError(f"{name} is a buffer of format {view.format!r}: contiguous e, f, d, Zf, Zd, b or B are possible")
    whole = ctypes.c_char * view.nbytes
    keep = whole.from_buffer_copy(view) if view.readonly else whole.from_buffer(view)
    size = _BYTES[dtype]
    strides = tuple(s // size for s in contiguous(view.shape, size))
    return Array(ctypes.addressof(keep), tuple(view.shape), strides, dtype, "cpu", (view, keep), view.readonly)


def factor(x: Any, name: str) -> Array:
    """An operand that kernels multiply or reduce."""
    array = factor_of_product(x, name)
    if array.dtype.startswith("complex"):
        raise _native.OperandError(f"{name} holds {array.dtype}: only gemm takes complex numbers; pass real and imaginary parts separately")
    return array


def summand(x: Any, name: str) -> Array:
    """A tensor that is reduced: integers of 32 bits, too."""
    array = look(x, name)
    return array if array.dtype == "int32" else factor(array, name)


def factor_of_product(x: Any, name: str) -> Array:
    """An operand of a product, which may be complex. Wider integers are sums and indices."""
    array = look(x, name)
    if array.dtype in ("int32", "int64"):
        raise _native.OperandError(f"{name} holds {array.dtype}: {_POSSIBLE}")
    return array


def conjugated(x: Any) -> Tuple[Any, bool]:
    """What lies in memory of an array that stands for the conjugates of that, as torch's views do; and whether it is one."""
    return (x.conj(), True) if getattr(x, "is_conj", bool)() else (x, False)


def integer8(array: Array) -> bool:
    """Integers of 8 bits, whose sums are int32."""
    return array.dtype in ("int8", "uint8")


def float8(array: Array) -> bool:
    """Whether the elements are 8-bit floats. The other operand may have another 8-bit float format."""
    return array.dtype in _FLOATS8


def contiguous(shape: Sequence[int], unit: int) -> Tuple[int, ...]:
    """Strides of a contiguous array of this shape, in units: an element has `unit` of them."""
    strides: List[int] = []
    for extent in reversed(shape):
        strides.append(unit)
        unit *= max(extent, 1)
    return tuple(reversed(strides))


def packed(array: Array) -> bool:
    """Whether the array is contiguous, the last dimension fastest."""
    want = contiguous(array.shape, 1)
    return all(n <= 1 or s == w for n, s, w in zip(array.shape, array.strides, want))


def pack(x: Any, name: str) -> Any:
    """The same values, the last dimension fastest."""
    if isinstance(x, Array):
        raise _native.OperandError(f"neither rows nor columns of {name} are contiguous: its strides are {x.strides}")
    if hasattr(x, "contiguous"):
        return x.contiguous()
    if hasattr(x, "__array_interface__"):
        import numpy

        return numpy.ascontiguousarray(x)
    raise _native.OperandError(f"{name} does not lie in memory as a kernel can read it, and {type(x).__name__} cannot be copied: pack it")


def empty(like: Any, shape: Sequence[int], dtype: str) -> Any:
    """A new array of the same framework on the same device."""
    try:
        if hasattr(like, "new_empty"):
            import torch

            return like.new_empty(tuple(shape), dtype=getattr(torch, dtype))
        if type(like).__module__.split(".")[0] == "numpy":
            import numpy

            of = like.dtype if str(like.dtype) == dtype else numpy.dtype(dtype)
            return numpy.empty(tuple(shape), of)
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(like, cupy.ndarray):
            with like.device:
                return cupy.empty(tuple(shape), like.dtype if str(like.dtype) == dtype else dtype)
    except (MemoryError, OverflowError, RuntimeError, ValueError) as e:
        raise _native.OutOfMemory(f"a result of shape {tuple(shape)} cannot be made: {e}") from None
    except (AttributeError, TypeError) as e:
        raise _native.ProblemError(f"out_dtype = {dtype!r}: {e}") from None
    told = f"a result beside {type(like).__name__} cannot be made: give arrays of numpy, torch or CuPy, or `out` where there is one"
    raise _native.OperandError(told)


def room(like: Any, size: int) -> Optional[Array]:
    """Workspace of so many bytes from the framework of an array, on its device; None for no bytes."""
    if size == 0:
        return None
    try:
        return look(empty(like, (size // 4 + 1,), "float32"), "workspace")
    except _native.OutOfMemory:
        raise _native.OutOfMemory(f"a workspace of {size} bytes cannot be made: free memory, or give the context a smaller `workspace`") from None


class Matrix(NamedTuple):
    """A matrix, or a batch of them, as BLAS tells it: row-major, perhaps transposed."""

    trans: bool
    ld: int
    batch: Optional[int]
    batch_stride: int


def matrix(array: Array) -> Optional[Matrix]:
    """None where neither rows nor columns are contiguous, or rows overlap."""
    (rows, cols), (down, right) = array.shape[-2:], array.strides[-2:]
    batch = array.shape[0] if len(array.shape) == 3 else None
    stride = array.strides[0] if batch is not None and batch > 1 else 0
    if (cols <= 1 or right == 1) and (rows <= 1 or down >= cols):
        return Matrix(False, down if rows > 1 else max(cols, 1), batch, stride)
    if (rows <= 1 or down == 1) and (cols <= 1 or right >= rows):
        return Matrix(True, right if cols > 1 else max(rows, 1), batch, stride)
    return None
