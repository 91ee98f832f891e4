"""What the scripts of this folder count, without a GPU: python test_sides.py."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sides  # noqa: E402
import torch_reductions  # noqa: E402
from held import Spread  # noqa: E402


class Ratios(unittest.TestCase):
    STEADY = staticmethod(lambda us: Spread([us] * 30))
    WIDE = Spread([20.0] * 15 + [40.0] * 15)

    def test_the_fastest_steady_rival_counts(self):
        spreads = {"ours": self.STEADY(100), "eager": self.STEADY(150), "compile": self.STEADY(110), "product": self.STEADY(80)}
        self.assertEqual(
            sides.ratios(spreads, set(), "product"),
            ["compile takes 1.100 of ours", "ours takes 1.250 of product"],
        )

    def test_sides_that_wait_or_are_wide_have_no_ratio(self):
        spreads = {"ours": self.STEADY(100), "ours wide": self.WIDE, "eager": self.STEADY(150), "compile": self.WIDE, "liger": self.STEADY(90)}
        lines = sides.ratios(spreads, {"liger"})
        self.assertEqual(lines[-1], "eager takes 1.500 of ours")
        left_out = {line.split(": ")[0] for line in lines[:-1]}
        self.assertEqual(left_out, {"no ratio of ours wide", "no ratio of compile", "no ratio of liger"})

    def test_without_a_steady_rival_there_is_no_ratio(self):
        lines = sides.ratios({"ours": self.STEADY(100), "eager": self.WIDE}, set())
        self.assertEqual(len(lines), 1, lines)


class Reductions(unittest.TestCase):
    def test_wrong_rows_and_wide_sides_count_for_nobody(self):
        row = lambda **changes: {"ours_us": 1.0, "cub_us": 2.0, "wide": [], "wrong": False, **changes}  # noqa: E731
        rows = [row(), row(wide=["cub"]), row(wrong=True), row(cub_us=None), row(wide=["ours"])]
        self.assertEqual(torch_reductions.counted(rows, "ours"), [rows[0], rows[1], rows[3]])
        self.assertEqual(torch_reductions.counted(rows, "cub"), [rows[0], rows[4]])

    def test_ties_of_indices_are_no_errors(self):
        try:
            import torch
        except (ImportError, OSError, ValueError):
            self.skipTest("torch is not installed")

        class Nothing:
            def synchronize(self):
                pass

        class Torch:
            cuda = Nothing()

        bench = torch_reductions.Bench.__new__(torch_reductions.Bench)
        bench.torch = Torch()
        x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 0.0]])
        best = torch.tensor([1, 0])

        def judged(op, ours, theirs, part=0.0):
            row = {}
            bench.compare(row, op, ours, theirs, (x, 1, part))
            return row

        tie, wrong = judged("argmax", torch.tensor([2, 0]), best), judged("argmax", torch.tensor([0, 0]), best)
        self.assertEqual((tie["wrong"], tie["ties"], tie["differs"]), (False, 0.5, 0.5))
        self.assertTrue(wrong["wrong"])
        total = x.sum(1)
        self.assertFalse(judged("sum", total.clone(), total)["wrong"])
        self.assertTrue(judged("sum", total * 1.01, total)["wrong"])
        self.assertTrue(judged("sum", total * float("nan"), total)["wrong"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
