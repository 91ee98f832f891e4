"""Gated MLPs of models: which are recognised, in modules and in Inductor's graphs, and that they run as one product."""

import copy
import os
import pickle
import unittest
from unittest import mock

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import config
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch as twt
from tilewright import _operators, _patterns
from torch_case import TorchCase


class Mlp(nn.Module):
    """Written as that of a Llama."""

    def __init__(self, activation=None, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(6, 10, bias=bias), nn.Linear(6, 10, bias=bias)
        self.down_proj, self.act_fn = nn.Linear(10, 6, bias=False), activation or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Turned(Mlp):
    def forward(self, hidden_states):
        hidden = torch.mul(self.up_proj(hidden_states), self.act_fn(self.gate_proj(hidden_states)))
        return self.down_proj(hidden)


class Counting(Mlp):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Defaulted(Mlp):
    def forward(self, x, residual=None):
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(hidden * 0.5 if residual is None else hidden)


class Clipped(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x).clamp(-10.0, 10.0)


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


class Joined(nn.Module):
    """Written as that of a Phi-3: one layer for both factors."""

    def __init__(self, up_first=False):
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(6, 20, bias=False), nn.Linear(10, 6, bias=False)
        self.activation_fn, self.up_first = nn.SiLU(), up_first

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * self.activation_fn(gate))


class Chunked(Joined):
    def forward(self, x):
        both = torch.chunk(self.gate_up_proj(x), 2, -1)
        gate, up = (both[1], both[0]) if self.up_first else (both[0], both[1])
        return self.down_proj(self.activation_fn(gate) * up)


class Thirds(Joined):
    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=0)
        return self.down_proj(up * self.activation_fn(gate))


class Twice(Joined):
    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(gate * self.activation_fn(gate))


class Added(Mlp):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))


class Residual(Mlp):
    def forward(self, x):
        return x + self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Same(Mlp):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(2 * x))


class Branching(Mlp):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) if x.sum() > 0 else x


