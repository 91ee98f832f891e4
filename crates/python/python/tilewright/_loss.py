"""Linear cross-entropy for PyTorch: the loss of a model's last layer without its logits in memory.

The forward pass is one product that stores the logsumexp of each row of logits, not the logits. The backward pass computes the logits again, some
columns at a time, and keeps their gradient no longer than two products need it. With `keep` the forward pass stores the logits, too, and the backward
pass overwrites them by their gradient.
"""

from __future__ import annotations

import inspect
import os
from functools import partial
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _arguments as given
from . import _core, _native
from . import _operators as ours
from ._reductions import wide_type

# Bytes of the logits that the backward pass has at a time.
WORKSPACE = 256 << 20

_OPERANDS = f"Tensor x, Tensor weight, Tensor labels, Tensor? bias=None, int workspace={WORKSPACE}, float? softcap=None"
ours._library.define(f"linear_logsumexp({_OPERANDS}) -> (Tensor, Tensor, Tensor)")
ours._library.define(f"linear_logsumexp_kept({_OPERANDS}) -> (Tensor, Tensor, Tensor, Tensor)")
_GRADS = "Tensor? of_most, Tensor? of_label, Tensor? of_total"
_SAVED = "Tensor x, Tensor weight, Tensor labels, Tensor? bias, Tensor most, Tensor at_label, float? softcap"
ours._library.define(f"linear_logsumexp_backward({_GRADS}, {_SAVED}, int workspace, bool[] needs) -> (Tensor, Tensor, Tensor)")
ours._library.define(f"linear_logsumexp_kept_backward({_GRADS}, {_SAVED}, Tensor(a!) logits, bool[] needs) -> (Tensor, Tensor, Tensor)")

# Elements of the rows of weights that the forward pass gathers at a time, and of kept logits that are in 32 bits at a time: in the device's cache.
_GATHERED, _WIDENED = 1 << 24, 1 << 22


