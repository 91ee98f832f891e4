"""`tilewright.torch` on CPU tensors, through the built-in device."""

import threading
import unittest

import torch
from torch.library import opcheck

import tilewright as tw
import tilewright.torch as twt
from tilewright import _operators


def numbers(*shape, dtype=torch.float32, grad=False):
    count = 1
    for n in shape:
        count *= n
    values = (torch.arange(count) * 5 % 7 - 3).reshape(shape).to(dtype)
    return values.requires_grad_(grad)


def reference(x, weight, bias=None, activation=None, residual=None):
    y = torch.nn.functional.linear(x, weight, bias)
    if activation is not None:
        y = _operators.activate(y, activation)
    return y if residual is None else y + residual


class Operators(unittest.TestCase):
    def setUp(self):
        tw.use("emu", records="")

    def test_values_and_strides(self):
        a, b = numbers(9, 6), numbers(6, 7)
        torch.testing.assert_close(twt.mm(a, b), a @ b)
        torch.testing.assert_close(twt.mm(numbers(6, 9).t(), numbers(7, 6).t()), numbers(6, 9).t() @ numbers(7, 6).t())
        torch.testing.assert_close(twt.mm(numbers(9, 12)[:, 1::2], b), numbers(9, 12)[:, 1::2] @ b)
        row = numbers(1, 6).expand(9, 6)
        torch.testing.assert_close(twt.mm(row, b), row @ b)
        torch.testing.assert_close(twt.bmm(numbers(3, 4, 6), numbers(3, 6, 5)), numbers(3, 4, 6) @ numbers(3, 6, 5))
        negative = torch.complex(torch.zeros(9, 6), a).conj().imag
        self.assertTrue(negative.is_neg())
        torch.testing.assert_close(twt.mm(negative, b), negative @ b)
        self.assertEqual(twt.mm(a[:0], b).shape, (0, 7))
        torch.testing.assert_close(twt.mm(numbers(4, 0), numbers(0, 5)), torch.zeros(4, 5))
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            torch.testing.assert_close(twt.mm(a.to(dtype), b.to(dtype)), a.to(dtype) @ b.to(dtype))

    def test_types_as_arguments(self):
        a, b = numbers(5, 8, dtype=torch.bfloat16), numbers(8, 6, dtype=torch.bfloat16)
        for told in (torch.float32, "float32"):
            got = tw.gemm(a, b, out_dtype=told)
            self.assertEqual(got.dtype, torch.float32)
            torch.testing.assert_close(got, a.float() @ b.float(), rtol=0, atol=0)
        half = tw.gemm(a.half(), b.half(), out_dtype=torch.float16)
        torch.testing.assert_close(half, a.half() @ b.half(), rtol=0, atol=0)
        self.assertEqual(tw.gemm(a, b, out_dtype=torch.bfloat16).dtype, torch.bfloat16)
        with self.assertRaisesRegex(tw.ProblemError, "out_dtype"):
            tw.gemm(a, b, out_dtype=torch.int64)

    def test_views_of_conjugates(self):
        a, b = (torch.complex(numbers(*shape), numbers(*shape)) for shape in ((9, 6), (9, 7)))
        self.assertTrue(a.mH.is_conj())
        torch.testing.assert_close(tw.gemm(a.mH, b), a.mH @ b)
        torch.testing.assert_close(tw.gemm(a.t(), b.conj()), a.t() @ b.conj())
        with self.assertRaisesRegex(tw.OperandError, "conjugate"):
            tw.gemm(a.mH, b, residual=torch.zeros(6, 7, dtype=a.dtype).conj())

    def test_linear(self):
        x, weight, bias, residual = numbers(2, 5, 6), numbers(7, 6), numbers(7), numbers(2, 5, 7)
        torch.testing.assert_close(twt.linear(x, weight), reference(x, weight))
        for activation in (None, "relu", "gelu", "gelutanh", "silu", "hardswish", "exp"):
            got = twt.linear(x, weight, bias, activation, residual)
            torch.testing.assert_close(got, reference(x, weight, bias, activation, residual), rtol=1e-5, atol=1e-4)

    def test_gates_in_larger_graphs(self):
        """The backward pass may be recorded itself, and run for a batch of gradients."""
        x, weight = torch.randn(4, 6, requires_grad=True), torch.randn(10, 6, requires_grad=True)
        y = twt.glu(x, weight, gate="relu")
        torch.autograd.grad(y.square().sum(), x, create_graph=True, retain_graph=True)
        seeds = torch.randn(3, *y.shape)
        many = torch.autograd.grad(y, weight, seeds, is_grads_batched=True, retain_graph=True)[0]
        for seed, one in zip(seeds, many):
            torch.testing.assert_close(one, torch.autograd.grad(y, weight, seed, retain_graph=True)[0], rtol=1e-5, atol=1e-5)

    def test_gates(self):
        functional = torch.nn.functional
        functions = {"silu": functional.silu, "gelu": functional.gelu, "sigmoid": torch.sigmoid, "relu": torch.relu, "linear": lambda x: x}
        functions["gelutanh"] = lambda x: functional.gelu(x, approximate="tanh")
        functions["hardswish"] = functional.hardswish
        torch.manual_seed(2)
        for order, (up_first, interleaved) in enumerate(((False, False), (True, False), (False, True), (True, True))):
            for turn, (name, function) in enumerate(functions.items()):
                # Kernels of every function and order are tested beside the generator.
                if name != "silu" and turn % 4 != order:
                    continue
                ours = [torch.randn(shape, requires_grad=True) for shape in ((2, 5, 6), (14, 6), (14,))]
                theirs = [x.detach().clone().requires_grad_() for x in ours]
                sums = functional.linear(*theirs)
                halves = (sums[..., ::2], sums[..., 1::2]) if interleaved else sums.chunk(2, -1)
                want = function(halves[up_first]) * halves[not up_first]
                got = twt.glu(*ours, gate=name, up_first=up_first, interleaved=interleaved)
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
                weights = torch.randn(2, 5, 7)
                (got * weights).sum().backward()
                (want * weights).sum().backward()
                kept = [x.detach().clone().requires_grad_() for x in ours]
                (twt.glu(*kept, gate=name, up_first=up_first, interleaved=interleaved, keep=True) * weights).sum().backward()
                for x, again, y in zip(ours, kept, theirs):
                    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
                    torch.testing.assert_close(again.grad, y.grad, rtol=1e-4, atol=1e-5)

        def clamped(gate, up, limit, slope):
            gate = gate.clamp(max=limit)
            return gate * torch.sigmoid(gate * slope) * (up.clamp(-limit, limit) + 1)

        for options, limit, slope in (({}, 7.0, 1.702), (dict(gate_limit=0.5, gate_slope=2.0, up_first=True), 0.5, 2.0)):
            ours = [torch.randn(shape, requires_grad=True) for shape in ((2, 5, 6), (14, 6), (14,))]
            theirs = [x.detach().clone().requires_grad_() for x in ours]
            halves = functional.linear(*theirs).chunk(2, -1)
            want = clamped(*(halves[::-1] if options else halves), limit, slope)
            got = twt.glu(*ours, gate="clamped", **options)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            got.sin().sum().backward()
            want.sin().sum().backward()
            for x, y in zip(ours, theirs):
                torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
        x, weight = numbers(3, 6), numbers(8, 6)
        with self.assertRaisesRegex(tw.ProblemError, "only a clamped gate"):
            twt.glu(x, weight, gate_limit=2.0)
        # Weights in two tensors, as `gate_proj` and `up_proj`: alike, halves of one, and of other strides.
        for where in (lambda n, k: torch.randn(n, k), lambda n, k: torch.randn(2 * n, k)[n:], lambda n, k: torch.randn(k, n).t()):
            for bias in (None, torch.randn(14)):
                ours = [torch.randn(2, 5, 6), torch.randn(7, 6), where(7, 6), bias]
                ours = [x if x is None else x.requires_grad_() for x in ours]
                theirs = [x if x is None else x.detach().clone().requires_grad_() for x in ours]
                biases = (None, None) if bias is None else theirs[3].chunk(2)
                want = functional.silu(functional.linear(theirs[0], theirs[1], biases[0])) * functional.linear(theirs[0], theirs[2], biases[1])
                for keep in (False, True):
                    x, weight, up, bias = ours
                    got = twt.glu(x, weight, bias, up=up, keep=keep)
                    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
                    given = [x for x in ours if x is not None]
                    gradients = torch.autograd.grad(got.sin().sum(), given)
                    others = torch.autograd.grad(want.sin().sum(), [x for x in theirs if x is not None], retain_graph=True)
                    for mine, other in zip(gradients, others):
                        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
        x, weight, up = numbers(3, 6), numbers(8, 6), numbers(8, 6)
        made = torch.compile(lambda x, weight, up: twt.glu(x, weight, up=up) * 2, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(made(x, weight, up), twt.glu(x, torch.cat((weight, up))) * 2)
        self.assertEqual(twt.glu(x[:0], weight, up=up).shape, (0, 8))
        self.assertTrue(twt.tune(twt.glu, x, weight, up=up, trials=2).verified)
        with self.assertRaisesRegex(tw.OperandError, "the shape of weight is needed"):
            twt.glu(x, weight, up=up[:7])
        with self.assertRaisesRegex(tw.ProblemError, "drop up_first"):
            twt.glu(x, weight, up=up, up_first=True)
        self.assertEqual(twt.glu(x[:0], weight, gate="clamped").shape, (0, 4))
        self.assertEqual(twt.glu(x[:0], weight).shape, (0, 4))
        made = torch.compile(lambda x, weight: twt.glu(x, weight) * 2, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(made(x, weight), twt.glu(x, weight) * 2)
        made = torch.compile(lambda x, weight: twt.glu(x, weight, keep=True) * 2, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(made(x, weight.requires_grad_()), twt.glu(x, weight) * 2)
        weight = weight.detach()
        self.assertEqual(twt.glu(x[:0], weight.requires_grad_(), keep=True).shape, (0, 4))
        weight = weight.detach()
        self.assertTrue(twt.tune(twt.glu, x, weight, gate="relu", trials=2).verified)
        for wrong in (lambda: twt.glu(x, weight[:7]), lambda: twt.glu(x, numbers(8, 5)), lambda: twt.glu(x, weight, numbers(4))):
            with self.assertRaises(tw.OperandError):
                wrong()
        with self.assertRaisesRegex(tw.ProblemError, "tanh"):
            twt.glu(x, weight, gate="tanh")

    def test_lora_linear(self):
        functional = torch.nn.functional
        torch.manual_seed(3)
        for scale, bias in ((1.0, None), (0.5, torch.randn(7))):
            ours = [torch.randn(shape) for shape in ((2, 5, 6), (7, 6), (3, 6), (7, 3))] + [bias]
            ours = [x if x is None else x.requires_grad_() for x in ours]
            theirs = [x if x is None else x.detach().clone().requires_grad_() for x in ours]
            x, weight, lora_a, lora_b, at = theirs
            want = functional.linear(x, weight, at) + scale * (x @ lora_a.t()) @ lora_b.t()
            got = twt.lora_linear(*ours, scale)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            gradients = [torch.autograd.grad(y.sin().sum(), [x for x in of if x is not None]) for y, of in ((got, ours), (want, theirs))]
            for mine, other in zip(*gradients):
                torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
        x, weight, lora_a, lora_b = (t.detach() for t in ours[:4])
        made = torch.compile(lambda *of: twt.lora_linear(*of) * 2, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(made(x, weight, lora_a, lora_b), twt.lora_linear(x, weight, lora_a, lora_b) * 2)
        # A gradient's gradient.
        leaves = [t.detach().double().requires_grad_() for t in (x, weight, lora_a, lora_b)]
        for at in (0, 2, 3):
            found = []
            for of in (twt.lora_linear, lambda x, weight, lora_a, lora_b: functional.linear(x, weight) + (x @ lora_a.t()) @ lora_b.t()):
                first = torch.autograd.grad(of(*leaves).sin().sum(), leaves[at], create_graph=True)[0]
                found.append(torch.autograd.grad(first.square().sum(), leaves))
            torch.testing.assert_close(*found)
        # The base layer is frozen, as where its update alone is trained.
        y = made(x, weight, lora_a.requires_grad_(), lora_b.requires_grad_())
        y.sum().backward()
        self.assertEqual((lora_a.grad.shape, lora_b.grad.shape), (lora_a.shape, lora_b.shape))
        self.assertEqual(twt.lora_linear(x[:0], weight, lora_a, lora_b).shape, (0, 5, 7))
        without = twt.lora_linear(x.requires_grad_(), weight, lora_a[:0], lora_b[:, :0])
        torch.testing.assert_close(without, twt.linear(x, weight))
        without.sum().backward()
        torch.testing.assert_close(x.grad, torch.ones_like(without) @ weight)
        x = x.detach()
        self.assertTrue(twt.tune(twt.lora_linear, x, weight, lora_a.detach(), lora_b.detach(), trials=2).verified)
        with self.assertRaisesRegex(tw.OperandError, "lora_b .n, r. are needed"):
            twt.lora_linear(x, weight, lora_a, lora_b[:6])

    def test_opcheck(self):
        pair = (numbers(3, 6, grad=True), numbers(5, 3, grad=True))
        opcheck(torch.ops.tilewright.lora_linear, (numbers(2, 4, 6, grad=True), numbers(5, 6, grad=True), *pair, numbers(5, grad=True), 0.5))
        opcheck(torch.ops.tilewright.lora_linear, (numbers(4, 6, grad=True), numbers(5, 6), *pair))
        opcheck(torch.ops.tilewright.two_products, [numbers(*shape, grad=True) for shape in ((4, 6), (6, 5), (4, 2), (2, 5))])
        opcheck(torch.ops.tilewright.mm, (numbers(4, 3, grad=True), numbers(3, 5, grad=True)))
        opcheck(torch.ops.tilewright.bmm, (numbers(2, 4, 3, grad=True), numbers(2, 3, 5, grad=True)))
        opcheck(torch.ops.tilewright.addmm, (numbers(5, grad=True), numbers(4, 3, grad=True), numbers(3, 5, grad=True)))
        x, weight, bias = numbers(2, 4, 3, grad=True), numbers(5, 3, grad=True), numbers(5, grad=True)
        opcheck(torch.ops.tilewright.linear, (x, weight, bias, "gelu", numbers(2, 4, 5, grad=True)))
        opcheck(torch.ops.tilewright.linear, (x, weight))
        opcheck(torch.ops.tilewright.glu, (x, numbers(6, 3, grad=True), numbers(6, grad=True), "gelu", True))
        opcheck(torch.ops.tilewright.glu, (x, numbers(6, 3, grad=True)))
        opcheck(torch.ops.tilewright.glu, (x, numbers(6, 3, grad=True), None, "clamped", False, 2.0))
        opcheck(torch.ops.tilewright.glu, (x, numbers(6, 3, grad=True), numbers(12, grad=True), "silu", False, None, None, False, numbers(6, 3, grad=True)))
        opcheck(torch.ops.tilewright.glu_kept, (x, numbers(5, 3, grad=True), None, "silu", False, None, None, False, numbers(5, 3, grad=True)))
        opcheck(torch.ops.tilewright.glu_kept, (x, numbers(6, 3, grad=True), numbers(6, grad=True), "gelu", True))
        ends = torch.tensor([2, 2, 6], dtype=torch.int32)
        opcheck(torch.ops.tilewright.grouped_mm, (numbers(6, 4, grad=True), numbers(3, 4, 5, grad=True), ends))
        opcheck(torch.ops.tilewright.grouped_mm, (numbers(4, 6, grad=True), numbers(6, 5, grad=True), ends))
        x, weight, bias = numbers(2, 4, 5, 6, grad=True), numbers(6, 2, 3, 3, grad=True), numbers(6, grad=True)
        opcheck(torch.ops.tilewright.convolution, (x, weight, bias, [2, 1], [1, 1], [1, 1], 2))
        last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        opcheck(torch.ops.tilewright.convolution, (last, weight, None, [1, 1], [0, 0], [1, 1], 2))
        grad, how = numbers(2, 6, 3, 4), ([1, 1], [0, 0], [1, 1], 2)
        opcheck(torch.ops.tilewright.convolution_input, (grad, weight.detach(), x.shape, *how))
        opcheck(torch.ops.tilewright.convolution_weight, (grad, x.detach(), weight.shape, *how))

    def test_gradients(self):
        def wide(*shape):
            return torch.randn(shape, dtype=torch.float64, requires_grad=True)

        torch.manual_seed(1)
        self.assertTrue(torch.autograd.gradcheck(twt.mm, (wide(3, 4), wide(4, 2))))
        # f64 has no activations here: its formulas are compared with torch's in f32.
        self.assertTrue(torch.autograd.gradcheck(twt.linear, (wide(3, 4), wide(2, 4), wide(2), None, wide(3, 2))))
        for activation in ("relu", "gelu", "gelutanh", "silu", "hard-swish", "exp"):
            ours = [torch.randn(shape, requires_grad=True) for shape in ((5, 4), (3, 4), (3,), (5, 3))]
            theirs = [x.detach().clone().requires_grad_() for x in ours]
            weights = torch.randn(5, 3)
            (twt.linear(*ours[:3], activation, ours[3]) * weights).sum().backward()
            (reference(*theirs[:3], activation, theirs[3]) * weights).sum().backward()
            for x, y in zip(ours, theirs):
                torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)

    def test_groups(self):
        a, b, terms = numbers(13, 6), numbers(3, 6, 5), numbers(13, 5)
        for told in ([4, 4, 13], [0, 13, 13], [1, 2, 13]):
            ends, begins = torch.tensor(told, dtype=torch.int32), [0, *told[:-1]]
            rows = torch.cat([a[i:j] @ b[g] for g, (i, j) in enumerate(zip(begins, told))])
            torch.testing.assert_close(twt.grouped_mm(a, b, ends), rows)
            torch.testing.assert_close(twt.grouped_mm(a, b.transpose(1, 2).contiguous().transpose(1, 2), ends), rows)
            sums = torch.stack([a[i:j].t() @ terms[i:j] for i, j in zip(begins, told)])
            torch.testing.assert_close(twt.grouped_mm(a.t(), terms, ends), sums)

        def wide(*shape):
            return torch.randn(shape, dtype=torch.float64, requires_grad=True)

        torch.manual_seed(1)
        ends = torch.tensor([2, 2, 5], dtype=torch.int32)
        self.assertTrue(torch.autograd.gradcheck(lambda a, b: twt.grouped_mm(a, b, ends), (wide(5, 4), wide(3, 4, 2))))
        self.assertTrue(torch.autograd.gradcheck(lambda a, b: twt.grouped_mm(a, b, ends), (wide(4, 5), wide(5, 2))))
        self.assertEqual(twt.grouped_mm(a[:0], b, ends).shape, (0, 5))
        for wrong in (ends.long(), ends[:2], ends.reshape(3, 1)):
            with self.assertRaisesRegex(tw.OperandError, "grouped_mm of"):
                twt.grouped_mm(a, b, wrong)
        made = torch.compile(lambda a, b: twt.grouped_mm(a * 2, b, ends), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(made(a[:5], b), twt.grouped_mm(a[:5], b, ends) * 2)

    def test_convolutions(self):
        def wide(*shape):
            return torch.randn(shape, dtype=torch.float64, requires_grad=True)

        torch.manual_seed(1)
        functions = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
        for dims, stride, padding, dilation, groups in [(1, 2, 1, 1, 1), (2, 2, 1, 1, 2), (2, 1, 2, 2, 1), (3, 1, 1, 1, 1)]:
            x, w, bias = wide(2, 2 * groups, *(6, 5, 4)[:dims]), wide(2 * groups, 2, *(3, 2, 2)[:dims]), wide(2 * groups)
            want = functions[dims](x, w, bias, stride, padding, dilation, groups)
            got = twt.convolution(x, w, bias, stride, padding, dilation, groups)
            torch.testing.assert_close(got, want)
            cotangent = torch.randn_like(want)
            ours = torch.autograd.grad(got, (x, w, bias), cotangent)
            for a, b in zip(ours, torch.autograd.grad(want, (x, w, bias), cotangent)):
                torch.testing.assert_close(a, b)
        x, w = torch.randn(2, 3, 6, 5).contiguous(memory_format=torch.channels_last), torch.randn(4, 3, 3, 3)
        got = twt.convolution(x, w, padding=1)
        self.assertTrue(got.is_contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(got, torch.nn.functional.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-5)

    def test_reductions(self):
        torch.manual_seed(1)
        x = torch.randn(6, 7, 5)
        expected = dict(sum=torch.sum, mean=torch.mean, max=torch.amax, min=torch.amin, logsumexp=torch.logsumexp)
        for op, theirs in expected.items():
            for dim in (0, -1, (0, 2), (0, 1, 2)):
                torch.testing.assert_close(twt.reduce(x, op, dim, keepdim=True), theirs(x, dim, keepdim=True), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(twt.reduce(x, "var", 1), x.var(1, correction=0))
        torch.testing.assert_close(twt.reduce(x, "sumsq"), x.square().sum())
        torch.testing.assert_close(twt.reduce(x, "absmax", [1, 2]), x.abs().amax([1, 2]))
        for op, theirs in (("argmax", torch.argmax), ("argmin", torch.argmin)):
            self.assertTrue(torch.equal(twt.reduce(x, op, 1), theirs(x, 1)))
            self.assertTrue(torch.equal(twt.reduce(x, op), theirs(x.flatten(), 0)))
        # Turned, expanded, negated by a bit, of 16 bits; nothing at all.
        negative = torch.complex(torch.zeros(4, 5), torch.randn(4, 5)).conj().imag
        for y in (x.mT, x[:, :1].expand(6, 7, 5)[::2], negative, torch.randn(9, 8, dtype=torch.bfloat16), torch.ones(3, 0)):
            torch.testing.assert_close(twt.reduce(y, "sum", 1), y.float().sum(1), rtol=1e-5, atol=1e-5)
        for op in (*expected, "var", "sumsq", "absmax", "norm2"):
            wide = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
            self.assertTrue(torch.autograd.gradcheck(lambda x: twt.reduce(x, op, (0, 2)), (wide,)))
            opcheck(torch.ops.tilewright.reduce, (numbers(4, 3, grad=True), op, [1]))
        opcheck(torch.ops.tilewright.reduce, (numbers(4, 3), "argmax", [0]))
        # Equal ones share a gradient.
        tied = torch.tensor([2.0, 1.0, 2.0], requires_grad=True)
        twt.reduce(tied, "max").backward()
        self.assertEqual(tied.grad.tolist(), [0.5, 0.0, 0.5])
        made = torch.compile(lambda x: twt.reduce(x * 2, "mean", -1), fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in (4, 6):
            torch.testing.assert_close(made(x[:rows]), (x[:rows] * 2).mean(-1))

    def test_compile_without_graph_breaks(self):
        def model(x, weight, bias):
            return twt.mm(twt.linear(x, weight, bias, "relu"), weight)

        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
            for rows in (4, 6):
                ours = [numbers(rows, 3, grad=True), numbers(5, 3, grad=True), numbers(5, grad=True)]
                theirs = [x.detach().clone().requires_grad_() for x in ours]
                compiled(*ours).sum().backward()
                model_there = torch.relu(torch.nn.functional.linear(*theirs)) @ theirs[1]
                model_there.sum().backward()
                for x, y in zip(ours, theirs):
                    torch.testing.assert_close(x.grad, y.grad)

    def test_threads(self):
        a, b = numbers(8, 8), numbers(8, 8)
        results = {}

        def work(i):
            results[i] = twt.mm(a + i, b)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for i, got in results.items():
            torch.testing.assert_close(got, (a + i) @ b)

    def test_tuned_plans_are_used(self):
        x, weight, bias = numbers(2, 8, 16, grad=True), numbers(24, 16), numbers(24)
        want = twt.linear(x, weight, bias, "relu")
        found = twt.tune(twt.linear, x, weight, bias, activation="relu", trials=2)
        self.assertTrue(found.verified)
        self.assertEqual(twt.prepared(), 0)
        torch.testing.assert_close(twt.linear(x, weight, bias, "relu"), want)
        self.assertEqual(twt.prepared(), 1)

    def test_errors_are_named(self):
        a, b, freed = numbers(4, 5), numbers(5, 6), numbers(4, 5)
        freed.untyped_storage().resize_(0)
        for wrong, says in [
            (lambda: twt.mm(a, a), "4x5 and 4x5"),
            (lambda: twt.mm(a, numbers(2, 5, 6)), "2-D"),
            (lambda: twt.bmm(numbers(2, 4, 5), numbers(3, 5, 6)), "2x4x5 and 3x5x6"),
            (lambda: twt.mm(a, b.double()), "float32 and float64"),
            (lambda: twt.mm(a.long(), b.long()), "no kernel here"),
            (lambda: twt.mm(freed, b), "operand A"),
            (lambda: twt.linear(a, b), "linear of"),
            (lambda: twt.convolution(a, b), "1 to 3 dimensions"),
            (lambda: twt.convolution(numbers(1, 2, 4), numbers(2, 3, 2)), "channels do not fit"),
            (lambda: twt.convolution(numbers(1, 2, 4), numbers(2, 2, 5)), "nothing is left"),
            (lambda: twt.convolution(numbers(1, 2, 4), numbers(2, 2, 3), stride=0), "stride"),
            (lambda: twt.convolution(numbers(1, 2, 4), numbers(2, 2, 3).double()), "float64"),
            (lambda: twt.linear(a, numbers(6, 5), numbers(5)), "bias"),
        ]:
            with self.assertRaisesRegex(tw.OperandError, says):
                wrong()
        with self.assertRaisesRegex(tw.ProblemError, "relu"):
            twt.linear(a, numbers(6, 5), activation="swish")


if __name__ == "__main__":
    unittest.main()
