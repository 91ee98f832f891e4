"""Operands of a product with a bias as torch's autocast would pass them: in the type of the region, each parameter converted once."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor


class _Lowered(NamedTuple):
    """A parameter in a region's type, and the parameter's version when it was converted."""

    parameter: Tensor
    version: int
    converted: Tensor


# By the parameter, the type, and whether gradients are recorded: a copy that was made without gradients has none.
_kept: Dict[Tuple[int, torch.dtype, bool], _Lowered] = {}


def region(of: Tensor) -> Optional[torch.dtype]:
    """The type of the autocast region of the tensor's device; None outside of one."""
    kind = of.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def lowered(of: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as autocast passes it to products: f64 stays. Autocast's own copies of parameters cannot be read, so copies are kept here for as long."""
    if of.dtype is dtype or of.dtype is torch.float64 or not of.is_floating_point():
        return of
    parameter = of.dtype is torch.float32 and of.requires_grad and of.is_leaf and not of._is_view()
    if not parameter or not torch.is_autocast_cache_enabled():
        return of.to(dtype)
    key = (id(of), dtype, torch.is_grad_enabled())
    held = _kept.get(key)
    if held is None or held.parameter is not of or held.version != of._version:
        held = _kept[key] = _Lowered(of, of._version, of.to(dtype))
    return held.converted


# `torch.autocast` calls it where its outermost region ends.
clear_torchs = torch.clear_autocast_cache


def clear() -> None:
    """Drops the copies of parameters, torch's and ours."""
    _kept.clear()
    clear_torchs()
