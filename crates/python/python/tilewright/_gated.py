"""`tilewright::glu` for PyTorch: the first half of a gated MLP, with its gradients."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _arguments as given
from . import _native
from ._operators import Fused, Gate, _library, _named, _product, at_linear, chosen_by_enable, fuse, tuned
from ._two_products import two_products

_SCHEMA = "Tensor x, Tensor weight, Tensor? bias=None, str gate='silu', bool up_first=False, float? gate_limit=None, float? gate_slope=None, bool interleaved=False, Tensor? up=None"
_library.define(f"glu({_SCHEMA}) -> Tensor")
_library.define(f"glu_kept({_SCHEMA}) -> (Tensor, Tensor)")


def _run(
    keep: bool,
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    gate: str = "silu",
    up_first: bool = False,
    gate_limit: Optional[float] = None,
    gate_slope: Optional[float] = None,
    interleaved: bool = False,
    up: Optional[Tensor] = None,
) -> Tuple[Tensor, Optional[Tensor]]:
    """The result, and the pre-activations where they are kept."""
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or up is None and weight.shape[0] % 2:
        needed = "(2 n, k)" if up is None else "(n, k)"
        raise _native.OperandError(f"glu of {tuple(x.shape)} and {tuple(weight.shape)}: (..., k) and {needed} are needed")
    if up is not None and up.shape != weight.shape:
        raise _native.OperandError(f"up is {tuple(up.shape)}, the shape of weight is needed: {tuple(weight.shape)}")
    columns = _columns(weight, up)
    if bias is not None and bias.shape != (columns,):
        raise _native.OperandError(f"bias is {tuple(bias.shape)}, ({columns},) is needed")
    rows, of = x.reshape(-1, x.shape[-1]), Gate(gate, up_first, gate_limit, gate_slope, interleaved)
    preactivations = x.new_empty((rows.shape[0], columns)) if keep else None
    result = _product(rows, weight.t(), bias, None, None, of, preactivations, up if up is None else up.t())
    result = result.reshape(*x.shape[:-1], columns // 2)
    return result, preactivations if preactivations is None else preactivations.reshape(*x.shape[:-1], columns)


def _columns(weight: Tensor, up: Optional[Tensor]) -> int:
    """Columns of both factors."""
    return weight.shape[0] if up is None else 2 * weight.shape[0]


def _glu(*args: Any, **options: Any) -> Tensor:
    return _run(False, *args, **options)[0]


def _glu_kept(*args: Any, **options: Any) -> Tuple[Tensor, Optional[Tensor]]:
    return _run(True, *args, **options)


for _key in ("CPU", "CUDA"):
    _library.impl("glu", _glu, _key)
    _library.impl("glu_kept", _glu_kept, _key)


@torch.library.register_fake("tilewright::glu", lib=_library)
def _fake(x, weight, bias=None, gate="silu", up_first=False, gate_limit=None, gate_slope=None, interleaved=False, up=None):
    torch._check(x.dim() >= 1 and weight.dim() == 2, lambda: f"glu of {x.shape} and {weight.shape}")
    columns = _columns(weight, up)
    torch._check(x.shape[-1] == weight.shape[1] and columns % 2 == 0, lambda: f"glu of {x.shape} and {weight.shape}")
    torch._check(x.dtype == weight.dtype, lambda: f"glu of {x.dtype} and {weight.dtype}")
    if up is not None:
        torch._check(up.shape == weight.shape and up.dtype == weight.dtype, lambda: f"glu: weight is {weight.shape}, up is {up.shape}")
    if bias is not None:
        torch._check(bias.dim() == 1 and bias.shape[0] == columns, lambda: f"glu: bias is {bias.shape}")
    return x.new_empty((*x.shape[:-1], columns // 2))


@torch.library.register_fake("tilewright::glu_kept", lib=_library)
def _(x, weight, *args, **options):
    result = _fake(x, weight, *args, **options)
    return result, x.new_empty((*x.shape[:-1], 2 * result.shape[-1]))


def _save(ctx, inputs, output):
    # What has its default at the end is not among them.
    defaults = (None, "silu", False, None, None, False, None)
    x, weight, bias, *gate, up = (*inputs, *defaults[len(inputs) - 2 :])
    ctx.gate = Gate(*gate)
    # Without a gradient of the pre-activations there is no tensor of zeros for it.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, output[1] if isinstance(output, tuple) else None, up)


def _backward(ctx, grad, grad_of_preactivations=None):
    x, weight, bias, preactivations, up = ctx.saved_tensors
    if grad is None and grad_of_preactivations is None:
        return (None,) * len(ctx.needs_input_grad)
    needs = (*ctx.needs_input_grad, *[False] * 9)[:9]
    if up is None:
        at_preactivations = grad_of_preactivations
        if grad is not None:
            kept = torch.ops.tilewright.linear(x, weight, bias) if preactivations is None else preactivations
            at_preactivations = ctx.gate.joined_backward(grad, kept)
            at_preactivations = at_preactivations if grad_of_preactivations is None else at_preactivations + grad_of_preactivations
        grads = (*at_linear(at_preactivations, x, weight, bias, needs), None, None, None, None, None, None)
        return grads[: len(ctx.needs_input_grad)]
    of_gate, of_up = _at_factors(ctx.gate, grad, grad_of_preactivations, x, weight, bias, preactivations, up)
    by_enable = chosen_by_enable()
    at_x, at_weight, _ = at_linear(of_gate, x, weight, None, (needs[0] and by_enable, needs[1]))
    at_up = at_linear(of_up, x, up, None, (False, needs[8]))[1]
    if at_x is not None:
        at_x = at_x + at_linear(of_up, at_x, up, None, (True, False))[0]
    elif needs[0]:
        at_x = two_products(of_gate, weight, of_up, up)
    flat = (of_gate.reshape(-1, of_gate.shape[-1]), of_up.reshape(-1, of_up.shape[-1]))
    at_bias = torch.cat([of.sum(0) for of in flat]) if needs[2] else None
    grads = (at_x, at_weight, at_bias, None, None, None, None, None, at_up)
    return grads[: len(ctx.needs_input_grad)]


def _at_factors(gate, grad, grad_of_preactivations, x, weight, bias, preactivations, up) -> Tuple[Tensor, Tensor]:
    """The gradients of both factors' sums, where each has a weight tensor: tensors of their own, so that rows begin where they are aligned."""
    halves = (None, None) if grad_of_preactivations is None else gate.halves(grad_of_preactivations)
    if grad is None:
        return halves
    if preactivations is None:
        biases = (None, None) if bias is None else bias.chunk(2)
        sums = [torch.ops.tilewright.linear(x, of, at) for of, at in zip((weight, up), biases)]
    else:
        sums = gate.halves(preactivations)
    found = gate.backward(grad, *sums)
    return tuple(of if more is None else of + more for of, more in zip(found, halves))


