"""Every public function, with a wrong value in one argument at a time: our error that names the argument, no other error, no crash.
The wrong values depend on the kind of the argument. RIGHT lists the few that are legal after all; their results must be right."""

import faulthandler
import inspect
import os
import sqlite3
import tempfile
import unittest
import warnings
from contextlib import closing

import numpy as np

import tilewright as tw

try:
    import torch

    import tilewright.torch as twt
except ImportError:
    torch = None

faulthandler.enable()


def numbers(*shape, dtype="float32"):
    return (np.arange(int(np.prod(shape))).reshape(shape) * 5 % 7 - 3).astype(dtype)


class Said:
    """A producer of memory that says something."""

    def __init__(self, **interface):
        self.__array_interface__ = {"version": 3, "typestr": "<f4", **interface}


class Raises:
    """A producer that fails."""

    def __dlpack__(self, **_):
        raise ValueError("not today")

    def __dlpack_device__(self):
        return (1, 0)


_HERE = numbers(64, 64)
AT = (_HERE.ctypes.data, False)
# By kind of argument: what is wrong with it, in words, and the value.
POSITIVE = {"text": "x", "list": [1.0], "object": object(), "complex": 1j, "too large": 10**400, "zero": 0.0, "not a number": float("nan")}
SCALAR = {"text": "x", "None": None, "list": [1.0], "object": object(), "complex": 1j, "too large": 10**400}
WHOLE = {"text": "x", "fraction": 1.5, "negative": -1, "too large": 2**70, "NaN": float("nan"), "list of lists": [[1]], "object": object()}
SECONDS = {"text": "x", "negative": -1, "NaN": float("nan"), "list": [1]}
TEXT = {"number": 3, "bytes": b"x", "unknown": "nonsense", "empty": "", "no Unicode": "\udc80", "list": ["x"], "zero": "a\0b"}
TEXTS = {"number": 3, "text": "max:n", "numbers": [3], "unknown": ["nonsense:n"], "empty text": [""], "no axis": ["max"], "unknown axis": ["max:q"]}
TRUTH = {"number": 3, "text": "x", "None": None, "array": numbers(2)}
PATH = {"number": 3, "bytes": b"x", "list": [], "zero": "a\0b", "no Unicode": "\udc80", "folder": tempfile.gettempdir()}
CONTEXT = {"number": 3, "text": "emu", "class": tw.Context}
ARRAY = {
    "number": 3,
    "text": "x",
    "list": [[1.0]],
    "object": object(),
    "producer that fails": Raises(),
    "int64": numbers(4, 4, dtype="int64"),
    "bool": numbers(4, 4).astype(bool),
    "big-endian": numbers(4, 4).astype(">f4"),
    "objects": numbers(4, 4).astype(object),
    "complex": numbers(4, 4).astype("complex64"),
    "other floats": numbers(4, 4).astype("float64"),
    "no axis": np.float32(3),
    "nine axes": numbers(*[1] * 9),
    "empty": numbers(0, 0, 0, 0),
    "freed": Said(shape=(4, 4, 4, 4), data=(0, False)),
    "no shape": Said(data=AT),
    "negative size": Said(shape=(-4, 4, 4, 4), data=AT),
    "strides of bytes": Said(shape=(4, 4), strides=(17, 4), data=AT),
    "fewer strides": Said(shape=(4, 4), strides=(4,), data=AT),
    "larger than memory": Said(shape=(2**62, 2**62), data=AT),
}


def strange(*shape):
    """Arrays of this shape that lie strangely."""
    sealed = numbers(*shape)
    sealed.flags.writeable = False
    return {
        "sealed": sealed,
        "one value": np.broadcast_to(numbers(*[1] * len(shape)), shape),
        "overlapping": np.lib.stride_tricks.as_strided(_HERE, shape, [4] * len(shape)),
        "apart": numbers(*shape[:-1], 2 * shape[-1])[..., ::2],
        "backwards": numbers(*shape)[..., ::-1],
        "turned": numbers(*shape[::-1]).T,
    }


