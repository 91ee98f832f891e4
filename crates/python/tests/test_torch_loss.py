"""Linear cross-entropy of `tilewright.torch`, on CPU tensors: values and gradients beside torch's in 64 bits, options, bad input, compile."""

import os
import unittest
from unittest import mock

import numpy as np
import torch
import torch._inductor.config
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright as tw
import tilewright.torch as twt
from tilewright import _loss
from torch_case import TorchCase

ROWS, K, WORDS = 7, 6, 300


def operands(dtype=torch.float32, bias=True, scale=1.0):
    """x, weight and bias, with gradients."""
    shapes = [(ROWS, K), (WORDS, K)] + [(WORDS,)] * bias
    return [(scale * torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes]


def theirs(x, words, labels, bias=None, z_loss=0.0, reduction="mean", softcap=None, **options):
    """torch's loss from logits of 64 bits, with leaves of its own."""
    leaves = [t.detach().double().requires_grad_() for t in (x, words) + (() if bias is None else (bias,))]
    z = F.linear(*leaves)
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    loss = F.cross_entropy(z.flatten(0, -2), labels.long().flatten(), reduction="none", **options).reshape(labels.shape)
    if z_loss:
        loss = loss + z_loss * torch.where(labels == options.get("ignore_index", -100), 0.0, torch.logsumexp(z, -1).square())
    counted = (labels != options.get("ignore_index", -100)).double()
    if options.get("weight") is not None:
        counted = counted * options["weight"][labels.long().clamp(0)]
    return (loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.sum() / counted.sum()), leaves


class Largest(TorchDispatchMode):
    """The most elements that an operator's result has."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return found


class Loss(TorchCase):
    def agrees(self, ours, labels, rtol=1e-4, atol=1e-5, **options):
        """Loss and gradients are those of 64 bits."""
        x, weight, *bias = ours
        for t in ours:
            t.grad = None
        got = twt.linear_cross_entropy(x, weight, labels, *bias, **options)
        named = {{"class_weight": "weight"}.get(name, name): value for name, value in options.items() if name not in ("keep", "workspace")}
        if named.get("weight") is not None:
            named["weight"] = named["weight"].double()
        want, leaves = theirs(x, weight, labels, *bias, **named)
        self.assertEqual(got.dtype, torch.float64 if x.dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)
        weights = torch.randn(want.shape).double()
        (want * weights).sum().backward()
        (got * weights).sum().backward()
        for mine, other in zip(ours, leaves):
            torch.testing.assert_close(mine.grad.double(), other.grad, rtol=rtol, atol=atol)

    def test_values_and_gradients(self):
        labels = torch.randint(WORDS, (ROWS,))
        labels[2] = -100
        for bias in (True, False):
            for options in (
                {},
                {"reduction": "sum"},
                {"reduction": "none"},
                {"label_smoothing": 0.1},
                {"z_loss": 0.01, "reduction": "sum"},
                {"ignore_index": int(labels[0])},
                {"class_weight": torch.rand(WORDS) + 0.5},
                {"label_smoothing": 1.0, "z_loss": 0.1},
            ):
                if "ignore_index" in options:
                    labels = labels.clamp(0)
                self.agrees(operands(bias=bias), labels, **options)
                self.agrees(operands(bias=bias), labels, **options, keep=True)
        for options in ({}, {"keep": True}, {"workspace": 1}):
            self.agrees(operands(torch.float64), labels, rtol=1e-10, atol=1e-12, **options)
        # Large logits do not overflow.
        self.agrees(operands(scale=20.0), labels, rtol=1e-3, atol=1e-3)

    def test_types_of_16_bits(self):
        labels = torch.randint(WORDS, (ROWS,))
        for dtype, error in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
            for bias in (True, False):
                for options in ({}, {"keep": True}, {"workspace": 1, "label_smoothing": 0.1}):
                    self.agrees(operands(dtype, bias), labels, rtol=error, atol=error, **options)
            with torch.autocast("cpu", dtype):
                got = twt.linear_cross_entropy(*operands()[:2], labels)
            self.assertEqual(got.dtype, torch.float32)

    def test_softcap(self):
        """Logits in the straight part of tanh, around its bend and beyond it, with every gradient of a row."""
        labels = torch.randint(WORDS, (ROWS,))
        labels[2] = -100
        every = {"workspace": 1, "label_smoothing": 0.1, "z_loss": 0.01}
        for softcap, scale, bias, options in (
            (30.0, 1.0, True, {}),
            (2.0, 1.0, False, {"keep": True}),
            (1.0, 3.0, True, every),
            (2.0, 1.0, False, every),
            (1.0, 3.0, True, {"keep": True, "label_smoothing": 0.1}),
        ):
            self.agrees(operands(bias=bias, scale=scale), labels, softcap=softcap, **options)
        # Kernels have the limit in 32 bits.
        self.agrees(operands(torch.float64), labels, rtol=1e-10, atol=1e-12, softcap=float(np.float32(0.3)))
        for limit in (0.3, float(np.float32(0.3))):
            self.agrees(operands(), labels, softcap=limit)
        # Stored logits that are rounded above the limit.
        for keep in (False, True):
            x, weight, _ = operands(torch.bfloat16)
            with torch.no_grad():
                x[:, 0], weight[::2, 0] = 1000.0, 1.0
            loss = twt.linear_cross_entropy(x, weight, labels, softcap=30.1, keep=keep)
            of_weight = torch.autograd.grad(loss, weight)[0]
            self.assertEqual(of_weight[::2].abs().max().item(), 0.0)
        for dtype, error in ((torch.float16, 3e-3), (torch.bfloat16, 2e-2)):
            for keep in (False, True):
                self.agrees(operands(dtype), labels, rtol=error, atol=error, softcap=5.0, keep=keep)
        with self.assertRaisesRegex(tw.ProblemError, "softcap = -1.0: a number from 0.000001 to 1000000, or None, is needed"):
            twt.linear_cross_entropy(*operands()[:2], labels, softcap=-1.0)

    def test_labels_of_any_form(self):
        x, weight, bias = operands()
        labels = torch.randint(WORDS, (ROWS,))
        want = twt.linear_cross_entropy(x, weight, labels, bias)
        for other in (labels.int(), torch.stack((labels, labels), 1)[:, 0], labels.int().repeat_interleave(3)[::3]):
            self.assertEqual(twt.linear_cross_entropy(x, weight, other, bias), want)
        both = twt.linear_cross_entropy(torch.stack((x, x)), weight, torch.stack((labels, labels)), bias, reduction="none")
        self.assertEqual(both.shape, (2, ROWS))
        torch.testing.assert_close(both.mean(), want)

    def test_logits_are_never_stored(self):
        """Neither forward nor backward has a tensor of all logits, and parts of the vocabulary give the gradients of the whole."""
        x, weight, bias = operands()
        labels = torch.randint(WORDS, (ROWS,))
        with Largest() as forward:
            loss = twt.linear_cross_entropy(x, weight, labels, bias)
        self.assertLessEqual(forward.elements, max(weight.numel(), x.numel()))
        want = torch.autograd.grad(loss, (x, weight, bias), retain_graph=True)
        loss = twt.linear_cross_entropy(x, weight, labels, bias, workspace=1)
        with Largest() as backward:
            got = torch.autograd.grad(loss, (x, weight, bias))
        self.assertLess(backward.elements, ROWS * WORDS)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        kept = twt.linear_cross_entropy(x, weight, labels, bias, keep=True)
        for a, b in zip(torch.autograd.grad(kept, (x, weight, bias), retain_graph=True), want):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        # Its logits are gradients now.
        with self.assertRaisesRegex(tw.OperandError, "the backward pass runs once"):
            torch.autograd.grad(kept, x)
        again = torch.autograd.grad(twt.linear_cross_entropy(x, weight, labels, bias), (x, weight, bias))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(again, want)))

    def test_only_the_gradients_that_are_asked_for(self):
        x, weight, bias = (t.detach() for t in operands())
        labels = torch.randint(WORDS, (ROWS,))
        for wanted in ((x,), (weight,), (bias,), (x, bias)):
            for t in (x, weight, bias):
                t.requires_grad_(any(t is one for one in wanted))
            loss = twt.linear_cross_entropy(x, weight, labels, bias)
            want, leaves = theirs(x, weight, labels, bias)
            all_of_them = torch.autograd.grad(want, leaves)
            for mine, one in zip(torch.autograd.grad(loss, wanted), wanted):
                other = next(g for g, t in zip(all_of_them, (x, weight, bias)) if t is one)
                torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-6)

    def test_labels_that_are_no_class(self):
        x, weight, bias = operands()
        labels = torch.randint(WORDS, (ROWS,))
        labels[1], labels[3] = WORDS, -1
        loss = twt.linear_cross_entropy(x, weight, labels, bias, reduction="none")
        self.assertEqual(loss.isnan().tolist(), [row in (1, 3) for row in range(ROWS)])
        with mock.patch.dict(os.environ, TILEWRIGHT_CHECK="1"):
            with self.assertRaisesRegex(tw.OperandError, f"labels: {WORDS} is no class of {WORDS} and not ignore_index = -100"):
                twt.linear_cross_entropy(x, weight, labels, bias)
        ignored = torch.full((ROWS,), -100)
        loss = twt.linear_cross_entropy(x, weight, ignored, bias)
        self.assertTrue(loss.isnan())
        self.assertTrue(F.cross_entropy(F.linear(x, weight, bias), ignored).isnan())
        loss = twt.linear_cross_entropy(x, weight, ignored, bias, reduction="sum")
        self.assertEqual(loss.item(), 0.0)
        self.assertEqual(torch.autograd.grad(loss, x)[0].abs().max().item(), 0.0)

    def test_a_vocabulary_over_ranks(self):
        x, weight, bias = operands()
        labels = torch.randint(WORDS, (ROWS,))
        parts = [
            twt.linear_logsumexp(x, weight[first : first + 100], labels - first, bias[first : first + 100]) for first in (0, 100, 200)
        ]
        most = torch.logsumexp(torch.stack([part[0] for part in parts]), 0)
        loss = (most - sum(part[1] for part in parts)).mean()
        want, leaves = theirs(x, weight, labels, bias)
        torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-5)
        for mine, other in zip(torch.autograd.grad(loss, (x, weight, bias)), torch.autograd.grad(want, leaves)):
            torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-6)

    def test_each_part_has_its_gradient(self):
        """Also in rows in which one of them does not count."""
        x, weight, bias = operands()
        labels = torch.randint(-1, WORDS + 1, (ROWS,))
        rows = torch.arange(ROWS) % 3
        for each in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, -2.0, 0.5]):
            factors = [factor * torch.where(rows == n, 0.0, 1.0 + rows) for n, factor in enumerate(each)]
            got = sum((of * part).sum() for of, part in zip(factors, twt.linear_logsumexp(x, weight, labels, bias)) if of.any())
            leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
            z = F.linear(*leaves)
            exists = (labels >= 0) & (labels < WORDS)
            parts = torch.logsumexp(z, 1), torch.where(exists, z.gather(1, torch.where(exists, labels, 0)[:, None])[:, 0], 0), z.sum(1)
            want = sum((of * part).sum() for of, part in zip(factors, parts))
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)
            for mine, other in zip(torch.autograd.grad(got, (x, weight, bias)), torch.autograd.grad(want, leaves)):
                torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)

    def test_tokens_that_are_certain(self):
        """1 less a probability near 1 keeps its bits, and parts of a vocabulary with hardly a share of a row stay finite."""
        for dtype, error in ((torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
            # Each label has a probability of about 0.998.
            weight = 0.001 * torch.randn(WORDS, K)
            weight[:K] += torch.eye(K)
            weight, x = (t.to(dtype).requires_grad_() for t in (weight, 12.0 * torch.eye(K)))
            labels = torch.arange(K)
            want, leaves = theirs(x, weight, labels)
            got = torch.autograd.grad(twt.linear_cross_entropy(x, weight, labels), (x, weight))
            for mine, other in zip(got, torch.autograd.grad(want, leaves)):
                self.assertLess(((mine.double() - other).norm() / other.norm()).item(), error)
        x, weight = torch.ones(ROWS, K).half().requires_grad_(), torch.zeros(WORDS, K).half()
        weight[:150] = 4.0
        weight.requires_grad_()
        labels = torch.full((ROWS,), WORDS - 1)
        halves = [twt.linear_logsumexp(x, weight[first : first + 150], labels - first) for first in (0, 150)]
        loss = (torch.logaddexp(halves[0][0], halves[1][0]) - halves[0][1] - halves[1][1]).mean()
        want, leaves = theirs(x, weight, labels)
        for mine, other in zip(torch.autograd.grad(loss, (x, weight)), torch.autograd.grad(want, leaves)):
            torch.testing.assert_close(mine.double(), other, rtol=3e-3, atol=1e-4)

    def error(self, x, weight, labels, **how):
        """The largest relative error of both gradients, against those of 64 bits."""
        want, leaves = theirs(x, weight, labels)
        got = torch.autograd.grad(twt.linear_cross_entropy(x, weight, labels, **how), (x, weight))
        errors = [(mine.double() - other).norm() / other.norm() for mine, other in zip(got, torch.autograd.grad(want, leaves))]
        return max(error.item() for error in errors)

    def test_logits_of_any_magnitude(self):
        """Stored logits of 16 bits are rounded by much, and the probabilities of a row add up to 1 all the same."""
        labels = torch.randint(WORDS, (ROWS,))
        for offset, kept in ((20.0, 0.03), (-30.0, 0.03), (0.0, 0.03)):
            x, weight, _ = operands(torch.bfloat16)
            with torch.no_grad():
                x[:, 0], weight[:, 0] = offset, 1.0
            self.assertLess(self.error(x, weight, labels), 0.01)
            self.assertLess(self.error(x, weight, labels, keep=True), kept)
        # All logits near 32,768: a shift of 16 bits would be off by up to 128.
        for dtype, second in ((torch.float16, 4.0), (torch.bfloat16, 100.0)):
            x, weight, _ = operands(dtype)
            with torch.no_grad():
                x[:, 0], x[:, 1], weight[:, :2] = 32768.0, second, 1.0
            self.assertLess(self.error(x, weight, labels), 0.02)

    def test_a_vocabulary_of_no_words(self):
        x, weight = torch.randn(3, K, requires_grad=True), torch.zeros(0, K)
        for keep in (False, True):
            most, at_label, total = twt.linear_logsumexp(x, weight, torch.zeros(3, dtype=torch.int64), keep=keep)
            self.assertEqual(torch.autograd.grad(at_label.sum() + total.sum(), x)[0].abs().max().item(), 0.0)

    def test_torch_answers_as_exactly(self):
        """Shapes that are first seen while a graph is captured, under autocast, too."""
        x, weight, bias = operands()
        labels = torch.randint(WORDS, (ROWS,))
        want = twt.linear_logsumexp(x, weight, labels, bias)
        with mock.patch.object(tw._operators, "_launch", lambda *_: False), torch.autocast("cpu", torch.bfloat16):
            got = twt.linear_logsumexp(x, weight, labels, bias)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)

    def test_operators_are_sound(self):
        for dtype in (torch.float32, torch.bfloat16):
            x, weight, bias = operands(dtype)
            labels = torch.randint(WORDS, (ROWS,))
            tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
            for args in ((x, weight, labels, bias), (x, weight, labels), (x, weight, labels, bias, 1 << 20, 4.0)):
                torch.library.opcheck(torch.ops.tilewright.linear_logsumexp.default, args, test_utils=tests)
                # The backward pass overwrites the kept logits, so no graph may give them out.
                torch.library.opcheck(torch.ops.tilewright.linear_logsumexp_kept.default, args, test_utils=tests[:3])

    def test_compiled(self):
        x, weight, bias = operands()
        labels = torch.randint(WORDS, (ROWS,))

        def step(x, weight, bias, labels):
            kept = twt.linear_cross_entropy(2.0 * x, weight, labels, bias, keep=True)
            return kept + twt.linear_cross_entropy(2.0 * x, weight, labels, bias, label_smoothing=0.1, softcap=20.0)

        want = step(x, weight, bias, labels)
        wanted = torch.autograd.grad(want, (x, weight, bias))
        for backend in ("aot_eager", "inductor"):
            torch._dynamo.reset()
            # Torch keeps compiled graphs on the disk, with the backward pass of an earlier version.
            with torch._inductor.config.patch(force_disable_caches=True):
                got = torch.compile(step, fullgraph=True, backend=backend)(x, weight, bias, labels)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
            for a, b in zip(torch.autograd.grad(got, (x, weight, bias)), wanted):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

    def test_compiled_with_a_transposed_weight(self):
        x, labels = torch.randn(ROWS, K, requires_grad=True), torch.randint(WORDS, (ROWS,))
        weight = torch.randn(K, WORDS).t().requires_grad_()
        torch._dynamo.reset()
        with torch._inductor.config.patch(force_disable_caches=True):
            got = torch.compile(twt.linear_cross_entropy, fullgraph=True)(x, weight, labels)
        want = twt.linear_cross_entropy(x, weight, labels)
        for a, b in zip(torch.autograd.grad(got, (x, weight)), torch.autograd.grad(want, (x, weight))):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    def test_compiled_for_any_number_of_rows(self):
        _, weight, bias = operands()
        torch._dynamo.reset()
        parted = lambda *of: twt.linear_cross_entropy(*of, z_loss=0.1, workspace=1 << 14)  # noqa: E731
        step = torch.compile(parted, fullgraph=True, backend="aot_eager", dynamic=True)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for rows in (9, 17, 40, 90):
                x, labels = torch.randn(rows, K, requires_grad=True), torch.randint(WORDS, (rows,))
                got, want = step(x, weight, labels, bias), twt.linear_cross_entropy(x, weight, labels, bias, z_loss=0.1)
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(*(torch.autograd.grad(loss, weight)[0] for loss in (got, want)), rtol=1e-4, atol=1e-6)

    def test_checkpointed_and_accumulated(self):
        from torch.utils.checkpoint import checkpoint

        x, weight, bias = operands()
        labels = torch.randint(WORDS, (ROWS,))
        want = torch.autograd.grad(twt.linear_cross_entropy(x, weight, labels, bias), (x, weight, bias))
        for reentrant in (True, False):
            for t in (x, weight, bias):
                t.grad = None
            for _ in range(2):
                checkpoint(twt.linear_cross_entropy, x, weight, labels, bias, use_reentrant=reentrant).backward()
            for t, b in zip((x, weight, bias), want):
                torch.testing.assert_close(t.grad, 2 * b, rtol=1e-6, atol=1e-7)

    def test_tuned_for_its_shape(self):
        x, weight, bias = operands()
        outcome = twt.tune(twt.linear_cross_entropy, x, weight, torch.zeros(ROWS, dtype=torch.int64), bias, trials=2)
        self.assertTrue(outcome.plan)
        before = dict(tw._operators.launched())
        twt.linear_cross_entropy(x, weight, torch.zeros(ROWS, dtype=torch.int64), bias)
        ran = [problem for problem, calls in tw._operators.launched().items() if calls > before.get(problem, 0)]
        self.assertEqual(len(ran), 1)
        self.assertIn("logsumexp", ran[0])

    def test_what_is_refused(self):
        x, weight, bias = operands()
        labels = torch.zeros(ROWS, dtype=torch.int64)
        for call, says in (
            (lambda: twt.linear_cross_entropy(x, weight, labels[1:], bias), r"labels are \(6,\) and x is \(7, 6\)"),
            (lambda: twt.linear_cross_entropy(x, weight, labels.float(), bias), "labels are torch.float32: int32 or int64"),
            (lambda: twt.linear_cross_entropy(x, weight[:, 1:], labels, bias), r"\(rows, k\) and \(vocabulary, k\) are needed"),
            (lambda: twt.linear_cross_entropy(x, weight, labels, bias[1:]), r"bias is \(299,\), \(300,\) is needed"),
            (lambda: twt.linear_cross_entropy(x, weight.double(), labels), "bring them together"),
            (lambda: twt.linear_cross_entropy(x, weight, labels, reduction="all"), "mean, sum or none is needed"),
            (lambda: twt.linear_cross_entropy(x, weight, labels, label_smoothing=2.0), "a number from 0 to 1"),
            (lambda: twt.linear_cross_entropy(x, weight, [1, 2]), "labels is list: a torch.Tensor is needed"),
            (lambda: twt.linear_cross_entropy(x, weight, labels, class_weight=bias[1:]), r"class_weight is \(299,\)"),
            (
                lambda: twt.linear_cross_entropy(x, weight, labels, class_weight=bias, label_smoothing=0.1),
                "label_smoothing and class_weight: leave one of them out",
            ),
        ):
            with self.assertRaisesRegex(tw.Error, says):
                call()
        (grad,) = torch.autograd.grad(twt.linear_cross_entropy(x.detach(), weight, labels), weight)
        self.assertEqual(grad.shape, weight.shape)
        with self.assertRaisesRegex(tw.OperandError, "no second derivative"):
            torch.autograd.grad(twt.linear_cross_entropy(x, weight, labels), x, create_graph=True)

    def test_no_rows_and_no_words(self):
        x, weight = torch.zeros(0, K, requires_grad=True), torch.randn(WORDS, K, requires_grad=True)
        loss = twt.linear_cross_entropy(x, weight, torch.zeros(0, dtype=torch.int64), reduction="sum")
        at_x, at_weight = torch.autograd.grad(loss, (x, weight))
        self.assertEqual((loss.item(), at_x.shape, at_weight.abs().max().item()), (0.0, (0, K), 0.0))
        most, at_label, _ = twt.linear_logsumexp(torch.randn(2, K), weight[:0], torch.zeros(2, dtype=torch.int64))
        self.assertEqual((most.tolist(), at_label.tolist()), ([float("-inf")] * 2, [0.0] * 2))


if __name__ == "__main__":
    unittest.main()
