"""Torch's own reductions where `enable` makes them ours, on CPU tensors."""

import os
import tempfile
import unittest
from unittest import mock

import torch

import tilewright as tw
import tilewright.torch as twt
from tilewright import _native


class Reductions(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        tw.use("emu", records="")
        # A busy machine gives shapes no verdict; which answers are ours is asked here, not which are faster.
        patch = mock.patch.object(tw._shapes, "_WITHIN", float("inf"))
        patch.start()
        self.addCleanup(patch.stop)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(twt.disable)
        self.path = os.path.join(self.folder.name, "shapes.csv")

    def answers(self, calls):
        """What torch gives, then what it gives with ours in its place, and how many calls were ours."""
        want = [call() for call in calls]
        with twt.record(self.path):
            [call() for call in calls]
        rows = twt.compare(self.path, repeats=1)
        self.assertEqual([row.reason for row in rows if not row.gain], [])
        twt.enable(self.path, margin=0.0)
        got = [call() for call in calls]
        flat = lambda results: [x for each in results for x in (each if isinstance(each, tuple) else (each,))]  # noqa: E731
        self.assertEqual(len(flat(got)), len(flat(want)))
        for ours, theirs in zip(flat(got), flat(want)):
            self.assertEqual((ours.shape, ours.stride(), ours.dtype), (theirs.shape, theirs.stride(), theirs.dtype))
            torch.testing.assert_close(ours, theirs, rtol=1e-2 if theirs.dtype == torch.bfloat16 else 1e-5, atol=1e-5, equal_nan=True)
        return sum(told[5] for told in _native.torch_calls() if told[6])

    def test_they_are_torchs(self):
        x = torch.randn(6, 7, 5)
        half, wide, tied = x.bfloat16(), x.double(), torch.randint(0, 3, (6, 40)).float()
        strange = torch.tensor([[1.0, float("nan"), 3.0, float("nan")], [float("inf"), 2.0, float("inf"), -1.0]])
        calls = [
            lambda: x.sum(),
            lambda: x.sum(1),
            lambda: x.sum((0, -1), keepdim=True),
            lambda: x.mean(),
            lambda: x.mean((0, 2)),
            lambda: x.mT.mean(-1, keepdim=True),
            lambda: x.amax(0),
            lambda: x.amin((), keepdim=True),
            lambda: x[:, :1].expand(6, 7, 5)[::2].sum(1),
            lambda: tied.argmax(1),
            lambda: tied.argmin(),
            lambda: tied.argmax(0, keepdim=True),
            lambda: torch.logsumexp(x, (0, 1)),
            lambda: half.sum(1),
            lambda: half.sum(1, dtype=torch.float32),
            lambda: half.amax(2),
            lambda: wide.mean(1),
            lambda: strange.amax(1),
            lambda: strange.argmax(1),
            lambda: strange.sum(1),
            lambda: x.max(1),
            lambda: x.mT.min(-1, keepdim=True),
            lambda: half.max(0),
            lambda: tied.min(1),
            lambda: strange.max(1),
            lambda: strange.min(0),
        ]
        self.assertEqual(self.answers(calls), len(calls))
        told = twt.report(self.path)
        self.assertIn("100.0% of torch's time in these calls is answered by tilewright", told)
        self.assertRegex(told, r"tilewright +argmax 6x40 float32 on cpu")
        self.assertEqual(type(x.max(1)).__name__, "max")

    def test_what_is_not_ours_is_torchs(self):
        x = torch.randn(4, 6)
        want = x[:, :5].sum(1)
        self.assertEqual(self.answers([lambda: x.sum(1), lambda: x.amax(1), lambda: x.argmax(1), lambda: torch.logsumexp(x, 1), lambda: x.max(1)]), 5)
        # Other shapes, types and arguments, twice: decided and looked up.
        for _ in range(2):
            torch.testing.assert_close(x[:, :5].sum(1), want)
            self.assertEqual(x.to(torch.int32).sum(1).dtype, torch.int64)
            self.assertEqual(x.sum(1, dtype=torch.float64).dtype, torch.float64)
            self.assertEqual(torch.tensor(2.0).sum().item(), 2.0)
            self.assertEqual([each.item() for each in torch.tensor(2.0).max(0)], [2.0, 0])
            self.assertEqual((x.max().item(), torch.maximum(x, x + 1).min(0).indices.shape), (x.flatten().tolist()[x.argmax()], (6,)))
            self.assertEqual(torch.ones(3, 0).sum(1).tolist(), [0.0, 0.0, 0.0])
            self.assertEqual(torch.ones(1, 1, 1, 1, 1, 1, 1, 1, 1, 2).sum(-1).shape, (1,) * 9)
            for wrong, error in (
                (lambda: x.sum(2), IndexError),
                (lambda: x.sum((0, 0)), RuntimeError),
                (lambda: torch.ones(0, 3).amax(0), (IndexError, RuntimeError)),
                (lambda: x.argmax(5), IndexError),
                (lambda: x.max(2), IndexError),
                (lambda: torch.ones(0, 3).min(0), IndexError),
            ):
                self.assertRaises(error, wrong)
        self.assertRegex(twt.report(), r"torch +sum 4x5 float32 on cpu: was not recorded")
        twt.disable()
        torch.testing.assert_close(x[:, :5].sum(1), want, rtol=0, atol=0)

    def test_gradients_and_compiled_functions(self):
        wide = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
        functions = [
            lambda x: x.sum((0, 2)),
            lambda x: x.mean(1),
            lambda x: x.amax((0, 1)),
            lambda x: x.amin(2),
            lambda x: torch.logsumexp(x, (0, 2)),
            lambda x: x.max(1)[0],
        ]
        self.assertEqual(self.answers([lambda f=f: f(wide.detach()) for f in functions]), len(functions))
        for function in functions:
            self.assertTrue(torch.autograd.gradcheck(function, (wide,)))
            made = torch.compile(function, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(made(wide), function(wide))


if __name__ == "__main__":
    unittest.main()
