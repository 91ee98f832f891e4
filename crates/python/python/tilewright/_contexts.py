"""Devices with their records."""

from __future__ import annotations

import atexit
import glob
import gzip
import importlib.util
import json
import os
import sys
import threading
import warnings
import zlib
from os import PathLike
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

from . import _arguments as given
from . import _native
from ._arrays import Array, room

# Written by `tilewright-bench table --brief --records r.sqlite benchmarks/records/*.gz`, then `tilewright records export --records r.sqlite`.
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "h200.jsonl.gz")


def _find_compiler() -> None:
    """Names the NVRTC library of the installed Python packages (torch depends on one), unless the environment names another."""
    if os.environ.get("TILEWRIGHT_NVRTC") or os.environ.get("TILEWRIGHT_CUDA_LIBS"):
        return
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found else []:
        libraries = glob.glob(os.path.join(folder, "*", "lib", "libnvrtc.so.*"))
        if libraries:
            os.environ["TILEWRIGHT_NVRTC"] = os.path.dirname(max(libraries))
            return


def _worker() -> Optional[List[str]]:
    """Command of the worker processes that run trials: this interpreter, unless `TILEWRIGHT_WORKER` names another program."""
    if os.environ.get("TILEWRIGHT_WORKER") or not sys.executable:
        return None
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.insert(0, {package!r}); from tilewright import _native; _native.worker_main()"
    return [sys.executable, "-c", code]


class Context:
    """A device with its tuning records.

    Parameters
    ----------
    device : str, optional
        ``cuda:0``, ``hip:0``, ``opencl:0`` or ``emu``. None: the most capable device of the machine.
    records : path, optional
        File of the tuning records. None: the user's file. ``""``: none on disk.
    workspace : int, optional
        Most bytes of device memory that plans may use in addition to the operands.
    atomics : bool, default False
        Allow sums by atomic additions: results may then differ in their last bits from run to run.
    in_process : bool, default False
        Run the trials of `tune` and the looks of `prepared` in this process instead of a worker process. A kernel that crashes then ends this process.
    ieee : bool, default False
        Leave out plans in which NaN, infinities or overflow become other values than IEEE 754 has.

    Attributes
    ----------
    device : str
        Id of the device.
    name : str
        The vendor's name of the device.

    Raises
    ------
    DeviceError
        The device or its driver is missing.
    RecordsError
        The records file cannot be used.

    Examples
    --------
    >>> import tilewright as tw
    >>> context = tw.Context("emu", records="")
    >>> context.device
    'emu'
    """

    def __init__(
        self,
        device: Optional[str] = None,
        records: Union[None, str, PathLike] = None,
        workspace: Optional[int] = None,
        atomics: bool = False,
        in_process: bool = False,
        ieee: bool = False,
    ) -> None:
        device = given.maybe(device, "device")
        workspace = None if workspace is None else given.whole(workspace, "workspace")
        records = None if records is None else given.path(records, "records")
        _find_compiler()
        self._in_process = given.truth(in_process, "in_process")
        worker = [] if in_process else _worker()
        truths = given.truth(atomics, "atomics"), worker, given.truth(ieee, "ieee")
        self._native = _native.Context(device, records, workspace, *truths)
        kept = None if records is None else str(records)
        self._options = {"records": kept, "workspace": workspace, "atomics": atomics, "ieee": ieee}
        self._operations: Dict[str, _native.Operation] = {}
        self._prepared: Dict[Tuple[str, Tuple[int, ...]], _native.Prepared] = {}
        self._failed: Set[Tuple[str, str]] = set()
        self._workspaces: Dict[int, List[Tuple[int, Array]]] = {}

    @property
    def device(self) -> str:
        """Id of the device, such as ``cuda:0``."""
        return self._native.device

    @property
    def name(self) -> str:
        """The vendor's name of the device."""
        return self._native.name

    @property
    def in_process(self) -> bool:
        """Whether trials run in this process."""
        return self._in_process

    @property
    def options(self) -> Dict[str, Any]:
        """Records, workspace, atomics and ieee, as they were given."""
        return dict(self._options)

    def __repr__(self) -> str:
        return f"<tilewright.Context {self.device}: {self.name}>"

    def operation(self, problem: str) -> _native.Operation:
        """Give the operation of a problem on this device.

        Parameters
        ----------
        problem : str
            Text of the problem, as the command prints it.

        Returns
        -------
        Operation
            The same object for the same text, until `import_records` runs.

        Raises
        ------
        ProblemError
            The text is no problem.
        """
        if given.word(problem, "problem") not in self._operations:
            self._operations.setdefault(problem, self._native.operation(problem))
        return self._operations[problem]

    def prepared(self, problem: str, alignments: Tuple[int, ...]) -> _native.Prepared:
        """Compile the kernels of a problem and look at their plan, or return them if they are compiled.

        A plan that no search verified is looked at before its first use. One that fails is not used, and a warning says so.

        Parameters
        ----------
        problem : str
            Text of the problem.
        alignments : tuple of three int
            Alignments of operands A, B and C in bytes, powers of two.

        Returns
        -------
        Prepared
            Kernels that may be launched.
        """
        key = (problem, alignments)
        if key not in self._prepared:
            powers = [1 << n for n in range(64)]
            if not isinstance(alignments, tuple) or len(alignments) != 3 or any(a not in powers for a in alignments):
                given.refuse("alignments", alignments, "a tuple of three powers of two is needed")
            operation = self.operation(problem)
            try:
                self._prepared[key] = operation.prepare(alignments)
            finally:
                self._warn(problem, operation.failed_looks())
        return self._prepared[key]

    def _warn(self, problem: str, failed: List[Tuple[str, str]]) -> None:
        for plan, why in failed:
            if (problem, plan) not in self._failed:
                self._failed.add((problem, plan))
                warnings.warn(f"{problem} on {self.device}: plan {plan} failed its look and is not used: {why}", RuntimeWarning, 3)

    def looked_at(self, problem: str, alignments: Tuple[int, ...]) -> Optional[_native.Prepared]:
        """Give the kernels of a problem if `prepared` would not have to look at a plan or search for one.

        Parameters
        ----------
        problem : str
            Text of the problem.
        alignments : tuple of three int
            Alignments of operands A, B and C in bytes, powers of two.

        Returns
        -------
        Prepared or None
        """
        key = (problem, alignments)
        if key not in self._prepared:
            found = self.operation(problem).prepared(alignments)
            if found is None:
                return None
            self._prepared[key] = found
        return self._prepared[key]

    def workspace(self, size: int, stream: int, like: Any) -> int:
        """Give the address of workspace for launches on a stream.

        Parameters
        ----------
        size : int
            Bytes that are needed.
        stream : int
            Handle of the stream.
        like : array
            The memory comes from the framework of this array.

        Returns
        -------
        int
            Address, or 0 for a size of 0. The memory stays allocated as long as the context.
        """
        if size == 0:
            return 0
        held = self._workspaces.setdefault(stream, [])
        if not held or held[-1][0] < size:
            # Smaller ones stay: launches may still use them.
            held.append((size, room(like, size)))
        return held[-1][1].address

    def forget(self, problem: str) -> None:
        """Drop the compiled kernels of a problem, because its plan has changed.

        Parameters
        ----------
        problem : str
            Text of the problem. Its next call compiles again.
        """
        self._prepared = {key: kept for key, kept in self._prepared.items() if key[0] != problem}

    def records(self) -> List[Dict[str, Any]]:
        """List all trials in the records.

        Returns
        -------
        list of dict
            One dict per trial, with the fields of ``tilewright records export``.
        """
        return [json.loads(line) for line in self._native.export_records().splitlines()]

    def import_records(self, path: Union[None, str, PathLike] = None) -> int:
        """Add trials that ``tilewright records export`` wrote to the records.

        Imported plans are not trusted. They are verified and timed again, in a few seconds, when their shape is first prepared. Searches start
        from them.

        Parameters
        ----------
        path : path, optional
            A file of exported records, plain or ``.gz``. None: the records in this package, measured by its authors on an H200.

        Returns
        -------
        int
            Number of trials that were new.

        Raises
        ------
        RecordsError
            The file cannot be read as exported records.
        """
        path = SHIPPED if path is None else given.path(path, "path")
        opened: Any = gzip.open if str(path).endswith(".gz") else open
        try:
            with opened(path, "rt", encoding="utf-8") as file:
                lines = file.read()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
            raise _native.RecordsError(f"{path} cannot be read as exported records: {e}") from None
        added = self._native.import_records(lines, str(path))
        # Operations and kernels made so far may have other plans now.
        self._operations, self._prepared = {}, {}
        _tell()
        return added


