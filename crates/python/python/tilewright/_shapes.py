"""Which products, convolutions and reductions a model runs, how fast torch does them and how fast we do: a file of them, a line each.

The file is one of `tilewright tune --recorded-shapes`: its column `problem` is what the command takes, the others are for `enable` and people.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import _arguments as given
from . import _beside, _core, _mlp, _native
from . import _operators as ours
from ._arrays import Array, of_shape
from ._reductions import with_indices

Path = Union[str, "os.PathLike[str]"]
_aten = torch.ops.aten


@dataclass
class Shape:
    """One recorded operator call of a model on a device.

    Attributes
    ----------
    problem : str
        Text of the problem; empty if tilewright has none for the call.
    set : str
        Name of the operator.
    calls : int
        Number of calls.
    layers : str
        Names of the calling modules, joined by spaces.
    call : str
        The operator's arguments as JSON: tensors by size, stride, type and device.
    device : str
        Name and driver of the device on which both times were measured.
    torch_us, ours_us : float
        Times of torch and tilewright in microseconds; 0 if not measured.
    reason : str
        Why there is no problem, or no time.
    """

    problem: str
    set: str
    calls: int
    layers: str
    call: str
    device: str = ""
    torch_us: float = 0.0
    ours_us: float = 0.0
    reason: str = ""

    @property
    def gain(self) -> Optional[float]:
        """Torch's time divided by tilewright's, or None without both times."""
        return self.torch_us / self.ours_us if self.torch_us > 0 and self.ours_us > 0 else None


def shapes(path: Path) -> List[Shape]:
    """Read a file of shapes.

    Parameters
    ----------
    path : path
        File of shapes (CSV) that `record` wrote.

    Returns
    -------
    list of Shape

    Raises
    ------
    RecordsError
        The file cannot be read, or is no file of shapes.
    """
    try:
        with open(given.path(path, "path"), newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "problem" not in (reader.fieldnames or ()):
                raise ValueError("its first line names no column `problem`")
            rows: List[Dict[str, Any]] = list(reader)
        names = {field.name for field in fields(Shape)}
        found = [Shape(**{name: text for name, text in row.items() if name in names}) for row in rows]
        for row in found:
            row.calls, row.torch_us, row.ours_us = int(row.calls), float(row.torch_us or 0), float(row.ours_us or 0)
            json.loads(row.call)
    except (OSError, TypeError, ValueError, AttributeError) as e:
        raise _native.RecordsError(f"{path} is no file of shapes that tilewright.torch.record wrote: {e}") from e
    return found


def _write(path: Path, rows: List[Shape]) -> None:
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Shape)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    os.replace(beside, path)


def place(x: Tensor) -> str:
    """The device of a tensor, as contexts name it."""
    return "cpu" if x.device.type == "cpu" else f"{x.device.type}:{x.device.index}"


def _told(x: Any) -> Any:
    if isinstance(x, Tensor):
        return {"size": list(x.shape), "stride": list(x.stride()), "dtype": str(x.dtype)[6:], "device": place(x)}
    if isinstance(x, (list, tuple)):
        return [_told(value) for value in x]
    return x if x is None or isinstance(x, (bool, int, float, str)) else str(x)


def _made(x: Any) -> Any:
    """A recorded argument as a tensor of random values."""
    if not isinstance(x, dict):
        return [_made(value) for value in x] if isinstance(x, list) else x
    made = torch.empty_strided(x["size"], x["stride"], dtype=getattr(torch, x["dtype"]), device=x["device"])
    # Expanded tensors share elements.
    flat = made.as_strided((made.untyped_storage().nbytes() // made.element_size(),), (1,))
    # Not the default generator: a failed capture makes it unusable.
    flat.normal_(generator=torch.Generator(made.device).manual_seed(1))
    return made


def _array(x: Tensor) -> Array:
    if x.dtype not in ours.TYPES:
        raise _native.OperandError(f"{x.dtype}: float16, bfloat16, float32 or float64 are possible")
    return Array(256, tuple(x.shape), tuple(x.stride()), ours.TYPES[x.dtype], place(x), None)


def product_problem(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> str:
    """The text of `a @ b + bias`."""
    return product_of(*(_array(x) for x in (a, b) + (() if bias is None else (bias,))))


def product_of(a: Array, b: Array, bias: Optional[Array] = None) -> str:
    """The text of a product of what lies as these arrays."""
    out = of_shape((*a.shape[:-1], b.shape[-1]), a.dtype, a.device)
    return _core._gemm(a, b, out=out, bias=bias).problem


def gated_problem(x: Tensor, weight: Tensor, up: Optional[Tensor], function: str, up_first: bool) -> str:
    """The text of a gated MLP up to the product of both factors."""
    rows, gate = (_array(t) for t in (x.reshape(-1, x.shape[-1]), weight.t()))
    columns = gate.shape[1] if up is not None else gate.shape[1] // 2
    out = of_shape((rows.shape[0], columns), rows.dtype, rows.device)
    other = None if up is None else _array(up.t())
    return _core._gemm(rows, gate, out=out, gate=function, up_first=up_first, up=other).problem


def convolution_problem(direction: str, x: Tensor, weight: Tensor, how: Any, bias: bool = False) -> str:
    """The text of one direction of a convolution."""
    ours.geometry(x.shape, weight.shape, *how)
    last = ours.channels_last(x) or ours.channels_last(weight)
    return ours.convolution_problem(direction, x.shape, weight.shape, _array(x).dtype, last, how, bias)


def _refuse(why: str) -> str:
    raise _native.ProblemError(why)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> str:
    if beta != 1 or alpha != 1 or bias.dim() != 1:
        _refuse(f"addmm with beta = {beta}, alpha = {alpha} and {bias.dim()} dimensions added: a vector is possible, with 1 and 1")
    return product_problem(a, b, bias)


def _convolution(x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, turned: bool, _: Any, groups: int) -> str:
    if turned:
        _refuse("transposed convolutions are not answered")
    return convolution_problem("forward", x, w, (stride, padding, dilation, groups), bias is not None)


def _reduction(op: str, x: Tensor, dims: Any, keepdim: bool, dtype: Optional[str]) -> str:
    """The text of one of torch's reductions, of its arguments as `_reduced` gives them."""
    told = x.dtype if dtype is None else getattr(torch, dtype)
    wider = x.dtype in (torch.float16, torch.bfloat16) and told == torch.float32
    if told != x.dtype and not wider:
        _refuse(f"{op} of {x.dtype} as {told}: torch converts before it reduces")
    if x.numel() == 0 or x.dim() == 0 or op == "logsumexp" and not dims:
        _refuse(f"{op} of shape {tuple(x.shape)} over {dims}: nothing is reduced")
    over = sorted({at % x.dim() for at in dims or range(x.dim())})
    return ours.reduction_problem(op, _array(x), over, not wider and not op.startswith("arg"))


