"""`tilewright.torch` on a CUDA device: streams, graphs, alignments, enabled models."""

import gc
import os
import tempfile
import threading
import unittest
from unittest import mock

import torch

import tilewright as tw
import tilewright.torch as twt
from tilewright import _operators, _shapes


def close(got, *factors, bias=None, residual=None, activation=None):
    wide = [x.double() for x in factors]
    want = wide[0] @ wide[1]
    if bias is not None:
        want = want + bias.double()
    if activation is not None:
        want = _operators.activate(want, activation)
    if residual is not None:
        want = want + residual.double()
    scale = wide[0].abs() @ wide[1].abs() + 1
    error = ((got.double() - want).abs() / scale).max().item()
    assert error < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[got.dtype], error


@unittest.skipUnless(torch.cuda.is_available(), "CUDA device")
class OnCuda(unittest.TestCase):
    def random(self, *shape, dtype=torch.bfloat16):
        return torch.randn(shape, device="cuda", dtype=dtype)

    def test_values_alignments_and_workspace(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for m, n, k in [(256, 512, 128), (1000, 1001, 999), (64, 64, 16384), (1, 4096, 4096)]:
                a, b = self.random(m, k, dtype=dtype), self.random(k, n, dtype=dtype)
                close(twt.mm(a, b), a, b)
                close(twt.mm(a, self.random(n, k, dtype=dtype).t().copy_(b)), a, b)
                odd = self.random(m * k + 1, dtype=dtype)[1:].view(m, k)
                close(twt.mm(odd, b), odd, b)
        x, w, bias, residual = self.random(3, 100, 768), self.random(3072, 768), self.random(3072), self.random(3, 100, 3072)
        close(twt.linear(x, w, bias, "gelu", residual), x, w.t(), bias=bias, residual=residual, activation="gelu")

    def test_streams(self):
        a, b = self.random(2048, 2048), self.random(2048, 2048)
        streams = [torch.cuda.Stream() for _ in range(2)]
        twt.mm(a, b)
        results = []
        for turn in range(20):
            stream = streams[turn % 2]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                factor = a * (turn + 1)
                results.append((factor, twt.mm(factor, b)))
        torch.cuda.synchronize()
        for factor, got in results:
            close(got, factor, b)

    def test_capture_and_replay(self):
        x, w, bias = self.random(512, 1024), self.random(1024, 1024), self.random(1024)
        twt.linear(x, w, bias, "relu")
        torch.cuda.synchronize()
        twt.disable()
        before = twt.prepared()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = twt.linear(x, w, bias, "relu")
            z = twt.mm(y, w)
            unseen = twt.mm(y[:100], w)
        # What is first seen while a graph is captured is torch's, and counted; nothing is compiled then.
        self.assertEqual(twt.prepared(), before)
        self.assertEqual(set(twt.unprepared().values()), {1})
        self.assertEqual(len(twt.unprepared()), 2)
        for _ in range(3):
            x.copy_(self.random(512, 1024))
            graph.replay()
            torch.cuda.synchronize()
            close(y, x, w.t(), bias=bias, activation="relu")
            close(z, y, w)
            close(unseen, y[:100], w)

    def test_enabled_models_are_captured(self):
        """What was recorded, tuned and compared runs by our kernels, also in a graph, forward and backward."""
        self.addCleanup(twt.disable)
        model = torch.nn.Sequential(torch.nn.Linear(320, 640, bias=False), torch.nn.GELU(), torch.nn.Linear(640, 200, bias=True))
        model = model.cuda().bfloat16()
        x = self.random(300, 320)

        def step():
            model.zero_grad(set_to_none=True)
            y = model(x)
            y.float().square().mean().backward()
            return y

        want = step().detach().float()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "shapes.csv")
            with twt.record(path, model):
                step()
            rows = twt.tune_recorded(path, trials=4)
            self.assertTrue(all(row.torch_us > 0 and row.ours_us > 0 for row in rows), rows)
            self.assertGreater(twt.enable(path, margin=0.0), 0)
        twt.optimize(model)
        graph, y = self.graph_of(step)
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(y.detach().float(), want, rtol=3e-2, atol=3e-2)
        self.assertNotIn("first seen while", twt.report())
        self.assertRegex(twt.report(), "tilewright +mm")

    def test_split_tails_on_streams(self):
        """A plan whose last round of tiles is split along k: replayed from a graph, launched twice at once, and beside a kernel that spins. All results
        are bitwise equal: the fix-up has a fixed order, and no work-group waits for another."""
        a, b = self.random(1500, 2048), self.random(2048, 1536)
        want = torch.empty(1500, 1536, device="cuda", dtype=torch.bfloat16)
        context = tw.Context("cuda:0", records="")
        operation = context.operation(_shapes.product_problem(a, b))
        operation.set_plan(
            "A_MIC1_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2__B_MIC16_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2__C_UNR64_GAL3_PUN1_ICE1_IWI0_SZT0_"
            "MAD0_NAW16_UFO0_MAC256_SKW10_AFI1_MIA0_CST1_PFG4_BUF5_LWV1_UNI2_SWP1_PST132_TSP4"
        )
        kernels = operation.prepare((256, 256, 256))
        self.assertIn("TSP4", kernels.plan)
        self.assertGreater(kernels.workspace_bytes, 0)

        def launched(c):
            space = torch.empty(kernels.workspace_bytes, dtype=torch.uint8, device="cuda")
            addresses = {"a": a.data_ptr(), "b": b.data_ptr(), "c": c.data_ptr(), "workspace": space.data_ptr()}
            kernels.launch(addresses, stream=torch.cuda.current_stream().cuda_stream)
            return c

        def poisoned():
            return torch.full_like(want, float("nan"))

        launched(want)
        close(want, a, b)
        graph, replayed = torch.cuda.CUDAGraph(), poisoned()
        with torch.cuda.graph(graph):
            launched(replayed)
        for _ in range(100):
            replayed.fill_(float("nan"))
            graph.replay()
            self.assertTrue(torch.equal(replayed, want))
        streams = [torch.cuda.Stream() for _ in range(3)]
        results = []
        torch.cuda.synchronize()
        for turn in range(100):
            with torch.cuda.stream(streams[turn % 2]):
                results.append(launched(poisoned()))
        torch.cuda.synchronize()
        self.assertTrue(all(torch.equal(c, want) for c in results))
        ended = torch.cuda.Event()
        with torch.cuda.stream(streams[2]):
            torch.cuda._sleep(2_000_000_000)
            ended.record()
        with torch.cuda.stream(streams[0]):
            beside = launched(poisoned())
        streams[0].synchronize()
        self.assertFalse(ended.query(), "the kernel that spins ended before the product")
        self.assertTrue(torch.equal(beside, want))
        torch.cuda.synchronize()

    def graph_of(self, run):
        """A captured step, after three on a side stream, with torch's strictest mode of capture."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = run()
        return graph, y

    def test_what_is_freed_during_a_capture_does_not_end_it(self):
        """Contexts, kernels and memory that are collected on this thread, and made and freed on another."""
        a, b = self.random(256, 128), self.random(128, 96)
        problem = _shapes.product_problem(a, b)

        def made():
            context = tw.Context("cuda:0", records="")
            context.prepared(problem, (256, 256, 256))
            return context

        twt.mm(a, b)
        graph, garbage, errors = torch.cuda.CUDAGraph(), [made()], []

        def beside():
            try:
                made()
            except tw.Error as e:
                errors.append(e)

        with torch.cuda.graph(graph):
            y = twt.mm(a, b)
            garbage.clear()
            gc.collect()
            other = threading.Thread(target=beside)
            other.start()
            other.join()
            z = twt.mm(a, b)
        self.assertEqual(errors, [])
        a.copy_(self.random(256, 128))
        graph.replay()
        torch.cuda.synchronize()
        close(y, a, b)
        close(z, a, b)

    def test_graphs_outlive_their_contexts(self):
        a, b, bias = self.random(512, 512), self.random(512, 512), self.random(512)
        graphs = []
        for turn in range(3):
            context = tw.use("cuda:0", records="")
            graphs.append(self.graph_of(lambda: (twt.mm(a, b), twt.linear(a, b, bias, "relu"), tw.gemm(a, b))))
            del context
            gc.collect()
        for _ in range(2):
            a.copy_(self.random(512, 512))
            for graph, (y, z, w) in graphs:
                graph.replay()
                torch.cuda.synchronize()
                close(y, a, b)
                close(z, a, b.t(), bias=bias, activation="relu")
                close(w, a, b)

    def test_a_network_of_separable_convolutions_is_captured(self):
        """Training, as MobileNet-V3: depthwise convolutions, gates, norms, a classifier; all shapes compared are ours, prepared or not."""
        self.addCleanup(twt.disable)
        nn = torch.nn

        class Gate(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

            def forward(self, x):
                return x * nn.functional.hardsigmoid(self.up(torch.relu(self.down(nn.functional.adaptive_avg_pool2d(x, 1)))))

        layers = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
        for size, stride in ((3, 1), (5, 2)):
            layers += [nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.Hardswish()]
            layers += [nn.Conv2d(64, 64, size, stride, size // 2, groups=64, bias=False), nn.BatchNorm2d(64), Gate(64)]
            layers += [nn.Conv2d(64, 16, 1, bias=False), nn.BatchNorm2d(16)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 64), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(64, 10))
        model = model.cuda().bfloat16().to(memory_format=torch.channels_last)
        x = self.random(16, 3, 48, 48).contiguous(memory_format=torch.channels_last)

        def step():
            model.zero_grad(set_to_none=True)
            y = model(x)
            y.float().square().mean().backward()
            return y.detach()

        self.graph_of(step)
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(_shapes, "_WITHIN", float("inf")):
            path = os.path.join(folder, "shapes.csv")
            with twt.record(path, model):
                step()
            twt.tune_recorded(path, total=5.0)
            self.assertGreater(twt.enable(path, margin=0.0), 0)
            twt.optimize(model)
            for prepared in (False, True):
                if prepared:
                    twt.prepare(step, (), path, margin=0.0, repeats=1)
                graph, y = self.graph_of(step)
                for _ in range(2):
                    graph.replay()
                torch.cuda.synchronize()
                self.assertTrue(torch.isfinite(y).all())
        self.assertRegex(twt.report(), "tilewright +convolution")

    def test_enabled_reductions(self):
        """Torch's results, once ours are in their place; on a stream of one's own and captured, too."""
        self.addCleanup(twt.disable)
        half, x = self.random(300, 1001), self.random(300, 1001, dtype=torch.float32)
        calls = [
            lambda: half.sum(1),
            lambda: half.sum(0, dtype=torch.float32),
            lambda: x.mean(1),
            lambda: half.amax(1),
            lambda: x.amin(0),
            lambda: x.argmax(1),
            lambda: torch.logsumexp(x, 1),
            lambda: x.max(1),
            lambda: x.min(0, keepdim=True),
        ]
        run = lambda: [y for call in calls for got in [call()] for y in (got if isinstance(got, tuple) else (got,))]  # noqa: E731
        want = run()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "shapes.csv")
            with twt.record(path):
                run()
            rows = twt.compare(path, repeats=1)
            self.assertEqual([row.reason for row in rows if not row.gain], [])
            self.assertEqual(twt.enable(path, margin=0.0), len(calls))
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            several = [run()]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            several.append(run())
        graph.replay()
        torch.cuda.synchronize()
        for got in several:
            for ours, theirs in zip(got, want):
                self.assertEqual((ours.shape, ours.dtype), (theirs.shape, theirs.dtype))
                torch.testing.assert_close(ours, theirs, rtol=2e-2 if theirs.dtype == torch.bfloat16 else 1e-4, atol=1e-2)
        self.assertEqual(sum(told[5] for told in tw._native.torch_calls() if told[6]), 2 * len(calls))

    def test_inductor_takes_ours(self):
        self.addCleanup(twt.disable)
        for mode in ("default", "reduce-overhead"):
            torch._dynamo.reset()
            model = torch.nn.Sequential(torch.nn.Linear(256, 320), torch.nn.Linear(320, 96, bias=False)).cuda().bfloat16()
            x = self.random(200, 256)
            want = model(x)
            want.float().square().mean().backward()
            grads = [p.grad.clone() for p in model.parameters()]
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "shapes.csv")
                with twt.record(path, model):
                    model(x).float().square().mean().backward()
                twt.compare(path)
                twt.enable(path, margin=0.0, compiled=True)
            compiled = torch.compile(model, fullgraph=True, mode=None if mode == "default" else mode)
            for _ in range(4):
                model.zero_grad(set_to_none=True)
                y = compiled(x)
                y.float().square().mean().backward()
            torch.testing.assert_close(y, want, rtol=3e-2, atol=3e-2)
            for p, grad in zip(model.parameters(), grads):
                torch.testing.assert_close(p.grad, grad, rtol=5e-2, atol=1e-3)
            self.assertRegex(twt.report(), "tilewright +mm")
            twt.disable()

    def test_convolutions(self):
        for form in (torch.contiguous_format, torch.channels_last):
            x = self.random(4, 64, 28, 28).contiguous(memory_format=form).requires_grad_()
            w = (self.random(96, 64, 3, 3) / 24).contiguous(memory_format=form).requires_grad_()
            bias = self.random(96).requires_grad_()
            got = twt.convolution(x, w, bias, 2, 1)
            cotangent = torch.randn_like(got)
            ours = [got, *torch.autograd.grad(got, (x, w, bias), cotangent)]
            wide = [t.detach().double().requires_grad_() for t in (x, w, bias)]
            want = torch.nn.functional.conv2d(*wide, 2, 1)
            theirs = [want, *torch.autograd.grad(want, wide, cotangent.double())]
            for a, b in zip(ours, theirs):
                self.assertLess(((a.double() - b).abs().max() / b.abs().max()).item(), 2e-2)

    def test_training_step_compiled(self):
        torch._dynamo.reset()
        x, w = self.random(128, 256), self.random(64, 256).requires_grad_()
        step = torch.compile(lambda x, w: twt.linear(x, w, activation="silu").sum(), fullgraph=True)
        step(x, w).backward()
        other = w.detach().clone().requires_grad_()
        torch.nn.functional.silu(torch.nn.functional.linear(x, other)).sum().backward()
        torch.testing.assert_close(w.grad, other.grad, rtol=3e-2, atol=0.5)

    def test_arrays_by_dlpack_and_current_device(self):
        a, b = self.random(64, 96, dtype=torch.float32), self.random(96, 80, dtype=torch.float32)
        close(tw.gemm(a, b), a, b)
        with self.assertRaisesRegex(tw.OperandError, "cpu"):
            tw.gemm(a, b.cpu())
        with self.assertRaisesRegex(tw.OperandError, "same device"):
            twt.mm(a, b.cpu())
        self.assertEqual(torch.cuda.current_device(), 0)

    def test_functions_on_arrays_follow_the_current_stream(self):
        # Terms that are split over work-groups need workspace; so do values of the result.
        a, b = self.random(64, 16384, dtype=torch.float32), self.random(16384, 64, dtype=torch.float32)
        later = torch.randn_like(a)
        tw.gemm(a, b, reduce=["max:n"])
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # A tenth of a second, so that a launch elsewhere reads the old values.
            torch.cuda._sleep(200_000_000)
            a.copy_(later)
            found, most = tw.gemm(a, b, reduce=["max:n"])
        stream.synchronize()
        close(found, a, b)
        torch.testing.assert_close(most.flatten(), found.max(1).values, rtol=1e-4, atol=1e-3)

    def test_arrays_of_cupy(self):
        """Results on a stream of one's own. CuPy orders its stream before the default one, so this cannot see the stream: `test_arrays.Streams` does."""
        try:
            import cupy
        except ImportError:
            self.skipTest("CuPy")
        a, b = cupy.random.rand(64, 16384, dtype=cupy.float32), cupy.random.rand(16384, 64, dtype=cupy.float32)
        later = cupy.random.rand(64, 16384, dtype=cupy.float32)
        tw.gemm(a, b)
        cupy.cuda.Device().synchronize()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            torch.cuda.current_stream().synchronize()
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                torch.cuda._sleep(200_000_000)
            a[...] = later
            found = tw.gemm(a, b)
        stream.synchronize()
        self.assertIsInstance(found, cupy.ndarray)
        cupy.testing.assert_allclose(found, later @ b, rtol=1e-4)

    def test_chains_on_arrays_of_cupy(self):
        """The gated product and the loss are those of torch's tensors."""
        try:
            import cupy
        except ImportError:
            self.skipTest("CuPy")
        x, gate, up = (torch.randn(rows, 64, device="cuda") for rows in (96, 80, 80))
        labels = torch.randint(80, (96,), device="cuda")
        array = cupy.from_dlpack
        found = tw.glu(array(x), array(gate), up=array(up))
        self.assertIsInstance(found, cupy.ndarray)
        cupy.testing.assert_allclose(found, array(twt.glu(x, gate, up=up)), rtol=1e-4, atol=1e-4)
        for reduction in ("mean", "none"):
            found = tw.cross_entropy(array(x), array(gate), array(labels), reduction=reduction)
            cupy.testing.assert_allclose(found, array(twt.linear_cross_entropy(x, gate, labels, reduction=reduction)), rtol=1e-4, atol=1e-4)