class GatedMlps(TorchCase):
    def test_gated_mlps_are_recognised(self):
        from tilewright._mlp import gated

        for activation, function in (
            (nn.SiLU(), "silu"),
            (nn.GELU(), "gelu"),
            (nn.GELU(approximate="tanh"), "gelutanh"),
            (nn.ReLU(), "relu"),
            (nn.Hardswish(), "hardswish"),
        ):
            for kind in (Mlp, Turned):
                of = gated(kind(activation))
                self.assertEqual((*of[:3], of.activation.function, of.up_first), ("gate_proj", "up_proj", "down_proj", function, False))
        for module, up_first in ((Chunked(False), False), (Chunked(True), True), (Joined(), False)):
            of = gated(module)
            self.assertEqual((*of[:3], of.activation.function, of.up_first), ("gate_up_proj", None, "down_proj", "silu", up_first))
        hooked, replaced, watched = Mlp(), Mlp(), Mlp()
        hooked.up_proj.register_forward_hook(lambda *_: None)
        watched.act_fn.register_forward_pre_hook(lambda *_: None)
        replaced.gate_proj.forward = lambda x: x
        counting = Counting()
        computed = Mlp()
        torch.nn.utils.parametrizations.spectral_norm(computed.gate_proj)
        none = [watched, counting, computed, Defaulted(), Mlp(Clipped()), Mlp(Learned())]
        none += [Mlp(nn.Tanh()), Mlp(nn.Softmax(0)), Mlp(bias=True), Added(), Residual(), Same(), Branching(), Thirds(), Twice(), hooked, replaced, nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)]
        for module in none:
            self.assertIsNone(gated(module), module)
        self.assertEqual(counting.calls, 0)
        with torch.device("meta"):
            self.assertIsNotNone(gated(Mlp()))

    def test_gated_mlps_run_as_one_product(self):
        model, x = nn.Sequential(Mlp(), Turned(nn.GELU()), Joined(), Chunked(True)), torch.randn(2, 3, 6)
        with twt.record(self.path, model), torch.no_grad():
            want = model(x)
        noted = {(row.set, row.calls) for row in twt.shapes(self.path)}
        self.assertEqual(noted, {("aten::mm", 4), ("aten::mm", 2), ("tilewright::glu", 1)})
        self.assertFalse(model[0]._forward_pre_hooks)
        with mock.patch.object(tw._shapes, "_WITHIN", float("inf")):
            rows = twt.tune_recorded(self.path, trials=1)
        self.assertTrue(all(row.gain for row in rows), rows)

        def products():
            return sum(calls for problem, calls in _operators.launched().items() if "_gate" in problem)

        def runs(model, ours, like=want):
            before = products()
            torch.testing.assert_close(model(x), like, rtol=1e-4, atol=1e-5)
            self.assertEqual(products() - before, ours)

        twt.enable(self.path, margin=0.0)
        self.assertIn("tilewright::glu: has not run without gradients since `enable` and `optimize`", twt.report(self.path))
        state = {name: t.clone() for name, t in model.state_dict().items()}
        twt.optimize(model)
        self.assertEqual(set(model.state_dict()), set(state))
        with torch.no_grad():
            runs(model, 4)
            # Factors of what is answered as one product do not count once more.
            told = twt.report(self.path)
            self.assertIn("100.0% of torch's time in these calls is answered by tilewright", told)
            self.assertIn("is part of a gated MLP that tilewright answers", told)
            runs(copy.deepcopy(model), 4)
            runs(pickle.loads(pickle.dumps(model)), 4)
            runs(nn.Sequential(*map(copy.copy, model)), 4)
            self.assertIsInstance(model[0], Mlp)
            replica = model[0]._replicate_for_data_parallel()
            self.assertIs(type(replica), type(model[0]))
            # A copy has its own weights.
            other = copy.deepcopy(model)
            other[0].gate_proj.weight.zero_()
            runs(other, 4, model[1:](torch.zeros_like(x)))
            runs(model, 4)
            with torch.autocast("cpu", torch.bfloat16):
                before = products()
                self.assertEqual((model(x).dtype, products()), (torch.bfloat16, before))
            runs(torch.compile(model, fullgraph=True, backend="aot_eager"), 0)
            # Another size, one row, and parts that somebody has changed.
            model(x[:1])
            self.assertEqual(model(x[0, 0]).shape, (6,))
            model.train(False)
            runs(model, 0)
            model.train(True)
            runs(model, 4)
            changed = copy.deepcopy(model)
            changed[0].act_fn = nn.ReLU()
            runs(changed, 3, model[1:](model[0].down_proj(torch.relu(model[0].gate_proj(x)) * model[0].up_proj(x))))
            seen = []
            everywhere = torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1) and None)
            runs(model, 0)
            everywhere.remove()
            self.assertGreaterEqual(len(seen), 16)
            traced = torch.jit.trace(model, x)
            self.assertNotIn("tilewright::", str(traced.inlined_graph))
            tw.use("emu", records="")
            runs(model, 0)
            twt.disable()
            twt.enable(self.path, margin=0.0)
            with mock.patch.object(tw._shapes, "_WITHIN", float("inf")):
                twt.prepare(model, x, self.path, margin=0.0)
            runs(model, 4)
            hook = model[0].up_proj.register_forward_hook(lambda module, args, y: 2 * y)
            runs(model, 3, model[1:](2 * model[0].down_proj(model[0].act_fn(model[0].gate_proj(x)) * nn.functional.linear(x, model[0].up_proj.weight))))
            hook.remove()
            self.assertNotIn("tilewright::glu: ", twt.report(self.path))
            # Preparing decides about it too, without a file.
            twt.disable()
            with mock.patch.object(tw._shapes, "_WITHIN", float("inf")):
                self.assertEqual(twt.prepare(model, x, margin=0.0), len({row.problem for row in rows}))
            runs(model, 4)
        # Training goes to torch, and is not recorded as one product.
        runs(model, 0)
        with twt.record(self.path + "2", model):
            model(x)
        self.assertNotIn("tilewright::glu", {row.set for row in twt.shapes(self.path + "2")})
        model(x).sum().backward()
        self.assertTrue(all(p.grad is not None for p in model.parameters()))
        twt.disable()
        with torch.no_grad():
            runs(model, 0)

    def compared(self, model, *inputs):
        """Everything that the model calls without gradients is ours."""
        with twt.record(self.path, model), torch.no_grad():
            for x in inputs:
                model(x)
        with mock.patch.object(tw._shapes, "_WITHIN", float("inf")):
            rows = twt.tune_recorded(self.path, trials=1)
        self.assertTrue(all(row.gain for row in rows), rows)

    def targets(self, model, x, **options):
        """The model's result and the operators of its graphs after our pass."""
        seen = []

        def compiled(module, _):
            config.post_grad_custom_post_pass(module.graph)
            module.graph.lint()
            module.recompile()
            seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
            return make_boxed_func(module)

        torch._dynamo.reset()
        return torch.compile(model, backend=aot_autograd(fw_compiler=compiled), **options)(x), seen

    def test_gated_mlps_of_compiled_models(self):
        x = torch.randn(2, 3, 6)
        for kind in (Mlp, Turned, lambda: Mlp(nn.GELU()), lambda: Mlp(nn.GELU(approximate="tanh")), lambda: Mlp(nn.ReLU()), Joined, lambda: Chunked(True)):
            model = kind()
            self.compared(model, x)
            with torch.no_grad():
                want = model(x)
                twt.enable(self.path, margin=0.0, compiled=True)
                got, seen = self.targets(model, x)
                self.assertEqual([name for name in seen if "tilewright" in name], ["tilewright.glu.default"], seen)
                self.assertEqual(seen.count("aten.mm.default"), 1)
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
                # Sizes that are left open, and a shape that was not compared.
                for other, options in ((x, {"dynamic": True}), (x[:1], {})):
                    got, seen = self.targets(model, other, **options)
                    self.assertNotIn("tilewright.glu.default", seen)
                    torch.testing.assert_close(got, want[: len(other)], rtol=1e-5, atol=1e-5)
            # With gradients both factors have other users.
            got, seen = self.targets(model, x)
            self.assertNotIn("tilewright.glu.default", seen)
            twt.disable()

    def test_inductor_compiles_gated_mlps(self):
        """With the functions and conversions that Inductor writes out."""
        products = lambda: sum(calls for problem, calls in _operators.launched().items() if "_gate" in problem)  # noqa: E731
        for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            model = nn.Sequential(Mlp(), Joined(), Mlp(nn.GELU()), Mlp(nn.GELU(approximate="tanh"))).to(dtype)
            x = torch.randn(2, 5, 6, dtype=dtype)
            self.compared(model, x)
            with torch.no_grad():
                want = model(x)
                twt.enable(self.path, margin=0.0, compiled=True)
                torch._dynamo.reset()
                before = products()
                got = torch.compile(model, fullgraph=True, options={"fx_graph_cache": False})(x)
                self.assertEqual(products() - before, 4)
                torch.testing.assert_close(got, want, rtol=error, atol=error)
                self.assertNotIn("tilewright::glu: ", twt.report(self.path))
                twt.disable()
            os.remove(self.path)

    def test_one_after_the_other(self):
        """The rows of the second are the result of the first."""
        x, w = torch.randn(8, 6), torch.randn(6, 6)

        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.ModuleList([Mlp(), Mlp()])
                for mlp in self.inner:
                    mlp.gate_proj, mlp.up_proj = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
                    mlp.down_proj = nn.Linear(6, 6, bias=False)

            def forward(self, x):
                for mlp in self.inner:
                    x = mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)
                return x

        model = Two()
        self.compared(model.inner[0], x)
        with torch.no_grad():
            want = model(x)
            twt.enable(self.path, margin=0.0, compiled=True)
            got, seen = self.targets(model, x)
            self.assertEqual(seen.count("tilewright.glu.default"), 2, seen)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        twt.disable()
        # Sizes that are left open, and of halves.
        torch._dynamo.reset()
        for pattern in (lambda x, w: (lambda h: F.silu(h[0]) * h[1])(F.linear(x, w).chunk(2, -1)), lambda x, w: (i := (x > 0).nonzero().contiguous()).view(-1) * i.view(-1)):
            found = []

            def compiled(module, _, found=found):
                found.extend(_patterns.gated(module.graph))
                return make_boxed_func(module)

            with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
                torch.compile(pattern, backend=aot_autograd(fw_compiler=compiled), dynamic=True)(x, w)
            self.assertEqual(found, [])

    def test_patterns_with_other_users_are_left_alone(self):
        x, w, v = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 4)
        alone = {
            "silu": lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v),
            "by hand": lambda x, w, v: [g := F.linear(x, w), F.linear(x, v) * (g / (1 + torch.exp(-g)))][1],
        }
        left = {
            "the gate leaves": lambda x, w, v: [g := F.linear(x, w), F.silu(g) * F.linear(x, v)],
            "the other factor leaves": lambda x, w, v: [u := F.linear(x, v), F.silu(F.linear(x, w)) * u],
            "the function leaves": lambda x, w, v: [y := F.silu(F.linear(x, w)), y * F.linear(x, v)],
            "no function": lambda x, w, v: F.linear(x, w) * F.linear(x, v),
            "another function": lambda x, w, v: torch.tanh(F.linear(x, w)) * F.linear(x, v),
            "two values": lambda x, w, v: F.silu(F.linear(x, w) + x[:, :1]) * F.linear(x, v),
            "other rows": lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x * 2, v),
            "a value of 8 bits": lambda x, w, v: F.silu(F.linear(x, w)).to(torch.float8_e4m3fn).to(torch.float32) * F.linear(x, v),
            "whole numbers": lambda x, w, v: F.relu(F.linear(x, w).to(torch.int32)) * F.linear(x, v),
            "one value": lambda x, w, v: F.linear(x, w) * x[:1, :1].reshape(()),
            "rows for each row": lambda x, w, v: F.silu(F.linear(x, w).view(3, 1, 5)) * F.linear(x, v).view(1, 3, 5),
            "not turned": lambda x, w, v: F.silu(x @ w.t().contiguous()) * (x @ v.t().contiguous()),
        }
        for count, patterns in ((1, alone), (0, left)):
            for name, pattern in patterns.items():
                found = []

                def compiled(module, _, found=found):
                    found.extend(_patterns.gated(module.graph))
                    return make_boxed_func(module)

                torch._dynamo.reset()
                with torch.no_grad():
                    torch.compile(pattern, backend=aot_autograd(fw_compiler=compiled))(x, w, v)
                self.assertEqual(len(found), count, name)


if __name__ == "__main__":
    unittest.main()
