"""Arguments that are no arrays: of the kind that is needed, or refused by name."""

from __future__ import annotations

import operator
import os
import struct
import sys
from typing import Any, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from . import _native


def refuse(name: str, value: Any, wanted: str) -> NoReturn:
    raise _native.ProblemError(f"{name} = {value!r}: {wanted}")


def number(value: Any, name: str) -> float:
    if isinstance(value, complex):
        refuse(name, value, "a real number is needed: multiply a matrix by a complex one")
    try:
        return float(value) if not isinstance(value, (str, bytes)) else refuse(name, value, "a number is needed")
    except (TypeError, ValueError, OverflowError):
        refuse(name, value, "a number is needed")


def factor(value: Any, name: str) -> complex:
    """A number that may be complex."""
    try:
        return complex(value) if not isinstance(value, (str, bytes)) else refuse(name, value, "a number is needed")
    except (TypeError, ValueError, OverflowError):
        refuse(name, value, "a number is needed")


def whole(value: Any, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        refuse(name, value, "a whole number is needed")
    return found if least <= found <= most else refuse(name, value, f"{least} to {most} are possible")


def stream(value: Any) -> Optional[int]:
    """Handle of a stream, or None for the current one."""
    return None if value is None else whole(value, "stream", 0, 2**64 - 1)


# Limits that kernels take.
LEAST_CAP, MOST_CAP = 1e-6, 1e6


def softcap(value: Any) -> Optional[float]:
    found = None if value is None else number(value, "softcap")
    if found is not None and not LEAST_CAP <= found <= MOST_CAP:
        refuse("softcap", value, "a number from 0.000001 to 1000000, or None, is needed")
    return found


def of_kernels(softcap: Optional[float]) -> Optional[float]:
    """The limit as kernels have it, rounded to float32."""
    return softcap if softcap is None else struct.unpack("f", struct.pack("f", softcap))[0]


class Loss(NamedTuple):
    """Options of a cross-entropy."""

    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float


def loss(reduction: Any, ignore_index: Any, label_smoothing: Any, z_loss: Any, class_weight: Any) -> Loss:
    """The options of a cross-entropy, where they are possible together."""
    if word(reduction, "reduction") not in ("mean", "sum", "none"):
        refuse("reduction", reduction, "mean, sum or none is needed")
    smoothing, z_factor = number(label_smoothing, "label_smoothing"), number(z_loss, "z_loss")
    if not abs(z_factor) < float("inf"):
        refuse("z_loss", z_loss, "a finite number is needed")
    if not 0.0 <= smoothing <= 1.0:
        refuse("label_smoothing", label_smoothing, "a number from 0 to 1 is needed")
    if smoothing and class_weight is not None:
        raise _native.ProblemError("label_smoothing and class_weight: leave one of them out, or use torch.nn.functional.cross_entropy")
    return Loss(reduction, whole(ignore_index, "ignore_index", -(2**63), 2**63 - 1), smoothing, z_factor)


def each(value: Any, name: str, dims: int, least: int) -> List[int]:
    """A number for all dimensions, or one for each."""
    values = list(value) if isinstance(value, (list, tuple)) else [value] * dims
    if len(values) != dims:
        refuse(name, value, f"a number, or {dims} of them, are needed")
    return [whole(x, name, least) for x in values]


def sides(value: Any, name: str, dims: int) -> Tuple[List[int], List[int]]:
    """Numbers before and after each dimension: one for all, one for each, or a pair for each."""
    values = list(value) if isinstance(value, (list, tuple)) else [value] * dims
    if len(values) == dims and any(isinstance(x, (list, tuple)) for x in values):
        pairs = [each(x, name, 2, 0) for x in values]
        return [begin for begin, _ in pairs], [end for _, end in pairs]
    return (each(value, name, dims, 0),) * 2


def word(value: Any, name: str) -> str:
    if not isinstance(value, str):
        refuse(name, value, "a text is needed")
    return value if value.isascii() or _is_unicode(value) else refuse(name, value, "no text in Unicode")


def _is_unicode(value: str) -> bool:
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def maybe(value: Any, name: str) -> Optional[str]:
    return None if value is None else word(value, name)


def dtype(value: Any, name: str) -> Optional[str]:
    """The name that arrays have for an element type: of a text (`float16`, `half`, `f16`), or of a dtype of numpy or torch."""
    if value is None:
        return None
    if not isinstance(value, str):
        told, numpy = str(value), sys.modules.get("numpy")
        if told.startswith("torch.") and type(value).__name__ == "dtype":
            value = told[len("torch.") :]
        elif numpy is not None and isinstance(value, (numpy.dtype, type)):
            try:
                value = numpy.dtype(value).name
            except TypeError:
                refuse(name, value, "no type of elements")
        else:
            refuse(name, value, "a text such as 'float16', or a dtype of numpy or torch, is needed")
    return _native.array_dtype(word(value, name))


def words(value: Any, name: str) -> List[str]:
    if not isinstance(value, (list, tuple)):
        refuse(name, value, "a list of texts is needed")
    return [word(x, name) for x in value]


def truth(value: Any, name: str) -> bool:
    return value if isinstance(value, bool) else refuse(name, value, "True or False is needed")


def listener(value: Any, name: str) -> None:
    if not isinstance(value, bool) and not callable(value):
        refuse(name, value, "True, False or a function is needed")


def path(value: Any, name: str) -> str:
    # Numbers would be open files.
    if not isinstance(value, (str, os.PathLike)):
        refuse(name, value, "the path of a file is needed")
    found = word(os.fspath(value), name)
    return found if "\0" not in found else refuse(name, value, "no path holds a NUL")


def axes(value: Any, shape: Sequence[int], name: str = "axis") -> List[int]:
    """The axes of an array that are meant, counted from 0; None: all."""
    dims = len(shape)
    given = range(dims) if value is None else value if isinstance(value, (list, tuple)) else [value]
    found = [whole(a, name, -(2**63)) for a in given]
    if any(not -dims <= a < dims for a in found):
        raise _native.OperandError(f"{name} = {value} of an array of shape {tuple(shape)}: from {-dims} to {dims - 1} are possible")
    over = [a % dims for a in found]
    twice = next((a for a, at in zip(found, over) if over.count(at) > 1), None)
    return over if twice is None else refuse(name, value, f"axis {twice} is named twice")
