"""Gated MLPs in graphs of torch.compile before differentiation, on CPU tensors: which are replaced, and that values and gradients stay."""

import unittest

import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright.torch as twt
from torch_case import CompiledCase

K, N = 6, 40


class Llama(nn.Module):
    """A gated MLP with two weights."""

    def __init__(self, function=None, bias=False):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(K, N, bias=bias), nn.Linear(K, N, bias=bias), nn.Linear(N, K, bias=False)
        self.function = nn.SiLU() if function is None else function

    def forward(self, x):
        return self.down(self.function(self.gate(x)) * self.up(x))


class Phi(nn.Module):
    """A gated MLP with one weight for both factors, the gate first or second."""

    def __init__(self, cut, gate=0, bias=False):
        super().__init__()
        self.both, self.down = nn.Linear(K, 2 * N, bias=bias), nn.Linear(N, K)
        self.cut, self.first = cut, gate

    def forward(self, x):
        halves = self.cut(self.both(x))
        return self.down(halves[1 - self.first] * F.gelu(halves[self.first], approximate="tanh"))


class Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class CompiledGates(CompiledCase):
    fuse = staticmethod(twt.fuse_gated_mlps)

    def compiled(self, run, x, fused=1, rtol=1e-5, inductor=False, **how):
        """Runs a module eagerly and compiled, and compares results and gradients. Without `inductor` the rewriter changes the same graph and Inductor
        compiles nothing, which saves most of the time."""
        torch._dynamo.reset()
        want = run(x)
        counted = twt.fuse_gated_mlps(**how)

        def changed(module, inputs):
            counted(module.graph)
            module.graph.lint()
            module.recompile()
            return aot_eager(module, inputs)

        got = torch.compile(run, fullgraph=True, backend="inductor" if inductor else changed)(x)
        self.assertEqual(counted.count, fused)
        self.assertEqual(got.dtype, want.dtype)
        torch.testing.assert_close(got, want, rtol=rtol, atol=rtol)
        leaves = [x, *getattr(run, "parameters", list)()]
        upstream = torch.randn_like(want)
        for a, b in zip(torch.autograd.grad(got, leaves, upstream), torch.autograd.grad(want, leaves, upstream)):
            torch.testing.assert_close(a, b, rtol=10 * rtol, atol=10 * rtol)

    def test_llama(self):
        x = torch.randn(2, 5, K, requires_grad=True)
        self.compiled(Llama(), x, inductor=True)
        for function in (nn.GELU(), nn.GELU("tanh"), nn.ReLU(), nn.Sigmoid(), nn.Hardswish(), nn.SiLU(inplace=True), lambda z: z.sigmoid()):
            self.compiled(Llama(function), x, keep=function.__class__ is not nn.GELU)
        self.compiled(nn.Sequential(Llama(), Llama()), x, fused=2)
        for keep in (False, True):
            self.compiled(Llama(bias=True), x, keep=keep, inductor=keep)

    def test_one_weight(self):
        x = torch.randn(5, K, requires_grad=True)
        cuts = (lambda z: z.chunk(2, -1), lambda z: torch.chunk(z, 2, dim=1), lambda z: z.split(N, dim=-1), lambda z: torch.split(z, [N, N], 1))
        for number, cut in enumerate(cuts):
            self.compiled(Phi(cut, number % 2, bias=number > 1), x)

    def test_autocast_around_the_model(self):
        for bias in (False, True):
            mlp = Llama(bias=bias)

            def step(x):
                with torch.autocast("cpu", torch.bfloat16):
                    return mlp(x)

            step.parameters = mlp.parameters
            self.compiled(step, torch.randn(7, K, requires_grad=True), rtol=2e-2)

    def test_gated_mlps_that_stay(self):
        x = torch.randn(5, K, requires_grad=True)
        mlp = Llama()

        def of(forward):
            forward.parameters = mlp.parameters
            return forward

        half = Llama(bias=True)
        half.up.bias = None
        others = (
            # Something else uses a factor.
            of(lambda x: mlp.down(F.silu(mlp.gate(x)) * (up := mlp.up(x))) + up.mean()),
            of(lambda x: mlp.down((gate := F.silu(mlp.gate(x))) * mlp.up(x)) + gate.mean()),
            of(lambda x: mlp.down(F.silu(gate := mlp.gate(x)) * mlp.up(x)) + gate.mean()),
            # Two inputs, another function, one layer with a bias, parts that are no halves, one half twice.
            of(lambda x: mlp.down(F.silu(mlp.gate(x)) * mlp.up(x + 1.0))),
            of(lambda x: mlp.down(torch.tanh(mlp.gate(x)) * mlp.up(x))),
            half,
            Phi(lambda z: (z[:, :N], z[:, N:])),
            Phi(lambda z: z.view(5, N, 2).unbind(-1)),
            Phi(lambda z: (z.chunk(2, -1)[0],) * 2),
        )
        for other in others:
            self.compiled(other, x, fused=0)

    def test_a_write_between_the_layers(self):
        """Without gradients, for which torch refuses it. The product of both layers would read another input."""
        mlp = Llama()

        def step(x, write):
            y = 2.0 * x
            gate = mlp.gate(y)
            write(y)
            return mlp.down(F.silu(gate) * mlp.up(y))

        def assigned(y):
            y[0] = 1.0

        def negated(y):
            y.neg_()

        writes = [lambda y: y.add_(1.0), lambda y: y.__iadd__(1.0), lambda y: F.relu(y, True), assigned, lambda y: torch.ops.aten.mul_.Tensor(y, y)]
        with torch.library._scoped_library("tilewright_test", "FRAGMENT") as library:
            library.define("negate(Tensor(a!) x) -> ()")
            library.impl("negate", negated, "CompositeExplicitAutograd")
            for write in (*writes, torch.ops.tilewright_test.negate):
                torch._dynamo.reset()
                with torch.no_grad():
                    x = torch.randn(5, K)
                    self.compared(step, (x, write), fused=0)

    def compared(self, run, args, fused):
        """Values of a function, eagerly and changed."""
        torch._dynamo.reset()
        want, counted = run(*args), twt.fuse_gated_mlps()

        def changed(module, inputs):
            counted(module.graph)
            module.recompile()
            return aot_eager(module, inputs)

        torch.testing.assert_close(torch.compile(run, fullgraph=True, backend=changed)(*args), want, rtol=1e-5, atol=1e-5)
        self.assertEqual(counted.count, fused)

    def test_modes_and_transforms_that_stay(self):
        """A layer without gradients beside one with them, and functions that torch.func differentiates."""
        x, mlp = torch.randn(5, K, requires_grad=True), Llama()

        def one_side(x):
            with torch.no_grad():
                gate = F.silu(mlp.gate(x))
            return mlp.down(gate * mlp.up(x))

        one_side.parameters = lambda: [mlp.up.weight, mlp.down.weight]
        self.compiled(one_side, x, fused=0)
        self.compared(lambda x: torch.func.grad(lambda x: mlp(x).sum())(x), (x.detach(),), fused=0)

    def test_other_shapes(self):
        """Cuts of other dimensions, whose options have any order, biases that are broadcast, and layers without a dimension of columns."""
        w, x = torch.randn(4, K), torch.randn(2, 2, 6, K)
        gated = lambda h: F.silu(h[0]) * h[1]  # noqa: E731
        self.compared(lambda x: gated(F.linear(x, w).chunk(dim=2, chunks=3)), (x,), fused=0)
        self.compared(lambda x: gated(F.linear(x[:, 0], w).split(dim=1, split_size=2)), (x,), fused=0)
        self.compared(lambda x: gated(F.linear(x, w).chunk(dim=-1, chunks=2)), (x,), fused=1)
        self.compared(lambda x: gated(F.linear(x, w, torch.ones(1)).chunk(2, -1)), (x,), fused=0)
        self.compared(lambda x: F.silu(F.linear(x[0, 0, 0], w[0]).view(1)[0]) * 2.0, (x,), fused=0)
        self.compared(lambda x: gated(F.linear(x[0, 0, 0], w).chunk(2)), (x,), fused=1)

    def test_nothing_is_kept_without_gradients(self):
        x, weight = torch.randn(5, K), torch.randn(2 * N, K)
        for needed, wanted in ((False, "tilewright::glu"), (True, "tilewright::glu_kept")):
            names = []
            with Operators(names):
                twt.glu(x, weight.requires_grad_(needed), keep=True)
            self.assertIn(wanted, names)

    def test_beside_losses(self):
        """Both rewriters run in one pass, and each is removed alone."""
        held = lambda: torch._inductor.config.pre_grad_custom_pass  # noqa: E731
        gates, losses = twt.fuse_gated_mlps(), twt.fuse_losses()
        self.addCleanup(twt.fuse_losses, False)
        head, labels = nn.Linear(K, 30), torch.randint(30, (5,))
        mlp, x = Llama(), torch.randn(5, K)
        step = lambda x: F.cross_entropy(head(mlp(x)), labels)  # noqa: E731
        got = torch.compile(step, fullgraph=True)(x)
        torch.testing.assert_close(got, step(x), rtol=1e-5, atol=1e-5)
        self.assertEqual((gates.count, losses.count), (1, 1))
        twt.fuse_gated_mlps(False)
        self.assertEqual(list(held().rewriters.values()), [losses])
        twt.fuse_losses(False)
        self.assertIsNone(held())


if __name__ == "__main__":
    unittest.main()