# Seconds that the end of the interpreter waits for compilers in this process.
_PATIENCE = 10.0
# Before modules are taken down: PyTorch, whose graphs hold our kernels, and the driver may end before our contexts do.
atexit.register(_native.end_of_process, _PATIENCE)

_lock = threading.Lock()
_contexts: Dict[str, Context] = {}
_default: Optional[Context] = None
# Workspaces of contexts that others have replaced: CUDA graphs that captured them may still be replayed.
_former: List[Dict[int, List[Tuple[int, Array]]]] = []
# Called when the contexts or the plans change.
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
    ieee: bool = False,
) -> Context:
    """Set the context for arrays in host memory, and for arrays on the same device.

    Parameters
    ----------
    device : str or Context, optional
        A context, or a device as of `Context`.
    records, workspace, atomics, in_process, ieee : optional
        As of `Context`.

    Returns
    -------
    Context
        Its `import_records` loads plans that were recorded elsewhere.

    Raises
    ------
    DeviceError
        The device or its driver is missing.

    Examples
    --------
    >>> import tilewright as tw
    >>> tw.use("emu", records="").device
    'emu'
    """
    global _default
    context = device if isinstance(device, Context) else Context(device, records, workspace, atomics, in_process, ieee)
    with _lock:
        former = _contexts.get(context.device)
        if former is not None and former is not context and former._workspaces:
            _former.append(former._workspaces)
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
    """List the devices of this machine.

    Returns
    -------
    list of (str, str)
        Id and name of each device. For a kind of device that is missing: the kind, and the reason with the remedy.

    Examples
    --------
    >>> import tilewright as tw
    >>> "emu" in dict(tw.devices())
    True
    """
    return _native.devices()
