"""`tilewright::two_products` for PyTorch: the sum of two products of matrices, as gradients of several layers with one input have it."""

from __future__ import annotations

import torch
from torch import Tensor

from ._operators import _library, _product

_library.define("two_products(Tensor a, Tensor b, Tensor a2, Tensor b2) -> Tensor")


def _two_products(a: Tensor, b: Tensor, a2: Tensor, b2: Tensor) -> Tensor:
    return _product(a, b, None, None, None, second=(a2, b2))


for _key in ("CPU", "CUDA"):
    _library.impl("two_products", _two_products, _key)


@torch.library.register_fake("tilewright::two_products", lib=_library)
def _(a, b, a2, b2):
    return a.new_empty((a.shape[0], b.shape[1]))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    multiply, needs = torch.ops.tilewright.mm, ctx.needs_input_grad
    of_pair = lambda a, b, to_a, to_b: (multiply(grad, b.t()) if to_a else None, multiply(a.t(), grad) if to_b else None)  # noqa: E731
    a, b, a2, b2 = ctx.saved_tensors
    return (*of_pair(a, b, *needs[:2]), *of_pair(a2, b2, *needs[2:]))


torch.library.register_autograd("tilewright::two_products", _backward, setup_context=_save, lib=_library)


def two_products(x: Tensor, weight: Tensor, x2: Tensor, weight2: Tensor) -> Tensor:
    """``x @ weight + x2 @ weight2``, whose first dimensions are those of `x`."""
    rows = [t.reshape(-1, t.shape[-1]) for t in (x, x2)]
    found = torch.ops.tilewright.two_products(rows[0], weight, rows[1], weight2)
    return found.reshape(*x.shape[:-1], weight.shape[1])