def _reduced(func: Any, args: Any, kwargs: Any) -> List[Any]:
    """A reduction's tensor, dimensions (None: all), whether they are kept, and its type."""
    named = {a.name: value for a, value in zip(func._schema.arguments, args)}
    named.update(kwargs)
    dims, dtype = named.get("dim"), named.get("dtype")
    dims = [dims] if isinstance(dims, int) else None if dims is None else list(dims)
    return [named["self"], dims, named.get("keepdim", False), None if dtype is None else str(dtype)[6:]]


# Operators that are reductions, by the names of those that may be ours.
REDUCED: Dict[Any, str] = {
    _aten.sum.default: "sum",
    _aten.sum.dim_IntList: "sum",
    _aten.mean.default: "mean",
    _aten.mean.dim: "mean",
    _aten.amax.default: "amax",
    _aten.amin.default: "amin",
    _aten.argmax.default: "argmax",
    _aten.argmin.default: "argmin",
    _aten.logsumexp.default: "logsumexp",
    _aten.max.dim: "max",
    _aten.min.dim: "min",
}

# Operators that are noted, with how they become problems.
READ: Dict[Any, Callable[..., str]] = {
    _aten.mm.default: product_problem,
    _aten.bmm.default: product_problem,
    _aten.addmm.default: _addmm,
    _aten.convolution.default: _convolution,
}

