"""Comparisons in a worker process: one process times torch and tilewright alternately, beside the caller's process and with its settings.

A kernel that crashes or hangs there costs the shape that was being timed. The worker is this interpreter; it imports torch, takes over the
settings on which torch's choice of kernels depends, and ends when its input or its caller ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from . import _contexts, _native

# Seconds until a worker has imported torch and opened its device, and until it has timed a shape.
START, LIMIT = 180.0, 300.0
# The remedy for a device that another process of ours cannot use.
REMEDY = (
    "free memory of this process first (torch.cuda.empty_cache()), let processes share the device (nvidia-smi -c DEFAULT), or compare in this "
    "process: tilewright.use(device, in_process=True)"
)

# Where torch keeps settings that choose its kernels, as attributes below `torch.backends`. Those of `fp32_precision` come first: where they are
# there, the older ones read the same state.
_ATTRIBUTES = (
    "fp32_precision",
    "cuda.matmul.fp32_precision",
    "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "cuda.matmul.allow_tf32",
    "cudnn.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.benchmark_limit",
    "cudnn.deterministic",
)


def _holder(name: str) -> Tuple[Any, str]:
    at: Any = torch.backends
    *path, last = name.split(".")
    for part in path:
        at = getattr(at, part)
    return at, last


def settings() -> Dict[str, Any]:
    """The settings of torch on which its kernels depend."""
    found: Dict[str, Any] = {}
    for name in _ATTRIBUTES:
        # A version may lack one, and refuse to read an older one after a newer one was set.
        with suppress(AttributeError, RuntimeError):
            at, last = _holder(name)
            value = getattr(at, last)
            if isinstance(value, (bool, int, str)):
                found[name] = value
    found["deterministic"] = torch.are_deterministic_algorithms_enabled()
    found["warn_only"] = torch.is_deterministic_algorithms_warn_only_enabled()
    found["threads"] = torch.get_num_threads()
    with suppress(AttributeError):
        found["blas"] = str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2].lower()
    return found


def take_over(wanted: Dict[str, Any]) -> None:
    """Sets what `settings` gave elsewhere."""
    here = settings()
    for name in _ATTRIBUTES:
        if name in wanted and wanted[name] != here.get(name):
            with suppress(AttributeError, RuntimeError):
                at, last = _holder(name)
                setattr(at, last, wanted[name])
    torch.use_deterministic_algorithms(wanted["deterministic"], warn_only=wanted["warn_only"])
    torch.set_num_threads(wanted["threads"])
    if wanted.get("blas") not in (None, "default", here.get("blas")):
        with suppress(AttributeError, RuntimeError):
            torch.backends.cuda.preferred_blas_library(wanted["blas"])


def _uuid(place: str) -> Optional[str]:
    """A CUDA device's UUID; None for other places."""
    return str(torch.cuda.get_device_properties(place).uuid) if place.startswith("cuda") else None


# The worker's end.


def _place(opening: Dict[str, Any]) -> Optional[str]:
    """The caller's device among this process's."""
    if opening["uuid"] is None:
        return opening["place"]
    return next((f"cuda:{n}" for n in range(torch.cuda.device_count()) if _uuid(f"cuda:{n}") == opening["uuid"]), None)


def _moved(call: str, there: str, here: str) -> str:
    """A recorded call with its tensors on this process's device."""

    def moved(x: Any) -> Any:
        if isinstance(x, dict):
            return {**x, "device": here if x.get("device") == there else x.get("device")}
        return [moved(value) for value in x] if isinstance(x, list) else x

    return json.dumps(moved(json.loads(call)))


