"""Chains of products on arrays: the first half of a gated MLP, and a model's last layer with its loss."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Dict, Optional, Tuple

from . import _arguments as given
from . import _core, _native
from ._arrays import empty, factor, listed, look
from ._contexts import Context


def _array(x: Any, name: str, dims: Tuple[int, ...]) -> Any:
    """An operand with one of these numbers of axes, or with at least one axis for none."""
    x = listed(x, name)
    if not all(hasattr(x, part) for part in ("shape", "reshape", "dtype", "T")):
        raise _native.OperandError(f"{name} is {type(x).__name__}: an array of numpy, torch or CuPy is needed")
    if len(x.shape) not in (dims or range(1, 100)):
        raise _native.OperandError(f"{name} has shape {tuple(x.shape)}: {'an axis is' if not dims else f'{dims[0]} axes are'} needed")
    return x


def _layer(x: Any, weights: Dict[str, Any]) -> None:
    """Checks the operands of a layer, so that errors use their names."""
    first = factor(x, "x")
    for name, weight in weights.items():
        found = factor(weight, name)
        if found.shape[1] != first.shape[-1]:
            raise _native.OperandError(f"x is {first.shape} and {name} is {found.shape}: (..., k) and (n, k) are needed")
        if found.dtype != first.dtype:
            raise _native.OperandError(f"{name} holds {found.dtype}, {first.dtype} is needed: convert it")


def _framework(x: Any) -> Any:
    """The module whose functions take an array: numpy or CuPy."""
    name = type(x).__module__.split(".")[0]
    if name not in ("numpy", "cupy"):
        raise _native.OperandError(f"x is {type(x).__name__} of {name}: an array of numpy, torch or CuPy is needed")
    return sys.modules[name]


def _rows(x: Any) -> Any:
    """A matrix: all axes but the last become one. An empty array would not define the size of a -1."""
    count = 1
    for extent in x.shape[:-1]:
        count *= int(extent)
    return x.reshape(count, x.shape[-1])


def glu(
    x: Any,
    weight: Any,
    *,
    up: Any = None,
    bias: Any = None,
    gate: str = "silu",
    up_first: bool = False,
    interleaved: bool = False,
    gate_limit: Optional[float] = None,
    gate_slope: Optional[float] = None,
    context: Optional[Context] = None,
) -> Any:
    """Compute the first half of a gated MLP, ``gate(x @ weight[:n].T + bias[:n]) * (x @ weight[n:].T + bias[n:])``, in one kernel.

    Weights have a row for each output, as layers of models store them. `gemm` with `gate` takes columns, and has more options.

    Parameters
    ----------
    x : (..., k) array
    weight : (2 n, k) array
        Both halves, as in `gate_up_proj`. With `up` the gate's weights alone, (n, k).
    up : (n, k) array, optional
        The other factor's weights as an array of their own, as `up_proj` beside `gate_proj`.
    bias : (2 n,) array, optional
    gate : {"silu", "gelu", "gelutanh", "relu", "hardswish", "sigmoid", "linear", "clamped"}, default "silu"
    up_first, interleaved : bool, default False
    gate_limit, gate_slope : float, default 7.0 and 1.702
        As in `gemm`.
    context : Context, optional
        By default the one of `use`, for arrays on a device that device's.

    Returns
    -------
    (..., n) array
        In the framework of x.

    Raises
    ------
    OperandError
        An array has a wrong shape, type or device.
    ProblemError
        An option has a value that is not listed.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> tw.glu(np.ones((1, 2), "f4"), np.array([[1, 1], [3, 0]], "f4"), gate="relu").tolist()
    [[6.0]]
    """
    x, weight = _array(x, "x", ()), _array(weight, "weight", (2,))
    options = dict(bias=bias, gate=given.word(gate, "gate"), up_first=up_first, interleaved=interleaved, gate_limit=gate_limit, gate_slope=gate_slope)
    up = up if up is None else _array(up, "up", (2,))
    _layer(x, {"weight": weight} if up is None else {"weight": weight, "up": up})
    if up is None and weight.shape[0] % 2:
        raise _native.OperandError(f"weight is {tuple(weight.shape)}: its rows are two halves of equal length")
    if up is not None:
        options["up"] = up.T
    if 0 in x.shape[:-1]:
        return empty(x, (*x.shape[:-1], weight.shape[0] if up is not None else weight.shape[0] // 2), look(x, "x").dtype)
    found = _core.gemm(_rows(x), weight.T, context=context, **options)
    return found.reshape(*x.shape[:-1], found.shape[-1])


def cross_entropy(
    x: Any,
    weight: Any,
    labels: Any,
    *,
    bias: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    class_weight: Any = None,
    softcap: Optional[float] = None,
    context: Optional[Context] = None,
) -> Any:
    """Compute the cross-entropy of the logits ``x @ weight.T + bias`` without storing the logits.

    One product gives the logsumexp and the sum of each row. The label's logit is a dot product of its own. `tilewright.torch.linear_cross_entropy`
    has gradients.

    Parameters
    ----------
    x : (..., k) array
        Of numpy, torch or CuPy: float16, float32 or float64, of torch bfloat16 too.
    weight : (vocabulary, k) array
    labels : (...) array of integers
        A label that is no class and not `ignore_index` makes its row's loss NaN.
    bias : (vocabulary,) array, optional
        With the type of x.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean is over the rows that are not ignored, with the weights of their classes: NaN where there are none.
    ignore_index : int, default -100
        Rows with this label have the loss 0.
    label_smoothing : float, default 0.0
        From 0 to 1: this share of each target is spread over all classes.
    z_loss : float, default 0.0
        Adds so many times the square of each row's logsumexp.
    class_weight : (vocabulary,) array, optional
        A factor of the loss for each label. Not together with `label_smoothing`.
    softcap : float, optional
        The logits are ``softcap * tanh(z / softcap)`` of ``z = x @ weight.T + bias``, as in Gemma 2.
    context : Context, optional
        By default the one of `use`, for arrays on a device that device's. Not for tensors of torch.

    Returns
    -------
    array
        float32, of float64 float64: one value, or with "none" one for each label.

    Raises
    ------
    OperandError
        An array has a wrong shape, type or device.
    ProblemError
        An option has a value that is not listed.

    Examples
    --------
    >>> import numpy as np, tilewright as tw
    >>> context = tw.use("emu", records="")
    >>> loss = tw.cross_entropy(np.eye(2, dtype="f4"), np.zeros((4, 2), "f4"), np.array([0, 3]))
    >>> round(float(np.exp(loss)), 4)
    4.0
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from .torch import linear_cross_entropy

        if context is not None:
            given.refuse("context", context, "tensors of torch take the context of `use`: leave it out")
        of_torch = (bias, reduction, ignore_index, label_smoothing, z_loss, class_weight)
        return linear_cross_entropy(x, weight, labels, *of_torch, softcap=softcap)
    softcap = given.of_kernels(given.softcap(softcap))
    options = given.loss(reduction, ignore_index, label_smoothing, z_loss, class_weight)
    x, weight = _array(x, "x", ()), _array(weight, "weight", (2,))
    _layer(x, {"weight": weight})
    np = _framework(x)
    if type(labels) in (list, tuple):
        try:
            labels = np.asarray(labels)
        except (OverflowError, TypeError, ValueError) as e:
            raise _native.OperandError(f"labels are {type(labels).__name__} and no array can be made of it: {e}") from None
    if getattr(getattr(labels, "dtype", None), "kind", "") not in ("i", "u") or labels.shape != x.shape[:-1]:
        told = f"{labels.dtype} {tuple(labels.shape)}" if hasattr(labels, "shape") else type(labels).__name__
        raise _native.OperandError(f"labels are {told}, x is {tuple(x.shape)}: integers of shape {tuple(x.shape[:-1])} are needed")
    if 0 in (*weight.shape, x.shape[-1]):
        raise _native.OperandError(f"x is {tuple(x.shape)} and weight is {tuple(weight.shape)}: rows of weight and terms are needed")
    rows, at = _rows(x), labels.reshape(-1)
    added, factors = (x if x is None else _vector(x, name, weight.shape[0]) for name, x in (("bias", bias), ("class_weight", class_weight)))
    wide = "float64" if str(x.dtype) == "float64" else "float32"
    if rows.shape[0]:
        of_rows = dict(softcap=softcap, reduce=["logsumexp:n", "sum:n"], store=False, context=context)
        most, total = (value.reshape(-1) for value in _core.gemm(rows, weight.T, bias=bias, **of_rows))
    else:
        most, total = np.zeros(0, wide), np.zeros(0, wide)
    classes = weight.shape[0]
    ignored = at == options.ignore_index
    known = (at >= 0) & (at < classes)
    index = np.where(known, at, 0)
    label = np.einsum("rk,rk->r", rows.astype(wide), weight[index].astype(wide))
    label = label if added is None else label + added[index]
    label = label if softcap is None else softcap * np.tanh(label / softcap)
    loss = most - label
    if options.label_smoothing:
        loss = most - (1.0 - options.label_smoothing) * label - (options.label_smoothing / classes) * total
    counted = np.where(ignored, 0.0, 1.0)
    if factors is not None:
        counted = np.where(ignored, 0.0, factors[index])
        loss = loss * counted
    if options.z_loss:
        loss = loss + options.z_loss * most * most
    loss = np.where(ignored, 0.0, np.where(known, loss, np.nan)).astype(wide)
    if options.reduction == "none":
        return loss.reshape(labels.shape)
    if options.reduction == "sum":
        return loss.sum(dtype=wide)
    # Of no rows it is 0 / 0, as documented. CuPy divides without a warning, and has no such context.
    with np.errstate(divide="ignore", invalid="ignore") if hasattr(np, "errstate") else nullcontext():
        return loss.sum(dtype=wide) / counted.astype(wide).sum(dtype=wide)


def _vector(x: Any, name: str, classes: int) -> Any:
    """A value for each class."""
    x = _array(x, name, (1,))
    if tuple(x.shape) != (classes,) or getattr(x.dtype, "kind", "") != "f":
        raise _native.OperandError(f"{name} is {x.dtype} {tuple(x.shape)}: floats of shape ({classes},) are needed")
    return x
