"""Gated MLPs in graphs of torch.compile before differentiation, on CPU tensors: which are replaced, and that values and gradients stay."""

import unittest

import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional as F

import tilewright.torch as twt
from torch_case import TorchCase

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


class CompiledGates(TorchCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        # Torch keeps compiled graphs on the disk, with the backward pass of an earlier version.
        patch = torch._inductor.config.patch(force_disable_caches=True)
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)
        self.addCleanup(twt.fuse_gated_mlps, False)

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

    def test_one_weight(self):
        x = torch.randn(5, K, requires_grad=True)
        cuts = (lambda z: z.chunk(2, -1), lambda z: torch.chunk(z, 2, dim=1), lambda z: z.split(N, dim=-1), lambda z: torch.split(z, [N, N], 1))
        for number, cut in enumerate(cuts):
            self.compiled(Phi(cut, number % 2, bias=number > 1), x)

    def test_autocast_around_the_model(self):
        mlp = Llama()

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

        others = (
            # Something else uses a factor.
            of(lambda x: mlp.down(F.silu(mlp.gate(x)) * (up := mlp.up(x))) + up.mean()),
            of(lambda x: mlp.down((gate := F.silu(mlp.gate(x))) * mlp.up(x)) + gate.mean()),
            of(lambda x: mlp.down(F.silu(gate := mlp.gate(x)) * mlp.up(x)) + gate.mean()),
            # Two inputs, another function, a biased pair of layers, parts that are no halves, one half twice.
            of(lambda x: mlp.down(F.silu(mlp.gate(x)) * mlp.up(x + 1.0))),
            of(lambda x: mlp.down(torch.tanh(mlp.gate(x)) * mlp.up(x))),
            Llama(bias=True),
            Phi(lambda z: (z[:, :N], z[:, N:])),
            Phi(lambda z: z.view(5, N, 2).unbind(-1)),
            Phi(lambda z: (z.chunk(2, -1)[0],) * 2),
        )
        for other in others:
            self.compiled(other, x, fused=0)

    def test_a_write_between_the_layers(self):
        """Without gradients, for which torch refuses it. The product of both layers would read another input."""
        mlp = Llama()

        def step(x):
            y = 2.0 * x
            gate = mlp.gate(y)
            y.add_(1.0)
            return mlp.down(F.silu(gate) * mlp.up(y))

        with torch.no_grad():
            x, counted = torch.randn(5, K), twt.fuse_gated_mlps()
            torch.testing.assert_close(torch.compile(step, fullgraph=True)(x), step(x), rtol=1e-5, atol=1e-5)
        self.assertEqual(counted.count, 0)

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
