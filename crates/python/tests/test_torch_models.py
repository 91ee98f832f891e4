"""Existing models on our kernels: `record`, `compare`, `enable`, `optimize`, `report` of `tilewright.torch`, on CPU tensors."""

import copy
import csv
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import warnings
from unittest import mock

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import choices, config
from torch._inductor.virtualized import V

import tilewright as tw
import tilewright.torch as twt
from tilewright import _compiled, _native, _operators, _shapes
from torch_case import TorchCase, answered


class Tiny(nn.Module):
    """Products with and without bias, and a convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.inner = nn.Linear(16, 8)
        self.head = nn.Linear(8, 5, bias=False)

    def forward(self, x):
        return self.head(torch.relu(self.inner(self.conv(x).flatten(2).mean(1, keepdim=True).squeeze(1)[:, :16])))


class Models(TorchCase):
    def step(self, model, x):
        y = model(x)
        model.zero_grad()
        y.square().sum().backward()
        return [y.detach(), *(p.grad.clone() for p in model.parameters())]

    def test_repeats_that_do_not_agree_are_no_verdict(self):
        with twt.record(self.path):
            torch.mm(torch.ones(4, 5), torch.ones(5, 6))
        noisy = iter(range(1, 10_000))
        for torch_us, want in ((lambda: 20.0, 20.0), (lambda: 2.0 ** (next(noisy) % 40), 0.0)):
            with mock.patch.object(tw._shapes, "_timers", lambda row, of=torch_us: (of, lambda: (lambda: 10.0))):
                (row,) = twt.compare(self.path)
            self.assertEqual((row.torch_us, row.ours_us), (want, want / 2))
        self.assertRegex(row.reason, "no verdict: repeats do not agree within 10 % .*torch 1.0 to .*compare again")
        self.assertEqual(twt.enable(self.path, margin=0.0), 0)
        self.assertIn("is torch's: no verdict: repeats did not agree", twt.report(self.path))
        # One repeat that was held up is none.
        held = iter([900.0] + [20.0] * 9)
        self.assertEqual(tw._shapes._verdict([lambda: next(held)], 5)[0], [20.0])

    def test_from_recording_to_report(self):
        model, x = Tiny(), torch.randn(3, 2, 4, 4)
        want = self.step(model, x)
        with twt.record(self.path, model):
            self.step(model, x)
        rows = twt.shapes(self.path)
        self.assertEqual(
            {(row.set, row.layers) for row in rows},
            {
                ("aten::convolution", "conv"),
                ("aten::convolution_backward (backward-weight)", "conv"),
                ("aten::addmm", "inner"),
                ("aten::mm", "inner"),
                ("aten::mm", "head"),
                ("aten::mean", ""),
                ("aten::sum", "inner"),
                ("aten::sum", ""),
            },
        )
        self.assertTrue(all(row.problem and row.calls == 1 and not row.torch_us for row in rows), rows)
        with self.assertRaisesRegex(tw.RecordsError, "no file of shapes"):
            twt.enable(__file__)
        # Not compared: nothing is ours.
        self.assertEqual(twt.enable(self.path, margin=0.0), 0)
        self.step(model, x)
        self.assertEqual(answered(), {True: 0, False: 0})
        self.assertNotIn("convolution_backward", twt.report())
        self.assertIn("conv, aten::convolution: was not compared", twt.report(self.path))

        # A busy machine gives shapes no verdict; which answers are ours is asked here, not which are faster.
        with mock.patch.object(tw._shapes, "_WITHIN", float("inf")):
            rows = twt.tune_recorded(self.path, trials=1)
        self.assertTrue(all(row.torch_us > 0 and row.ours_us > 0 and row.device for row in rows), rows)
        self.assertEqual(twt.enable(self.path, margin=1e9), 0)
        self.step(model, x)
        self.assertEqual(answered(), {True: 0, False: 0})
        told = twt.report(self.path)
        self.assertTrue(told.startswith("The device is the emulator `emu`, "), told)
        self.assertRegex(told, "torch is [0-9.]+ times faster|tilewright is [0-9.]+ times faster, the margin is 1e\\+09")
        self.assertRegex(told, "% is torch's: (torch is faster|tilewright is faster by less than the margin)\n")

        self.assertEqual(twt.enable(self.path, margin=0.0), len({row.problem for row in rows}))
        keys = set(model.state_dict())
        self.assertIs(twt.optimize(model), model)
        self.assertEqual(set(model.state_dict()), keys)
        got = self.step(model, x)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        self.assertEqual((answered()[False], answered()[True]), (0, 11))
        told = twt.report(self.path)
        self.assertRegex(told, r"tilewright +addmm 3x16 @ 16x8 float32")
        self.assertRegex(told, r"tilewright +convolution forward 3x2x4x4 @ 4x2x3x3 float32")
        self.assertRegex(told, r"tilewright +convolution backward-weight 3x4x4x4 @ 3x2x4x4 float32")
        self.assertIn("inner, aten::addmm\n", told)
        self.assertIn("100.0% of torch's time in these calls is answered by tilewright", told)

        # Another size of the batch goes to torch, and says so.
        self.step(model, torch.randn(5, 2, 4, 4))
        self.assertRegex(twt.report(), r"torch +mm 5x8 @ 8x5 float32 on cpu: was not recorded")
        twt.disable()
        self.assertEqual(answered(), {True: 0, False: 0})
        for a, b in zip(self.step(model, x), want):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_a_total_is_shared_by_time(self):
        big, small = (torch.randn(40, 40), torch.randn(40, 30)), (torch.randn(3, 4), torch.randn(4, 5))
        with twt.record(self.path):
            torch.mm(*small)
            for _ in range(50):
                torch.mm(*big)
        rows = twt.tune_recorded(self.path, total=0.0)
        self.assertEqual({row.reason for row in rows}, {"was not reached within `total` seconds"})
        self.assertEqual(twt.enable(self.path, margin=0.0), 0)
        heard, weights = [], []
        tune_all = tw._core.tune_all

        def searched(context, problems, *args, **kwargs):
            weights.append(problems)
            return tune_all(context, problems, *args, **kwargs)

        agree = mock.patch.object(tw._shapes, "_WITHIN", float("inf"))
        with agree, mock.patch.object(tw._core, "tune_all", searched):
            rows = twt.tune_recorded(self.path, total=60.0, trials=4, progress=heard.append)
        self.assertEqual({("m40_n30" in problem): calls for problem, calls in weights[0].items()}, {True: 50.0, False: 1.0})
        # Each has its picks before one is searched on, and no more trials than it may.
        trials = [event["problem"] for event in heard if event["event"] == "trial"]
        self.assertEqual(len(set(trials[:3])), 1)
        self.assertEqual(len(set(trials[3:6])), 1)
        self.assertTrue(all(trials.count(problem) <= 4 for problem in weights[0]), trials)
        self.assertEqual((heard[0]["standing"]["problems"], heard[0]["standing"]["reached"]), (2, 0))
        self.assertEqual(heard[-1]["standing"]["reached"], 2)
        self.assertTrue(all(row.gain and not row.reason for row in rows), rows)
        self.assertEqual(twt.shapes(self.path), rows)
        self.assertEqual(twt.enable(self.path, margin=0.0), 2)

        # What a listener raises ends the search; what was found is kept.
        def stop(event):
            raise KeyError("enough")

        with self.assertRaises(KeyError):
            twt.tune_recorded(self.path, total=60.0, progress=stop)

    def test_a_search_goes_on_while_the_worker_starts(self):
        with twt.record(self.path):
            for n in (8, 16):
                torch.mm(torch.randn(16, 16), torch.randn(16, n))
        seen, measure, starting = [], tw._shapes._measure, [True]

        def measured(row, *args, **kwargs):
            seen.append(("compared", row.problem))
            return measure(row, *args, **kwargs)

        def heard(event):
            if event["event"] == "trial":
                seen.append(("tried", event["problem"]))

        late = mock.patch.object(tw._shapes._beside, "is_starting", lambda _: bool(starting) and starting.pop())
        with late, mock.patch.object(tw._shapes, "_WITHIN", float("inf")), mock.patch.object(tw._shapes, "_measure", measured):
            rows = twt.tune_recorded(self.path, total=60.0, trials=3, progress=heard)
        self.assertTrue(all(row.gain and not row.reason for row in rows), rows)
        before = seen[: next(n for n, (what, _) in enumerate(seen) if what == "compared")]
        self.assertEqual({problem for _, problem in before}, {row.problem for row in rows})
        # The first winner, which waited, is compared first.
        self.assertEqual(seen[len(before)], ("compared", before[0][1]))

    def test_optimised_models_travel(self):
        model, x = twt.optimize(Tiny()), torch.randn(3, 2, 4, 4)
        self.assertIsInstance(model.inner, twt.Linear)
        want = model(x)
        torch.testing.assert_close(copy.deepcopy(model)(x), want)
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), want)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        torch.testing.assert_close(torch.load(file, weights_only=False)(x), want)
        plain = Tiny()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(plain(x), want)
        with self.assertRaisesRegex(tw.OperandError, "an instance of torch.nn.Module"):
            twt.optimize(x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), want)

    def test_what_is_not_answered_says_why(self):
        with twt.record(self.path):
            torch.addmm(torch.ones(3, 3), torch.ones(3, 2), torch.ones(2, 3), beta=2)
            torch.nn.functional.conv_transpose1d(torch.ones(1, 2, 4), torch.ones(2, 3, 2))
            torch.mm(torch.ones(3, 2, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64))
            torch.mv(torch.ones(3, 2), torch.ones(2))
        rows = {row.set: row for row in twt.shapes(self.path)}
        for op, why in [("aten::addmm", "beta = 2"), ("aten::convolution", "transposed"), ("aten::mm", "int64"), ("aten::mv", "vector")]:
            self.assertEqual(rows[op].problem, "")
            self.assertIn(why, rows[op].reason)
        # A call that nothing of ours meets says so, with its share of the time.
        os.remove(self.path)
        bias, a, b = torch.ones(3), torch.ones(4, 2), torch.ones(2, 3)
        self.enabled_for(lambda: bias.addmm(a, b), lambda: torch.mm(a, b))
        bias.addmm(a, b), torch.mm(a, b)
        told = twt.report(self.path)
        self.assertRegex(told, r"aten::addmm: addmm's scalars do not pass torch's C interface")
        self.assertRegex(told, r"50.0% of torch's time in these calls is answered by tilewright\n 50.0% is torch's: addmm's scalars")
        with self.assertRaisesRegex(tw.RecordsError, "does not exist"):
            twt.enable(os.path.join(self.folder.name, "none.csv"))

    def enabled_for(self, *calls, only=""):
        """All products and convolutions of these calls, or those of an operator, are ours."""
        with twt.record(self.path):
            for call in calls:
                call()
        with open(self.path, newline="") as file:
            rows = [row for row in csv.DictReader(file) if only in row["set"]]
        device = _shapes.described(tw._core.context_for("cpu"))
        for row in rows:
            row.update(device=device, torch_us=2.0, ours_us=1.0)
        with open(self.path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        # What `prepare` does: each plan is looked at before the first step.
        twt.enable(self.path)
        with mock.patch.object(_operators, "looking", True):
            for call in calls:
                call()
        return twt.enable(self.path)

    def test_torchs_products_are_torchs_products(self):
        """Values, variants with `out`, refusals and batches, all through the overrides."""
        a, b, many = torch.randn(6, 4), torch.randn(4, 5), torch.randn(3, 6, 4)
        want, several = a.double() @ b.double(), many.double() @ b.double()
        each = torch.randn(3, 4, 5)
        self.assertEqual(self.enabled_for(lambda: a @ b, lambda: torch.bmm(many, each)), 2)
        torch.testing.assert_close(torch.mm(a, b).double(), want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(torch.bmm(many, each).double(), many.double() @ each.double(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((many @ b).double(), several, rtol=1e-5, atol=1e-5)
        out = torch.full((6, 5), -1.0)
        self.assertIs(torch.mm(a, b, out=out), out)
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
        wide = torch.zeros(6, 7)
        torch.mm(a, b, out=wide[:, 1:6])
        torch.testing.assert_close(wide[:, 1:6].double(), want, rtol=1e-5, atol=1e-5)
        self.assertEqual(wide[:, [0, 6]].abs().sum(), 0)
        ours = answered()[True]
        self.assertGreaterEqual(ours, 3)
        torch.testing.assert_close(torch.mm(a[:, ::2], b[::2]).double(), a.double()[:, ::2] @ b.double()[::2], rtol=1e-5, atol=1e-5)
        self.assertEqual(torch.mm(a[:0], b).shape, (0, 5))
        self.assertEqual(torch.mm(a.long(), b.long()).dtype, torch.int64)
        self.assertEqual(answered()[True], ours)
        for wrong, says in [(lambda: torch.mm(a, a), "cannot be multiplied"), (lambda: torch.mm(a, b.double()), "same dtype")]:
            with self.assertRaisesRegex(RuntimeError, says):
                wrong()
        with torch.inference_mode():
            torch.testing.assert_close(torch.mm(a, b).double(), want, rtol=1e-5, atol=1e-5)
        x = a.clone().requires_grad_()
        torch.func.grad(lambda x: torch.mm(x, b).square().sum())(a)
        torch.mm(x, b).square().sum().backward()
        torch.testing.assert_close(x.grad.double(), 2 * want @ b.double().t(), rtol=1e-4, atol=1e-4)

    def test_what_torch_raises_passes(self):
        """Products that were handed back before and find no memory for their results now."""
        code = """
            import os, resource, torch, tilewright as tw, tilewright.torch
            tw.use("emu", records="")
            a, b = torch.ones(8192, 1), torch.ones(1, 8192)
            products = [lambda a, b: torch.mm(a, b), lambda a, b: torch.bmm(a[None], b[None])]
            tw._operators.choose_by(lambda problem: "torch is faster")
            for product in products:
                assert (product(a, b) == 1).all() and product(a, b).shape[-1] == 8192
            with open("/proc/self/statm") as file:
                held = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (held + (64 << 20),) * 2)
            for product in products:
                for _ in range(2):
                    try:
                        product(a, b)
                    except RuntimeError as e:
                        print("refused", str(e).splitlines()[0])
                assert (product(a[:64], b) == 1).all()
            print(*(call[0] for call in tw._native.torch_calls() if call[5] == 4))
        """
        said = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        self.assertEqual(len(re.findall("refused .*allocate", said.stdout)), 4, said.stdout)
        self.assertEqual(sorted(said.stdout.splitlines()[-1].split(" ")), ["bmm", "mm"])

    def test_layers_with_a_bias(self):
        """Their results and gradients are torch's, of whatever lies wherever, and come from us where that was chosen."""
        plain, wide = nn.Linear(6, 5), torch.randn(2, 4, 12)
        inputs = [wide[0, :, :6], wide[0, :, 6:], wide[..., :6], wide[:, 1:3, :6], torch.randn(6, 4).t(), wide[0, 0, ::2], wide[0, :0, :6]]

        def step(layer, x, grad):
            x = x.detach().requires_grad_()
            y = layer(x)
            return [y, *torch.autograd.grad(y, (x, layer.weight, layer.bias), grad(y))]

        grads = [lambda y: torch.linspace(-1, 1, y.numel()).reshape(y.shape), torch.ones(()).expand_as]
        want = [step(plain, x, grad) for x in inputs for grad in grads]
        self.enabled_for(lambda: [step(plain, x, grads[0]) for x in inputs])
        layer = twt.optimize(copy.deepcopy(plain))
        for (x, grad), expected in zip([(x, grad) for x in inputs for grad in grads], want):
            for a, b in zip(step(layer, x, grad), expected):
                self.assertEqual(a.shape, b.shape)
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        told = {op: sum(call[5] for call in _native.torch_calls() if call[6] and call[0] == op) for op in ("addmm", "mm")}
        # Those matrices that torch itself hands to `addmm`; of empty ones nothing is asked.
        self.assertEqual(told["addmm"], 6)
        self.assertGreaterEqual(told["mm"], 6)
        # Only what is wanted is computed, and torch answers what was not recorded.
        layer.weight.requires_grad_(False)
        layer(torch.randn(7, 6)).sum().backward()
        self.assertIsNone(layer.weight.grad)
        torch.testing.assert_close(layer.bias.grad, torch.full((5,), 7.0))
        self.assertRegex(twt.report(), r"torch +addmm 7x6 @ 6x5 float32 on cpu: was not recorded")
        for wrong, says in [(torch.randn(4, 5), "cannot be multiplied"), (torch.randn(4, 6).double(), "float64 and float32")]:
            with self.assertRaisesRegex(RuntimeError, says):
                layer(wrong)

    def test_products_with_a_bias_where_they_are_called(self):
        """Models that nobody has changed: layers, attention, and a weight that lies the other way. Torch's functions are its own again afterwards."""
        torchs = nn.functional.linear, torch.addmm

        class Unchanged(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.attention = nn.Linear(6, 8), nn.MultiheadAttention(8, 2, batch_first=True)
                self.weight, self.bias = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(5))

            def forward(self, x):
                y = self.layer(x)
                return torch.addmm(self.bias, self.attention(y, y, y)[0].flatten(0, 1), self.weight)

        model, x = Unchanged(), torch.randn(2, 4, 6)
        want = self.step(model, x)
        self.assertEqual(self.enabled_for(lambda: self.step(model, x)), len({row.problem for row in twt.shapes(self.path)}))
        for a, b in zip(self.step(model, x), want):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        # Weights' gradients lie as the weights: the same products as torch's.
        self.assertEqual(answered()[False], 0, twt.report())
        self.assertIn("100.0% of torch's time in these calls is answered by tilewright", twt.report(self.path))
        with torch.inference_mode():
            torch.testing.assert_close(model(x), want[0], rtol=1e-4, atol=1e-4)
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
            for a, b in zip(self.step(compiled, x), want):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scripted = torch.jit.script(model.layer)
        self.assertIn("aten::linear", str(scripted.graph))
        self.assertEqual(str(torch.fx.symbolic_trace(model.layer).graph).count("torch._C._nn.linear"), 1)
        # What is no layer's is torch's, as torch has it.
        bias, a, b, wide = model.bias.detach(), torch.randn(8, 8), model.weight.detach(), torch.randn(8, 5)
        ours = answered()[True]
        out = torch.empty(8, 5)
        for got in (
            torch.addmm(bias, a, b, beta=2, alpha=0.5) * 2 - 3 * bias,
            torch.addmm(bias, a, b, out=out),
            torch.addmm(input=bias, mat1=a, mat2=b),
            torch.addmm(wide, a, b) - wide + bias,
            torch.addmm(bias[:1], a, b) - bias[:1] + bias,
            nn.functional.linear(a, b.t()) + bias,
        ):
            torch.testing.assert_close(got, a @ b + bias, rtol=1e-4, atol=1e-4)
        with self.assertRaisesRegex(RuntimeError, "mat1 and mat2 shapes cannot be multiplied"):
            torch.addmm(bias, a[:, :3], b)
        self.assertEqual(answered()[True] - ours, 0, twt.report())
        with mock.patch.object(nn.functional, "linear", print):
            twt.disable()
            self.assertEqual(nn.functional.linear, print)
        twt.enable(self.path, margin=1e9)
        self.assertEqual(torch.addmm, torchs[1])
        twt.disable()
        nn.functional.linear = torchs[0]
        twt.enable(self.path)
        twt.disable()
        self.assertEqual((nn.functional.linear, torch.addmm), torchs)

    def test_tensors_on_different_devices(self):
        """Enabled or not, torch says what does not fit; none of it is read."""
        bias, a, b, x, w = torch.ones(8), torch.ones(8, 8), torch.ones(8, 8), torch.ones(1, 8, 6, 6), torch.ones(8, 8, 3, 3)
        many, how = a[None], ([1] * 2, [0] * 2, [1] * 2, False, [0] * 2, 1)
        far = {name: value.to("meta") for name, value in (("bias", bias), ("a", a), ("b", b), ("x", x), ("w", w), ("many", many))}
        calls = [
            lambda t: torch.mm(t["a"], t["b"]),
            lambda t: torch.bmm(t["many"], t["many"] if t["b"].is_cpu else many),
            lambda t: torch.addmm(t["bias"], t["a"], t["b"]),
            lambda t: nn.functional.linear(t["a"], t["b"], t["bias"]),
            lambda t: nn.functional.conv2d(t["x"], t["w"]),
            lambda t: torch.ops.aten.convolution_backward(t["x"][:, :, :4, :4], t["x"], t["w"], [8], *how, [True] * 3)[0],
        ]
        near = {"bias": bias, "a": a, "b": b, "x": x, "w": w, "many": many}

        def ends():
            for call in calls:
                for name in near:
                    try:
                        yield call({**near, name: far[name]}).device.type
                    except (NotImplementedError, RuntimeError) as e:
                        yield f"{name}: {e}".splitlines()[0]

        want = list(ends())
        self.enabled_for(*(lambda call=call: call(near) for call in calls))
        self.assertEqual(list(ends()), want)

    def test_gradients_of_layers_nobody_asks_for(self):
        x, layer = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), twt.optimize(nn.Linear(4, 5).double())
        self.enabled_for(lambda: nn.functional.linear(x, layer.weight, layer.bias))
        # `gradcheck` also leaves results unused.
        self.assertTrue(torch.autograd.gradcheck(lambda x, w, b: nn.functional.linear(x, w, b), (x, layer.weight, layer.bias), atol=1e-4))
        self.assertGreater(answered()[True], 0)

    def test_layers_in_transforms_and_modes(self):
        """Where torch does more than run a layer, it does so as without us."""
        plain, x = nn.Linear(6, 5), torch.randn(4, 6)

        def penalty(layer):
            at = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(layer(at).square().sum(), at, create_graph=True)
            return torch.autograd.grad(slope.square().sum(), (layer.weight, layer.bias))

        def autocast(layer):
            with torch.autocast("cpu", torch.bfloat16):
                return layer(x)

        runs = (
            penalty,
            autocast,
            lambda layer: torch.func.jvp(layer, (x,), (torch.ones_like(x),)),
            lambda layer: torch.func.vmap(layer)(x[:, None]),
            lambda layer: torch.func.grad(lambda x: layer(x).square().sum())(x),
            lambda layer: copy.deepcopy(layer).to(torch.complex64)(x.to(torch.complex64) * 1j),
        )
        want = [run(plain) for run in runs]
        self.enabled_for(lambda: plain(x), lambda: plain(x.clone().requires_grad_()).sum().backward())
        layer = twt.optimize(copy.deepcopy(plain))
        for of in (layer, plain):
            for run, expected in zip(runs, want):
                torch.testing.assert_close(run(of), expected, rtol=1e-5, atol=1e-5)
        with twt.record(os.path.join(self.folder.name, "again.csv")):
            layer(x), plain(x)
        self.assertEqual([row.set for row in twt.shapes(os.path.join(self.folder.name, "again.csv"))], ["aten::addmm"])

    def test_layers_under_autocast(self):
        """A layer with a bias is ours in the region's type; each parameter is converted once in a region."""
        layer, x = nn.Linear(6, 5), torch.randn(4, 6)

        def step(layer):
            layer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                y = layer(x)
                with torch.no_grad():
                    without = layer(x)
                loss = (layer(2 * x) + torch.addmm(layer.bias, x, layer.weight.t()) + y + without).square().sum()
            loss.backward()
            return [y, loss, layer.weight.grad.clone(), layer.bias.grad.clone()]

        torchs = torch.clear_autocast_cache
        want = step(layer)
        self.enabled_for(lambda: step(layer))
        for of in (layer, twt.optimize(copy.deepcopy(layer))):
            before = answered()[True]
            copies = []
            lowered = tw._autocast.lowered
            with mock.patch.object(tw._autocast, "lowered", lambda of, dtype: copies.append(lowered(of, dtype)) or copies[-1]):
                got = step(of)
            self.assertEqual([t.dtype for t in got], [t.dtype for t in want])
            for a, b in zip(got, want):
                torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
            self.assertGreaterEqual(answered()[True] - before, 4)
            weights = [t for t in copies if t.shape == (5, 6)]
            # Two with gradients are one copy, that of `addmm` is of a view, and one has no gradients.
            self.assertEqual((len(weights), len({id(t) for t in weights}), [t.requires_grad for t in weights].count(False)), (4, 3, 1))
            self.assertEqual(tw._autocast._kept, {}, "the region has ended")
        with torch.autocast("cpu", torch.bfloat16):
            first = layer(x)
            with torch.no_grad():
                layer.weight.zero_()
            self.assertFalse(torch.equal(layer(x), first), "a changed parameter is converted again")
        twt.disable()
        self.assertIs(torch.clear_autocast_cache, torchs)

    def test_directions_of_a_convolution_are_chosen_apart(self):
        for only in ("convolution_backward (backward-data)", "convolution_backward (backward-weight)", "aten::convolution"):
            model = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Conv2d(4, 3, 2, groups=1, bias=False))
            x = torch.randn(2, 2, 7, 6, requires_grad=True)
            want = [*self.step(model, x), x.grad.clone()]
            self.assertGreaterEqual(self.enabled_for(lambda: self.step(model, x), only=only), 2)
            x.grad = None
            got = [*self.step(model, x), x.grad]
            for a, b in zip(got, want):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            told = {call[0] for call in _native.torch_calls() if call[6]}
            directions = {"forward", "backward-data", "backward-weight"} if only == "aten::convolution" else {only.split("(")[1][:-1]}
            self.assertEqual(told, {f"convolution {direction}" for direction in directions})
            twt.disable()
            os.remove(self.path)

    def test_graphs_with_our_operators(self):
        """The pass alone, on graphs with convolutions, and of sizes that are left open."""
        model, x = Tiny(), torch.randn(3, 2, 4, 4)
        want = self.step(model, x)
        self.enabled_for(lambda: self.step(model, x))
        twt.enable(self.path, compiled=True)
        for dynamic, count in ((False, 2), (True, 0)):
            seen = []

            def compiled(module, _, seen=seen):
                config.post_grad_custom_post_pass(module.graph)
                module.recompile()
                seen.extend(str(node.target) for node in module.graph.nodes if "tilewright" in str(node.target))
                return make_boxed_func(module)

            torch._dynamo.reset()
            step = torch.compile(model, backend=aot_autograd(fw_compiler=compiled), dynamic=dynamic)
            for a, b in zip(self.step(step, x), want):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            self.assertEqual(len(seen), count, seen)
            self.assertNotIn("has not run since", twt.report(self.path))
        one = config.post_grad_custom_post_pass.uuid()
        # Products keep the widths that were compared, where one of them is ours.
        self.assertFalse(config.shape_padding)
        twt.enable(self.path, margin=1e9, compiled=True)
        self.assertTrue(config.shape_padding)
        twt.enable(self.path, margin=1.5, compiled=True)
        self.assertNotEqual(config.post_grad_custom_post_pass.uuid(), one)
        twt.disable()
        self.assertTrue(config.shape_padding)
        self.assertIsNone(config.post_grad_custom_post_pass)
        with config.patch(post_grad_custom_post_pass=print):
            with self.assertRaisesRegex(tw.ProblemError, "of another package"):
                twt.enable(self.path, compiled=True)
            twt.disable()
            self.assertIs(config.post_grad_custom_post_pass, print)

    def test_max_autotune_measures_ours(self):
        """Ours is a choice where it was compared, and right where it is the only one."""
        model, x = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4, bias=False)), torch.randn(8, 6)
        want = model(x)
        self.enabled_for(lambda: model(x))
        plain = choices.InductorChoices.get_template_configs
        for at, count in ((x, 2), (torch.randn(9, 6), 0)):
            twt.enable(self.path, compiled=True)
            seen = []

            def only_ours(self, inputs, templates, name, *args, seen=seen, **kwargs):
                found = plain(self, inputs, templates, name, *args, **kwargs)
                seen.append((name, found))
                return [] if count else found

            torch._dynamo.reset()
            options = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}
            with mock.patch.object(choices.InductorChoices, "get_template_configs", only_ours), torch.no_grad():
                got = torch.compile(model, options=options, dynamic=False)(at)
            self.assertEqual({name for name, _ in seen}, {"addmm", "mm"})
            torch.testing.assert_close(got, model(at), rtol=1e-4, atol=1e-5)
            self.assertEqual(any(call[0] == "addmm" and call[6] for call in _native.torch_calls()), count > 0)
            twt.disable()
        torch.testing.assert_close(model(x), want)
        self.assertNotIsInstance(V.choices, _compiled.Choices)

    def test_max_autotune_of_a_training_step(self):
        """As users write it, in one graph each way: products measured beside torch's, convolutions in the graphs, results and gradients right."""

        class Residual(Tiny):
            def forward(self, x):
                x = torch.relu(self.conv(x)).flatten(2).mean(1)
                return self.head(torch.relu(self.inner(x)) + x[:, :8])

        model, x = Residual(), torch.randn(3, 2, 4, 4)
        want = self.step(model, x)
        self.enabled_for(lambda: self.step(model, x))
        twt.enable(self.path, compiled=True)
        plain, offered = _compiled.Choices.get_template_configs, []

        def listened(self, inputs, templates, name, *args, **kwargs):
            found = plain(self, inputs, templates, name, *args, **kwargs)
            offered.extend(name for each in found if getattr(each, "choice", None) in _compiled._KERNELS.values())
            return found

        torch._dynamo.reset()
        backends = {"max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}
        with config.patch(backends), mock.patch.object(_compiled.Choices, "get_template_configs", listened):
            compiled = torch.compile(model, mode="max-autotune", fullgraph=True)
            for a, b in zip(self.step(compiled, x), want):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        # Forward the layers with and without a bias, backward two gradients of each; one of these may lie otherwise than it was recorded.
        self.assertEqual(offered.count("addmm"), 1, offered)
        self.assertIn(offered.count("mm"), (4, 5), offered)
        self.assertRegex(twt.report(), r"tilewright +conv_")
        twt.disable()

    def test_convolutions_are_torchs_convolutions(self):
        """Through the overrides: memory formats, copies, what we refuse, and double gradients."""
        x, w, bias = torch.randn(2, 4, 5, 6), torch.randn(6, 2, 3, 2), torch.randn(6)
        last = dict(memory_format=torch.channels_last)
        calls = [
            lambda x=x: nn.functional.conv2d(x, w, bias, (2, 1), 1, 1, 2),
            lambda x=x.contiguous(**last): nn.functional.conv2d(x, w, None, 1, 0, 2, 2),
            lambda x=x[:, ::2]: nn.functional.conv2d(x, w[:4], padding=1),
            lambda x=x.double().contiguous(**last): nn.functional.conv2d(x, w.double(), padding=1, groups=2),
            lambda x=x[:, :1].contiguous(**last): nn.functional.conv2d(x, w[:, :1].contiguous(**last)),
            lambda x=x[:, :, 0]: nn.functional.conv1d(x, torch.ones(3, 4, 2), bias[1:4], 2, 1),
        ]
        want = [call() for call in calls]
        self.enabled_for(*calls)
        for call, theirs in zip(calls, want):
            got = call()
            self.assertEqual(got.stride(), theirs.stride())
            torch.testing.assert_close(got, theirs, rtol=1e-4, atol=1e-5)
        # With one channel both formats are the same, and torch takes the other one: compiled graphs rely on that.
        self.assertEqual(answered(), {True: len(calls) - 1, False: 1})
        self.assertRegex(twt.report(), r"torch +convolution forward 2x1x5x6 .*: torch's result lies otherwise")
        # Torch's alone.
        self.assertEqual(nn.functional.conv_transpose2d(x, torch.ones(4, 2, 3, 2)).shape, (2, 2, 7, 7))
        self.assertEqual(nn.functional.conv2d(x[:0], w, groups=2).shape, (0, 6, 3, 5))
        self.assertEqual(nn.functional.conv2d(x.double(), w.double(), groups=2).dtype, torch.float64)
        for wrong in (lambda: nn.functional.conv2d(x, w), lambda: nn.functional.conv2d(x, w.double(), groups=2)):
            with self.assertRaises(RuntimeError):
                wrong()
        self.assertEqual(answered()[True], len(calls) - 1)

    def test_convolutions_that_fall_back_are_torchs(self):
        """Known as torch's by their sizes alone: types and kinds of another go to torch as well, which refuses what it refuses."""
        x, w, bias, y = torch.randn(2, 4, 5, 5), torch.randn(4, 4, 3, 3), torch.randn(4), torch.randn(2, 4, 5, 5)
        how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

        def back(y=y, x=x, w=w, sizes=None, wanted=(True, True, False)):
            return torch.ops.aten.convolution_backward(y, x, w, sizes, *how, list(wanted))

        right = [
            lambda: nn.functional.conv2d(x, w, bias, padding=1),
            lambda: nn.functional.conv2d(x, w, padding=1),
            lambda: nn.functional.conv_transpose2d(x, w, padding=1),
            lambda: back(sizes=[4], wanted=(True, True, True)),
            lambda: back(wanted=(False, True, False)),
            lambda: back(wanted=(True, False, False)),
        ]
        wrong = [
            lambda: nn.functional.conv2d(x, w.double(), padding=1),
            lambda: nn.functional.conv2d(x, w, bias.double(), padding=1),
            lambda: nn.functional.conv2d(x, w, bias[:3], padding=1),
            lambda: nn.functional.conv2d(x, w, padding=(1, 1, 1, 1, 1)),
            lambda: back(w=w.double()),
            lambda: back(y=y[:1]),
        ]

        def messages():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for call in wrong:
                    with self.assertRaises(RuntimeError) as raised:
                        call()
                    yield str(raised.exception).splitlines()[0]

        want, refused = [call() for call in right], list(messages())
        small = torch.randn(1, 2, 3, 3, requires_grad=True)
        self.enabled_for(lambda: nn.functional.conv2d(small, torch.ones(2, 2, 1, 1)).sum().backward())
        for _ in range(2):
            for call, theirs in zip(right, want):
                torch.testing.assert_close(call(), theirs, rtol=0, atol=0)
            self.assertEqual(list(messages()), refused)
        self.assertEqual(answered()[True], 0)
        told = twt.report()
        for direction in ("forward", "backward-data", "backward-weight"):
            self.assertRegex(told, rf"torch +convolution {direction} .*: was not recorded")

    def test_second_gradients_of_convolutions(self):
        def penalty():
            at, weight = (torch.linspace(-1, 1, n).reshape(shape).requires_grad_() for n, shape in ((60, (1, 3, 4, 5)), (54, (2, 3, 3, 3))))
            (slope,) = torch.autograd.grad(nn.functional.conv2d(at, weight, padding=1).square().sum(), at, create_graph=True)
            return torch.autograd.grad(slope.square().sum(), (at, weight))

        want = penalty()
        self.enabled_for(penalty)
        for a, b in zip(penalty(), want):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        self.assertGreater(answered()[True], 3)

    def test_threads(self):
        a, b = torch.randn(8, 8), torch.randn(8, 8)
        self.enabled_for(lambda: a @ b)
        results = {}

        def work(i):
            results[i] = [torch.mm(a + i, b) for _ in range(5)]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(answered(), {True: 20, False: 0})
        for i, several in results.items():
            for got in several:
                torch.testing.assert_close(got.double(), (a + i).double() @ b.double(), rtol=1e-4, atol=1e-4)

    def test_nothing_is_tuned_by_a_step(self):
        a, b = torch.randn(6, 4), torch.randn(4, 5)
        self.enabled_for(lambda: a @ b)
        torch.mm(a, b)
        self.assertEqual(tw._core.context_for("cpu").records(), [])


class Benchmark(unittest.TestCase):
    """`benches/torch_models.py`: what one model does costs no other its rows."""

    BAD = """
class Bad(nn.Linear):
    def __init__(self, way):
        super().__init__(4, 4)
        self.way = way

    def forward(self, x):
        import os, signal, time
        if self.way == "raises":
            raise ValueError("a | b")
        if self.way == "aborts":
            os.abort()
        if self.way == "hangs":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(600)


for way in ("raises", "aborts", "hangs", "sleeps"):
    TINY[way] = MODELS[way] = (lambda way=way: Bad(way), lambda: torch.randn(2, 4), False)
"""

    BENCHES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "benches")

    def test_host_times_then_compiled_models_with_what_was_found(self):
        """Two runs, as a short time on a device is used: the second goes on with the first one's shapes and tables."""
        with tempfile.TemporaryDirectory() as folder:

            def run(*options):
                command = [sys.executable, os.path.join(self.BENCHES, "torch_models.py"), "--tiny", "--out", folder, *options]
                said = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual(said.returncode, 0, said.stdout + said.stderr)

            run("--models", "")
            compiled = ["--ways", "compile", "--compile", "max-autotune-no-cudagraphs", "--compile-choices", "4"]
            run("--models", "odd", "--models-only", "--keep-shapes", "--budget", "1", "--total", "120", "--margin", "0", *compiled)
            with open(os.path.join(folder, "models.jsonl")) as file:
                told = [json.loads(line) for line in file]
            host = {(row["host"], row["by"]): row["us"] for row in told if "host" in row}
            for name in ("mm", "F.linear with bias", "convolution", "convolution_backward", "sum", "logsumexp"):
                for who in ("torch", "enabled, torch answers", "enabled, tilewright answers"):
                    self.assertGreater(host[name, who], 0.0)
            searched, timed = [row for row in told if "model" in row]
            self.assertEqual((searched["way"], timed["way"]), ("searched", "compile max-autotune-no-cudagraphs"))
            self.assertGreater(min(timed["torch_ms"], timed["enabled_ms"]), 0.0)
            # Shapes without a verdict, as a busy machine gives them, have no time to share.
            shares = sum(timed["answered_by"].values())
            self.assertTrue(shares == 0.0 or abs(shares - 1.0) <= 0.01, timed)
            with open(os.path.join(folder, "models.md")) as file:
                self.assertRegex(file.read(), r"(?s)\| convolution_backward \|.*\| odd, training \| compile max-autotune-no-cudagraphs \|")

    def test_a_model_that_fails_costs_no_other(self):
        benches = self.BENCHES
        # The copies find what they share with the scripts of the bench.
        shared = os.path.join(benches, "../../bench/scripts")
        paths = [path for path in (shared, os.environ.get("PYTHONPATH")) if path]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(benches):
                with open(os.path.join(benches, name)) as file, open(os.path.join(folder, name), "w") as copied:
                    copied.write(file.read().replace("GRACE = 15.0", "GRACE = 1.0") + (self.BAD if name == "torch_cases.py" else ""))

            def rows(names, *options):
                command = [sys.executable, os.path.join(folder, "torch_models.py"), "--tiny", "--models-only", "--models", names]
                command += ["--budget", "1", "--out", folder, *options]
                said = subprocess.run(command, capture_output=True, text=True, env=env)
                self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
                with open(os.path.join(folder, "models.md")) as file:
                    return [line for line in file.read().split("\n") if line.startswith("| ")][1:]

            raises, aborts, odd = rows("raises,aborts,odd")
            self.assertEqual(raises, "| raises | ValueError: a / b |")
            self.assertEqual(aborts, f"| aborts | ended its process with -{signal.SIGABRT} |")
            # The result and one gradient for each parameter were compared.
            self.assertRegex(odd, r"^\| odd, training \| eager \|.*( \| \d\.\de-\d\d, \d\.\de-\d\d){2} \|$")
            # As soon as they were there: what the search took, then the times.
            with open(os.path.join(folder, "models.jsonl")) as file:
                searched, eager = map(json.loads, file)
            self.assertEqual((searched["way"], eager["way"], eager["trains"]), ("searched", "eager", True))
            self.assertGreater(min(searched["shapes"], eager["torch_ms"], eager["enabled_ms"], eager["gain"]), 0)
            hangs, sleeps = rows("hangs,sleeps", "--limit", "2")
            self.assertEqual(hangs, "| hangs | did not answer and was killed |")
            self.assertEqual(sleeps, "| sleeps | more takes longer than 2 s |")


class Imports(unittest.TestCase):
    def test_a_missing_and_an_old_torch_are_named(self):
        missing = "raise ImportError('No module named torch')"
        for text, says in [(missing, "pip install torch"), ("__version__ = '2.7.1+cu'", "this is 2.7.1")]:
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "torch.py"), "w") as file:
                    file.write(text)
                code = textwrap.dedent(
                    f"""
                    import sys
                    sys.path.insert(0, {folder!r})
                    import tilewright
                    try:
                        import tilewright.torch
                    except ImportError as e:
                        print(e)
                    """
                )
                said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
                self.assertEqual(said.returncode, 0, said.stderr)
                self.assertIn(says, said.stdout)


if __name__ == "__main__":
    unittest.main()