def _checked(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise _native.OperandError(f"x is {tuple(x.shape)} and weight is {tuple(weight.shape)}: (rows, k) and (vocabulary, k) are needed")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise _native.OperandError(f"bias is {tuple(bias.shape)}, ({weight.shape[0]},) is needed")
    ours._together([("x", x), ("weight", weight), ("bias", bias)])


def _capped(z: Tensor, softcap: Optional[float]) -> Tensor:
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def _slope_(capped: Tensor, softcap: float) -> Tensor:
    """The derivative of a capped logit by the logit, in the place of the capped logit. One that is stored in 16 bits may lie above the cap."""
    return capped.div_(softcap).square_().neg_().add_(1.0).clamp_(min=0.0)


def _logits_by_torch(x: Tensor, weight: Tensor, bias: Optional[Tensor], softcap: Optional[float] = None) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        z = x.to(wide_type(x)) @ weight.to(wide_type(x)).t()
    return _capped(z if bias is None else z + bias, softcap)


def _product_into(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    added: Optional[Tensor] = None,
    activation: Optional[str] = None,
    beta: float = 0.0,
    totals: Optional[Tensor] = None,
    softcap: Optional[float] = None,
) -> bool:
    """``out = activation(a @ b + added + beta * out)``; False where that cannot be now. `totals` receives the sum of each row before rounding."""
    if 0 in (*out.shape, a.shape[1]):
        return False
    a, b = ours._plain(a), ours._plain(b)
    key = ("into", a.device, a.dtype, ours._lies(a), ours._lies(b), ours._lies(out), out.dtype, ours._lies(added), activation, totals is None, softcap)

    def prepare() -> Any:
        # Reductions lie beside tensors, which an array alone does not make.
        seen, reduce = (ours.array, ()) if totals is None else (Tensor.detach, ("sum:n",))
        lie = [x if x is None else seen(x) for x in (a, b, out, added)]
        call = _core._gemm(*lie[:2], out=lie[2], bias=lie[3], activation=activation, softcap=softcap, reduce=reduce)
        return call.context, call.problem, call.alignments

    what = f"{tuple(a.shape)} @ {tuple(b.shape)} {a.dtype} to {out.dtype}"
    addresses = {**ours._addresses(a, b, out), "bias": ours._at(added), **({} if totals is None else {"reduction_0": totals.data_ptr()})}
    return ours._launch(key, what, a, addresses, prepare, beta)


def _exponentials(x: Tensor, weight: Tensor, bias: Optional[Tensor], shift: Tensor) -> Tensor:
    """The exponentials of the logits less each row's `shift`, in the type of x."""
    if bias is None and x.dtype != torch.float64:
        out = x.new_empty((x.shape[0], weight.shape[0]))
        if _product_into(out, x, weight.t(), shift.neg()[:, None], "exp"):
            return out
    # A product adds one vector.
    return _wide_logits(x, weight, bias, None).sub_(shift[:, None]).exp_().to(x.dtype)


def _wide_logits(x: Tensor, weight: Tensor, bias: Optional[Tensor], softcap: Optional[float]) -> Tensor:
    z = x.new_empty((x.shape[0], weight.shape[0]), dtype=wide_type(x))
    how = {} if softcap is None else {"softcap": softcap}
    if _product_into(z, x, weight.t(), None if bias is None else bias.to(z.dtype).contiguous(), **how):
        return z
    return _logits_by_torch(x, weight, bias, softcap)


def _capped_gradients(capped: Tensor, softcap: float, of: _OfRows, out: Tensor) -> None:
    """A row's gradients by the logits before the cap, of all but its label, less the row's factor. Overwrites the capped logits."""
    found = (capped - of.shift[:, None]).exp_()
    if of.further is not None:
        found += of.further[:, None]
    out.copy_(found.mul_(_slope_(capped, softcap)))


def _exponentials_of(logits: Tensor, shift: Tensor) -> Tensor:
    """The same of stored logits, in their place. Gives the sum of each row."""
    totals = torch.zeros_like(shift)
    if logits.dtype != torch.float64:
        # A product that adds nothing to the old result, one term deep.
        left, right = logits.new_zeros((logits.shape[0], 1)), logits.new_zeros((1, logits.shape[1]))
        if _product_into(logits, left, right, shift.neg()[:, None], "exp", beta=1.0, totals=totals):
            return totals
    for columns in _narrow(logits):
        found = torch.exp(columns - shift[:, None])
        totals += found.sum(1)
        columns.copy_(found)
    return totals


def _narrow(logits: Tensor) -> Sequence[Tensor]:
    """Columns of kept logits, as many as may be in 32 bits at a time."""
    return logits.split(max(1, _WIDENED // max(1, logits.shape[0])), 1)


# The reductions of a product that stores nothing else.
_OF_ROWS: Dict[str, Any] = {"reduce": ["logsumexp:n", "sum:n"], "store": False}


def _logit_rows(
    x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, logits: Optional[Tensor] = None, softcap: Optional[float] = None
) -> Tuple[Tensor, Tensor]:
    """The logsumexp of each row of logits, and its sum. `logits` receives the logits."""
    _checked(x, weight, bias)
    out = [x.new_empty(x.shape[:1], dtype=wide_type(x)) for _ in range(2)]
    if 0 in (*x.shape, weight.shape[0]):
        return _rows_by_torch(x, weight, bias, logits, softcap)
    a, b = ours._plain(x), ours._plain(weight.t())
    bias = None if bias is None else bias.contiguous()
    key = ("logit_rows", a.device, a.dtype, ours._lies(a), ours._lies(b), ours._lies(bias), ours._lies(logits), softcap)

    def prepare() -> Any:
        stored = {**_OF_ROWS, "store": logits is not None, "out": logits if logits is None else ours.array(logits)}
        call = _core._gemm(a, b, bias=bias, softcap=softcap, **stored)
        return call.context, call.problem, call.alignments

    addresses = {"a": a.data_ptr(), "b": b.data_ptr(), "c": ours._at(logits), "bias": ours._at(bias)}
    addresses.update({f"reduction_{n}": y.data_ptr() for n, y in enumerate(out)})
    what = f"logsumexp of the rows of {tuple(a.shape)} @ {tuple(b.shape)} {a.dtype}"
    done = ours._launch(key, what, a, addresses, prepare)
    return (out[0], out[1]) if done else _rows_by_torch(x, weight, bias, logits, softcap)


def _rows_by_torch(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], logits: Optional[Tensor], softcap: Optional[float]
) -> Tuple[Tensor, Tensor]:
    most = x.new_full(x.shape[:1], float("-inf"), dtype=wide_type(x))
    total = torch.zeros_like(most)
    for columns in _cut(x, weight, WORKSPACE, wide_type(x)):
        z = _logits_by_torch(x, weight[columns], None if bias is None else bias[columns], softcap)
        most, total = torch.logaddexp(most, torch.logsumexp(z, 1)), total + z.sum(1)
        if logits is not None:
            logits[:, columns] = z
    return most, total


def _cut(x: Tensor, weight: Tensor, workspace: int, kind: torch.dtype) -> Sequence[slice]:
    """The columns of logits that fit into a workspace, in multiples of 128."""
    row = max(1, x.shape[0]) * kind.itemsize
    step = max(128, workspace // row // 128 * 128)
    return [slice(first, min(first + step, weight.shape[0])) for first in range(0, weight.shape[0], step)]


def _at_labels(x: Tensor, weight: Tensor, bias: Optional[Tensor], labels: Tensor) -> Tensor:
    """The logits of the labels. A label outside the vocabulary has the logit 0, and nothing is read for it."""
    exists = (labels >= 0) & (labels < weight.shape[0])
    index = torch.where(exists, labels, 0)
    if weight.shape[0] == 0:
        return x.new_zeros(x.shape[:1], dtype=wide_type(x))
    step = max(1, _GATHERED // max(1, x.shape[1]))
    parts = [
        (x[first : first + step].to(wide_type(x)) * weight[index[first : first + step]]).sum(1)
        for first in range(0, max(1, x.shape[0]), step)
    ]
    found = parts[0] if len(parts) == 1 else torch.cat(parts)
    return torch.where(exists, found if bias is None else found + bias[index], 0)


def _run(
    keep: bool,
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Optional[Tensor] = None,
    workspace: int = WORKSPACE,
    softcap: Optional[float] = None,
) -> Tuple[Tensor, ...]:
    if x.dim() < 1 or labels.shape != x.shape[:-1]:
        raise _native.OperandError(f"labels are {tuple(labels.shape)} and x is {tuple(x.shape)}: (...) and (..., k) are needed")
    if labels.dtype not in (torch.int32, torch.int64):
        raise _native.OperandError(f"labels are {labels.dtype}: int32 or int64 is needed")
    if labels.device != x.device:
        raise _native.OperandError(f"labels are on {labels.device}, x is on {x.device}: bring them together")
    rows = x.reshape(-1, x.shape[-1])
    _checked(rows, weight, bias)
    softcap = given.of_kernels(softcap)
    logits = rows.new_empty((rows.shape[0], weight.shape[0])) if keep else None
    most, total = _logit_rows(rows, weight, bias, logits, softcap)
    found = _capped(_at_labels(rows, weight, bias, labels.reshape(-1).long()), softcap)
    of_rows = tuple(of.reshape(labels.shape) for of in (most, found, total))
    return of_rows if logits is None else (*of_rows, logits)


for _key in ("CPU", "CUDA"):
    ours._library.impl("linear_logsumexp", partial(_run, False), _key)
    ours._library.impl("linear_logsumexp_kept", partial(_run, True), _key)


@torch.library.register_fake("tilewright::linear_logsumexp", lib=ours._library)
def _fake(x, weight, labels, bias=None, workspace=WORKSPACE, softcap=None):
    torch._check(weight.dim() == 2 and x.shape[-1] == weight.shape[1], lambda: f"logits of {x.shape} and {weight.shape}")
    torch._check(labels.shape == x.shape[:-1], lambda: f"labels are {labels.shape}, x is {x.shape}")
    new = lambda: x.new_empty(labels.shape, dtype=wide_type(x))  # noqa: E731
    return new(), new(), new()


@torch.library.register_fake("tilewright::linear_logsumexp_kept", lib=ours._library)
def _(x, weight, labels, *args, **options):
    return *_fake(x, weight, labels, *args, **options), x.new_empty((labels.numel(), weight.shape[0]))


def _save(ctx, inputs, output):
    x, weight, labels, bias, ctx.workspace, ctx.softcap = (*inputs, *(None, WORKSPACE, None)[len(inputs) - 3 :])
    ctx.set_materialize_grads(False)
    ctx.consumed = False
    most, at_label, _, logits = (*output, None)[:4]
    ctx.save_for_backward(x, weight, labels, bias, most, at_label, logits)


class _OfRows(NamedTuple):
    """A row's gradient by its logits z: ``factor * (exp(z - shift) + further)``, and ``factor * hit`` more at its label."""

    factor: Tensor
    shift: Tensor
    further: Optional[Tensor]
    hit: Optional[Tensor]


def _of_rows(most: Tensor, of_most: Optional[Tensor], of_label: Optional[Tensor], of_total: Optional[Tensor]) -> _OfRows:
    """The gradients of logsumexp, label's logit and sum. The factor is the largest of a row's three, so that 16 bits hold the rest. The products take the
    factor, and the shift of the exponential takes the share of the logsumexp."""
    given = [grad.to(most.dtype).reshape(-1) for grad in (of_most, of_label, of_total) if grad is not None]
    largest = torch.stack([grad.abs() for grad in given]).amax(0)
    largest = torch.where(largest == 0, 1.0, largest)
    own = torch.zeros_like(most) if of_most is None else of_most.to(most.dtype).reshape(-1)
    factor = torch.where(own < 0, -largest, largest)
    by_factor = lambda t: None if t is None else t.reshape(-1) / factor  # noqa: E731
    return _OfRows(factor, most - (own.abs() / largest).log(), by_factor(of_total), by_factor(of_label))


class _Gradients:
    """The gradients of x, weight and bias, as far as they are needed, which grow by products with the gradients of some columns of logits.
    `at_label` is the exponential at each row's label, and `slope` the derivative there of a softcap."""

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        labels: Tensor,
        of: _OfRows,
        at_label: Tensor,
        slope: Optional[Tensor],
        needs: Sequence[bool],
    ) -> None:
        self.x, self.rows, self.weight, self.of, self.labels = x, x.reshape(-1, x.shape[-1]), weight, of, labels
        # A probability near 1 loses its difference from 1 when it is rounded to 16 bits. The label's sum is formed in 32.
        for more in (of.hit, of.further):
            at_label = at_label if more is None else at_label + more
        self.at_label = at_label if slope is None else at_label * slope
        self.scaled = (self.rows * of.factor[:, None]).to(x.dtype) if needs[1] else None
        self.at_x = torch.zeros_like(self.rows, dtype=wide_type(x)) if needs[0] else None
        self.at_weight = weight.new_empty(weight.shape) if needs[1] else None
        self.at_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None

    def add(self, columns: slice, at_z: Tensor) -> None:
        """Adds columns with gradients `at_z`, which are right but at the labels."""
        here = (self.labels >= columns.start) & (self.labels < columns.stop)
        place = torch.where(here, self.labels - columns.start, 0)
        # One label in each row, so no two threads write one element.
        at_z.scatter_(1, place, torch.where(here, self.at_label.to(at_z.dtype)[:, None], at_z.gather(1, place)))
        if self.at_x is not None and not _product_into(self.at_x, at_z, self.weight[columns], beta=1.0):
            self.at_x += _wide_product(at_z, self.weight[columns])
        if self.at_weight is not None and not _product_into(self.at_weight[columns], at_z.t(), self.scaled):
            self.at_weight[columns] = _wide_product(at_z.t(), self.scaled).to(self.weight.dtype)
        if self.at_bias is not None:
            self.at_bias[columns] = _wide_product(at_z.t(), self.of.factor).to(self.at_bias.dtype)

    def found(self) -> Tuple[Tensor, ...]:
        """Empty tensors for those that are not needed."""
        of_x = None
        if self.at_x is not None:
            of_x = self.at_x.mul_(self.of.factor[:, None]).to(self.x.dtype).reshape(self.x.shape)
        return tuple(self.x.new_empty(0) if one is None else one for one in (of_x, self.at_weight, self.at_bias))


def _backward_of(of_most, of_label, of_total, x, weight, labels, bias, most, at_label, softcap, workspace, needs):
    of, softcap = _of_rows(most.reshape(-1), of_most, of_label, of_total), given.of_kernels(softcap)
    at_label = at_label.reshape(-1)
    slope = None if softcap is None else _slope_(at_label.clone(), softcap)
    found = _Gradients(x, weight, bias, labels.reshape(-1, 1).long(), of, (at_label - of.shift).exp(), slope, needs)
    # A bias and a cap need the logits in 32 bits, a cap its slope beside them.
    plain, room = bias is None and softcap is None, workspace if softcap is None else workspace // 2
    for columns in _cut(found.rows, weight, room, x.dtype if plain else wide_type(x)):
        part, added = weight[columns], None if bias is None else bias[columns]
        if softcap is None:
            at_z = _exponentials(found.rows, part, added, of.shift)
            if of.further is not None:
                at_z.add_(of.further[:, None])
        else:
            capped = _wide_logits(found.rows, part, added, softcap)
            at_z = x.new_empty(capped.shape)
            _capped_gradients(capped, softcap, of, at_z)
        found.add(columns, at_z)
    return found.found()


def _backward_of_kept(of_most, of_label, of_total, x, weight, labels, bias, most, at_label, softcap, logits, needs):
    of, labels = _of_rows(most.reshape(-1), of_most, of_label, of_total), labels.reshape(-1, 1).long()
    at_label, softcap = at_label.reshape(-1), given.of_kernels(softcap)
    slope = None if softcap is None else _slope_(at_label.clone(), softcap)
    if not weight.shape[0]:
        return _Gradients(x, weight, bias, labels, of, at_label, slope, needs).found()
    exists = (labels >= 0) & (labels < weight.shape[0])
    stored = logits.gather(1, torch.where(exists, labels, 0))[:, 0]
    # Stored logits are rounded, so the exponentials of a row do not add up to its share.
    if softcap is None:
        totals = _exponentials_of(logits, of.shift)
    else:
        totals = sum(torch.exp(columns - of.shift[:, None]).sum(1) for columns in _narrow(logits))
    share = (most.reshape(-1) - of.shift).exp() / totals
    share = torch.where(share.isfinite() & (share > 0), share, 1.0)
    by_share = lambda t: None if t is None else t / share  # noqa: E731
    of = _OfRows(of.factor * share, of.shift, by_share(of.further), by_share(of.hit))
    if softcap is not None:
        for columns in _narrow(logits):
            _capped_gradients(columns.to(most.dtype), softcap, of, columns)
    elif of.further is not None:
        logits.add_(of.further[:, None])
    found = _Gradients(x, weight, bias, labels, of, (stored.to(most.dtype) - of.shift).exp(), slope, needs)
    found.add(slice(0, weight.shape[0]), logits)
    return found.found()


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):
        return a.to(wide_type(a)) @ b.to(wide_type(a))


for _key in ("CPU", "CUDA"):
    ours._library.impl("linear_logsumexp_backward", _backward_of, _key)
    ours._library.impl("linear_logsumexp_kept_backward", _backward_of_kept, _key)


@torch.library.register_fake("tilewright::linear_logsumexp_backward", lib=ours._library)
@torch.library.register_fake("tilewright::linear_logsumexp_kept_backward", lib=ours._library)
def _(of_most, of_label, of_total, x, weight, labels, bias, most, at_label, softcap, workspace_or_logits, needs):
    # Gradients are contiguous, however their tensors lie.
    return tuple(like.new_empty(like.shape) if needed and like is not None else x.new_empty(0) for like, needed in zip((x, weight, bias), needs))


def _backward(ctx, *grads):
    if torch.is_grad_enabled():
        raise _native.OperandError("linear_logsumexp has no second derivative: compute the logits with twt.linear where one is needed")
    if ctx.consumed:
        raise _native.OperandError("linear_logsumexp: with keep the backward pass runs once, as it overwrites the logits; leave keep out")
    x, weight, labels, bias, most, at_label, logits = ctx.saved_tensors
    needed = (*ctx.needs_input_grad, False)
    if all(grad is None for grad in grads[:3]):
        return (None,) * len(ctx.needs_input_grad)
    needs = [needed[0], needed[1], bias is not None and needed[3]]
    saved = (*grads[:3], x, weight, labels, bias, most, at_label, ctx.softcap)
    if logits is None:
        found = torch.ops.tilewright.linear_logsumexp_backward(*saved, ctx.workspace, needs)
    else:
        ctx.consumed = True
        found = torch.ops.tilewright.linear_logsumexp_kept_backward(*saved, logits, needs)
    of_x, of_weight, of_bias = (one if need else None for one, need in zip(found, needs))
    return (of_x, of_weight, None, of_bias, None, None)[: len(ctx.needs_input_grad)]


for _name in ("linear_logsumexp", "linear_logsumexp_kept"):
    torch.library.register_autograd(f"tilewright::{_name}", _backward, setup_context=_save, lib=ours._library)


def linear_logsumexp(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Optional[Tensor] = None,
    keep: bool = False,
    workspace: int = WORKSPACE,
    softcap: Optional[float] = None,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Compute logsumexp, label's logit and sum of each row of logits ``z = x @ weight.T + bias``, without storing the logits. Differentiable once.

    A vocabulary that is split over ranks has its loss from these three, as the example shows for two parts.

    Parameters
    ----------
    x : (..., k) Tensor
    weight : (vocabulary, k) Tensor
    labels : (...) Tensor
        int32 or int64. A label outside the vocabulary has the logit 0.
    bias : (vocabulary,) Tensor, optional
    keep : bool, default False
        Store the logits in the type of x for the backward pass, which overwrites them: it can run once, and has a product less to compute.
    workspace : int, default 268435456
        Bytes of the logits that the backward pass has at a time without `keep`.
    softcap : float, optional
        As in `linear_cross_entropy`.

    Returns
    -------
    logsumexp, at_label, total : (...) Tensor
        ``logsumexp(z)``, ``z[label]`` and ``sum(z)`` of each row: float32, of float64 float64.

    Raises
    ------
    OperandError
        A tensor has a wrong shape, type, layout or device, or a second derivative is asked for.

    Examples
    --------
    >>> import tilewright as tw, tilewright.torch as twt, torch
    >>> context = tw.use("emu", records="")
    >>> x, weight, labels = torch.eye(2), torch.zeros(4, 2), torch.tensor([0, 3])
    >>> halves = [twt.linear_logsumexp(x, weight[first : first + 2], labels - first) for first in (0, 2)]
    >>> (torch.logaddexp(halves[0][0], halves[1][0]) - halves[0][1] - halves[1][1]).exp().tolist()
    [4.0, 4.0]
    """
    keep, workspace = given.truth(keep, "keep"), given.whole(workspace, "workspace", 1)
    softcap = given.softcap(softcap)
    try:
        needed = any(isinstance(t, Tensor) and t.requires_grad for t in (x, weight, bias))
        keeps = keep and needed and torch.is_grad_enabled()
        run = torch.ops.tilewright.linear_logsumexp_kept if keeps else torch.ops.tilewright.linear_logsumexp
        most, at_label, total = run(x, weight, labels, bias, workspace, softcap)[:3]
    except (AttributeError, RuntimeError, TypeError) as e:
        raise ours._named(e, {"x": x, "weight": weight, "labels": labels, "bias": bias}) from None
    return most, at_label, total


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Optional[Tensor] = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    class_weight: Optional[Tensor] = None,
    keep: bool = False,
    workspace: int = WORKSPACE,
    softcap: Optional[float] = None,
) -> Tensor:
    """Compute the cross-entropy of the logits ``x @ weight.T + bias``, without storing the logits. Differentiable once.

    It is ``F.cross_entropy(F.linear(x, weight, bias).float(), labels)`` in less memory. The backward pass computes the logits again, as many columns
    at a time as `workspace` holds. Results are the same bits in each run. Under autocast x, weight and bias have its type.

    Parameters
    ----------
    x : (..., k) Tensor
    weight : (vocabulary, k) Tensor
    labels : (...) Tensor
        int32 or int64, with any strides. A label that is no class and not `ignore_index` makes its row's loss NaN. With the environment variable
        ``TILEWRIGHT_CHECK=1`` it raises an exception instead; the host then waits for the device in each call.
    bias : (vocabulary,) Tensor, optional
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean is over the rows that are not ignored, with the weights of their classes: NaN where there are none.
    ignore_index : int, default -100
        Rows with this label have the loss and the gradient 0.
    label_smoothing : float, default 0.0
        From 0 to 1: this share of each target is spread over all classes.
    z_loss : float, default 0.0
        Adds so many times the square of each row's logsumexp.
    class_weight : (vocabulary,) Tensor, optional
        A factor of the loss for each label. Not together with `label_smoothing`.
    keep : bool, default False
        Store the logits in the type of x for the backward pass, which overwrites them: it can run once, and has a product less to compute.
    workspace : int, default 268435456
        Bytes of the logits that the backward pass has at a time without `keep`.
    softcap : float, optional
        The logits are ``softcap * tanh(z / softcap)`` of ``z = x @ weight.T + bias``, as in Gemma 2. With `keep` and 16 bits, gradients of
        logits near the cap have the error of the stored logits.

    Returns
    -------
    Tensor
        float32, of float64 float64: one value, or with "none" one for each label.

    Raises
    ------
    OperandError
        A tensor has a wrong shape, type, layout or device.
    ProblemError
        An option has a value that is not listed.

    Examples
    --------
    >>> import tilewright as tw, tilewright.torch as twt, torch
    >>> context = tw.use("emu", records="")
    >>> round(twt.linear_cross_entropy(torch.eye(2), torch.zeros(4, 2), torch.tensor([0, 3])).exp().item(), 4)
    4.0
    """
    reduction, ignore_index, smoothing, z_factor = given.loss(reduction, ignore_index, label_smoothing, z_loss, class_weight)
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if isinstance(tensor, Tensor) and not tensor.is_floating_point():
            raise _native.OperandError(f"{name} is {tensor.dtype}: float16, bfloat16, float32 or float64 is needed")
    if isinstance(x, Tensor) and x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
        kind = torch.get_autocast_dtype(x.device.type)
        narrow = lambda t: t.to(kind) if isinstance(t, Tensor) and t.dtype != torch.float64 else t  # noqa: E731
        x, weight, bias = narrow(x), narrow(weight), narrow(bias)
    most, at_label, total = linear_logsumexp(x, weight, labels, bias, keep, workspace, softcap)
    if class_weight is not None:
        _check_class_weight(class_weight, weight)
    classes = weight.shape[0]
    ignored = labels == ignore_index
    unknown = ~ignored & ((labels < 0) | (labels >= classes))
    if os.environ.get("TILEWRIGHT_CHECK") == "1" and not torch.compiler.is_compiling() and bool(unknown.any()):
        wrong = labels[unknown][0].item()
        raise _native.OperandError(f"labels: {wrong} is no class of {classes} and not ignore_index = {ignore_index}")
    loss = most - at_label
    if smoothing:
        loss = most - (1.0 - smoothing) * at_label - (smoothing / max(1, classes)) * total
    counted = torch.where(ignored, 0.0, 1.0).to(loss.dtype)
    if class_weight is not None:
        counted = torch.where(ignored, 0.0, class_weight.to(loss.dtype)[torch.where(ignored | unknown, 0, labels.long())])
        loss = loss * counted
    if z_factor:
        loss = loss + z_factor * most.square()
    loss = torch.where(ignored, 0.0, torch.where(unknown, float("nan"), loss))
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counted.sum()


def _check_class_weight(x: Tensor, weight: Tensor) -> None:
    if not isinstance(x, Tensor) or x.layout is not torch.strided or not x.is_floating_point():
        told = f"{x.dtype}, {x.layout}" if isinstance(x, Tensor) else type(x).__name__
        raise _native.OperandError(f"class_weight is {told}: a dense tensor of floats is needed")
    if x.shape != weight.shape[:1] or x.device != weight.device:
        raise _native.OperandError(f"class_weight is {tuple(x.shape)} on {x.device}, ({weight.shape[0]},) on {weight.device} is needed")


def fuse_losses(on: bool = True, keep: bool = False, workspace: int = WORKSPACE) -> Optional[ours.Fused]:
    """Let torch.compile use `linear_cross_entropy` where a model computes ``F.cross_entropy`` of a linear layer's result.

    It changes what torch.compile makes from now on. The layer's result may be capped (``30 * tanh(z / 30)``), converted to float32, reshaped, and cut
    by slices of rows, as causal language models do for shifted labels. A loss stays torch's if something else uses the logits, such as the result of
    the compiled function, if a tensor is written in place between layer and loss, or if its targets are probabilities. torch's own ``F.linear_cross_entropy`` is replaced, too. Sets Inductor's
    ``pre_grad_custom_pass``.

    Parameters
    ----------
    on : bool, default True
        False: torch computes its losses again.
    keep : bool, default False
    workspace : int, default 268435456
        As in `linear_cross_entropy`.

    Returns
    -------
    Fused or None
        `count` is the number of losses that were replaced so far, without those of graphs that torch kept on the disk; None if `on` is false.

    Raises
    ------
    ProblemError
        Inductor already has a pass of another package.

    Examples
    --------
    >>> import tilewright as tw, tilewright.torch as twt, torch
    >>> context, fused = tw.use("emu", records=""), twt.fuse_losses()
    >>> def step(x, weight, labels):
    ...     return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight).float(), labels)
    >>> loss = torch.compile(step)(torch.eye(2), torch.zeros(4, 2), torch.tensor([0, 3]))
    >>> round(loss.exp().item(), 4)
    4.0
    >>> twt.fuse_losses(False)
    """
    how = {"keep": given.truth(keep, "keep"), "workspace": given.whole(workspace, "workspace", 1)}
    return ours.fuse(given.truth(on, "on"), "_compiled_loss", **how)


def _called(names: Sequence[str], args: Sequence[Any], options: Dict[str, Any]) -> Tuple[Sequence[Any], Dict[str, Any]]:
    """The product that a forward pass runs."""
    called = {**dict(zip(names, args)), **options}
    x, weight, bias = called.get("x"), called.get("weight"), called.get("bias")
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or weight.dim() != 2:
        raise _native.OperandError("linear_cross_entropy: x and weight are needed, a tensor and a matrix of (vocabulary, k)")
    return (x.reshape(-1, x.shape[-1]), weight.t()), {"bias": bias, "softcap": called.get("softcap"), **_OF_ROWS, "store": bool(called.get("keep"))}


for _function in (linear_cross_entropy, linear_logsumexp):
    ours.tuned[_function] = partial(_called, tuple(inspect.signature(_function).parameters))
