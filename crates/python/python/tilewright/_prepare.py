"""`prepare`: a model's shapes are recorded, their plans looked at, and torch or tilewright chosen for each, all before the first step."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from . import _arguments as given
from . import _models, _native, _shapes
from . import _operators as ours
from ._shapes import Path


@contextmanager
def _unchanged(model: Union[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Puts back what running a model changes besides gradients: its buffers and the states of the random generators."""
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    before = [buffer.detach().clone() for buffer in buffers]
    devices = sorted({t.device.index for t in buffers + _parameters(model) if t.is_cuda})
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, before):
                    buffer.copy_(value)


def _parameters(model: Union[nn.Module, Callable[..., Any]]) -> List[Tensor]:
    return list(model.parameters()) if isinstance(model, nn.Module) else []


def _step(model: Union[nn.Module, Callable[..., Any]], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """The forward pass, and the backward pass where something is to be differentiated. Gradients are thrown away."""
    with _unchanged(model):
        results = [x for x in tree_leaves(model(*args, **kwargs)) if isinstance(x, Tensor) and x.requires_grad]
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        wanted = [x for x in _parameters(model) + inputs if x.requires_grad]
        if results and wanted:
            # Dense gradients, as those of a loss are.
            torch.autograd.grad(results, wanted, [torch.ones_like(x) for x in results], allow_unused=True)


def prepare(
    model: Union[nn.Module, Callable[..., Any]],
    inputs: Any = (),
    path: Optional[Path] = None,
    margin: float = 1.03,
    compiled: bool = False,
    repeats: int = 5,
) -> int:
    """Choose torch or tilewright for each shape of a model, and make tilewright's kernels ready, before the first step.

    Runs the model twice: the first run records its shapes, which are then timed by torch and by tilewright as `compare` does; in the second run each
    plan that is chosen is compiled and looked at, for operands that begin where the model's do. A plan that fails its look is not used. Gradients,
    buffers and random generators stay as they are. The model runs as it is: in training mode with its backward pass.

    From then on an answer changes from torch to tilewright only in the next `prepare`, `tune_recorded` or `tune`, never between two steps.

    Parameters
    ----------
    model : torch.nn.Module or callable
        What a step runs. Of a model in ``DistributedDataParallel``, the module inside.
    inputs : tensor, tuple or dict
        Arguments of a call, by position or by name.
    path : path, optional
        File of shapes (CSV) with the decisions, written or extended. Processes may share it: one decides about a shape, the others follow. None: the
        decisions hold for this process.
    margin : float, default 1.03
        Least ratio of torch's time to tilewright's.
    compiled : bool, default False
        As in `enable`.
    repeats : int, default 5
        Repeats of each measurement.

    Returns
    -------
    int
        Number of shapes that tilewright answers.

    Raises
    ------
    OperandError
        `model` cannot be called.
    RecordsError
        The file cannot be written, is no file of shapes, or another process holds it for 600 s.
    """
    if not callable(model):
        raise _native.OperandError(f"model is {type(model).__name__}: a module or a function is needed")
    repeats, margin = given.whole(repeats, "repeats", 1), given.number(margin, "margin")
    if isinstance(inputs, dict):
        args, kwargs = (), inputs
    else:
        args, kwargs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}
    if path is not None:
        _shapes.check_place(path)
    # What is recorded is what torch runs.
    ours.choose_by(None)
    recorder = _shapes.Recorder(model if isinstance(model, nn.Module) else None)
    with recorder:
        _step(model, args, kwargs)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "shapes.csv") if path is None else path
        _shapes.decide(file, recorder, repeats)
        count = _models.enable(file, margin, compiled)
        _models.look_at_gated(_shapes.shapes(file))
    ours.looking = True
    try:
        _step(model, args, kwargs)
    finally:
        ours.looking = False
    return count