for _name in ("glu", "glu_kept"):
    torch.library.register_autograd(f"tilewright::{_name}", _backward, setup_context=_save, lib=_library)


def glu(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    gate: str = "silu",
    up_first: bool = False,
    gate_limit: Optional[float] = None,
    gate_slope: Optional[float] = None,
    interleaved: bool = False,
    keep: bool = False,
    up: Optional[Tensor] = None,
) -> Tensor:
    """Compute the first half of a gated MLP, ``gate(x @ weight[:n].T + bias[:n]) * (x @ weight[n:].T + bias[n:])``, in one kernel. Differentiable.

    The backward pass computes both products again and keeps nothing but the operands, unless `keep` is true.

    Parameters
    ----------
    x : (..., k) Tensor
    weight : (2 n, k) Tensor
        Both halves, as in `gate_up_proj`. With `up` the gate's weights alone, (n, k).
    bias : (2 n,) Tensor, optional
    gate : {"silu", "gelu", "gelutanh", "relu", "hardswish", "sigmoid", "linear", "clamped"}, default "silu"
    up_first : bool, default False
        The gate is the second half, or the second of each pair.
    gate_limit, gate_slope : float, default 7.0 and 1.702
        Of "clamped", as in `tilewright.gemm`.
    interleaved : bool, default False
        Rows of `weight` take turns, as in gpt-oss: the gate's are ``weight[::2]``, the other factor's ``weight[1::2]``.
    keep : bool, default False
        Store the (..., 2 n) pre-activations for the backward pass. It then has a product less to compute.
    up : (n, k) Tensor, optional
        The other factor's weights as a tensor of their own, as `up_proj` beside `gate_proj`. Neither is copied where both lie alike.

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
    >>> twt.glu(torch.ones(1, 2), torch.tensor([[1.0, 1.0], [3.0, 0.0]]), gate="relu").tolist()
    [[6.0]]
    """
    try:
        options = (bias, gate, up_first, gate_limit, gate_slope, interleaved, up)
        needed = any(isinstance(t, Tensor) and t.requires_grad for t in (x, weight, bias, up))
        if given.truth(keep, "keep") and needed and torch.is_grad_enabled():
            return torch.ops.tilewright.glu_kept(x, weight, *options)[0]
        return torch.ops.tilewright.glu(x, weight, *options)
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _named(e, {"x": x, "weight": weight, "bias": bias, "up": up}) from None