def read(*shape, needed=False):
    """What an operand of this shape cannot be."""
    more = {"None": None} if needed else {}
    return {**ARRAY, **more, "too large": numbers(*shape[:-1], shape[-1] + 1), "an axis more": numbers(1, 1, *shape)}


def written(*shape):
    """What a result of this shape cannot be."""
    return {**read(*shape), **strange(*shape)}


def extent(**more):
    return {**WHOLE, **more}


PRODUCT = dict(a=numbers(4, 5), b=numbers(5, 6))
CONVOLUTION = dict(x=numbers(1, 2, 6, 6), w=numbers(4, 2, 3, 3))
EPILOGUE = dict(activation=TEXT, out_dtype=TEXT, math={**TEXT, "None": None}, context=CONTEXT, reduce=TEXTS, store=TRUTH, stream=WHOLE)
SEARCH = dict(what=dict(number=3, empty="", text="nonsense", other=print, none=None, lists=[]), context=CONTEXT)
# By function: a call that is right, and what is wrong of each argument.
FUNCTIONS = {
    "gemm": (
        PRODUCT,
        dict(
            a=read(4, 5, needed=True),
            b=read(6, 5, needed=True),
            out=written(4, 6),
            alpha=SCALAR,
            beta=SCALAR,
            residual=read(4, 6),
            bias=read(6),
            gate=TEXT,
            up_first=TRUTH,
            interleaved=TRUTH,
            up=read(5, 6),
            a2=read(4, 3),
            b2=read(3, 6),
            preactivations=TRUTH,
            softcap=POSITIVE,
            gate_limit=POSITIVE,
            gate_slope=POSITIVE,
            offsets={
                "two axes": np.zeros((1, 1), "i4"),
                "no groups": np.zeros(0, "i4"),
                "floats": numbers(1),
                "text": "nonsense",
            },
            b_dtype=TEXT,
            zero_points={
                "one array": numbers(6),
                "text": "nonsense",
                "three": (None, None, None),
                "floats": (None, numbers(6)),
                "of floats": (np.zeros(1, "i4"), None),
            },
            imaginary={"one": True, "three": (True, True, True), "numbers": (1, 0), "of real factors": (True, False)},
            scales={**read(6), "twice one direction": [numbers(6), numbers(6)], "three": [numbers(6), numbers(4, 1), numbers(6)]},
            **EPILOGUE,
        ),
    ),
    "conv": (
        CONVOLUTION,
        dict(
            x=read(1, 3, 6, 6, needed=True),
            w=read(4, 2, 3, 6, needed=True),
            out=written(1, 4, 4, 4),
            residual=read(1, 4, 4, 4),
            mask=read(1, 4, 4, 4),
            bias=read(4),
            stride=extent(zero=0, few=(1,), none=None),
            padding=extent(many=[1, 2, 3], triples=[(1, 2, 3), 1]),
            dilation=extent(zero=0, few=(1,)),
            groups=extent(zero=0, three=3),
            layout=TEXT,
            direction=TEXT,
            size=extent(zero=0, few=(1,)),
            **EPILOGUE,
        ),
    ),
    "reduce": (
        dict(x=numbers(4, 5), op="sum"),
        dict(
            x={**ARRAY, "None": None},
            op={**TEXT, "None": None, "list": [3], "none of them": []},
            axis={"text": "x", "fraction": 1.5, "beyond": 2, "before": -3, "too large": 2**70, "none of them": (), "object": object()},
            alpha=SCALAR,
            stream=WHOLE,
            keepdims=TRUTH,
            activation=TEXT,
            context=CONTEXT,
        ),
    ),
    "tune": (
        dict(what="tC0_tA0_tB0_colMaj0_m4_n6_k5_lda5_ldb6_ldc6_ws0_f32", trials=1),
        dict(
            seconds={"text": "x", "negative": -1, "NaN": float("nan"), "list": [1]},
            trials=WHOLE,
            progress={"number": 3, "text": "x", "None": None},
            **SEARCH,
        ),
    ),
    "explain": (dict(what="tC0_tA0_tB0_colMaj0_m4_n6_k5_lda5_ldb6_ldc6_ws0_f32"), dict(**SEARCH)),
    "emit": (dict(what="tC0_tA0_tB0_colMaj0_m4_n6_k5_lda5_ldb6_ldc6_ws0_f32"), dict(arch=TEXT, **SEARCH)),
    "use": (dict(device="emu", records=""), dict(device=TEXT, records=PATH, workspace=WHOLE, atomics=TRUTH, in_process=TRUTH, ieee=TRUTH)),
    "Context": (dict(device="emu", records=""), dict(device=TEXT, records=PATH, workspace=WHOLE, atomics=TRUTH, in_process=TRUTH, ieee=TRUTH)),
    "devices": ({}, {}),
}
LABELS = {"number": 3, "text": "x", "object": object(), "None": None, "floats": numbers(4), "ragged": [[0], [1, 2]], "fractions": [0.5] * 4, "too few": [0, 1]}
FUNCTIONS["glu"] = (
    dict(x=numbers(4, 5), weight=numbers(6, 5)),
    dict(
        x=read(4, 5, needed=True),
        weight=read(6, 5, needed=True),
        up=read(6, 5),
        bias=read(6),
        gate=TEXT,
        up_first=TRUTH,
        interleaved=TRUTH,
        gate_limit={"text": "x", "list": [], "another gate's": 2.0},
        gate_slope={"text": "x", "zero": 0},
        context=CONTEXT,
    ),
)
FUNCTIONS["cross_entropy"] = (
    dict(x=numbers(4, 5), weight=numbers(6, 5), labels=np.array([0, 1, 2, 5])),
    dict(
        x=read(4, 5, needed=True),
        weight=read(6, 5, needed=True),
        labels=LABELS,
        bias=read(6),
        reduction=TEXT,
        ignore_index={"text": "x", "fraction": 1.5, "list": [], "None": None},
        label_smoothing={"text": "x", "two": 2.0, "negative": -0.1, "NaN": float("nan")},
        z_loss={"text": "x", "list": [], "NaN": float("nan")},
        class_weight=read(6),
        softcap=POSITIVE,
        context=CONTEXT,
    ),
)
# Not wrong after all, by function, argument and value: sums are of any floats, and of no elements what they begin with. Layers take any axes before k.
RIGHT = {("glu", "x", "an axis more"), ("reduce", "x", "other floats"), ("reduce", "x", "empty"), ("reduce", "x", "list"), ("gemm", "out", "turned")}
# Operands that may have any strides: function, argument and the right shape.
READ = [
    ("gemm", "a", (4, 5)),
    ("gemm", "b", (5, 6)),
    ("gemm", "bias", (6,)),
    ("gemm", "residual", (4, 6)),
    ("conv", "x", (1, 2, 6, 6)),
    ("conv", "w", (4, 2, 3, 3)),
    ("conv", "bias", (4,)),
    ("conv", "residual", (1, 4, 4, 4)),
    ("conv", "mask", (1, 4, 4, 4)),
    ("reduce", "x", (4, 5)),
    ("glu", "x", (4, 5)),
    ("glu", "weight", (6, 5)),
    ("glu", "bias", (6,)),
    ("cross_entropy", "x", (4, 5)),
    ("cross_entropy", "weight", (6, 5)),
    ("cross_entropy", "bias", (6,)),
    ("cross_entropy", "class_weight", (6,)),
]