@unittest.skipUnless(torch.cuda.device_count() > 1, "two CUDA devices")
class OnTwoDevices(unittest.TestCase):
    """The current device is the first throughout: where work runs is said by its tensors."""

    def setUp(self):
        self.addCleanup(twt.disable)
        self.addCleanup(lambda: self.assertEqual(torch.cuda.current_device(), 0))

    def made(self, place, *shape):
        return torch.randn(shape, device=place, dtype=torch.bfloat16)

    def test_each_operator_on_each(self):
        for place in ("cuda:1", "cuda:0", "cuda:1"):
            a, b = torch.randn(300, 200, device=place), torch.randn(200, 100, device=place)
            close(twt.mm(a, b), a, b)
            close(tw.gemm(a, b), a, b)
            close(twt.bmm(a[None], b[None])[0], a, b)
            x, w, bias = self.made(place, 64, 256), self.made(place, 96, 256), self.made(place, 96)
            y = twt.linear(x, w, bias, "relu")
            self.assertEqual(str(y.device), place)
            close(y, x, w.t(), bias=bias, activation="relu")
            torch.testing.assert_close(twt.reduce(x, "sum", 1), x.float().sum(1), rtol=1e-2, atol=1e-2)
            image, taps = torch.randn(2, 8, 9, 9, device=place), torch.randn(4, 8, 3, 3, device=place)
            torch.testing.assert_close(twt.convolution(image, taps), torch.conv2d(image, taps), rtol=1e-2, atol=1e-2)

    def test_both_at_once(self):
        """One thread per device, and streams of both devices alternately."""
        made = {place: (self.made(place, 1024, 1024), self.made(place, 1024, 1024)) for place in ("cuda:0", "cuda:1")}
        results, errors = {place: [] for place in made}, []

        def work(place):
            try:
                a, b = made[place]
                for _ in range(20):
                    results[place].append(twt.mm(a, b))
            except Exception as e:  # noqa: BLE001
                errors.append(e)

        threads = [threading.Thread(target=work, args=(place,)) for place in made]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(errors, [])
        for place, (a, b) in made.items():
            stream = torch.cuda.Stream(place)
            stream.wait_stream(torch.cuda.current_stream(place))
            with torch.cuda.stream(stream):
                results[place].append(twt.mm(a, b))
        for place, (a, b) in made.items():
            torch.cuda.synchronize(place)
            for got in results[place]:
                close(got, a, b)

    def test_enabled_and_captured_on_the_second(self):
        """What was compared on one device holds for another of its name and driver."""
        torch.manual_seed(1)
        models = {place: torch.nn.Sequential(torch.nn.Linear(320, 200), torch.nn.Linear(200, 96, bias=False)) for place in ("cuda:0", "cuda:1")}
        models["cuda:1"].load_state_dict(models["cuda:0"].state_dict())
        models = {place: model.to(place).bfloat16() for place, model in models.items()}
        x = self.made("cuda:0", 300, 320)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = os.path.join(folder, "shapes.csv")
            with twt.record(path, models["cuda:0"]):
                want = models["cuda:0"](x)
            twt.compare(path)
            self.assertGreater(twt.enable(path, margin=0.0), 0)
        there = x.to("cuda:1")
        with torch.no_grad():
            torch.testing.assert_close(models["cuda:1"](there).cpu().float(), want.cpu().float(), rtol=3e-2, atol=3e-2)
            aside = torch.cuda.Stream("cuda:1")
            with torch.cuda.stream(aside):
                models["cuda:1"](there)
            torch.cuda.synchronize("cuda:1")
            graph = torch.cuda.CUDAGraph()
            # Torch's own stream to capture on is of the device that first captured.
            with torch.cuda.device(1), torch.cuda.graph(graph, stream=aside):
                y = models["cuda:1"](there)
        graph.replay()
        torch.cuda.synchronize("cuda:1")
        torch.testing.assert_close(y.cpu().float(), want.cpu().float(), rtol=3e-2, atol=3e-2)
        if torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1):
            self.assertRegex(twt.report(), "tilewright +addmm .* on cuda:1")

    def test_operands_of_both_are_refused_by_name(self):
        here, there = self.made("cuda:0", 64, 64), self.made("cuda:1", 64, 64)
        for wrong in (lambda: twt.mm(here, there), lambda: twt.bmm(here[None], there[None]), lambda: twt.linear(here, there)):
            with self.assertRaisesRegex(tw.OperandError, "device|bring them together"):
                wrong()
        with self.assertRaises(tw.OperandError):
            tw.gemm(here, there)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "shapes.csv")
            with twt.record(path):
                here @ here, torch.addmm(here[0], here, here)
            twt.compare(path)
            twt.enable(path, margin=0.0)
        for wrong in (lambda: here @ there, lambda: torch.addmm(here[0], here, there), lambda: torch.nn.functional.linear(there, here, here[0])):
            with self.assertRaisesRegex(RuntimeError, "same device"):
                wrong()


if __name__ == "__main__":
    unittest.main()
