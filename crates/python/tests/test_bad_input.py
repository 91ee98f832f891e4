"""Whatever is wrong with a call of a public function has a name of ours and says what is needed; nothing of it ends the process."""

import faulthandler
import os
import shutil
import tempfile
import unittest
import warnings

import numpy as np

import tilewright as tw

try:
    import torch

    import tilewright.torch as twt
except ImportError:
    torch = None

# A crash shows the line of the case.
faulthandler.enable()
O, P = "OperandError", "ProblemError"


def numbers(*shape, dtype="float32"):
    return (np.arange(np.prod(shape)).reshape(shape) * 5 % 7 - 3).astype(dtype)


def producing(**interface):
    """An object whose `__array_interface__` says that."""
    return type("Producer", (), {"__array_interface__": {"version": 3, **interface}})()


def dlpack(made):
    return type("Producer", (), {"__dlpack__": lambda self: made()})()


class Refusals(unittest.TestCase):
    def refused(self, cases, **names):
        """Each of these calls, as text, has an error of that name that says so."""
        for call, error, says in cases:
            with self.subTest(call), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with self.assertRaisesRegex(getattr(tw, error), says):
                    eval(call, {"tw": tw, "np": np, **names})

    def setUp(self):
        self.context = tw.use("emu", records="")


class Arrays(Refusals):
    def test_products(self):
        a, b = numbers(4, 5), numbers(5, 6)
        sealed = numbers(4, 6)
        sealed.flags.writeable = False
        here = (a.ctypes.data, False)
        self.refused(
            [
                ("tw.gemm(None, b)", O, "a is NoneType: give an array"),
                ("tw.gemm(a, [[1.0]])", O, "b is .1, 1.: the . columns of a"),
                ("tw.gemm(a, [['x']])", O, "b is list and no array can be made of it"),
                ("tw.gemm(a, [[1.0], [1.0, 2.0]])", O, "b is list and no array can be made of it"),
                ("tw.gemm(a[0], b)", O, "a matrix"),
                ("tw.gemm(a[:, :0], b[:0], bias=b[0])", P, "k = 0"),
                ("tw.tune(tw.gemm, a, b, trials=0)", P, "trials = 0: allows no trial at all"),
                ("tw.gemm(a, b, out_dtype=object())", P, "out_dtype = .*a dtype of numpy or torch"),
                ("tw.reduce(a, 'prod')", P, "`prod` is no operator; the operators are [^;]*$"),
                ("tw.gemm(a.astype('i8'), b)", O, "a holds int64"),
                ("tw.gemm(a.astype('>f4'), b)", O, "a holds >f4"),
                ("tw.gemm(a.astype(object), b)", O, "a holds object"),
                ("tw.gemm(a, b, alpha='x')", P, "alpha = 'x': a number"),
                ("tw.gemm(a, b, beta=1.0)", P, "beta = 1.0: beta multiplies `out`"),
                ("tw.gemm(a, b, stream=-1)", P, "stream = -1"),
                ("tw.gemm(a, b, stream=2**70)", P, "stream = "),
                ("tw.gemm(a, b, out=sealed)", O, "out is read-only"),
                ("tw.gemm(a, b, out=memoryview(bytes(96)).cast('f', (4, 6)))", O, "out is read-only"),
                ("tw.gemm(a, b, out=np.broadcast_to(numbers(1, 6), (4, 6)).copy()[::-1])", O, "out with strides"),
                ("tw.gemm(a, b, out_dtype='int8')", P, "out_dtype = i8: f32 operands"),
                ("tw.gemm(a.astype('i1'), b)", O, "b holds float32"),
                ("tw.gemm(a.astype('i1'), b.astype('i1'), activation='relu')", P, "activation = relu"),
                ("tw.gemm(a.astype('i1'), b.astype('i1'), out_dtype='float64')", P, "summed in i32"),
                ("tw.gemm(a.astype('i1'), b.astype('i1'), alpha=2.0)", O, "integer results are not scaled"),
                ("tw.gemm(a.astype(bool), b)", O, "a holds bool"),
                ("tw.gemm(a, b, out_dtype='float64')", P, "out_dtype = f64"),
                ("tw.gemm(a, b, out_dtype='nonsense')", P, "nonsense"),
                ("tw.gemm(a, b, out_dtype=3)", P, "out_dtype = 3"),
                ("tw.gemm(a, b, bias=3.0)", O, "bias is float"),
                ("tw.gemm(a, b, zero_points=3)", P, "a pair is needed"),
                ("tw.gemm(a, b, zero_points=(np.zeros(1, 'i4'), None))", P, "8-bit integers have zero points"),
                ("tw.gemm(a.astype('i1'), b.astype('i1'), zero_points=(np.zeros(3, 'i4'), None))", O, "zero_points of a have shape"),
                ("tw.gemm(a.astype('i1'), b.astype('i1'), zero_points=(None, np.zeros(6, 'i1')))", O, "zero_points holds int8, int32"),
                ("tw.gemm(a, b, scales=0.5)", O, "scales is float"),
                ("tw.gemm(a, b, scales=numbers(5))", O, r"scales has shape \(5,\), \(6,\) is needed"),
                ("tw.gemm(a, b, scales=numbers(6).astype('f2'))", O, "scales holds float16, float32 is needed"),
                ("tw.gemm(a, b, scales=(numbers(6), numbers(6)))", O, "scales are given twice along n"),
                ("tw.gemm(a, b, scales={'n1x128': numbers(1, 6)})", P, "sums of 8-bit floats are promoted"),
                ("tw.gemm(a, b, scales={'n128': numbers(6)})", P, "scales = 'n128': one of m, n, m1x128"),
                ("tw.gemm(a, b, scales={'n1x128': numbers(6)})", O, r"scales n1x128 has shape \(6,\), \(1, 6\) is needed"),
                ("tw.gemm(a, b.astype('i1'), scales={'n1x16': numbers(1, 6)})", P, "n1x64, n1x32"),
                ("tw.gemm(a, b.astype('u1'), b_dtype='int8')", P, "b_dtype = 'int8': int4 or uint4"),
                ("tw.gemm(a, b.astype('i1'), b_dtype='int4')", O, "b holds int8: pairs of int4 are bytes"),
                ("tw.gemm(a, b.astype('u1')[:, ::2], b_dtype='int4')", O, "must be contiguous along rows or columns"),
                ("tw.gemm(a, b.astype('u1').T.copy().T, b_dtype='uint4')", O, "are not the rows of b"),
                ("tw.gemm(a, b.astype('i1'), math='tf32')", P, "multiplied in f32 itself"),
                ("tw.gemm(a.astype('f8'), b.astype('i1'))", O, "b holds int8, float64 is needed"),
                ("tw.gemm(a.astype('i1'), b.astype('i1'), scales=numbers(6))", P, "give a result in f32"),
                ("tw.gemm(a, b, residual=numbers(4, 6).astype('f2'))", O, "residual holds float16"),
                ("tw.gemm(a, b, gate='tanh')", P, "one of relu, gelu, gelutanh, silu, hardswish, sigmoid, linear, clamped"),
                ("tw.gemm(a, b, gate='clamped', gate_limit=0)", P, "must be a positive number"),
                ("tw.gemm(a, b, gate='silu', gate_slope=2.0)", P, "only a clamped gate has it"),
                ("tw.gemm(a, b, gate='silu', activation='relu')", P, "the gate has the function"),
                ("tw.gemm(a, b, gate='silu', reduce=['max:n'])", P, "in a second call"),
                ("tw.gemm(a, numbers(5, 7), gate='silu')", O, "two halves"),
                ("tw.gemm(a, b, gate='silu', bias=numbers(3))", O, r"bias has shape \(3,\), \(6,\) is needed"),
                ("tw.gemm(a, b, gate='silu', out=numbers(4, 3), beta=1.0)", O, "adds no old result"),
                ("tw.gemm(a, b, up_first=True)", P, "up_first"),
                ("tw.gemm(a, b, interleaved=True)", P, "interleaved"),
                ("tw.gemm(a, b, preactivations=True)", P, "there is no gate"),
                ("tw.gemm(a, b, activation=3)", P, "activation = 3: a text"),
                ("tw.gemm(a, b, activation='r\\udc80')", P, "Unicode"),
                ("tw.gemm(a, b, math='bf16')", P, "one of exact, tf32"),
                ("tw.gemm(a, b, math=None)", P, "math = None"),
                ("tw.gemm(a, b, reduce='max:n')", P, "a list of texts"),
                ("tw.gemm(a, b, reduce=[3])", P, "reduce = 3"),
                ("tw.gemm(a, b, reduce=['max:n'] * 20)", P, "at most 8"),
                ("tw.gemm(a, b, reduce=['max:n4'])", P, "blocks of 4"),
                ("tw.gemm(a, b, reduce=['max:n99999999999999999999'])", P, "out of range"),
                ("tw.gemm(a, b, store=False)", P, "reduce"),
                ("tw.gemm(a, b, store=False, reduce=['max:n'], out=numbers(4, 6))", P, "store=False"),
                ("tw.gemm(a, b, store='x')", P, "store = 'x'"),
                ("tw.gemm(a, b, context='emu')", P, "tilewright.Context"),
                ("tw.gemm(dlpack(lambda: 3), b)", O, "no DLPack tensor"),
                ("tw.gemm(dlpack(lambda: 1 / 0), b)", O, "no DLPack tensor: division"),
                ("tw.gemm(producing(typestr='<f4'), b)", O, "KeyError 'shape'"),
                ("tw.gemm(producing(typestr='<f4', shape=('x', 5), data=here), b)", O, "says nothing"),
                ("tw.gemm(producing(typestr='<f4', shape=(4, -5), data=here), b)", O, "says nothing"),
                ("tw.gemm(producing(typestr='<f4', shape=(4, 5), strides=(20,), data=here), b)", O, "says nothing"),
                ("tw.gemm(producing(typestr='<f4', shape=(4, 5), strides=(21, 4), data=here), b)", O, "no multiples of an element"),
                ("tw.gemm(producing(typestr='<f4', shape=(4, 5), data=(0, False)), b)", O, "no memory: was it freed"),
                ("tw.gemm(producing(typestr='<f4', shape=(2**40, 2**40), data=here), b)", O, "not the rows of b"),
                ("tw.gemm(producing(typestr='<f4', shape=(2**62, 5), data=here), b)", O, "cannot be made"),
                ("tw.gemm(producing(typestr='<f4', shape=(2**62, 5), data=here), b, out=a)", O, "out has shape"),
            ],
            a=a,
            b=b,
            sealed=sealed,
            here=here,
            producing=producing,
            dlpack=dlpack,
            numbers=numbers,
        )

    def test_results_apart_from_operands(self):
        """On a device nothing is copied: what is written must not be read meanwhile."""
        Array = tw._arrays.Array

        def there(at, shape=(4, 4), device="cuda:0"):
            return Array(at, shape, tw._arrays.contiguous(shape, 1), "float32", device, "memory")

        self.refused(
            [
                ("tw.gemm(there(1024), there(4096), out=there(1024))", O, "out and a share memory"),
                ("tw.gemm(there(1024), there(4096), out=there(4040))", O, "out and b share memory"),
                ("tw.gemm(there(1024), there(4096), out=there(8192), bias=there(8192, (4,)))", O, "out and bias share memory"),
                ("tw.gemm(there(1024), there(4096, device='cpu'), out=there(8192))", O, "move them to one device"),
                ("tw.conv(there(1024, (1, 1, 4, 4)), there(1024, (1, 1, 1, 1)), out=there(1024, (1, 1, 4, 4)))", O, "out and x share memory"),
            ],
            there=there,
        )
        # Shapes that are recorded have no memory.
        told = tw._arrays.of_shape((4, 4), "float32", "cuda:0")
        tw._arrays.apart(told, [("a", told), ("b", told)])

    def test_convolutions(self):
        x, w = numbers(1, 2, 6, 6), numbers(4, 2, 3, 3)
        self.refused(
            [
                ("tw.conv(x, None)", O, "w is NoneType"),
                ("tw.conv(x[0], w)", O, "1 to 3 spatial dimensions"),
                ("tw.conv(x, w[:, :1])", O, "channels do not fit"),
                ("tw.conv(x[:0], w)", P, "n = 0"),
                ("tw.conv(x, w[:0])", P, "k = 0"),
                ("tw.conv(x, w.astype('f8'))", O, "w holds float64"),
                ("tw.conv(x, w, stride=0)", P, "stride = 0: 1 to"),
                ("tw.conv(x, w, stride=-1)", P, "stride = -1"),
                ("tw.conv(x, w, stride=1.5)", P, "stride = 1.5: a whole number"),
                ("tw.conv(x, w, stride='ab')", P, "stride = 'ab'"),
                ("tw.conv(x, w, stride=(1,))", P, "or 2 of them"),
                ("tw.conv(x, w, stride=2**70)", P, "stride = "),
                ("tw.conv(x, w, padding=-1)", P, "padding = -1"),
                ("tw.conv(x, w, padding=[(1, 2, 3), 1])", P, "or 2 of them"),
                ("tw.conv(x, w, padding=2**40)", "OutOfMemory", "cannot be made"),
                ("tw.conv(x, w, padding=2**62)", "OutOfMemory", "cannot be made"),
                ("tw.conv(x, w, dilation=2**62)", O, "dilated filter is larger"),
                ("tw.conv(x, w, groups=0)", P, "groups = 0"),
                ("tw.conv(x, w, groups='1')", P, "groups = '1'"),
                ("tw.conv(x, w, groups=3)", O, "3 groups"),
                ("tw.conv(x, w, layout='other')", P, "one of nchw, nhwc"),
                ("tw.conv(x, w, layout=None)", P, "layout = None"),
                ("tw.conv(x, w, out=numbers(1, 4, 4, 5))", O, "out has shape"),
                ("tw.conv(x, w, out=numbers(1, 4, 4, 8)[..., ::2])", O, "must be contiguous"),
                ("tw.conv(x, w, bias=numbers(3))", O, "bias has shape"),
                ("tw.conv(x, w, mask=numbers(1, 4, 4, 3))", O, "mask has shape"),
                ("tw.conv(x, w, direction='sideways')", P, "one of forward"),
                ("tw.conv(x, w, direction='sideways', size=3)", P, "one of forward"),
                ("tw.conv(x, w, direction='backward-data')", P, "size = None: the spatial sizes"),
                ("tw.conv(x, w, direction='backward-data', size=8)", O, "channels do not fit"),
                ("tw.conv(numbers(1, 4, 5, 5), w, direction='backward-data', size=9)", O, r"pixels \[7, 7\]"),
                ("tw.conv(numbers(2, 4, 4, 4), x, direction='backward-weight', size=3)", O, "channels do not fit"),
                ("tw.conv(x, w, store=False)", P, "reduce"),
                ("tw.conv(x, w, reduce=['mean:q'])", P, "mean:q"),
            ],
            x=x,
            w=w,
            numbers=numbers,
        )

    def test_reductions_searches_and_texts(self):
        a, b = numbers(4, 5), numbers(5, 6)
        self.refused(
            [
                ("tw.reduce(None, 'sum')", O, "x is NoneType"),
                ("tw.reduce(a, None)", P, "op = None"),
                ("tw.reduce(a, [3])", P, "op = 3"),
                ("tw.reduce(a, 'sum:')", P, "sum:"),
                ("tw.reduce(a, ['sum'] * 30)", P, "at most 8"),
                ("tw.reduce(a, 'sum', 'a')", P, "axis = 'a'"),
                ("tw.reduce(a, 'sum', 2**70)", P, "axis = "),
                ("tw.reduce(a, 'sum', [None])", P, "axis = None"),
                ("tw.reduce(a, 'sum', ())", P, "names no axis"),
                ("tw.reduce(np.float32(3), 'sum')", P, "1 to 8 axes"),
                ("tw.reduce(a, 'sum', alpha=None)", P, "alpha = None"),
                ("tw.reduce(a, 'sum', context=1)", P, "context = 1"),
                ("tw.reduce(producing(typestr='<f4', shape=(2**40, 2**40), data=(64, False)), 'sum')", P, "64-bit address space"),
                ("tw.tune(None)", P, "tilewright.gemm"),
                ("tw.tune('')", P, "problem"),
                ("tw.tune([])", P, "tilewright.gemm"),
                ("tw.tune('tC0', context=3)", P, "context = 3"),
                ("tw.tune(tw.gemm, a, b, seconds=-1)", "TuneError", "-1 seconds"),
                ("tw.tune(tw.gemm, a, b, seconds='x')", P, "seconds = 'x'"),
                ("tw.tune(tw.gemm, a, b, trials=-1)", P, "trials = -1"),
                ("tw.tune(tw.gemm, a, b, trials=1.5)", P, "trials = 1.5"),
                ("tw.tune(tw.gemm, a, b, trials=1, progress=3)", P, "progress = 3"),
                ("tw.explain('x')", P, "unknown key"),
                ("tw.emit(3)", P, "tilewright.gemm"),
                ("tw.emit(tw.gemm, a, b, arch=3)", P, "arch = 3"),
                ("tw.emit(tw.gemm, a, b, arch='gfx1')", "DeviceError", "gfx942"),
            ],
            a=a,
            b=b,
            producing=producing,
        )

    def test_contexts(self):
        a, b = numbers(4, 5), numbers(5, 6)
        problem = tw._core._gemm(a, b).problem
        with tempfile.TemporaryDirectory() as folder:
            binary = os.path.join(folder, "binary")
            with open(binary, "wb") as file:
                file.write(b"\x8a\xff\x00" * 99)
            packed, cut = binary + ".gz", os.path.join(folder, "cut.gz")
            shutil.copy(binary, packed)
            with open(tw._contexts.SHIPPED, "rb") as file, open(cut, "wb") as to:
                to.write(file.read()[:999])
            self.refused(
                [
                    ("tw.use(3)", P, "device = 3"),
                    ("tw.use('')", "DeviceError", "Write emu"),
                    ("tw.use('cuda:-1')", "DeviceError", "a number"),
                    ("tw.use('emu:sm_1')", "DeviceError", "sm_90a"),
                    ("tw.use('emu\\0')", "DeviceError", "is not a device"),
                    ("tw.use('\\udc80')", P, "Unicode"),
                    ("tw.use('emu', records=3)", P, "the path of a file"),
                    ("tw.use('emu', records=binary)", "RecordsError", "not a tilewright records file"),
                    ("tw.use('emu', records=folder)", "RecordsError", "not a plain file"),
                    ("tw.use('emu', records='a\\0b')", P, "NUL"),
                    ("tw.use('emu', records='', workspace=-1)", P, "workspace = -1"),
                    ("tw.use('emu', records='', workspace='x')", P, "workspace = 'x'"),
                    ("tw.use('emu', records='', atomics='x')", P, "atomics = 'x'"),
                    ("it.operation('x')", P, "unknown key"),
                    ("it.operation(3)", P, "problem = 3"),
                    ("it.prepared(problem, (3, 1, 1))", P, "powers of two"),
                    ("it.prepared(problem, None)", P, "alignments = None"),
                    ("it.operation(problem).set_plan('x')", "PlanError", "at character 1"),
                    ("it.operation(problem).set_plan('A_MIC2')", "PlanError", "missing keys"),
                    ("it.workspace(16, 0, None)", O, "cannot be made"),
                    ("it.import_records(3)", P, "the path of a file"),
                    ("it.import_records('/nowhere/at/all')", "RecordsError", "No such file"),
                    ("it.import_records(binary)", "RecordsError", "cannot be read"),
                    ("it.import_records(packed)", "RecordsError", "cannot be read"),
                    ("it.import_records(cut)", "RecordsError", "cannot be read"),
                    ("it.import_records(source)", "RecordsError", "line 1"),
                ],
                it=self.context,
                problem=problem,
                binary=binary,
                packed=packed,
                cut=cut,
                folder=folder,
                source=__file__,
            )
        self.assertIs(tw._core.context_for("cpu"), self.context)


