"""The package on arrays of this process, on the built-in device (and on OpenCL where the first argument of the environment says so)."""

import array
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

import numpy as np

import tilewright as tw
from tilewright import _arrays, _core

try:
    import torch
except ImportError:
    torch = None

DEVICE = os.environ.get("TILEWRIGHT_TEST_DEVICE", "emu")


def numbers(*shape, dtype="float32"):
    return (np.arange(np.prod(shape)).reshape(shape) * 5 % 7 - 3).astype(dtype)


class Products(unittest.TestCase):
    def setUp(self):
        tw.use(DEVICE, records="")

    def test_plain_transposed_strided_batched(self):
        a, b = numbers(33, 20), numbers(20, 17)
        np.testing.assert_array_equal(tw.gemm(a, b), a @ b)
        np.testing.assert_array_equal(tw.gemm(numbers(20, 33).T, numbers(17, 20).T), numbers(20, 33).T @ numbers(17, 20).T)
        wide = numbers(33, 40)
        np.testing.assert_array_equal(tw.gemm(wide[:, 3:23], b), wide[:, 3:23] @ b)
        # Every second column: neither rows nor columns are contiguous.
        np.testing.assert_array_equal(tw.gemm(wide[:, ::2], b), wide[:, ::2] @ b)
        # A row that is repeated: strides of 0.
        row = np.broadcast_to(numbers(1, 20), (33, 20))
        np.testing.assert_array_equal(tw.gemm(row, b), row @ b)
        several = numbers(3, 8, 20)
        np.testing.assert_array_equal(tw.gemm(several, b), several @ b)
        np.testing.assert_array_equal(tw.gemm(several, numbers(3, 20, 5)), several @ numbers(3, 20, 5))

    def test_epilogue_and_out(self):
        a, b, bias, residual = numbers(12, 16), numbers(16, 10), numbers(10), numbers(12, 10)
        got = tw.gemm(a, b, bias=bias, activation="relu", residual=residual, alpha=2.0)
        np.testing.assert_array_equal(got, np.maximum(2 * (a @ b) + bias, 0) + residual)
        np.testing.assert_array_equal(tw.gemm(a, b, bias=numbers(12, 1)), a @ b + numbers(12, 1))
        room = np.full((12, 14), -9.0, "float32")
        tw.gemm(a, b, out=room[:, 2:12])
        np.testing.assert_array_equal(room[:, 2:12], a @ b)
        self.assertTrue((room[:, :2] == -9).all() and (room[:, 12:] == -9).all())
        out = numbers(12, 10)
        tw.gemm(a, b, out=out, beta=3.0)
        np.testing.assert_array_equal(out, a @ b + 3 * numbers(12, 10))

    def test_types(self):
        a, b = numbers(16, 16, dtype="float16"), numbers(16, 16, dtype="float16")
        got = tw.gemm(a, b, out_dtype="float32")
        self.assertEqual(got.dtype, np.float32)
        np.testing.assert_array_equal(got, a.astype("f4") @ b.astype("f4"))
        a, b = numbers(9, 9, dtype="float64"), numbers(9, 9, dtype="float64")
        np.testing.assert_array_equal(tw.gemm(a, b), a @ b)

    def test_integers(self):
        # All values of a byte, to the last unit of the sums.
        drawn = np.random.default_rng(5)
        signed, unsigned = (drawn.integers(np.iinfo(t).min, np.iinfo(t).max + 1, (33, 20), t) for t in ("int8", "uint8"))
        for a in (signed, unsigned):
            for b in (signed.T, unsigned.T):
                got = tw.gemm(a, b)
                self.assertEqual(got.dtype, np.int32)
                np.testing.assert_array_equal(got, a.astype("i4") @ b.astype("i4"))
        a, b = signed, signed.T[:, :17]
        sums = a.astype("i4") @ b.astype("i4")
        bias, residual = numbers(17, dtype="int32"), numbers(33, 17, dtype="int32")
        np.testing.assert_array_equal(tw.gemm(a, b, bias=bias, residual=residual), sums + bias + residual)
        np.testing.assert_array_equal(tw.gemm(a, b, out_dtype="float32", alpha=0.5), (sums * 0.5).astype("f4"))
        small = tw.gemm(a, b, out_dtype="int8", alpha=2.0**-8)
        np.testing.assert_array_equal(small, np.clip(np.rint(sums / 256), -128, 127).astype("i1"))
        np.testing.assert_array_equal(tw.reduce(a, "sum", axis=1), a.sum(axis=1, dtype="i4"))
        rows, columns = 2.0 ** -drawn.integers(0, 9, (33, 1)).astype("f4"), 2.0 ** -drawn.integers(0, 9, 17).astype("f4")
        for scales, by in (((rows, columns), rows * columns), ([rows], rows), (columns, columns)):
            np.testing.assert_array_equal(tw.gemm(a, b, scales=scales, out_dtype="float32"), (sums * by).astype("f4"))
        small = tw.gemm(a, b, scales=(columns, rows), out_dtype="int8")
        np.testing.assert_array_equal(small, np.clip(np.rint(sums * (rows * columns)), -128, 127).astype("i1"))

    def test_complex_numbers(self):
        for dtype in ("complex64", "complex128"):
            a, b = (numbers(*shape, dtype=dtype) + 1j * numbers(*shape)[::-1] for shape in ((2, 33, 20), (20, 17)))
            a, b = a.astype(dtype), b.astype(dtype)
            found = tw.gemm(a, b)
            self.assertEqual(found.dtype, dtype)
            np.testing.assert_array_equal(found, a @ b)
            np.testing.assert_array_equal(tw.gemm(a[0], b.conj()), a[0] @ b.conj())
            out = np.ones((17, 33), dtype).T
            np.testing.assert_array_equal(tw.gemm(a[1], b, alpha=2.0, beta=-3.0, out=out), 2 * (a[1] @ b) - 3)
            np.testing.assert_array_equal(tw.gemm(a[1].T, a[0], residual=np.full((20, 20), 1j, dtype)), a[1].T @ a[0] + 1j)
            np.testing.assert_array_equal(tw.gemm(a[0], b, alpha=1j), 1j * (a[0] @ b))
            out = np.full((33, 17), 1 + 2j, dtype)
            tw.gemm(a[1], b, alpha=np.complex64(2 - 1j), beta=-1 + 3j, out=out)
            np.testing.assert_array_equal(out, (2 - 1j) * (a[1] @ b) + (-1 + 3j) * (1 + 2j))
        with self.assertRaisesRegex(tw.OperandError, "b holds complex64, complex128 is needed"):
            tw.gemm(a[0], b.astype("complex64"))
        for problem, text in ((dict(bias=np.ones(17, dtype)), "add it as a residual"), (dict(out_dtype="float32"), "results of complex products")):
            with self.assertRaisesRegex(tw.ProblemError, text):
                tw.gemm(a[0], b, **problem)
        with self.assertRaisesRegex(tw.ProblemError, "alpha = 1j: a real number"):
            tw.gemm(a[0].real, b.real, alpha=1j)
        with self.assertRaisesRegex(tw.OperandError, "x holds complex128: only gemm takes complex numbers"):
            tw.reduce(a, "sum")

    def test_zero_points(self):
        drawn = np.random.default_rng(3)
        a, b = drawn.integers(0, 256, (33, 20), "uint8"), drawn.integers(-128, 128, (20, 17), "int8")
        one, rows, columns = np.array([131], "i4"), drawn.integers(0, 256, (33, 1), "i4"), drawn.integers(-128, 128, 17, "i4")
        for of_a in (None, one, rows):
            for of_b in (None, one, columns):
                want = (a.astype("i4") - (0 if of_a is None else of_a)) @ (b.astype("i4") - (0 if of_b is None else of_b))
                np.testing.assert_array_equal(tw.gemm(a, b, zero_points=(of_a, of_b)), want)
        got = tw.gemm(a, b, zero_points=(rows, columns), scales=np.full(17, 0.5, "f4"), out_dtype="float32")
        np.testing.assert_array_equal(got, ((a - rows.astype("i4")) @ (b.astype("i4") - columns) * 0.5).astype("f4"))

    def test_groups(self):
        drawn = np.random.default_rng(5)
        a, b = drawn.integers(-8, 9, (70, 20)).astype("f4"), drawn.integers(-8, 9, (4, 20, 17)).astype("f4")
        bias, before = drawn.integers(-8, 9, 17).astype("f4"), np.full((70, 17), 0.5, "f4")
        for ends in ([20, 20, 41, 70], [0, 0, 70, 70], [1, 2, 3, 4], [0, 0, 0, 0]):
            out, begin = before.copy(), 0
            tw.gemm(a, b, offsets=np.array(ends, "i4"), bias=bias, out=out)
            want = before.copy()
            for group, end in enumerate(ends):
                want[begin:end], begin = a[begin:end] @ b[group] + bias, end
            np.testing.assert_array_equal(out, want)
        one = np.array([69], "i4")
        np.testing.assert_array_equal(tw.gemm(a, b[:1], offsets=one, residual=before)[:69], (a @ b[0] + before)[:69])
        transposed = np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
        ends = np.array([9, 9, 60, 70], "i4")
        np.testing.assert_array_equal(tw.gemm(a, transposed, offsets=ends), tw.gemm(a, b, offsets=ends))
        for wrong in (ends[:3], ends.astype("i8"), ends.reshape(2, 2)):
            with self.assertRaises(tw.Error):
                tw.gemm(a, b, offsets=wrong)
        with self.assertRaisesRegex(tw.Error, "groups"):
            tw.gemm(b, b.transpose(0, 2, 1), offsets=ends)

    def test_groups_of_terms(self):
        drawn = np.random.default_rng(6)
        a, b = drawn.integers(-8, 9, (70, 20)).astype("f4"), drawn.integers(-8, 9, (70, 17)).astype("f4")
        bias, before = drawn.integers(-8, 9, 17).astype("f4"), drawn.integers(-8, 9, (4, 20, 17)).astype("f4")
        for ends in ([20, 20, 41, 70], [0, 0, 70, 70], [1, 2, 3, 4], [0, 0, 0, 0]):
            out = before.copy()
            begins = [0, *ends[:-1]]
            want = np.stack([a[i:j].T @ b[i:j] for i, j in zip(begins, ends)])
            np.testing.assert_array_equal(tw.gemm(a.T, b, offsets=np.array(ends, "i4")), want)
            tw.gemm(a.T, b, offsets=np.array(ends, "i4"), beta=2.0, bias=bias, residual=before, out=out)
            np.testing.assert_array_equal(out, want + bias + 3 * before)
        one = tw.gemm(np.ascontiguousarray(a.T), b, offsets=np.array([69], "i4"))
        np.testing.assert_array_equal(one, (a[:69].T @ b[:69])[None])
        with self.assertRaisesRegex(tw.Error, "groups"):
            tw.gemm(a.T, b, offsets=np.zeros((2, 2), "i4"))

    def test_small_weights(self):
        drawn = np.random.default_rng(13)
        a = drawn.integers(-4, 5, (5, 80)).astype("f2")
        for dtype, low, high in (("int8", -128, 128), ("uint8", 0, 256)):
            w = drawn.integers(low, high, (80, 24), dtype)
            want = a.astype("f4") @ w.astype("f4")
            np.testing.assert_array_equal(tw.gemm(a, w, out_dtype="float32"), want)
            self.assertEqual(tw.gemm(a, w).dtype, np.dtype("f2"))
            groups = (2.0 ** -drawn.integers(0, 4, (3, 24))).astype("f4")
            part = lambda i: a[:, 32 * i : 32 * i + 32].astype("f4") @ w[32 * i : 32 * i + 32].astype("f4")
            want = sum(part(i) * groups[i] for i in range(3))
            np.testing.assert_array_equal(tw.gemm(a, w, scales={"n1x32": groups}, out_dtype="float32"), want)

    def test_weights_of_4_bits(self):
        drawn = np.random.default_rng(17)
        a = drawn.integers(-4, 5, (5, 80)).astype("f2")
        groups = (2.0 ** -drawn.integers(0, 4, (3, 24))).astype("f4")
        for dtype, low in (("int4", -8), ("uint4", 0)):
            w = drawn.integers(low, low + 16, (80, 24))
            wide = w.astype("f4")
            part = lambda i: a[:, 32 * i : 32 * i + 32].astype("f4") @ wide[32 * i : 32 * i + 32]
            of_groups = sum(part(i) * groups[i] for i in range(3))
            pair = lambda w: (w[..., ::2] & 15 | (w[..., 1::2] & 15) << 4).astype("u1")
            for b in (pair(w), pair(np.ascontiguousarray(w.T)).T):
                np.testing.assert_array_equal(tw.gemm(a, b, b_dtype=dtype, out_dtype="float32"), a.astype("f4") @ wide)
                got = tw.gemm(a, b, b_dtype=dtype, scales={"n1x32": groups}, out_dtype="float32")
                np.testing.assert_array_equal(got, of_groups)

    def test_convolutions_of_integers(self):
        drawn = np.random.default_rng(7)
        x, w = drawn.integers(-128, 128, (2, 3, 6, 5), "int8"), drawn.integers(-128, 128, (4, 3, 3, 2), "int8")
        want = np.zeros((2, 4, 4, 4), "i4")
        for i in range(3):
            for j in range(2):
                want += np.einsum("nchw,kc->nkhw", x[:, :, i : i + 4, j : j + 4].astype("i4"), w[:, :, i, j].astype("i4"))
        np.testing.assert_array_equal(tw.conv(x, w), want)
        # Of the gradients the sums of a filter's: as in training with 8 bits.
        y, filters = want.astype("i1"), np.zeros((4, 3, 3, 2), "i4")
        for i in range(3):
            for j in range(2):
                filters[:, :, i, j] = np.einsum("nkhw,nchw->kc", y.astype("i4"), x[:, :, i : i + 4, j : j + 4].astype("i4"))
        np.testing.assert_array_equal(tw.conv(y, x, direction="backward-weight", size=(3, 2)), filters)

    def test_buffers_without_numpy(self):
        a, b, c = (memoryview(array.array("f", v)).cast("B").cast("f", (2, 2)) for v in ([1, 2, 3, 4], [1, 0, 0, 1], [0] * 4))
        tw.gemm(a, b, out=c)
        self.assertEqual(c.tolist(), [[1, 2], [3, 4]])

    def test_other_dlpack_producers(self):
        class Only:
            """An array of which only DLPack is known."""

            def __init__(self, inner):
                self.inner = inner

            def __dlpack__(self, **options):
                return self.inner.__dlpack__(**options)

        a, b, out = numbers(6, 5), numbers(5, 4), np.zeros((6, 4), "float32")
        tw.gemm(Only(a), Only(b), out=Only(out))
        np.testing.assert_array_equal(out, a @ b)

    def test_threads(self):
        a, b = numbers(30, 30), numbers(30, 30)
        results = [None] * 4

        def work(i):
            results[i] = tw.gemm(a + i, b)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for i, got in enumerate(results):
            np.testing.assert_array_equal(got, (a + i) @ b)

    def test_errors_are_named(self):
        a, b = numbers(4, 5), numbers(5, 6)
        for wrong, error, says in [
            (lambda: tw.gemm(a, a), tw.OperandError, "rows of b"),
            (lambda: tw.gemm(a, b.astype("float64")), tw.OperandError, "float64"),
            (lambda: tw.gemm(a.astype("int32"), b), tw.OperandError, "int32"),
            (lambda: tw.gemm(a, b, activation="swish"), tw.ProblemError, "relu"),
            (lambda: tw.gemm(a, b, out=np.zeros((6, 4), "f4")), tw.OperandError, r"\(4, 6\)"),
            (lambda: tw.gemm(a, object()), tw.OperandError, "DLPack"),
            (lambda: tw.gemm(a, b, bias=numbers(5)), tw.OperandError, "bias"),
            (lambda: tw.gemm(a, b, alpha=1e300), tw.OperandError, "alpha"),
            (lambda: tw.tune("nonsense"), tw.ProblemError, "nonsense"),
            (lambda: tw.tune(print), tw.ProblemError, "tilewright.gemm"),
            (lambda: tw.Context("toaster"), tw.DeviceError, "toaster"),
            (lambda: tw.emit(tw.gemm, a, b, arch="sm_1"), tw.DeviceError, "sm_90a"),
        ]:
            with self.subTest(says):
                with self.assertRaisesRegex(error, says):
                    wrong()
                self.assertTrue(issubclass(error, tw.Error))


