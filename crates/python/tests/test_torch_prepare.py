"""`tilewright.torch.prepare` on CPU tensors: what is looked at, what is decided, what stays as it is, and what several processes share."""

import fcntl
import threading
import unittest
import warnings
from unittest import mock

import torch
from torch import nn

import tilewright as tw
import tilewright.torch as twt
from tilewright import _operators, _shapes
from torch_case import TorchCase, answered


class Small(nn.Module):
    """Products, a convolution, and what a forward pass changes: statistics and random numbers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, 5)

    def forward(self, x, scale=1.0):
        return self.head(self.drop(self.norm(self.conv(x)).flatten(2).mean(1))) * scale


class Prepare(TorchCase):
    def setUp(self):
        super().setUp()
        # A busy machine gives shapes no verdict; which answers are ours is asked here, not which are faster.
        agree = mock.patch.object(_shapes, "_WITHIN", float("inf"))
        agree.start()
        self.addCleanup(agree.stop)

    def test_a_model_is_prepared_and_stays_as_it_is(self):
        model, x = Small(), torch.randn(3, 2, 4, 4)
        model.head.weight.grad = torch.ones_like(model.head.weight)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        random = torch.get_rng_state()
        count = twt.prepare(model, x, margin=0.0, repeats=1)
        self.assertGreater(count, 3)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)
        torch.testing.assert_close(model.head.weight.grad, torch.ones_like(model.head.weight))
        self.assertIsNone(model.conv.weight.grad)
        self.assertTrue(torch.equal(torch.get_rng_state(), random))

        # Steps look at nothing, and their answers are the same from the first to the last.
        counts = []
        with mock.patch.object(tw.Context, "prepared", side_effect=AssertionError("a step looks")):
            for _ in range(3):
                known = answered()
                model(x).square().sum().backward()
                counts.append({who: calls - known[who] for who, calls in answered().items()})
        self.assertEqual(counts[1:], counts[:1] * 2)
        self.assertGreater(counts[0][True], 3)
        # Without gradients, and by name.
        self.assertGreater(twt.prepare(model.eval(), {"x": x, "scale": 2.0}, margin=0.0, repeats=1), 0)
        with torch.no_grad():
            self.assertGreater(twt.prepare(model, (x, 2.0), margin=0.0, repeats=1), 0)
        self.assertEqual(twt.prepare(lambda: torch.mm(x[0, 0], x[0, 1]), margin=0.0, repeats=1), 1)
        with self.assertRaisesRegex(tw.OperandError, "a module or a function"):
            twt.prepare(x)

    def test_no_answer_changes_between_steps(self):
        """A file of decisions alone makes nothing ours: nobody has looked at the plans here."""
        a, b = torch.randn(6, 4), torch.randn(4, 5)
        want = torch.mm(a.double(), b.double()).float()
        self.assertEqual(twt.prepare(torch.mm, (a, b), self.path, margin=0.0, repeats=1), 1)
        torch.mm(a, b)
        # The first of them by `prepare` itself.
        self.assertEqual(answered(), {True: 2, False: 0})
        tw.use("emu", records="")
        self.assertEqual(twt.enable(self.path, margin=0.0), 1)
        for turn in range(1, 4):
            torch.testing.assert_close(torch.mm(a, b), want)
            # A call of our own operators does not change it either.
            twt.mm(a.clone(), b.clone())
            self.assertEqual((answered()[False], answered()[True]), (turn, turn))
        self.assertIn("was not prepared: call tilewright.torch.prepare", twt.report(self.path))
        self.assertEqual(twt.prepare(torch.mm, (a, b), self.path, margin=0.0, repeats=1), 1)
        torch.testing.assert_close(torch.mm(a, b), want)
        self.assertEqual(answered(), {True: 2, False: 0})

    def test_processes_share_decisions(self):
        a, b = torch.randn(6, 4), torch.randn(4, 5)
        with mock.patch.object(_shapes, "_measure", wraps=_shapes._measure) as measured:
            for turn in range(3):
                # Other records, as another rank has.
                tw.use("emu", records="")
                twt.prepare(lambda: (torch.mm(a, b), torch.mm(a.t(), a)), (), self.path, margin=0.0, repeats=1)
                self.assertEqual(measured.call_count, 2)
                torch.mm(a, b)
                self.assertEqual(answered(), {True: 3, False: 0})
            # A shape that nobody has met is decided by who meets it; a verdict that there is none stands, too.
            rows = twt.shapes(self.path)
            rows[0].torch_us = rows[0].ours_us = 0.0
            rows[0].reason = "no verdict: repeats do not agree"
            _shapes._write(self.path, rows)
            self.assertEqual(twt.prepare(lambda: (torch.mm(a, b), a @ a.t()), (), self.path, margin=0.0, repeats=1), 2)
            self.assertEqual(measured.call_count, 3)
        self.assertEqual(twt.shapes(self.path)[0].reason, "no verdict: repeats do not agree")
        self.assertEqual(len(twt.shapes(self.path)), 3)

    def test_who_waits_for_another_process_says_so(self):
        a, b = torch.randn(6, 4), torch.randn(4, 5)
        with open(f"{self.path}.lock", "a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            short = mock.patch.multiple(_shapes, _WAIT=0.1, _PATIENCE=0.5)
            with short, self.assertWarnsRegex(RuntimeWarning, "waiting for another process"):
                with self.assertRaisesRegex(tw.RecordsError, "shapes.csv: another process has decided .* end it, or name another file"):
                    twt.prepare(torch.mm, (a, b), self.path, repeats=1)
            freed = threading.Timer(0.5, lambda: fcntl.flock(held, fcntl.LOCK_UN))
            freed.start()
            self.assertEqual(twt.prepare(torch.mm, (a, b), self.path, margin=0.0, repeats=1), 1)
            freed.join()

    def test_nothing_is_asked_of_a_device_while_a_graph_is_captured(self):
        """A shape of ours that is first seen then is torch's for the moment: no plan is looked up, no layout of torch's is tried."""
        context = tw.Context("emu", records="")
        product = ("mm", [(256, [4, 6], [6, 1]), (512, [6, 5], [5, 1])], [])
        convolution = ("convolution forward", [(256, [1, 2, 5, 5], [50, 25, 5, 1]), (512, [3, 2, 3, 3], [18, 9, 3, 1])], [0, 1, 1, 0, 0, 1, 1, 1])
        asks = lambda op, operands, how: _operators._decide(False, op, "cuda:0", "float32", operands, [256] * 3, False, how)  # noqa: E731
        refused = AssertionError("asked during a capture")
        with (
            mock.patch.dict(tw._contexts._contexts, {"cuda:0": context}),
            mock.patch.object(_operators, "chosen", lambda problem: None),
            mock.patch.object(_operators, "_unprepared", {}) as noted,
        ):
            capturing = mock.patch.multiple(torch.cuda, device=mock.MagicMock(), is_current_stream_capturing=lambda: True)
            looks = mock.patch.object(tw.Context, "looked_at", side_effect=refused)
            with capturing, looks, mock.patch.object(_operators, "FakeTensorMode", side_effect=refused):
                self.assertIsNone(asks(*product))
                self.assertIsNone(asks(*convolution))
                # One that torch answers anyway is decided.
                with mock.patch.object(_operators, "chosen", lambda problem: "torch is faster"):
                    self.assertEqual(asks(*product)[1:], ("torch is faster", True))
            self.assertEqual(sum(noted.values()), 2)
            with mock.patch.multiple(torch.cuda, device=mock.MagicMock(), is_current_stream_capturing=lambda: False):
                self.assertEqual(asks(*product)[1], _operators.NOT_PREPARED)

    def test_a_plan_that_fails_is_torchs_and_says_so(self):
        a, b = torch.randn(6, 4), torch.randn(4, 5)
        refused = mock.Mock(prepare=mock.Mock(side_effect=tw.PlanError("every plan failed its look")))
        refused.failed_looks.return_value = [("A_MIC1", "wrong result")]
        with mock.patch.object(tw.Context, "operation", return_value=refused), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.assertEqual(twt.prepare(torch.mm, (a, b), self.path, margin=0.0, repeats=1), 0)
        self.assertEqual(len([w for w in told if "plan A_MIC1 failed its look and is not used: wrong result" in str(w.message)]), 1)
        self.assertIn("every plan failed its look", twt.shapes(self.path)[0].reason)
        self.assertFalse(_operators.looking)


if __name__ == "__main__":
    unittest.main()