class _Served:
    """What the worker knows of its caller."""

    def __init__(self, opening: Dict[str, Any], place: str) -> None:
        self.there, self.here = opening["place"], place
        take_over(opening["settings"])
        device = place if place != "cpu" else opening["device"]
        # Trials in this process: it is the worker.
        self.context = _contexts.use(device, **opening["options"], in_process=True)

    def measure(self, asked: Dict[str, Any]) -> Dict[str, Any]:
        from . import _shapes

        row = _shapes.Shape(**asked["row"])
        row.call = _moved(row.call, self.there, self.here)
        if asked["plan"]:
            self.context.operation(row.problem).set_plan(asked["plan"])
            self.context.forget(row.problem)
            # Kernels of the problem's former plan.
            _contexts._tell()
        _shapes._WITHIN = asked["within"]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            _shapes.measure_here(row, asked["repeats"], asked["alone"])
        said = [str(w.message) for w in told if issubclass(w.category, RuntimeWarning)]
        return {"torch_us": row.torch_us, "ours_us": row.ours_us, "reason": row.reason, "warnings": said}

    def is_broken(self) -> bool:
        """Whether a kernel has made the device unusable in this process."""
        try:
            if self.here.startswith("cuda"):
                torch.cuda.synchronize(self.here)
        except RuntimeError:
            return True
        return False


def worker_main() -> None:
    """Serves a caller until the input or the caller ends; never returns."""
    caller = os.getppid()
    # Answers go where nothing else prints.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked: "queue.Queue[str]" = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)
        # The caller is gone, whatever runs here.
        os._exit(0)

    def watch() -> None:
        # A process that the caller forked, such as a DataLoader's, may hold the input open.
        while os.getppid() == caller:
            time.sleep(1.0)
        os._exit(0)

    for end in (listen, watch):
        threading.Thread(target=end, daemon=True).start()
    served: Optional[_Served] = None
    while True:
        request = json.loads(asked.get())
        answer: Dict[str, Any]
        try:
            if served is None:
                place = _place(request)
                served = None if place is None else _Served(request, place)
                answer = {"unseen": place is None, "settings": settings()}
            else:
                answer = served.measure(request)
        except Exception as e:  # noqa: BLE001
            answer = {"error": f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:300]}
        if served is not None and (answer.get("error") or answer.get("reason")):
            answer["broken"] = served.is_broken()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


# The caller's end.


class Lost(Exception):
    """A worker ended or hung. The text says how."""


