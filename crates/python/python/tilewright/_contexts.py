"""Devices with their records."""

from __future__ import annotations

import glob
import gzip
import importlib.util
import json
import os
import sys
import threading
import zlib
from os import PathLike
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from . import _arguments as given
from . import _native
from ._arrays import Array, empty, look

# Written by `tilewright-bench table --brief --records r.sqlite benchmarks/records/*.gz`, then `tilewright records export --records r.sqlite`.
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "h200.jsonl.gz")


def _find_compiler() -> None:
    """NVRTC as Python packages bring it (torch's among them), where no other is named."""
    if os.environ.get("TILEWRIGHT_NVRTC") or os.environ.get("TILEWRIGHT_CUDA_LIBS"):
        return
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found else []:
        libraries = glob.glob(os.path.join(folder, "*", "lib", "libnvrtc.so.*"))
        if libraries:
            os.environ["TILEWRIGHT_NVRTC"] = os.path.dirname(max(libraries))
            return


def _worker() -> Optional[List[str]]:
    """The processes that trials run in: this interpreter, unless `TILEWRIGHT_WORKER` names another program."""
    if os.environ.get("TILEWRIGHT_WORKER") or not sys.executable:
        return None
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.insert(0, {package!r}); from tilewright import _native; _native.worker_main()"
    return [sys.executable, "-c", code]


class Context:
    """A device with its tuning records. `device`: `cuda:0`, `opencl:0`, `hip:0`, `emu`; None is the most capable one here. `records`: a
    path; None is the user's file, `""` none on disk. `workspace`: most bytes of device memory that plans may use beside the operands.
    `atomics`: sums may vary in their last bits from run to run. `in_process`: what is tuned runs in this process, and a kernel that
    crashes takes it along, instead of in a worker process."""

    def __init__(
        self,
        device: Optional[str] = None,
        records: Union[None, str, PathLike] = None,
        workspace: Optional[int] = None,
        atomics: bool = False,
        in_process: bool = False,
    ) -> None:
        device = given.maybe(device, "device")
        workspace = None if workspace is None else given.whole(workspace, "workspace")
        records = None if records is None else given.path(records, "records")
        _find_compiler()
        worker = [] if given.truth(in_process, "in_process") else _worker()
        self._native = _native.Context(device, records, workspace, given.truth(atomics, "atomics"), worker)
        self._operations: Dict[str, _native.Operation] = {}
        self._prepared: Dict[Tuple[str, Tuple[int, ...]], _native.Prepared] = {}
        self._workspaces: Dict[int, List[Tuple[int, Array]]] = {}

    @property
    def device(self) -> str:
        """Its id."""
        return self._native.device

    @property
    def name(self) -> str:
        """The vendor's name for it."""
        return self._native.name

    def __repr__(self) -> str:
        return f"<tilewright.Context {self.device}: {self.name}>"

    def operation(self, problem: str) -> _native.Operation:
        """A problem, by its text, on this device."""
        if given.word(problem, "problem") not in self._operations:
            self._operations.setdefault(problem, self._native.operation(problem))
        return self._operations[problem]

    def prepared(self, problem: str, alignments: Tuple[int, ...]) -> _native.Prepared:
        """A problem's kernels, compiled for operands A, B and C aligned to so many bytes."""
        key = (problem, alignments)
        if key not in self._prepared:
            powers = [1 << n for n in range(64)]
            if not isinstance(alignments, tuple) or len(alignments) != 3 or any(a not in powers for a in alignments):
                given.refuse("alignments", alignments, "a tuple of three powers of two is needed")
            self._prepared[key] = self.operation(problem).prepare(alignments)
        return self._prepared[key]

    def workspace(self, size: int, stream: int, like: Any) -> int:
        """Address of so many bytes for launches on a stream, in memory of `like`'s framework."""
        if size == 0:
            return 0
        held = self._workspaces.setdefault(stream, [])
        if not held or held[-1][0] < size:
            # Smaller ones stay: launches may still use them.
            room = empty(like, (size // 4 + 1,), "float32")
            held.append((size, look(room, "workspace")))
        return held[-1][1].address

    def forget(self, problem: str) -> None:
        """Compiles a problem anew when it is asked for next: its plan has changed."""
        self._prepared = {key: kept for key, kept in self._prepared.items() if key[0] != problem}

    def records(self) -> List[Dict[str, Any]]:
        """All trials in the records."""
        return [json.loads(line) for line in self._native.export_records().splitlines()]

    def import_records(self, path: Union[None, str, PathLike] = None) -> int:
        """Takes over trials that `tilewright records export` wrote (also compressed, `.gz`), without a path those of this package: plans that
        its authors measured on an H200. Gives the number of those that are new. On a device of the same name with another driver or version of
        this they are verified and timed once more when a shape is first prepared, which takes seconds, and are where its search begins."""
        path = SHIPPED if path is None else given.path(path, "path")
        opened: Any = gzip.open if str(path).endswith(".gz") else open
        try:
            with opened(path, "rt", encoding="utf-8") as file:
                lines = file.read()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
            raise _native.RecordsError(f"{path} cannot be read as exported records: {e}") from None
        added = self._native.import_records(lines, str(path))
        # What was made by now may run with other plans.
        self._operations, self._prepared = {}, {}
        _tell()
        return added


_lock = threading.Lock()
_contexts: Dict[str, Context] = {}
_default: Optional[Context] = None
# Called when contexts or plans are others than before.
changed: List[Callable[[], Any]] = []


def _tell() -> None:
    for heard in changed:
        heard()


def use(
    device: Union[None, str, Context] = None,
    records: Union[None, str, PathLike] = None,
    workspace: Optional[int] = None,
    atomics: bool = False,
    in_process: bool = False,
) -> Context:
    """Set the context for arrays in host memory, and for arrays on the same device.

    Parameters
    ----------
    device : str or Context, optional
        ``cuda:0``, ``hip:0``, ``opencl:0`` or ``emu``. None: the most capable device of the machine.
    records : path, optional
        File of the tuning records. None: the user's file. ``""``: none on disk.
    workspace : int, optional
        Most bytes of device memory that plans may use in addition to the operands.
    atomics : bool, default False
        Allow sums by atomic additions: results may then differ in their last bits from run to run.

    Returns
    -------
    Context
        Its `import_records` loads plans that were recorded elsewhere.
    """
    global _default
    context = device if isinstance(device, Context) else Context(device, records, workspace, atomics, in_process)
    with _lock:
        _default = context
        _contexts[context.device] = context
    _tell()
    return context


def context_for(place: str) -> Context:
    """The context for arrays at a place (`cpu`, `cuda:0`)."""
    global _default
    with _lock:
        if place == "cpu":
            if _default is None:
                _default = Context()
                _contexts.setdefault(_default.device, _default)
            return _default
        if place not in _contexts:
            _contexts[place] = Context(place)
        return _contexts[place]


def devices() -> List[Tuple[str, str]]:
    """Id and name of each device here; for kinds that are not here, the reason and the remedy."""
    return _native.devices()