@unittest.skipIf(torch is None, "PyTorch is not here")
class Torch(Refusals):
    def setUp(self):
        super().setUp()
        self.addCleanup(twt.disable)

    def test_operators(self):
        a, b, w, freed = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6, 5), torch.randn(4, 5)
        x, f = torch.randn(1, 2, 6, 6), torch.randn(4, 2, 3, 3)
        freed.untyped_storage().resize_(0)
        self.refused(
            [
                ("twt.mm(None, b)", O, "a is NoneType: a torch.Tensor"),
                ("twt.mm(a, 3)", O, "b is int"),
                ("twt.mm(a.to_sparse(), b)", O, "torch.sparse_coo.*a dense tensor"),
                ("twt.mm(torch.eye(5).to_sparse_csr(), b)", O, "a dense tensor"),
                ("twt.mm(torch.quantize_per_tensor(a, 0.1, 0, torch.qint8), b)", O, "a dense tensor"),
                ("twt.mm(a.to(torch.complex64), b.to(torch.complex64))", O, "no kernel here"),
                ("twt.mm(freed, b)", O, "operand A"),
                ("twt.mm(torch.ones(()), torch.ones(()))", O, "2-D"),
                ("twt.bmm(None, None)", O, "a is NoneType"),
                ("twt.bmm(torch.ones(2, 4, 5), torch.ones(2, 4, 5))", O, "cannot be multiplied"),
                ("twt.linear(None, w)", O, "x is NoneType"),
                ("twt.linear(a, None)", O, "weight is NoneType"),
                ("twt.linear(a, w, 3)", O, "bias is int"),
                ("twt.linear(a, w, torch.ones(6).double())", O, "bring them together"),
                ("twt.linear(a, w, torch.ones(6, 1))", O, "bias is"),
                ("twt.linear(a, w, activation=3)", P, "activation"),
                ("twt.linear(a, w, residual=torch.ones(4, 5))", O, "residual is"),
                ("twt.linear(freed, w)", O, "needs operand A"),
                ("twt.reduce(freed, 'sum')", O, "was it freed"),
                ("twt.reduce(a, 'nonsense')", P, "one of sum"),
                ("twt.reduce(a, 'sum', 2)", O, "from -2 to 1"),
                ("twt.reduce(a[0, 0], 'sum')", O, "nothing is reduced"),
                ("twt.reduce(a.long(), 'sum')", O, "int64"),
                ("twt.reduce(a.to_sparse(), 'sum')", O, "dense"),
                ("twt.reduce([1.0], 'sum')", O, "torch.Tensor"),
                ("twt.reduce(torch.ones(0, 3), 'max', 0)", O, ""),
                ("twt.convolution(None, f)", O, "x is NoneType"),
                ("twt.convolution(x, None)", O, "weight is NoneType"),
                ("twt.convolution(x, f, stride=1.5)", P, "stride = 1.5"),
                ("twt.convolution(x, f, stride='x')", P, "stride"),
                ("twt.convolution(x, f, padding=-1)", O, "padding = "),
                ("twt.convolution(x, f, padding=2**62)", O, "size"),
                ("twt.convolution(x, f, groups='a')", P, "groups"),
                ("twt.convolution(x.long(), f.long())", O, "int64"),
                ("twt.tune(None)", P, "mm, bmm, grouped_mm, linear, lora_linear, glu, "),
                ("twt.tune(twt.linear, a)", O, "x and weight are needed"),
                ("twt.tune(twt.mm, freed, b, trials=1)", O, "no memory: was it freed"),
                ("twt.optimize(torch.nn.Linear)", O, "an instance of torch.nn.Module"),
            ],
            torch=torch,
            twt=twt,
            a=a,
            b=b,
            w=w,
            x=x,
            f=f,
            freed=freed,
        )

    def test_layers(self):
        """Where our kernels cannot run, optimised layers do and refuse what torch's do."""
        plain, optimised = torch.nn.Linear(5, 6), twt.optimize(torch.nn.Linear(5, 6))
        freed = torch.randn(4, 5)
        freed.untyped_storage().resize_(0)
        tw._models._compared[("", "")] = None
        for decide in (lambda *_: None, lambda *_: "no"):
            tw._operators.choose_by(decide)
            with torch.no_grad():
                self.assertEqual(optimised(torch.randn(4, 5).to_sparse()).shape, (4, 6))
            for wrong in (torch.randn(4, 4), torch.randn(4, 5).double(), torch.empty(4, 5, device="meta"), torch.ones(()), freed):
                for layer in (plain, optimised):
                    with self.assertRaises(RuntimeError):
                        layer(wrong)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            good = os.path.join(folder, "good.csv")
            with twt.record(good):
                torch.mm(torch.ones(4, 5), torch.ones(5, 6))
            with open(good) as file:
                text = file.read()

            def put(text):
                path = os.path.join(folder, "other.csv")
                with open(path, "w") as file:
                    file.write(text)
                return path

            names = dict(twt=twt, torch=torch, put=put, text=text, good=good, folder=folder)
            self.refused(
                [
                    ("twt.enable(None)", P, "the path of a file"),
                    ("twt.enable('/nowhere')", "RecordsError", "does not exist"),
                    ("twt.enable(folder)", "RecordsError", "no file of shapes"),
                    ("twt.enable(put(''))", "RecordsError", "no column `problem`"),
                    ("twt.enable(put('a,b\\n1,2\\n'))", "RecordsError", "no column `problem`"),
                    ("twt.enable(put(text[: len(text) // 2]))", "RecordsError", "no file of shapes"),
                    ("twt.enable(good, margin='x')", P, "margin = 'x'"),
                    ("twt.enable(good, margin=float('nan'))", P, "margin = nan"),
                    ("twt.enable(good, compiled='x')", P, "compiled = 'x'"),
                    ("twt.compare(good, repeats=0)", P, "repeats = 0"),
                    ("twt.compare(3)", P, "the path of a file"),
                    ("twt.tune_recorded(good, seconds=-1)", P, "seconds = -1"),
                    ("twt.tune_recorded(good, trials='x')", P, "trials = 'x'"),
                    ("twt.tune_recorded(good, fleet='postgresql://localhost/x')", P, "run = None"),
                    ("twt.tune_recorded(good, devices='all', total=1)", P, "total = 1"),
                    ("twt.shapes('/nowhere')", "RecordsError", "no file of shapes"),
                    ("twt.report(3)", P, "the path of a file"),
                    ("twt.record(3).__enter__()", P, "the path of a file"),
                    ("twt.record(folder + '/x/y').__enter__()", "RecordsError", "create it first"),
                    ("twt.record(good, model=3).__enter__()", O, "an instance of torch.nn.Module"),
                ],
                **names,
            )
            # A line that cannot be read is reported with its reason, and the others are compared.
            for was, now, says in [
                ("float32", "floatx", "cannot be made.*floatx"),
                ('""cpu""', '""cuda:7""', "CUDA|cuda"),
                ('""cpu""', '""toaster""', "toaster"),
                ("[4, 5]", "[-4, 5]", "negative"),
                ("[4, 5]", "[9, 9]", "cannot be multiplied"),
                ("4, 5", "4000000000000, 5", "memory|alloc"),
                ("tC0", "tCx", "^(no verdict.*)?$"),
                ("aten::mm", "aten::nonsense", "cannot be made"),
            ]:
                with self.subTest(now):
                    self.assertIn(was, text)
                    (row,) = twt.compare(put(text.replace(was, now)), repeats=1)
                    self.assertRegex(row.reason, says)
                    self.assertTrue(row.gain is None or now == "tCx")


if __name__ == "__main__":
    unittest.main()