if torch is not None:
    _FREED = torch.randn(4, 4, 4, 4)
    _FREED.untyped_storage().resize_(0)
    KEEP = {"text": "x", "list": []}
    WORKSPACE = {"text": "x", "zero": 0, "fraction": 0.5, "None": None}
    TENSOR = {
        "number": 3,
        "text": "x",
        "list": [[1.0]],
        "array": numbers(4, 4),
        "sparse": torch.eye(4).to_sparse(),
        "compressed": torch.eye(4).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8),
        "int64": torch.ones(4, 4, dtype=torch.int64),
        "complex": torch.ones(4, 4, dtype=torch.complex64),
        "other floats": torch.ones(4, 4, dtype=torch.float64),
        "no axis": torch.ones(()),
        "nine axes": torch.ones([1] * 9),
        "other sizes": torch.ones(17, 3),
        "freed": _FREED,
    }
    MISSING = {**TENSOR, "None": None}
    WINDOW = {"fraction": 1.5, "text": "x", "many": [1, 1, 1, 1, 1], "None": None, "negative": -1, "too large": 2**70}
    FILE = {**PATH, "none": "/nowhere/at/all.csv", "text": __file__}
    TORCH = {
        "mm": (dict(a=torch.ones(4, 5), b=torch.ones(5, 6)), dict(a=MISSING, b=MISSING)),
        "bmm": (dict(a=torch.ones(2, 4, 5), b=torch.ones(2, 5, 6)), dict(a=MISSING, b=MISSING)),
        "grouped_mm": (
            dict(mat_a=torch.ones(4, 5), mat_b=torch.ones(2, 5, 6), offs=torch.tensor([1, 4], dtype=torch.int32)),
            dict(mat_a=MISSING, mat_b=MISSING, offs=MISSING),
        ),
        "linear": (
            dict(x=torch.ones(4, 5), weight=torch.ones(6, 5)),
            dict(x=MISSING, weight=MISSING, bias=TENSOR, residual=TENSOR, activation={"number": 3, "unknown": "tanh", "empty": "", "list": []}),
        ),
        "lora_linear": (
            dict(x=torch.ones(4, 5), weight=torch.ones(6, 5), lora_a=torch.ones(3, 5), lora_b=torch.ones(6, 3)),
            dict(x=MISSING, weight=MISSING, lora_a=MISSING, lora_b=MISSING, bias=TENSOR, scale={"text": "x", "list": []}),
        ),
        "glu": (
            dict(x=torch.ones(4, 5), weight=torch.ones(6, 5)),
            dict(x=MISSING, weight=MISSING, bias=TENSOR, gate={"number": 3, "unknown": "tanh", "empty": "", "list": []}, up_first={"text": "x", "list": []}, gate_limit={"text": "x", "list": [], "another gate's": 2.0}, gate_slope={"text": "x", "zero": 0}, interleaved={"text": "x", "list": []}, keep=KEEP, up=TENSOR),
        ),
        "linear_logsumexp": (
            dict(x=torch.ones(4, 5), weight=torch.ones(6, 5), labels=torch.zeros(4, dtype=torch.int64)),
            dict(x=MISSING, weight=MISSING, labels=MISSING, bias=TENSOR, keep=KEEP, workspace=WORKSPACE, softcap=POSITIVE),
        ),
        "linear_cross_entropy": (
            dict(x=torch.ones(4, 5), weight=torch.ones(6, 5), labels=torch.zeros(4, dtype=torch.int64)),
            dict(
                x=MISSING,
                weight=MISSING,
                labels=MISSING,
                bias=TENSOR,
                reduction={"number": 3, "unknown": "all", "None": None},
                ignore_index={"text": "x", "fraction": 1.5, "list": [], "None": None},
                label_smoothing={"text": "x", "two": 2.0, "negative": -0.1, "NaN": float("nan")},
                z_loss={"text": "x", "list": [], "NaN": float("nan")},
                class_weight=TENSOR,
                keep=KEEP,
                workspace=WORKSPACE,
                softcap=POSITIVE,
            ),
        ),
        "convolution": (
            dict(x=torch.ones(1, 2, 6, 6), weight=torch.ones(4, 2, 3, 3)),
            dict(
                x=MISSING,
                weight=MISSING,
                bias=TENSOR,
                stride={**WINDOW, "zero": 0},
                padding=WINDOW,
                dilation={**WINDOW, "zero": 0},
                groups={"fraction": 1.5, "text": "x", "None": None, "zero": 0, "negative": -1, "three": 3, "too large": 2**70},
            ),
        ),
        "reduce": (
            dict(x=torch.ones(4, 5), op="sum"),
            dict(
                x=MISSING,
                op={"number": 3, "unknown": "nonsense", "list": ["sum"], "None": None},
                dim={"text": "x", "fraction": 1.5, "too large": 2, "too small": -3, "empty": [], "list of lists": [[1]]},
                keepdim=TRUTH,
            ),
        ),
        "optimize": (dict(model=torch.nn.Linear(2, 2)), dict(model={"class": torch.nn.Linear, "None": None, "tensor": torch.ones(2)})),
        "shapes": (dict(path=None), dict(path=FILE)),
        "report": (dict(), dict(path=FILE)),
        "compare": (dict(path=None), dict(path=FILE, repeats={**WHOLE, "zero": 0})),
        "tune_recorded": (
            dict(path=None, trials=1),
            dict(
                path=FILE,
                seconds=SECONDS,
                total=SECONDS,
                trials=WHOLE,
                progress={"number": 3, "text": "x"},
                devices={"number": 3, "bytes": b"x", "list": ["cuda:0"], "no Unicode": "\udc80"},
                fleet={"number": 3, "bytes": b"x", "no run": "postgresql://localhost/x", "no Unicode": "\udc80"},
                run={"number": 3, "bytes": b"x", "no Unicode": "\udc80"},
            ),
        ),
        "enable": (dict(path=None), dict(path=FILE, margin={**SCALAR, "NaN": float("nan")}, compiled=TRUTH)),
        "prepare": (
            dict(model=torch.nn.Linear(5, 6), inputs=torch.ones(4, 5), repeats=1),
            dict(
                model={"None": None, "tensor": torch.ones(2), "text": "x"},
                # What is wrong with them the model says.
                inputs={},
                path={**PATH, "no folder": "/nowhere/at/all.csv"},
                margin={**SCALAR, "NaN": float("nan")},
                compiled=TRUTH,
                repeats={**WHOLE, "zero": 0},
            ),
        ),
        "record": (dict(path=None), dict(path={**PATH, "no folder": "/nowhere/at/all.csv"}, model={"number": 3, "class": torch.nn.Linear})),
        "tune": (
            dict(what=twt.mm, a=torch.ones(4, 5), b=torch.ones(5, 6), trials=1),
            dict(
                what=dict(none=None, other=torch.mm, text="x", number=3),
                seconds={"text": "x", "negative": -1, "NaN": float("nan")},
                trials=WHOLE,
                progress={"number": 3, "text": "x"},
            ),
        ),
        "disable": ({}, {}),
        "fuse_gated_mlps": ({}, dict(on=TRUTH, keep=TRUTH)),
        "fuse_losses": ({}, dict(on=TRUTH, keep=TRUTH, workspace=WORKSPACE)),
        "prepared": ({}, {}),
        "unprepared": ({}, {}),
    }