# Operators that are noted with why they are torch's.
NOT_READ: Dict[Any, str] = {
    _aten.baddbmm.default: "its scalars do not pass torch's C interface",
    _aten._addmm_activation.default: "its scalars do not pass torch's C interface",
    _aten.addbmm.default: "its scalars do not pass torch's C interface",
    _aten._scaled_mm.default: "8-bit types are not answered",
    _aten.mv.default: "a matrix times a vector is not answered",
    _aten.addmv.default: "a matrix times a vector is not answered",
    _aten.var.correction: "its correction does not pass torch's C interface",
    _aten.var_mean.correction: "its correction does not pass torch's C interface",
    _aten._scaled_dot_product_flash_attention.default: "attention is one kernel of torch's",
    _aten._scaled_dot_product_flash_attention_for_cpu.default: "attention is one kernel of torch's",
    _aten._scaled_dot_product_efficient_attention.default: "attention is one kernel of torch's",
    _aten._scaled_dot_product_cudnn_attention.default: "attention is one kernel of torch's",
}


# The name under which gated MLPs are noted.
GATED = "tilewright::glu"


class Recorder(TorchDispatchMode):
    """Notes the operators that run. A layer is recognised by the memory of its parameters, or of the tensors that it has read."""

    def __init__(self, model: Optional[torch.nn.Module]) -> None:
        super().__init__()
        self.model = model
        self.hooks: List[Any] = []
        self.rows: Dict[Tuple[str, str], Shape] = {}
        self.layers: Dict[Tuple[str, str], Set[str]] = {}
        named = model.named_parameters() if model is not None else ()
        self.parameters = {p.untyped_storage().data_ptr(): name.rpartition(".")[0] or "model" for name, p in named}
        self.read: Dict[int, str] = {}

    def note(self, op: str, problem: Callable[[], str], args: Any, tensors: List[Tensor]) -> None:
        try:
            text, why = problem(), ""
        except _native.Error as e:
            text, why = "", str(e)
        told = json.dumps(_told(args))
        row = self.rows.setdefault((op, told), Shape(text, op, 0, "", told, reason=why))
        row.calls += 1
        at = [t.untyped_storage().data_ptr() for t in tensors]
        layer = next((self.parameters[p] for p in at if p in self.parameters), None)
        if layer is not None:
            self.read.update({p: layer for p in at if p not in self.parameters})
        else:
            layer = next((self.read[p] for p in at if p in self.read), "")
        self.layers.setdefault((op, told), set()).add(layer)

    def __enter__(self) -> "Recorder":
        for module in () if self.model is None else self.model.modules():
            of = _mlp.gated(module)
            if of is not None:
                self.hooks.append(module.register_forward_pre_hook(partial(self._note_gated, of)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        while self.hooks:
            self.hooks.pop().remove()
        super().__exit__(*error)

    def _note_gated(self, of: _mlp.Gated, module: torch.nn.Module, args: Any) -> None:
        weights = _mlp.parts(module, of)
        if weights is not None and len(args) == 1 and isinstance(args[0], Tensor) and _mlp.readable(args[0], weights):
            tensors = [args[0], *weights.tensors()]
            if not _mlp.differentiated(*tensors):
                called = [args[0], *weights, of.activation.function, of.up_first]
                self.note(GATED, lambda: gated_problem(*called), called, tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in args if isinstance(x, Tensor)]
        if func in READ:
            scalars = {k: v for k, v in kwargs.items() if isinstance(v, (int, float))}
            self.note(func._schema.name, lambda: READ[func](*args, **scalars), args, tensors)
        elif func in REDUCED and args[0].is_floating_point():
            told = _reduced(func, args, kwargs)
            self.note(func._schema.name, lambda: _reduction(REDUCED[func], *told), told, tensors)
        elif func in NOT_READ:
            self.note(func._schema.name, lambda: _refuse(NOT_READ[func]), args, tensors)
        elif func is _aten.convolution_backward.default:
            grad, x, w, _, stride, padding, dilation, turned, _, groups, mask = args
            how = (stride, padding, dilation, groups)
            for wanted, direction in zip(mask, ("backward-data", "backward-weight")):
                if wanted:
                    of = lambda direction=direction: (  # noqa: E731
                        _refuse("transposed convolutions are not answered")
                        if turned
                        else convolution_problem(direction, x, w, how)
                    )
                    only = [direction == "backward-data", direction == "backward-weight", False]
                    self.note(f"aten::convolution_backward ({direction})", of, (*args[:3], None, *args[4:10], only), tensors)
        return func(*args, **kwargs)


@contextmanager
def record(path: Path, model: Optional[torch.nn.Module] = None) -> Iterator[None]:
    """Record the matrix products, convolutions and reductions that run inside the `with` block.

    Calls are recorded as they reach torch's device kernels, forward and backward, with their number and the calling layers. Rows that the
    file already holds stay. Nothing is recorded inside of torch.compile: record the model before it is compiled. Without
    gradients the first half of each gated MLP of `model` is recorded as one product, besides the products that it consists of.

    Parameters
    ----------
    path : path
        File of shapes (CSV) to write or extend.
    model : torch.nn.Module, optional
        Names the layers in the file.

    Raises
    ------
    RecordsError
        The file cannot be written, or is no file of shapes.
    OperandError
        `model` is not an instance of `torch.nn.Module`.
    """
    check_place(path)
    if model is not None and not isinstance(model, torch.nn.Module):
        raise _native.OperandError(f"model is {type(model).__name__}: an instance of torch.nn.Module is needed")
    recorder = Recorder(model)
    with recorder:
        yield
    _write(path, _added(path, recorder))


def check_place(path: Path) -> None:
    """Refuses a file that cannot be written and one of another kind, before anything runs."""
    folder = os.path.dirname(given.path(path, "path")) or "."
    if not os.path.isdir(folder):
        raise _native.RecordsError(f"{path} cannot be written: the folder {folder} does not exist; create it first")
    if os.path.exists(path):
        shapes(path)


def _added(path: Path, recorder: Recorder) -> List[Shape]:
    """The rows of a file, where there is one, with what was recorded."""
    rows = {(row.set, row.call): row for row in (shapes(path) if os.path.exists(path) else [])}
    for key, row in recorder.rows.items():
        row.layers = " ".join(sorted(filter(None, recorder.layers[key])))
        if key in rows:
            row.device, row.torch_us, row.ours_us = rows[key].device, rows[key].torch_us, rows[key].ours_us
            row.reason = row.reason or rows[key].reason
        rows[key] = row
    return list(rows.values())


# Seconds until a process that waits for another one's decisions says so, and until it gives up.
_WAIT, _PATIENCE = 10.0, 600.0


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other processes from deciding about the shapes of a file meanwhile. A process that ends lets go of it."""
    try:
        import fcntl
    except ImportError:
        # Without locks of files, processes may decide apart.
        yield
        return
    beside = f"{path}.lock"
    with open(beside, "a", encoding="utf-8") as file:
        begin, told = time.monotonic(), False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - begin
                if waited > _PATIENCE:
                    why = f"another process has decided about its shapes for {_PATIENCE:.0f} s: end it, or name another file"
                    raise _native.RecordsError(f"{path}: {why}") from None
                if waited > _WAIT and not told:
                    warnings.warn(f"{path}: waiting for another process that decides about its shapes", RuntimeWarning, 4)
                    told = True
                time.sleep(0.05)
        yield


def _decided(row: Shape) -> bool:
    """Has somebody compared a shape on this device, or found no verdict?"""
    known = row.gain is not None or row.reason and not row.torch_us
    return bool(known) and row.device == described(_core.context_for(_at(row)))


def decide(path: Path, recorder: Recorder, repeats: int) -> None:
    """Adds what was recorded to a file, and times the shapes that nobody has decided about on this device. What another process has decided
    stays."""
    with _alone(path):
        rows = _added(path, recorder)
        new = [row for row in rows if row.problem and not _decided(row)]
        ours.choose_by(None)
        _compile_all(new)
        with _beside.comparison():
            for row in new:
                _measure(row, repeats)
        _write(path, rows)


def _doors(row: Shape) -> Tuple[Callable[[], Any], Callable[[], Any], List[Any]]:
    """A call by torch, the same by us, and the operands."""
    args = _made(json.loads(row.call))
    twt = torch.ops.tilewright
    if row.set in ("aten::mm", "aten::bmm"):
        name = row.set[6:]
        return lambda: getattr(torch, name)(*args), lambda: getattr(twt, name)(*args), args
    if row.set == GATED:
        x, weight, up, function, up_first = args
        linear = torch.nn.functional.linear

        def by_torch() -> Tensor:
            both = linear(x, weight).chunk(2, -1) if up is None else (linear(x, weight), linear(x, up))
            return ours.activate(both[up_first], function) * both[not up_first]

        return by_torch, lambda: twt.glu(x, weight, None, function, up_first, None, None, False, up), args
    if row.set == "aten::addmm":
        return lambda: torch.addmm(*args), lambda: twt.addmm(*args), args
    if row.set[6:] in ours.REDUCTIONS:
        return _doors_of_reduction(row.set[6:], *args)
    if row.set == "aten::convolution":
        x, weight, bias, *how, _, _, groups = args
        return lambda: _aten.convolution(*args), lambda: twt.convolution(x, weight, bias, *how, groups), args
    grad, x, weight, _, *how, _, _, groups, mask = args
    if mask[0]:
        return (
            lambda: _aten.convolution_backward(*args)[0],
            lambda: twt.convolution_input(grad, weight, x.shape, *how, groups),
            args,
        )
    return lambda: _aten.convolution_backward(*args)[1], lambda: twt.convolution_weight(grad, x, weight.shape, *how, groups), args


def _doors_of_reduction(
    op: str, x: Tensor, dims: Optional[List[int]], keepdim: bool, dtype: Optional[str]
) -> Tuple[Callable[[], Any], Callable[[], Any], List[Any]]:
    kind, *indices = ours.reduction_kinds(op, ours.TYPES[x.dtype], dtype != "float32" and not op.startswith("arg"))
    over = sorted({at % x.dim() for at in dims or range(x.dim())})
    if indices:
        return lambda: getattr(torch, op)(x, over[0], keepdim), lambda: with_indices(x, [kind, *indices], over[0])[0], [x]
    if op.startswith("arg"):
        theirs = lambda: getattr(torch, op)(x, *(dims or [None]), keepdim)  # noqa: E731
    elif op in ("sum", "mean"):
        called = {"sum": _aten.sum.dim_IntList, "mean": _aten.mean.dim}[op]
        theirs = lambda: called(x, dims, keepdim, dtype=None if dtype is None else getattr(torch, dtype))  # noqa: E731
    else:
        theirs = lambda: getattr(torch, op)(x, dims or (), keepdim)  # noqa: E731
    return theirs, lambda: torch.ops.tilewright.reduce(x, kind, over), [x]


def _timer(run: Callable[[], Any], cuda: bool, reps: int) -> Callable[[], float]:
    """A function that gives the microseconds of a call. On CUDA, of calls in a graph: the device's time without the host's."""
    run()
    if not cuda:

        def once() -> float:
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e6

        return lambda: min(once() for _ in range(3))
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # A search that has just ended may still load a kernel on another thread.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(reps):
            run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def on_device() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000.0 / reps

    return on_device


def _at(row: Shape) -> str:
    return next(x["device"] for x in json.loads(row.call) if isinstance(x, dict))


def described(context: _core.Context) -> str:
    """A device with its driver, as comparisons are filed."""
    return f"{context.name}, {context._native.fingerprint}, torch {torch.__version__}"


def is_emulated(device: str) -> bool:
    """Is a device, as comparisons are filed, the emulator?"""
    return device.startswith("tilewright emulator")


def _compile_all(rows: List[Shape]) -> None:
    """Compiles all problems on all cores: what is compiled one by one otherwise."""

    def ready(work: Tuple[str, str]) -> None:
        try:
            _core.context_for(work[1]).prepared(work[0], (256, 256, 256))
        except _native.Error:
            # The run that needs the kernel raises the same error.
            return

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(ready, sorted({(row.problem, _at(row)) for row in rows if row.problem})))


def _timers(row: Shape) -> Tuple[Callable[[], float], Callable[[], Callable[[], float]]]:
    """What gives the time of a call by torch, and what gives what gives ours."""
    by_torch, by_us, args = _doors(row)
    cuda = any(isinstance(x, Tensor) and x.is_cuda for x in args)
    reps = 1
    if cuda:
        reps = max(1, min(50, int(2000 / max(_timer(by_torch, True, 1)(), 1.0))))

    def ours_too() -> Callable[[], float]:
        if not torch.isfinite(by_us()).all():
            raise _native.DeviceError("our result is not finite")
        return _timer(by_us, cuda, reps)

    return _timer(by_torch, cuda, reps), ours_too


# Repeats agree where so many of them are within this share of the least; of many repeats two are enough.
_AGREE, _WITHIN, _MANY = 3, 0.1, 15
# Rounds of repeats before there is no verdict.
_ROUNDS = 10


def _least(times: List[float]) -> Optional[float]:
    """The least of repeats, where enough of them agree with it; a call that something held up does not count."""
    least = min(times)
    return least if sum(t <= (1.0 + _WITHIN) * least for t in times) >= (_AGREE if len(times) < _MANY else 2) else None


def _verdict(timers: List[Callable[[], float]], repeats: int) -> Tuple[List[Optional[float]], List[List[float]]]:
    """The least time by each timer, measured alternately until repeats agree, and all times."""
    columns: List[List[float]] = [[] for _ in timers]
    least: List[Optional[float]] = [None] * len(timers)
    for _ in range(_ROUNDS):
        for _ in range(max(repeats, _AGREE)):
            for column, timer in zip(columns, timers):
                column.append(timer())
        least = [_least(column) for column in columns]
        if None not in least:
            break
    return least, columns


# Seconds until a process that waits for the device says so, and until it times beside the other process.
_SAYS, _BESIDE = 1.0, 10.0


@contextmanager
def _device_held(context: _core.Context) -> Iterator[None]:
    """Keeps other processes of ours from timing on the device meanwhile, by the lock that searches take."""
    path = context._native.lock_file
    try:
        import fcntl

        file = open(path, "r+" if path and os.path.exists(path) else "w+", encoding="utf-8") if path else None
    except (ImportError, OSError):
        file = None
    if file is None:
        yield
        return
    with file:
        begin, told = time.monotonic(), False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                waited = time.monotonic() - begin
                if waited > _SAYS and not told:
                    told = True
                    file.seek(0)
                    who = file.read(200).strip() or "another process"
                    warnings.warn(f"{context.device}: waiting for {who}, which times on this device", RuntimeWarning, 6)
                if waited > _BESIDE:
                    break
                time.sleep(0.01)
                continue
            file.seek(0)
            file.truncate()
            file.write(f"process {os.getpid()} (Python), a worker of process {os.getppid()}")
            file.flush()
            break
        yield


def _measure(row: Shape, repeats: int, alone: bool = False) -> None:
    """Puts both times into a shape, or why there are none; `alone`: torch's, to share out seconds by, whether repeats agree or not."""
    try:
        context = _core.context_for(_at(row))
        row.device = described(context)
        if not _beside.isolates(context):
            return measure_here(row, repeats, alone)
        told = _beside.measured(asdict(row), _at(row), context, repeats, alone, _WITHIN)
        row.torch_us, row.ours_us, row.reason = told["torch_us"], told["ours_us"], told["reason"]
    except (_native.Error, RuntimeError) as e:
        row.torch_us = row.ours_us = 0.0
        row.reason = str(e).splitlines()[0][:600]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, StopIteration) as e:
        row.torch_us = row.ours_us = 0.0
        row.reason = f"the recorded call cannot be made: {type(e).__name__} {e}"[:300]


def measure_here(row: Shape, repeats: int, alone: bool = False) -> None:
    """The same in this process."""
    try:
        by_torch, ours_too = _timers(row)
        timers = [by_torch] if alone else [by_torch, ours_too()]
        with _device_held(_core.context_for(_at(row))):
            least, columns = _verdict(timers, repeats)
        row.reason = ""
        if alone:
            row.torch_us, row.ours_us = round(min(columns[0]), 3), 0.0
        elif None in least:
            told = ", ".join(f"{who} {min(c):.1f} to {max(c):.1f} us" for who, c in zip(("torch", "tilewright"), columns))
            row.torch_us = row.ours_us = 0.0
            row.reason = f"no verdict: repeats do not agree within 10 % ({told}); compare again while nothing else runs"
        else:
            row.torch_us, row.ours_us = (round(us or 0.0, 3) for us in least)
    except (_native.Error, RuntimeError) as e:
        row.torch_us = row.ours_us = 0.0
        row.reason = str(e).splitlines()[0][:300]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        row.torch_us = row.ours_us = 0.0
        row.reason = f"the recorded call cannot be made: {type(e).__name__} {e}"[:300]


def compare(path: Path, repeats: int = 5) -> List[Shape]:
    """Time every shape of a file by torch and by tilewright, alternately, and write both times to the file.

    tilewright uses the recorded plan, if there is one. A time is the least of repeats that agree within 10 %. A shape whose repeats do not
    agree gets a reason instead. Operands are warm in the cache if they fit, as from layer to layer.

    Parameters
    ----------
    path : path
        File of shapes (CSV) that `record` wrote.
    repeats : int, default 5
        Repeats of each measurement.

    Returns
    -------
    list of Shape
        The rows that were written.

    Raises
    ------
    RecordsError
        The file cannot be read, or is no file of shapes.
    """
    rows = shapes(path)
    repeats = given.whole(repeats, "repeats", 1)
    ours.choose_by(None)
    _compile_all(rows)
    with _beside.comparison():
        for row in rows:
            if row.problem:
                _measure(row, repeats)
    _write(path, rows)
    return rows


def tune_recorded(
    path: Path,
    seconds: Optional[float] = None,
    trials: Optional[int] = None,
    progress: _core.Progress = False,
    total: Optional[float] = None,
    devices: Optional[str] = None,
    fleet: Optional[str] = None,
    run: Optional[str] = None,
) -> List[Shape]:
    """Tune each problem of a file of shapes and compare it with torch.

    The command ``tilewright tune --recorded-shapes`` does the same without the comparison.

    Parameters
    ----------
    path : path
        File of shapes (CSV) that `record` wrote.
    seconds, trials : number, optional
        When the search of each problem ends.
    progress : bool or callable, default False
        True shows one line on stderr. A function receives each event as a dict.
    total : float, optional
        Seconds for the whole file. First the best plans of the cost model are timed for every shape, the heaviest first, and each shape is
        compared at once. Then the search goes on where it may save most of torch's time. Shapes that are not reached stay with torch.
    devices : str, optional
        ``"all"``, or a list such as ``"cuda:0,cuda:1"``: the command ``tilewright`` tunes on these devices, a process on each. It writes the
        user's records file.
    fleet : str, optional
        PostgreSQL server ``postgresql://ROLE@HOST/DATABASE``: this host and all others that name the same `run` share the problems. The
        password comes from ``PGPASSFILE`` or ``PGPASSWORD``.
    run : str, optional
        Name of the run of `fleet`.

    Returns
    -------
    list of Shape
        The rows that were written, as by `compare`.

    Raises
    ------
    RecordsError
        The file cannot be read, or is no file of shapes.
    TuneError
        The command ``tilewright`` is missing, or the server cannot be used.
    """
    for name, given_seconds in (("seconds", seconds), ("total", total)):
        if given_seconds is not None and not given.number(given_seconds, name) >= 0.0:
            given.refuse(name, given_seconds, "a number of at least 0 is needed")
    trials = _core._trials(trials)
    given.listener(progress, "progress")
    shared = {"devices": given.maybe(devices, "devices"), "fleet": given.maybe(fleet, "fleet"), "run": given.maybe(run, "run")}
    if any(value is not None for value in shared.values()):
        if total is not None:
            given.refuse("total", total, "with devices or fleet, give seconds or trials for each shape")
        _tune_by_command(path, seconds, trials, progress is True, shared)
        return compare(path)
    if total is not None:
        with _beside.comparison():
            return _Shared(path, float(total)).tune(seconds, trials, progress)
    for at, problems in _weighed(shapes(path)).items():
        _core.tune_all(_core.context_for(at), problems, seconds=seconds, trials=trials, progress=progress)
    # A problem without a plan stays torch's; `compare` says why.
    return compare(path)


def _weighed(rows: List[Shape]) -> Dict[str, Dict[str, float]]:
    """By place, the problems with their numbers of calls."""
    found: Dict[str, Dict[str, float]] = {}
    for row in rows:
        if row.problem:
            problems = found.setdefault(_at(row), {})
            try:
                _core.context_for(_at(row)).operation(row.problem)
            except _native.ProblemError:
                continue
            problems[row.problem] = problems.get(row.problem, 0.0) + row.calls
    return found


def _tune_by_command(path: Path, seconds: Optional[float], trials: Optional[int], shown: bool, shared: Dict[str, Optional[str]]) -> None:
    """Tune a file of shapes in other processes: on several devices, or with other hosts."""
    if shared["fleet"] is not None and shared["run"] is None:
        given.refuse("run", None, "fleet needs the name of a run")
    shapes(path)
    program = os.environ.get("TILEWRIGHT_WORKER") or shutil.which("tilewright")
    if program is None:
        raise _native.TuneError("devices and fleet need the command tilewright in PATH, or named by TILEWRIGHT_WORKER")
    budget = str(trials) if trials is not None else f"{10.0 if seconds is None else float(seconds)}s"
    command = [program, "tune", "--recorded-shapes", os.fspath(path), "--budget", budget, "--json"]
    command += [] if shown else ["--quiet"]
    for option, value in (("device", shared["devices"]), ("run", shared["run"])):
        command += [] if value is None else [f"--{option}", value]
    if shared["devices"] is None:
        command += ["--device", "all"]
    # All users of the host see command lines: an address with a password, which is refused, is on none.
    named = {} if shared["fleet"] is None else {"TILEWRIGHT_FLEET": shared["fleet"]}
    done = subprocess.run(command, env={**os.environ, **named}, stdout=subprocess.DEVNULL, stderr=None if shown else subprocess.PIPE, text=True)
    # Shapes without a plan stay torch's: `compare` says why.
    if done.returncode not in (0, 3):
        lines = (done.stderr or "").strip().splitlines()
        raise _native.TuneError(lines[-1] if lines else f"tilewright tune ended with code {done.returncode}")


class _Shared:
    """A budget of seconds for all shapes of a file."""

    def __init__(self, path: Path, total: float) -> None:
        self.path, self.rows = path, shapes(path)
        self.end = time.monotonic() + total
        # Problems with winners that wait for the worker which times torch.
        self.waiting: Dict[str, Optional[Dict[str, Any]]] = {}

    def left(self) -> float:
        return self.end - time.monotonic()

    def tune(self, seconds: Optional[float], trials: Optional[int], progress: _core.Progress) -> List[Shape]:
        ours.choose_by(None)
        weighed = _weighed(self.rows)
        for at in weighed:
            _beside.opened(at, _core.context_for(at))
        for number, (at, problems) in enumerate(weighed.items()):
            total = max(0.0, self.left()) / (len(weighed) - number)
            _core.tune_all(_core.context_for(at), problems, seconds, trials, total, progress, partial(self.settled, at))
            self.compare_waiting(at)
        for row in self.rows:
            if row.problem and row.gain is None and not row.reason:
                row.reason = "was not reached within `total` seconds"
        _write(self.path, self.rows)
        return self.rows

    def settled(self, at: str, problem: str, outcome: Optional[Dict[str, Any]]) -> Dict[str, float]:
        """Compares problems that have winners with torch. While the worker that times torch starts, the search goes on."""
        self.waiting[problem] = outcome
        return {} if _beside.is_starting(at) else self.compare_waiting(at)

    def compare_waiting(self, at: str) -> Dict[str, float]:
        """Compares the problems that wait; gives torch's microseconds of each."""
        found: Dict[str, float] = {}
        while self.waiting:
            problem = next(iter(self.waiting))
            torch_us = self.compared(at, problem, self.waiting.pop(problem))
            if torch_us is not None:
                found[problem] = torch_us
        return found

    def compared(self, at: str, problem: str, outcome: Optional[Dict[str, Any]]) -> Optional[float]:
        """Compares a problem that has a winner with torch; gives torch's microseconds, on the scale of the search's, whose caches are cold."""
        rows = [row for row in self.rows if row.problem == problem and _at(row) == at]
        for row in rows:
            # A winner of an earlier run was compared then.
            if row.gain is None or not _decided(row) or outcome is None or outcome["trials"] > 0:
                row.reason = ""
                _measure(row, 3)
        # Write the rows so far, even if the rest fails.
        _write(self.path, self.rows)
        ratios = [row.torch_us / row.ours_us for row in rows if row.gain is not None]
        return outcome["time_us"] * sum(ratios) / len(ratios) if ratios and outcome is not None else None