class Chains(unittest.TestCase):
    """Gated products and losses of layers as models store them."""

    def setUp(self):
        tw.use(DEVICE, records="")

    def test_glu(self):
        x, weight, bias = numbers(2, 3, 8), numbers(12, 8), numbers(12)
        z = x @ weight.T + bias
        got = tw.glu(x, weight, bias=bias, gate="relu")
        np.testing.assert_allclose(got, np.maximum(z[..., :6], 0) * z[..., 6:], rtol=1e-5)
        got = tw.glu(x, weight, bias=bias, gate="linear", up_first=True, interleaved=True)
        np.testing.assert_allclose(got, z[..., ::2] * z[..., 1::2], rtol=1e-5)
        two = tw.glu(x, weight[:6], up=weight[6:], bias=bias, gate="relu")
        np.testing.assert_array_equal(two, tw.glu(x, weight, bias=bias, gate="relu"))
        self.assertEqual(tw.glu(x[:, :0], weight).shape, (2, 0, 6))

    def test_two_pairs_of_factors(self):
        for turned in range(8):
            a, b, a2, b2 = numbers(7, 9), numbers(9, 5), numbers(7, 3), numbers(3, 5)
            want = np.maximum(a @ b + a2 @ b2 + np.arange(5), 0)
            a, b, b2 = (np.ascontiguousarray(x.T).T if turned & bit else x for x, bit in ((a, 1), (b, 2), (b2, 4)))
            got = tw.gemm(a, b, a2=a2, b2=b2, bias=np.arange(5, dtype="f4"), activation="relu")
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        # Parts of one array, as a sum over concatenated inputs reads them.
        both, weight = numbers(6, 12), numbers(12, 4)
        got = tw.gemm(both[:, :8], weight[:8], a2=both[:, 8:], b2=weight[8:])
        np.testing.assert_allclose(got, both @ weight, rtol=1e-5, atol=1e-5)
        for wrong, told in ((dict(a2=a2), "b2"), (dict(a2=a2, b2=b2[:2]), "b2 has shape"), (dict(a2=a2[:, :0], b2=b2[:0]), "no terms")):
            with self.assertRaisesRegex(tw.OperandError, told):
                tw.gemm(a, b, **wrong)

    def test_cross_entropy(self):
        rng = np.random.default_rng(5)
        for dtype, rtol in (("float32", 1e-5), ("float64", 1e-12), ("float16", 2e-3)):
            x, weight, bias, factors = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 5, 8), (11, 8), 11, 11))
            labels = rng.integers(0, 11, (2, 5))
            labels[0, 1], labels[1, 2] = -100, 3
            z = x.astype("f8") @ weight.T.astype("f8") + bias
            most = np.log(np.exp(z).sum(-1))
            kept = labels != -100
            index = np.where(kept, labels, 0)
            label = np.take_along_axis(z, index[..., None], -1)[..., 0]
            options = (
                ({}, most - label, kept),
                (dict(label_smoothing=0.2, z_loss=0.1), most - 0.8 * label - 0.2 * z.mean(-1) + 0.1 * most**2, kept),
                (dict(class_weight=factors), (most - label) * factors[index], kept * factors[index].astype("f8")),
            )
            for more, loss, counted in options:
                loss = np.where(kept, loss, 0)
                for reduction, want in (("none", loss), ("sum", loss.sum()), ("mean", loss.sum() / counted.sum())):
                    got = tw.cross_entropy(x, weight, labels, bias=bias, reduction=reduction, **more)
                    self.assertEqual(got.dtype, "float64" if dtype == "float64" else "float32")
                    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=f"{dtype} {reduction} {more}")
            capped = 2.0 * np.tanh(z / 2.0)
            want = np.log(np.exp(capped).sum(-1)) - np.take_along_axis(capped, index[..., None], -1)[..., 0]
            got = tw.cross_entropy(x, weight, labels, bias=bias, reduction="none", softcap=2.0)
            np.testing.assert_allclose(got, np.where(kept, want, 0), rtol=rtol, atol=rtol)
            unknown = np.where(kept, 11, -100)
            np.testing.assert_array_equal(np.isnan(tw.cross_entropy(x, weight, unknown, reduction="none")), kept)
        # No rows, and no rows that count.
        self.assertTrue(np.isnan(tw.cross_entropy(x[:, :0], weight, labels[:, :0])))
        self.assertTrue(np.isnan(tw.cross_entropy(x, weight, np.full((2, 5), -100))))
        self.assertAlmostEqual(float(tw.cross_entropy([[1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [1])), np.log(2))


class Streams(unittest.TestCase):
    """Arrays on a GPU, by a stand-in for CuPy and a context that launches nothing."""

    def setUp(self):
        class Array:
            device = contextlib.nullcontext()
            dtype = "float32"

        Array.__module__ = "cupy"
        self.array, self.made = Array(), []

        def empty(shape, dtype):
            self.made.append((shape, dtype))
            return np.empty(shape, dtype)

        stream = types.SimpleNamespace(ptr=77)
        stand_in = types.ModuleType("cupy")
        vars(stand_in).update(ndarray=Array, empty=empty, cuda=types.SimpleNamespace(get_current_stream=lambda: stream))
        patch = mock.patch.dict(sys.modules, {"cupy": stand_in})
        patch.start()
        self.addCleanup(patch.stop)

    def launched(self, array, stream, size=64, **other):
        """Stream and address of workspace of a call's launch, and the requests for workspace of the context. `other`: arrays of other roles."""
        launch, workspace = mock.Mock(), mock.Mock(return_value=4096)
        prepared = types.SimpleNamespace(workspace_bytes=size, launch=launch)
        context = types.SimpleNamespace(prepared=lambda problem, alignments: prepared, workspace=workspace)
        at = lambda x: _arrays.Array(512, (4, 4), (4, 1), "float32", "cuda:0", None if x is None else (x, None))
        memories = {role: at(other.get(role, array)) for role in ("a", "b", "c")}
        # As with values of the result, which are a tuple.
        _core.Call(context, "a problem", memories, (array, array)).run(1.0, 0.0, stream)
        addresses, _, _, found, _, _ = launch.call_args.args
        return found, addresses["workspace"], [call.args for call in workspace.call_args_list]

    def test_the_current_stream_of_the_framework(self):
        stream, address, asked = self.launched(self.array, None)
        self.assertEqual((stream, asked, self.made), (77, [], [((17,), "float32")]))
        self.assertTrue(address)
        self.assertEqual(self.launched(self.array, None, size=0), (77, 0, []))

    def test_a_stream_by_its_handle(self):
        self.assertEqual(self.launched(self.array, 5), (5, 4096, [(64, 5, self.array)]))

    def test_the_default_stream_of_other_frameworks(self):
        other = object()
        self.assertEqual(self.launched(other, None), (0, 4096, [(64, 0, other)]))
        # One among them has a stream, and can allocate.
        for role in "abc":
            stream, address, asked = self.launched(other, None, **{role: self.array})
            self.assertEqual((stream, asked), (77, []))
            self.assertTrue(address)

    def test_a_result_that_is_not_stored(self):
        stream, address, asked = self.launched(self.array, None, c=None)
        self.assertEqual((stream, asked), (77, []))
        self.assertTrue(address)

    def test_two_current_streams(self):
        class Tensor:
            device = types.SimpleNamespace(index=0)

        of = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: self.other)
        with mock.patch.dict(sys.modules, {"torch": types.SimpleNamespace(Tensor=Tensor, _C=of)}):
            self.other = 77
            self.assertEqual(self.launched(self.array, None, size=0, b=Tensor())[0], 77)
            self.other = 78
            with self.assertRaisesRegex(tw.OperandError, "c and b are of frameworks with two current streams"):
                self.launched(self.array, None, b=Tensor())
            self.assertEqual(self.launched(self.array, 5, b=Tensor())[0], 5)

    def test_no_memory_for_the_workspace(self):
        vars(sys.modules["cupy"])["empty"] = mock.Mock(side_effect=MemoryError("none is free"))
        with self.assertRaisesRegex(tw.OutOfMemory, "a workspace of 64 bytes"):
            self.launched(self.array, None)


class Words(unittest.TestCase):
    """What somebody who comes from numpy writes."""

    def setUp(self):
        tw.use(DEVICE, records="")

    def test_types(self):
        a, b = numbers(5, 8, dtype="float16"), numbers(8, 6, dtype="float16")
        want = a.astype("f4") @ b.astype("f4")
        for told in (np.float32, np.dtype("f4"), "float32", "f32", "float", "single"):
            got = tw.gemm(a, b, out_dtype=told)
            self.assertEqual(got.dtype, np.float32)
            np.testing.assert_array_equal(got, want)
        self.assertEqual(tw.gemm(a, b, out_dtype="half").dtype, np.float16)
        weights = np.full((8, 3), 0x21, np.uint8)
        np.testing.assert_array_equal(tw.gemm(a, weights, b_dtype="u4"), tw.gemm(a, weights, b_dtype="uint4"))

    def test_activations(self):
        a, b = numbers(5, 8), numbers(8, 6)
        for name in ("gelu-tanh", "gelu_tanh"):
            np.testing.assert_array_equal(tw.gemm(a, b, activation=name), tw.gemm(a, b, activation="gelutanh"))
        x = a @ b - 1
        for name in ("hardswish", "hard-swish"):
            got = tw.gemm(a, b, bias=np.full(6, -1, "f4"), activation=name)
            np.testing.assert_allclose(got, x * np.clip(x + 3, 0, 6) / 6, rtol=1e-5, atol=1e-6)

    def test_gates(self):
        a, weight, bias = numbers(5, 8), numbers(12, 8), numbers(12)
        x = a @ weight.T + bias
        functions = {
            "silu": lambda x: x / (1 + np.exp(-x)),
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
            "relu": lambda x: np.maximum(x, 0),
            "linear": lambda x: x,
        }
        for turn, (name, function) in enumerate(functions.items()):
            orders = [((False, False), x[:, :6], x[:, 6:]), ((True, False), x[:, 6:], x[:, :6])]
            orders += [((False, True), x[:, ::2], x[:, 1::2]), ((True, True), x[:, 1::2], x[:, ::2])]
            # Kernels of every function and order are tested beside the generator.
            for (up_first, interleaved), gate, up in orders if name == "silu" else orders[turn % 4 :][:1]:
                got = tw.gemm(a, weight.T, bias=bias, gate=name, up_first=up_first, interleaved=interleaved)
                np.testing.assert_allclose(got, function(gate) * up, rtol=1e-5, atol=1e-5)
                options = dict(gate=name, up_first=up_first, interleaved=interleaved, preactivations=True)
                again, sums = tw.gemm(a, weight.T, bias=bias, **options)
                np.testing.assert_array_equal(again, got)
                np.testing.assert_allclose(sums, x, rtol=1e-5, atol=1e-5)
                _, sums = tw.gemm(a, weight.T, bias=bias, out=np.zeros((6, 5), "f4").T, **options)
                np.testing.assert_allclose(sums, x, rtol=1e-5, atol=1e-5)
        # Two arrays of weights: halves of one, of other strides, in a batch.
        want = functions["silu"](x[:, :6]) * x[:, 6:]
        for up in (weight[6:].T, weight[6:].copy().T, np.ascontiguousarray(weight[6:].T)):
            got, sums = tw.gemm(a, weight[:6].T, up=up, bias=bias, gate="silu", preactivations=True)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(sums, x, rtol=1e-5, atol=1e-5)
        several = numbers(3, 8, 6), numbers(3, 8, 6)
        got = tw.gemm(np.stack([a] * 3), several[0], up=several[1], gate="relu")
        np.testing.assert_allclose(got, np.maximum(a @ several[0], 0) * (a @ several[1]), rtol=1e-4, atol=1e-5)
        for limit, slope in ((None, None), (0.5, 3)):
            got = tw.gemm(a, weight.T, bias=bias, gate="clamped", gate_limit=limit, gate_slope=slope)
            limit, slope = limit or 7, slope or 1.702
            gate, up = np.minimum(x[:, :6], limit), np.clip(x[:, 6:], -limit, limit)
            np.testing.assert_allclose(got, gate / (1 + np.exp(-slope * gate)) * (up + 1), rtol=1e-5, atol=1e-5)

    def test_lists(self):
        np.testing.assert_array_equal(tw.gemm([[1.0, 2.0]], [[3.0], [4.0]]), [[11.0]])
        a = numbers(2, 2)
        got = tw.gemm(a, [[1, 2], [3, 4]], bias=[1.0, -1.0])
        self.assertEqual(got.dtype, np.float32)
        np.testing.assert_array_equal(got, a @ [[1, 2], [3, 4]] + [1, -1])
        self.assertEqual(tw.reduce([1.0, 5.0, 2.0], "max"), 5.0)

    def test_empty_matrices(self):
        for m, n, k in ((0, 6, 4), (3, 0, 4), (3, 6, 0), (0, 0, 0)):
            a, b = numbers(m, k), numbers(k, n)
            got = tw.gemm(a, b, math="tf32")
            self.assertEqual((got.shape, got.dtype), ((m, n), np.float32))
            np.testing.assert_array_equal(got, a @ b)
        self.assertEqual(tw.gemm(np.zeros((0, 3, 4), "f4"), np.zeros((4, 5), "f4")).shape, (0, 3, 5))
        out = numbers(3, 6)
        want = 0.5 * out
        self.assertIs(tw.gemm(numbers(3, 0), numbers(0, 6), out=out, beta=0.5), out)
        np.testing.assert_array_equal(out, want)
        self.assertEqual(tw.gemm(np.zeros((0, 4), "i1"), np.zeros((4, 5), "i1")).dtype, np.int32)

    def test_padding(self):
        x, w = numbers(1, 2, 7, 6), numbers(3, 2, 3, 4)
        np.testing.assert_array_equal(tw.conv(x, w, padding="valid"), tw.conv(x, w))
        np.testing.assert_array_equal(tw.conv(x, w, padding="same"), tw.conv(x, w, padding=[(1, 1), (1, 2)]))


class Reductions(unittest.TestCase):
    def setUp(self):
        tw.use(DEVICE, records="")

    def test_axes_types_and_strides(self):
        x = numbers(5, 6, 7)
        np.testing.assert_array_equal(tw.reduce(x, "sum", 1), x.sum(1))
        np.testing.assert_array_equal(tw.reduce(x[:, ::2].transpose(2, 0, 1), "max", (0, -1)), x[:, ::2].max((1, 2)))
        np.testing.assert_array_equal(tw.reduce(x[::-1], "min", [1, 2]), x[::-1].min((1, 2)))
        total, largest, at = tw.reduce(x, ["sum:f32", "absmax", "argmax:i32"], activation="relu", alpha=-2.0)
        self.assertEqual((total.shape, at.dtype), ((), np.int32))
        turned = np.maximum(-2 * x, 0)
        self.assertEqual((total, largest, at), (turned.sum(), turned.max(), turned.argmax()))
        at = tw.reduce(x.astype("f8"), "argmin", 2)
        self.assertEqual(at.dtype, np.int64)
        np.testing.assert_array_equal(at, x.argmin(2))
        np.testing.assert_allclose(tw.reduce(x.astype("f8"), "var", 0), x.var(0), atol=1e-12)
        np.testing.assert_allclose(tw.reduce(x.astype("f8"), "norm2", 0), np.sqrt((x.astype("f8") ** 2).sum(0)), rtol=1e-12)

    def test_of_products(self):
        a, b = numbers(9, 12), numbers(12, 10)
        c, rows, best, total = tw.gemm(a, b, activation="relu", reduce=["max:n", "argmax:m", "sum:mn"])
        want = np.maximum(a @ b, 0)
        for got, expected in ((c, want), (rows, want.max(1)), (best, want.argmax(0)), (total, want.sum())):
            np.testing.assert_array_equal(got, expected)
        several = numbers(3, 9, 12)
        _, of_b, of_c, of_a = tw.gemm(a, b, reduce=["sum:k:b", "max:n", "sumsq:k:a"])
        self.assertTrue(np.allclose(of_b, b.sum(0)) and np.allclose(of_a, (a**2).sum(1)) and np.allclose(of_c, (a @ b).max(1)))
        _, sums, mean = tw.gemm(several, b, reduce=["sum:n", "mean:bm"])
        np.testing.assert_array_equal(sums, (several @ b).sum(2))
        np.testing.assert_allclose(mean, (several @ b).mean((0, 1)), rtol=1e-6)

    def test_without_the_result(self):
        a, b = numbers(9, 12), numbers(12, 10)
        best, total = tw.gemm(a, b, reduce=["argmax:n", "absmax:mn5"], store=False)
        np.testing.assert_array_equal(best, (a @ b).argmax(1))
        np.testing.assert_array_equal(total, np.abs(a @ b).max(0).reshape(2, 5).max(1))
        (rows,) = tw.gemm(a, b, residual=numbers(9, 10), reduce=["sum:n"], store=False)
        np.testing.assert_array_equal(rows, (a @ b + numbers(9, 10)).sum(1))

    def test_empty_axes(self):
        for shape, axis in [((4, 0), 1), ((0, 3), 0), ((0,), None), ((2, 0, 3), (0, 1))]:
            x = np.zeros(shape, np.float32)
            total, most, mean = tw.reduce(x, ["sum", "max", "mean"], axis)
            np.testing.assert_array_equal(total, x.sum(axis))
            np.testing.assert_array_equal(most, np.full(x.sum(axis).shape, -np.inf))
            np.testing.assert_array_equal(mean, np.full(x.sum(axis).shape, np.nan))
        self.assertEqual(tw.reduce(np.zeros((0, 3), np.float32), "argmax", 1).shape, (0,))

    def test_integers(self):
        for dtype, sums in (("i1", np.int32), ("u1", np.int32), ("i4", np.int64)):
            x = np.arange(60).reshape(5, 12).astype(dtype)
            got = tw.reduce(x, "sum", 1)
            self.assertEqual(got.dtype, sums)
            np.testing.assert_array_equal(got, x.sum(1, dtype="i8"))
            np.testing.assert_array_equal(tw.reduce(x, "max", 0), x.max(0))
        self.assertEqual(tw.reduce(np.arange(10, dtype="i4"), "sum"), 45)

    def test_axes_that_stay(self):
        x = numbers(4, 5, 6)
        for axis in (None, 1, (0, -1)):
            np.testing.assert_array_equal(tw.reduce(x, "max", axis, keepdims=True), x.max(axis, keepdims=True))
        most, at = tw.reduce(x, ["max", "argmax"], 2, keepdims=True)
        self.assertEqual((most.shape, at.shape), ((4, 5, 1), (4, 5, 1)))

    def test_tuned_and_explained(self):
        x = numbers(40, 30)
        self.assertTrue(tw.tune(tw.reduce, x, "sum", 1, trials=2).verified)
        self.assertIn("tuned", tw.explain(tw.reduce, x, "sum", 1))
        self.assertIn("__global__", tw.emit(tw.reduce, x, "sum", 1, arch="sm_90a"))

    def test_errors_are_named(self):
        x = numbers(4, 5)
        for wrong, error, says in [
            (lambda: tw.reduce(x, "median"), tw.ProblemError, "median.*logsumexp"),
            (lambda: tw.reduce(x, "sum", 2), tw.OperandError, "axis = 2"),
            (lambda: tw.reduce(x, "sum", (0, -2)), tw.ProblemError, r"axis = \(0, -2\): axis 0 is named twice"),
            (lambda: tw.reduce(x[:0], "argmax"), tw.ProblemError, "no element to name"),
            (lambda: tw.reduce(x.astype("i8"), "sum"), tw.OperandError, "int64"),
            (lambda: tw.reduce(x, []), tw.ProblemError, "what is computed"),
            (lambda: tw.gemm(x, x.T, reduce=["max"]), tw.ProblemError, 'reduce = "max": .*axes are missing'),
            (lambda: tw.gemm(x, x.T, reduce=["max:k"]), tw.ProblemError, 'write max:k:a or max:k:b'),
            (lambda: tw.gemm(x, x.T, reduce=["max:q"]), tw.ProblemError, 'no axis; the axes are b'),
        ]:
            with self.subTest(says):
                with self.assertRaisesRegex(error, says):
                    wrong()


class Convolutions(unittest.TestCase):
    def setUp(self):
        tw.use(DEVICE, records="")

    def direct(self, x, w, stride, pad, groups):
        """NCHW by its definition."""
        x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        n, c, h, v = x.shape
        k, cg, r, s = w.shape
        p, q = (h - r) // stride + 1, (v - s) // stride + 1
        y = np.zeros((n, k, p, q), x.dtype)
        for g in range(groups):
            for i in range(p):
                for j in range(q):
                    part = x[:, g * cg : (g + 1) * cg, i * stride : i * stride + r, j * stride : j * stride + s]
                    rows = slice(g * k // groups, (g + 1) * k // groups)
                    y[:, rows, i, j] = np.einsum("ncrs,kcrs->nk", part, w[rows])
        return y

    def test_layouts_strides_groups(self):
        x, w, bias = numbers(2, 4, 7, 6), numbers(6, 2, 3, 3), numbers(6)
        want = self.direct(x, w, 2, 1, 2)
        np.testing.assert_array_equal(tw.conv(x, w, stride=2, padding=1, groups=2), want)
        got = tw.conv(x, w, stride=2, padding=1, groups=2, bias=bias, activation="relu")
        np.testing.assert_array_equal(got, np.maximum(want + bias[:, None, None], 0))
        mask = np.arange(want.size, dtype=np.float32).reshape(want.shape) % 3 - 1
        np.testing.assert_array_equal(tw.conv(x, w, stride=2, padding=1, groups=2, mask=mask), np.where(mask > 0, want, 0))
        with self.assertRaisesRegex(tw.ProblemError, "the same operand"):
            tw.conv(x, w, stride=2, padding=1, groups=2, mask=mask, residual=mask)
        last = tw.conv(x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), stride=2, padding=1, groups=2, layout="nhwc")
        np.testing.assert_array_equal(last, want.transpose(0, 2, 3, 1))
        with self.assertRaisesRegex(tw.OperandError, "channels"):
            tw.conv(x, w)
        with self.assertRaisesRegex(tw.OperandError, "dilated filter is larger"):
            tw.conv(x[:, :2, :2, :2], w)


    def test_directions_sides_and_reductions(self):
        x, w = numbers(2, 4, 7, 6), numbers(6, 2, 3, 3)
        how = dict(stride=2, padding=1, groups=2)
        y = self.direct(x, w, 2, 1, 2)
        grad = numbers(*y.shape)
        # Gradients by their definition: of the sum of products with `grad`, which is linear in input and filters.
        at_x, at_w = np.zeros_like(x), np.zeros_like(w)
        for of, at, run in ((x, at_x, lambda e: self.direct(e, w, 2, 1, 2)), (w, at_w, lambda e: self.direct(x, e, 2, 1, 2))):
            for n in range(of.size):
                unit = np.zeros_like(of)
                unit.flat[n] = 1
                at.flat[n] = (run(unit) * grad).sum()
        np.testing.assert_array_equal(tw.conv(grad, w, direction="backward-data", size=(7, 6), **how), at_x)
        np.testing.assert_array_equal(tw.conv(grad, x, direction="backward-weight", size=3, **how), at_w)
        out = np.zeros_like(x)
        mask = numbers(*x.shape)
        tw.conv(grad, w, direction="backward-data", out=out, mask=mask, **how)
        np.testing.assert_array_equal(out, np.where(mask > 0, at_x, 0))
        # More padding before the rows than after.
        wide = np.pad(x, ((0, 0), (0, 0), (2, 0), (0, 1)))
        np.testing.assert_array_equal(tw.conv(x, w, padding=[(2, 0), (0, 1)], groups=2), self.direct(wide, w, 1, 0, 2))
        got, mean, most, largest = tw.conv(x, w, reduce=["mean:bm", "max:m", "absmax:n"], **how)
        np.testing.assert_array_equal(got, y)
        np.testing.assert_allclose(mean, y.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(most, y.max((2, 3)))
        np.testing.assert_array_equal(largest, np.abs(y).reshape(2, 2, 3, -1).max(2))
        (alone,) = tw.conv(x, w, reduce=["sum:bmn"], store=False, **how)
        np.testing.assert_array_equal(alone, y.reshape(2, 2, 3, -1).sum((0, 2, 3)))
        self.assertTrue(tw.tune(tw.conv, x, w, reduce=["sum:bm"], trials=1, **how).verified)


class Tuning(unittest.TestCase):
    def test_what_is_tuned_is_found_again(self):
        with tempfile.TemporaryDirectory() as folder:
            records = os.path.join(folder, "records.sqlite")
            a, b = numbers(40, 24), numbers(24, 32)
            context = tw.use(DEVICE, records=records)
            told = tw.explain(tw.gemm, a, b)
            for part in ("gemm 40x32x24 f32 nn row on", "plan (picked): ", "  A_MIC", "the macro tile has", "  modelled time  "):
                self.assertIn(part, told)
            events = []
            found = tw.tune(tw.gemm, a, b, trials=3, progress=events.append)
            self.assertTrue(found.verified and found.time_us > 0 and found.plan)
            self.assertEqual(3, sum(e["event"] == "trial" and e["state"] != "wrong" for e in events), events)
            np.testing.assert_array_equal(tw.gemm(a, b), a @ b)
            self.assertGreaterEqual(len(context.records()), 3)
            self.assertIn("tuned", tw.explain(tw.gemm, a, b))
            again = tw.Context(DEVICE, records=records)
            told = tw.explain(tw.gemm, a, b, context=again)
            self.assertIn(found.plan, told)
            self.assertIn("plan (recorded): ", told)
            copied = os.path.join(folder, "lines")
            with open(copied, "w") as file:
                file.writelines(json.dumps(r) + "\n" for r in context.records())
            other = tw.Context(DEVICE, records="")
            self.assertEqual(other.import_records(copied), len(context.records()))
            # What comes from elsewhere is verified and timed here first.
            self.assertIn("(recorded, verified again)", tw.explain(tw.gemm, a, b, context=other))

    def test_plans_of_an_h200_come_with_the_package(self):
        context = tw.Context("emu", records="")
        added = context.import_records()
        self.assertGreater(added, 300)
        self.assertEqual(context.import_records(), 0)
        found = context.records()
        self.assertEqual((len(found), {trial["device"]["name"] for trial in found}), (added, {"NVIDIA H200 (CUDA)"}))
        self.assertTrue(all(trial["trial"]["verified"] for trial in found))
        # Another device has none of them.
        self.assertIn("(picked)", tw.explain(found[0]["name"], context=context).splitlines()[1])

    def test_a_search_ends_when_asked_to(self):
        tw.use(DEVICE, records="")

        def stop(event):
            if event["event"] == "trial":
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            tw.tune(tw.gemm, numbers(64, 64), numbers(64, 64), seconds=60, progress=stop)

    def test_sources(self):
        a, b = numbers(64, 64, dtype="float16"), numbers(64, 64, dtype="float16")
        tw.use("emu", records="")
        for arch in ("sm_90a", "gfx942"):
            self.assertIn(arch, tw.emit(tw.gemm, a, b, arch=arch))


class Ends(unittest.TestCase):
    def test_workspace_of_a_replaced_context_stays(self):
        """A graph that captured it may still be replayed."""
        context = tw.use("emu", records="")
        address = context.workspace(64, 0, np.zeros(1))
        tw.use("emu", records="")
        kept = [array.address for held in tw._contexts._former for several in held.values() for _, array in several]
        self.assertIn(address, kept)

    def test_finalizers_come_after_the_end_of_devices(self):
        """What the interpreter takes down frees nothing on a device: `atexit` told so before."""
        program = (
            "import atexit, tilewright as tw, numpy as np\n"
            "class Late:\n"
            "    def __del__(self):\n"
            "        print('late', self.device, flush=True)\n"
            "context, late = tw.use('emu', records=''), Late()\n"
            "late.device = context.device\n"
            "print(tw.gemm(np.ones((2, 3), 'f4'), np.ones((3, 2), 'f4')).tolist())\n"
            "atexit.register(lambda: print('atexit', tw.gemm(np.ones((2, 3), 'f4'), np.ones((3, 2), 'f4')).tolist()))\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines(), ["[[3.0, 3.0], [3.0, 3.0]]", "atexit [[3.0, 3.0], [3.0, 3.0]]", "late emu"])


@unittest.skipIf(torch is None, "PyTorch is not here")
class Torch(unittest.TestCase):
    """Tensors of types that numpy lacks, and functions that numpy and torch share."""

    def setUp(self):
        tw.use(DEVICE, records="")

    def test_chains(self):
        x, weight, labels = torch.randn(3, 8), torch.randn(12, 8, requires_grad=True), torch.tensor([0, 11, 5])
        gate, up = torch.nn.functional.linear(x, weight).chunk(2, -1)
        torch.testing.assert_close(tw.glu(x, weight), torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-5)
        loss = tw.cross_entropy(x, weight, labels, label_smoothing=0.1)
        want = torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight), labels, label_smoothing=0.1)
        torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-5)
        loss.backward()
        self.assertTrue(weight.grad.abs().sum() > 0)
        with self.assertRaisesRegex(tw.ProblemError, "context = .*leave it out"):
            tw.cross_entropy(x, weight, labels, context=tw.Context(DEVICE, records=""))

    def test_floats_of_8_bits(self):
        whole = lambda *shape: torch.from_numpy(np.random.default_rng(11).integers(-8, 9, shape).astype("f4"))
        a, b = whole(33, 48).to(torch.float8_e4m3fn), whole(48, 17).to(torch.float8_e5m2)
        rows, columns = 2.0 ** -whole(33, 1).abs(), 2.0 ** -whole(17).abs()
        sums = a.float() @ b.float()
        got = tw.gemm(a, b, scales=(rows, columns), out_dtype="float32")
        self.assertTrue(torch.equal(got, sums * rows * columns))
        self.assertTrue(torch.equal(tw.gemm(a, b, scales=rows, out_dtype="bfloat16"), (sums * rows).bfloat16()))
        self.assertEqual(tw.gemm(a, a.T, scales=rows).dtype, torch.float8_e4m3fn)
        a, b = whole(33, 300).to(torch.float8_e4m3fn), whole(300, 150).to(torch.float8_e4m3fn)
        of_rows, of_columns = 2.0 ** -(whole(3, 33).abs() % 3), 2.0 ** -(whole(3, 2).abs() % 3)
        part = lambda i: a.float()[:, 128 * i : 128 * i + 128] @ b.float()[128 * i : 128 * i + 128]
        want = sum(part(i) * of_rows[i, :, None] * of_columns[i].repeat_interleave(128)[:150] for i in range(3))
        got = tw.gemm(a, b, scales={"m1x128": of_rows, "n128x128": of_columns}, math="promoted", out_dtype="float32")
        self.assertTrue(torch.equal(got, want))


if __name__ == "__main__":
    unittest.main()
