"""Losses in graphs of torch.compile, on CPU tensors: which are replaced, and that values and gradients stay."""

import unittest
from unittest import mock

import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch as twt
from torch_case import CompiledCase

K, WORDS = 6, 300


class Causal(nn.Module):
    """The end of a causal language model, with labels that are shifted in one of three ways."""

    def __init__(self, way, bias=False):
        super().__init__()
        self.way, self.norm, self.head = way, nn.LayerNorm(K), nn.Linear(K, WORDS, bias=bias)

    def forward(self, x, labels):
        logits = self.head(self.norm(x))
        if self.way == "cut":
            logits, labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
            return nn.CrossEntropyLoss()(logits.view(-1, WORDS), labels.view(-1))
        labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        logits = logits.float()
        if self.way == "counted":
            return F.cross_entropy(logits.view(-1, WORDS), labels.view(-1), ignore_index=-100, reduction="sum") / 7
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


class CompiledLoss(CompiledCase):
    fuse = staticmethod(twt.fuse_losses)

    def compiled(self, run, *args, fused=1, rtol=1e-5, inductor=False, **how):
        """Runs a function eagerly and compiled, and compares results and gradients of the first result. Without `inductor` the pass changes the same
        graph and Inductor compiles nothing, which saves most of the time."""
        leaves = [t for t in args if isinstance(t, torch.Tensor) and t.requires_grad] + list(getattr(run, "parameters", list)())
        want = run(*args)
        counted = twt.fuse_losses(**how)

        def changed(module, inputs):
            counted(module.graph)
            module.recompile()
            return aot_eager(module, inputs)

        got = torch.compile(run, fullgraph=True, backend="inductor" if inductor else changed)(*args)
        self.assertEqual(counted.count, fused)
        first = lambda result: result[0] if isinstance(result, tuple) else result  # noqa: E731
        self.assertEqual(first(got).dtype, first(want).dtype)
        torch.testing.assert_close(first(got), first(want), rtol=rtol, atol=rtol)
        for a, b in zip(torch.autograd.grad(first(got).sum(), leaves), torch.autograd.grad(first(want).sum(), leaves)):
            torch.testing.assert_close(a, b, rtol=10 * rtol, atol=rtol)

    def test_causal_models(self):
        labels = torch.randint(WORDS, (2, 5))
        labels[0, 2] = -100
        for way, how in (("cut", {}), ("padded", {"keep": True}), ("counted", {"workspace": 1})):
            torch._dynamo.reset()
            self.compiled(Causal(way, bias=way == "cut"), torch.randn(2, 5, K, requires_grad=True), labels, inductor=way == "cut", **how)

    def test_autocast_around_the_model(self):
        head = nn.Linear(K, WORDS)

        def step(x, labels):
            with torch.autocast("cpu", torch.bfloat16):
                logits = head(x)
            return F.cross_entropy(logits.float(), labels)

        step.parameters = head.parameters
        self.compiled(step, torch.randn(9, K, requires_grad=True), torch.randint(WORDS, (9,)), rtol=2e-2)

    def test_losses_that_stay(self):
        x, weight, labels = torch.randn(9, K, requires_grad=True), torch.randn(WORDS, K), torch.randint(WORDS, (9,))
        linear, loss = F.linear, F.cross_entropy
        for name, run in (
            ("logits are a result", lambda x, w, y: (loss(linear(x, w), y), linear(x, w).argmax(1))),
            ("the same logits are a result", lambda x, w, y: (lambda z: (loss(z, y), z))(linear(x, w))),
            ("scaled logits", lambda x, w, y: loss(0.5 * linear(x, w), y)),
            ("probabilities", lambda x, w, y: loss(linear(x, w), F.one_hot(y, WORDS).float())),
            ("classes of pixels", lambda x, w, y: loss(linear(x, w).view(3, 3, WORDS).transpose(1, 2), y.view(3, 3))),
            ("some columns", lambda x, w, y: loss(linear(x, w)[:, :200], y.clamp(max=199))),
            ("rows of another order", lambda x, w, y: loss(linear(x, w).view(3, 3, WORDS)[:, :2, :].reshape(-1, WORDS), y[:6])),
            ("smoothing with weights", lambda x, w, y: loss(linear(x, w), y, torch.ones(WORDS), label_smoothing=0.1)),
        ):
            with self.subTest(name):
                torch._dynamo.reset()
                self.compiled(run, x, weight, labels, fused=int(name == "logits are a result"))

    def test_softcap(self):
        """As transformers writes Gemma 2; another limit in the quotient is no softcap."""
        x, weight = torch.randn(5, K, requires_grad=True), torch.randn(WORDS, K, requires_grad=True)
        labels = torch.randint(WORDS, (5,))

        def step(x, weight, labels, below=2.0, of=torch.tanh, more=lambda z: 0.0):
            capped = of(F.linear(x, weight) / below)
            return F.cross_entropy((capped * 2.0).float(), labels) + more(capped)

        self.compiled(step, x, weight, labels)
        torch._dynamo.reset()
        self.compiled(lambda *args: step(*args, of=lambda z: z.tanh()), x, weight, labels, keep=True)
        # Without gradients, for which torch refuses a write between layer and loss.
        def written(x, weight, labels):
            y = 2.0 * x
            z = F.linear(y, weight)
            y.mul_(3.0)
            return F.cross_entropy(z, labels) + y.mean()

        with torch.no_grad():
            counted = twt.fuse_losses()
            torch._dynamo.reset()
            got = torch.compile(written, fullgraph=True)(x, weight, labels)
            torch.testing.assert_close(got, written(x, weight, labels), rtol=1e-5, atol=1e-5)
        self.assertEqual(counted.count, 0)
        for other in (dict(below=29.0), dict(of=torch.sin), dict(more=torch.mean)):
            torch._dynamo.reset()
            self.compiled(lambda *args: step(*args, **other), x, weight, labels, fused=0)

    def test_class_weights_and_torchs_own(self):
        x, weight, labels = torch.randn(9, K, requires_grad=True), torch.randn(WORDS, K), torch.randint(WORDS, (9,))
        self.compiled(lambda x, w, y, each: F.cross_entropy(F.linear(x, w), y, each, reduction="none"), x, weight, labels, torch.rand(WORDS))
        if hasattr(F, "linear_cross_entropy"):
            torch._dynamo.reset()
            self.compiled(lambda x, w, y: F.linear_cross_entropy(x, w, y, label_smoothing=0.2), x, weight, labels)

    def test_tied_weights_have_one_gradient(self):
        table = nn.Embedding(WORDS, K)

        def step(tokens):
            return F.cross_entropy(F.linear(torch.tanh(table(tokens)), table.weight), tokens.roll(1))

        step.parameters = table.parameters
        self.compiled(step, torch.randint(WORDS, (9,)))

    def test_passes_of_others_stay(self):
        other = mock.Mock()
        with torch._inductor.config.patch(pre_grad_custom_pass=other):
            with self.assertRaisesRegex(tw.ProblemError, "pre_grad_custom_pass of another package"):
                twt.fuse_losses()
            twt.fuse_losses(False)
            self.assertIs(torch._inductor.config.pre_grad_custom_pass, other)


if __name__ == "__main__":
    unittest.main()