def parameters(function):
    """Names of a function's arguments, with those of its call that it passes on as options."""
    found = [*inspect.signature(function).parameters.values()]
    beyond = tw._core._CALLS.get(function)
    found += inspect.signature(beyond).parameters.values() if beyond else []
    return {p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


class Sweep(unittest.TestCase):
    def swept(self, module, functions, right):
        for name, (good, wrong) in functions.items():
            function = getattr(module, name)
            function(**good)
            # `tune` and its like pass `context` on.
            names = parameters(function)
            self.assertEqual(names, set(wrong) - ({"context"} - names), f"{name}: each argument is in the table")
            for argument, values in wrong.items():
                for told, value in values.items():
                    with self.subTest(f"{name}({argument} = {told})"), warnings.catch_warnings():
                        warnings.simplefilter("ignore")

                        def call():
                            result = function(**{**good, argument: value})
                            # `record` is for `with`.
                            return result.__enter__() if name == "record" else result

                        if (name, argument, told) in right:
                            call()
                            continue
                        with self.assertRaises(tw.Error) as raised:
                            call()
                        self.assertIsNot(type(raised.exception), tw.Error)
                        said = str(raised.exception)
                        if isinstance(value, str) and len(value) > 3 and value in said:
                            # A file is named by its path.
                            continue
                        self.assertRegex(said, rf"\b{argument}\b|problem `|\b{name}\b", f"{type(raised.exception).__name__} names the argument")
                        self.assertGreater(len(said.split()), 3, "it says what is needed")
            with self.subTest(f"{name}(nonsense = 3)"), self.assertRaisesRegex((tw.Error, TypeError), "(no further|unexpected).*nonsense"):
                function(**good, nonsense=3)

    def setUp(self):
        tw.use("emu", records="")
        self.addCleanup(tw.use, "emu", records="")

    def test_arrays(self):
        public = {name: getattr(tw, name) for name in tw.__all__}
        errors = {name for name, it in public.items() if inspect.isclass(it) and issubclass(it, tw.Error)}
        self.assertEqual(public.keys() - errors - {"Outcome", "__version__"}, FUNCTIONS.keys())
        self.swept(tw, FUNCTIONS, RIGHT)

    def test_operands_that_lie_strangely(self):
        for name, argument, shape in READ:
            good = FUNCTIONS[name][0]
            for told, value in strange(*shape).items():
                with self.subTest(f"{name}({argument} = {told})"):
                    given = getattr(tw, name)(**{**good, argument: value})
                    np.testing.assert_array_equal(given, getattr(tw, name)(**{**good, argument: np.ascontiguousarray(value)}))

    def test_factors_that_are_no_numbers(self):
        """They are results of their own."""
        for value in (float("nan"), float("inf")):
            self.assertFalse(np.isfinite(tw.gemm(numbers(4, 5), numbers(5, 6), alpha=value)).all())
            self.assertFalse(np.isfinite(tw.reduce(numbers(4, 5) + 9, "sum", alpha=value)))

    def test_records_of_others(self):
        """Files that no version of this one wrote, or a later one."""
        with tempfile.TemporaryDirectory() as folder:
            own = os.path.join(folder, "own.sqlite")
            tw.use("emu", records=own)
            tw.tune(tw.gemm, numbers(4, 5), numbers(5, 6), trials=1)
            tw.use("emu", records="")

            def ran(path, *lines):
                with closing(sqlite3.connect(path, isolation_level=None)) as file:
                    return [file.execute(line).fetchone() for line in lines][-1]

            (version,) = ran(own, "pragma wal_checkpoint(truncate)", "pragma user_version")
            with open(own, "rb") as file:
                whole = file.read()

            def later(path):
                ran(path, f"pragma user_version = {version + 1}", "pragma wal_checkpoint(truncate)")

            def other(path):
                os.remove(path)
                ran(path, "create table trials (problem)")

            def cut(path):
                os.truncate(path, len(whole) // 2)

            def torn(path):
                with open(path, "r+b") as file:
                    file.seek(100)
                    file.write(b"\xff" * (len(whole) - 200))

            def text(path):
                with open(path, "w") as file:
                    file.write("problem,plan\n" * 9)

            for change in (later, other, cut, torn, text):
                path = os.path.join(folder, f"{change.__name__}.sqlite")
                with open(path, "wb") as file:
                    file.write(whole)
                change(path)
                with self.subTest(change.__name__), self.assertRaisesRegex(tw.RecordsError, change.__name__ + ".sqlite"):
                    context = tw.use("emu", records=path)
                    context.records()
                    context.operation(FUNCTIONS["tune"][0]["what"]).choice()


@unittest.skipIf(torch is None, "PyTorch is not here")
class Torch(Sweep):
    test_arrays = test_operands_that_lie_strangely = test_factors_that_are_no_numbers = test_records_of_others = None

    def test_tensors(self):
        self.addCleanup(twt.disable)
        public = {name for name in twt.__all__ if not inspect.isclass(getattr(twt, name))}
        self.assertEqual(public, set(TORCH))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "shapes.csv")
            with twt.record(path):
                torch.mm(torch.ones(4, 5), torch.ones(5, 6))
            functions = {name: ({**good, "path": path} if "path" in good else good, wrong) for name, (good, wrong) in TORCH.items()}
            self.swept(twt, functions, {("reduce", "x", told) for told in ("other floats", "other sizes")})


if __name__ == "__main__":
    unittest.main()