class Worker:
    """A worker process for one place."""

    def __init__(self, place: str, context: _contexts.Context) -> None:
        uuid = _uuid(place)
        # The caller may have changed the variable after its driver had read it.
        attempts: List[Dict[str, str]] = [{}] + ([] if uuid is None else [{"CUDA_VISIBLE_DEVICES": f"{kind}-{uuid}"} for kind in ("GPU", "MIG")])
        opening = {"place": place, "uuid": uuid, "settings": settings(), "device": context.device, "options": context.options}
        for variables in attempts:
            self._start(variables)
            told = self.ask(opening, START)
            if "error" in told:
                self.end()
                raise Lost(f"cannot use {place}: {told['error']}; {REMEDY}")
            if not told["unseen"]:
                self.settings = told["settings"]
                return
            self.end()
        raise Lost(f"does not see {place}; {REMEDY}")

    def _start(self, variables: Dict[str, str]) -> None:
        if not sys.executable:
            raise Lost("needs this interpreter's path, and sys.executable has none; compare in this process: tilewright.use(device, in_process=True)")
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        code = f"import sys; sys.path.insert(0, {package!r}); from tilewright import _beside; _beside.worker_main()"
        self.child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            # Ctrl-C is for the caller.
            start_new_session=True,
        )
        self.lines: "queue.Queue[Optional[str]]" = queue.Queue()
        self.said: List[str] = []
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._answers, self._complaints)]
        [reader.start() for reader in self.readers]

    def _answers(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _complaints(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.said[:] = [*self.said[-20:], line.rstrip()]

    def ask(self, what: Dict[str, Any], seconds: float) -> Dict[str, Any]:
        """Gives the worker's answer."""
        line: Optional[str] = None
        try:
            assert self.child.stdin is not None
            self.child.stdin.write(json.dumps(what) + "\n")
            self.child.stdin.flush()
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            self.end()
            raise Lost(f"did not answer within {seconds:.0f} s") from None
        except OSError:
            pass
        if line is None:
            raise Lost(self._ended())
        told: Dict[str, Any] = json.loads(line)
        return told

    def _ended(self) -> str:
        """How a worker ended that answers no more."""
        self.end()
        code = self.child.returncode
        name = signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else f"code {code}"
        return f"ended with {name}: {self.said[-1][:200]}" if self.said else f"ended with {name}"

    def end(self) -> None:
        """Ends the process."""
        if self.child.stdin is not None:
            with suppress(OSError):
                self.child.stdin.close()
        try:
            # It ends at the end of its input.
            self.child.wait(2.0)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        for reader, pipe in zip(self.readers, (self.child.stdout, self.child.stderr)):
            reader.join(2.0)
            if pipe is not None and not reader.is_alive():
                pipe.close()


class Comparison:
    """The workers of a comparison, one for each place, and why a place has none."""

    def __init__(self) -> None:
        self.workers: Dict[str, Worker] = {}
        self.refused: Dict[str, str] = {}
        self.starting: Dict[str, "Future[Worker]"] = {}

    def begin(self, place: str, context: _contexts.Context) -> None:
        """Starts the worker of a place while the caller goes on."""
        pool = ThreadPoolExecutor(1)
        self.starting[place] = pool.submit(Worker, place, context)
        pool.shutdown(wait=False)

    def is_starting(self, place: str) -> bool:
        """Whether the worker of a place still imports torch."""
        starting = self.starting.get(place)
        return starting is not None and not starting.done()

    def worker(self, place: str, context: _contexts.Context) -> Worker:
        """The worker of a place. Raises `Lost` where there can be none."""
        if place in self.refused:
            raise Lost(self.refused[place])
        if place not in self.workers:
            try:
                starting = self.starting.pop(place, None)
                self.workers[place] = Worker(place, context) if starting is None else starting.result()
            except Lost as e:
                self.refused[place] = str(e)
                raise
        return self.workers[place]

    def lose(self, place: str) -> None:
        """Forgets a worker that has ended. The next shape gets another."""
        self.workers.pop(place, None)

    def end(self) -> None:
        """Ends all workers."""
        for starting in self.starting.values():
            with suppress(Lost):
                starting.result().end()
        self.starting.clear()
        for worker in self.workers.values():
            worker.end()
        self.workers.clear()


# That of this thread.
_current: ContextVar[Optional[Comparison]] = ContextVar("_current", default=None)


@contextmanager
def comparison() -> Iterator[Comparison]:
    """Keeps workers from one shape to the next, until the outermost block ends."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    inner = Comparison()
    before = _current.set(inner)
    try:
        yield inner
    finally:
        _current.reset(before)
        inner.end()


def isolates(context: _contexts.Context) -> bool:
    """Whether shapes of a context's device are timed in a worker: on GPUs and OpenCL, unless the context says otherwise."""
    return not context.in_process and not context.device.startswith("emu")


def measured(row: Dict[str, Any], place: str, context: _contexts.Context, repeats: int, alone: bool, within: float) -> Dict[str, Any]:
    """Times a shape in the worker of its place. Gives both times and the reason for a missing one."""
    plan = "" if alone else context.prepared(row["problem"], (256, 256, 256)).plan
    with comparison() as current:
        try:
            worker = current.worker(place, context)
            told = worker.ask({"row": row, "plan": plan, "repeats": repeats, "alone": alone, "within": within}, LIMIT)
        except Lost as e:
            current.lose(place)
            raise _native.DeviceError(f"the worker process that times {e}") from None
        if told.get("broken"):
            # The next shape gets another worker.
            worker.end()
            current.lose(place)
    if "error" in told:
        raise _native.DeviceError(told["error"])
    for said in told["warnings"]:
        warnings.warn(said, RuntimeWarning, 4)
    return told


def is_starting(place: str) -> bool:
    """Whether the worker of a place, which `opened` started, cannot time yet."""
    with comparison() as current:
        return current.is_starting(place)


def opened(place: str, context: _contexts.Context) -> None:
    """Starts the worker of a place, in a comparison. Where there can be none, each shape says so."""
    if isolates(context):
        with comparison() as current:
            current.begin(place, context)
