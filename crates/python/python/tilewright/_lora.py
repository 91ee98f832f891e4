"""`tilewright::lora_linear` for PyTorch: a linear layer with a low-rank update, with its gradients. Both products add to the same sums."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _arguments as given
from . import _native
from ._operators import _library, _named, _product, at_linear, tuned
from ._two_products import two_products

_library.define("lora_linear(Tensor x, Tensor weight, Tensor lora_a, Tensor lora_b, Tensor? bias=None, float scale=1.0) -> (Tensor, Tensor)")


def _lora_linear(
    x: Tensor, weight: Tensor, lora_a: Tensor, lora_b: Tensor, bias: Optional[Tensor] = None, scale: float = 1.0
) -> Tuple[Tensor, Tensor]:
    """The result, and ``scale * (x @ lora_a.T)``, which the backward pass needs."""
    _fits(x, weight, lora_a, lora_b)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise _native.OperandError(f"bias is {tuple(bias.shape)}, ({weight.shape[0]},) is needed")
    rows = x.reshape(-1, x.shape[-1])
    update = _product(rows, lora_a.t(), None, None, None)
    update = update if scale == 1.0 else update * scale
    result = _product(rows, weight.t(), bias, None, None, second=(update, lora_b.t()))
    return result.reshape(*x.shape[:-1], weight.shape[0]), update.reshape(*x.shape[:-1], lora_a.shape[0])


def _fits(x: Tensor, weight: Tensor, lora_a: Tensor, lora_b: Tensor) -> None:
    """Refuses shapes that do not go together."""
    matrices = x.dim() >= 1 and weight.dim() == lora_a.dim() == lora_b.dim() == 2
    if not matrices or (x.shape[-1], lora_b.shape) != (weight.shape[1], (weight.shape[0], lora_a.shape[0])) or lora_a.shape[1] != weight.shape[1]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, weight, lora_a, lora_b))
        raise _native.OperandError(f"lora_linear of {shapes}: x (..., k), weight (n, k), lora_a (r, k), lora_b (n, r) are needed")


for _key in ("CPU", "CUDA"):
    _library.impl("lora_linear", _lora_linear, _key)


@torch.library.register_fake("tilewright::lora_linear", lib=_library)
def _(x, weight, lora_a, lora_b, bias=None, scale=1.0):
    torch._check(x.dtype == weight.dtype == lora_a.dtype == lora_b.dtype, lambda: f"lora_linear of {x.dtype} and {weight.dtype}")
    _fits(x, weight, lora_a, lora_b)
    return x.new_empty((*x.shape[:-1], weight.shape[0])), x.new_empty((*x.shape[:-1], lora_a.shape[0]))


def _save(ctx, inputs, output):
    # What has its default at the end is not among them.
    x, weight, lora_a, lora_b, bias, ctx.scale = (*inputs, *(None, 1.0)[len(inputs) - 4 :])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, lora_a, lora_b, bias, output[1])


def _backward(ctx, grad, grad_of_update=None):
    x, weight, lora_a, lora_b, bias, update = ctx.saved_tensors
    needs = (*ctx.needs_input_grad, *[False] * 6)[:6]
    if grad is None and grad_of_update is None:
        return (None,) * len(ctx.needs_input_grad)
    if lora_a.shape[0] == 0:
        at_x, at_weight, at_bias = (None,) * 3 if grad is None else at_linear(grad, x, weight, bias, (needs[0], needs[1], needs[4]))
        nothing = [torch.zeros_like(t) for t in (lora_a, lora_b)]
        return (at_x, at_weight, *nothing, at_bias, None)[: len(ctx.needs_input_grad)]
    at_weight = at_bias = at_lora_b = at_x = at_lora_a = None
    if grad is not None:
        _, at_weight, at_bias = at_linear(grad, x, weight, bias, (False, needs[1], needs[4]))
        at_lora_b = at_linear(grad, update, lora_b, None, (False, needs[3]))[1]
    if needs[0] or needs[2]:
        # The gradient of x @ lora_a.T: a gradient of the update is there where a gradient is differentiated.
        at_update = grad_of_update
        if grad is not None:
            of_result = at_linear(grad, update, lora_b, None, (True, False))[0]
            at_update = of_result if grad_of_update is None else of_result + grad_of_update
        at_update = at_update if ctx.scale == 1.0 else at_update * ctx.scale
        at_lora_a = at_linear(at_update, x, lora_a, None, (False, needs[2]))[1]
        if needs[0] and grad is None:
            at_x = at_linear(at_update, x, lora_a, None, (True, False))[0]
        elif needs[0]:
            at_x = two_products(grad, weight, at_update, lora_a)
    return (at_x, at_weight, at_lora_a, at_lora_b, at_bias, None)[: len(ctx.needs_input_grad)]


torch.library.register_autograd("tilewright::lora_linear", _backward, setup_context=_save, lib=_library)


def lora_linear(x: Tensor, weight: Tensor, lora_a: Tensor, lora_b: Tensor, bias: Optional[Tensor] = None, scale: float = 1.0) -> Tensor:
    """Compute a linear layer with a low-rank update, ``x @ weight.T + scale * (x @ lora_a.T) @ lora_b.T + bias``. Differentiable.

    The update is added to the sums of the layer's own product: the result is written once. So is the gradient of `x`.

    Parameters
    ----------
    x : (..., k) Tensor
    weight : (n, k) Tensor
    lora_a : (r, k) Tensor
    lora_b : (n, r) Tensor
    bias : (n,) Tensor, optional
    scale : float, default 1.0

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
    >>> twt.lora_linear(torch.ones(1, 2), torch.eye(2), torch.ones(1, 2), torch.tensor([[1.0], [0.0]]), scale=0.5).tolist()
    [[2.0, 1.0]]
    """
    try:
        return torch.ops.tilewright.lora_linear(x, weight, lora_a, lora_b, bias, given.number(scale, "scale"))[0]
    except (AttributeError, RuntimeError, TypeError) as e:
        raise _named(e, {"x": x, "weight": weight, "lora_a": lora_a, "lora_b": lora_b, "bias": bias}) from None


_NAMES = ("x", "weight", "lora_a", "lora_b", "bias", "scale")


def _called(args: Sequence[Any], options: Dict[str, Any]) -> Tuple[Sequence[Any], Dict[str, Any]]:
    """The product of two pairs that a call of `lora_linear` runs."""
    called = {**dict(zip(_NAMES, args)), **options}
    x, weight, lora_a, lora_b = [called.pop(name, None) for name in _NAMES[:4]]
    called.pop("scale", None)
    if not all(isinstance(t, Tensor) for t in (x, weight, lora_a, lora_b)):
        raise _native.OperandError("lora_linear: x, weight, lora_a and lora_b are needed, each a tensor")
    _fits(x, weight, lora_a, lora_b)
    rows = x.reshape(-1, x.shape[-1])
    return (rows, weight.t()), {**called, "a2": rows.new_empty((rows.shape[0], lora_a.shape[0])), "b2": lora_b.t()}


tuned[lora_linear] = _called