_NAMES = ("x", "weight", "bias", "gate", "up_first", "gate_limit", "gate_slope", "interleaved", "keep", "up")


def _called(args: Sequence[Any], options: Dict[str, Any]) -> Tuple[Sequence[Any], Dict[str, Any]]:
    """The product that a call of `glu` runs."""
    called = {"gate": "silu", **dict(zip(_NAMES, args)), **options}
    x, weight = called.pop("x", None), called.pop("weight", None)
    called["preactivations"] = called.pop("keep", False)
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or weight.dim() != 2:
        raise _native.OperandError("glu: x and weight are needed, a tensor and a matrix of (2 n, k)")
    up = called.pop("up", None)
    return (x.reshape(-1, x.shape[-1]), weight.t()), {**called, "up": up if up is None else up.t()}


tuned[glu] = _called


def fuse_gated_mlps(on: bool = True, keep: bool = True) -> Optional[Fused]:
    """Let torch.compile use `glu` where a model computes ``f(F.linear(x, gate)) * F.linear(x, up)``, in training, too.

    It changes what torch.compile makes from now on. The function is SiLU, GELU, ReLU, sigmoid or hardswish. Both factors may be halves of one layer's
    result, by `chunk` or `split`. Of two layers both have a bias, or none. A gated MLP stays torch's if something else uses one of the factors, if a
    tensor is written in place between the layers, for subclasses such as DTensor, and inside of torch.func. Sets Inductor's
    ``pre_grad_custom_pass``.

    Parameters
    ----------
    on : bool, default True
        False: torch computes its gated MLPs again.
    keep : bool, default True
        As in `glu`: store the pre-activations for the backward pass, which otherwise computes them again.

    Returns
    -------
    Fused or None
        `count` is the number of gated MLPs that were replaced so far, without those of graphs that torch kept on the disk; None if `on` is false.

    Raises
    ------
    ProblemError
        Inductor already has a pass of another package.

    Examples
    --------
    >>> import tilewright as tw, tilewright.torch as twt, torch
    >>> context, fused = tw.use("emu", records=""), twt.fuse_gated_mlps()
    >>> def step(x, gate, up):
    ...     return torch.nn.functional.relu(torch.nn.functional.linear(x, gate)) * torch.nn.functional.linear(x, up)
    >>> torch.compile(step)(torch.ones(1, 2), torch.tensor([[1.0, 1.0]]), torch.tensor([[3.0, 0.0]])).tolist()
    [[6.0]]
    >>> twt.fuse_gated_mlps(False)
    """
    return fuse(given.truth(on, "on"), "_compiled_gates", keep=given.truth(keep, "keep"))
