"""PyTorch operators, and models that use them where they are faster.

    import tilewright.torch as twt

    y = twt.linear(x, weight, bias, activation="gelu")     # x @ weight.T + bias, then GELU; differentiable, torch.compile takes it
    twt.tune(twt.linear, x, weight, bias, activation="gelu", seconds=10)

    with twt.record("shapes.csv", model):                  # lists the products and convolutions of a step
        step()
    twt.tune_recorded("shapes.csv", seconds=10)            # tunes each shape and compares it with torch
    twt.prepare(model, inputs, "shapes.csv")               # tilewright runs the shapes for which it was faster
    twt.optimize(model)                                    # less host time per nn.Linear
    step()
    print(twt.report())                                    # which calls tilewright ran, and why not the others

CUDA tensors are used in place, on torch's current stream, with results and workspace from torch's allocator. A call may be captured in
a CUDA graph after its shape has run once outside of a graph. CPU tensors run on the context of `tilewright.use`. A shape runs with its
recorded plan, else with the cost model's pick, which is looked at before its first use. Nothing is tuned inside a call.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as e:
    raise ImportError(f"tilewright.torch needs PyTorch 2.8 or newer (pip install torch): {e}") from e

if tuple(int(n) for n in _torch.__version__.split(".")[:2]) < (2, 8):
    raise ImportError(f"tilewright.torch needs PyTorch 2.8 or newer, this is {_torch.__version__}: pip install --upgrade torch")

from ._gated import fuse_gated_mlps, glu  # noqa: E402
from ._lora import lora_linear  # noqa: E402
from ._loss import fuse_losses, linear_cross_entropy, linear_logsumexp  # noqa: E402
from ._models import Linear, disable, enable, optimize, report  # noqa: E402
from ._operators import bmm, convolution, grouped_mm, linear, mm, prepared, tune, unprepared  # noqa: E402
from ._prepare import prepare  # noqa: E402
from ._reductions import reduce  # noqa: E402
from ._shapes import Shape, compare, record, shapes, tune_recorded  # noqa: E402

__all__ = [
    "Linear",
    "Shape",
    "bmm",
    "compare",
    "convolution",
    "disable",
    "enable",
    "fuse_gated_mlps",
    "fuse_losses",
    "glu",
    "grouped_mm",
    "linear",
    "linear_cross_entropy",
    "linear_logsumexp",
    "lora_linear",
    "mm",
    "optimize",
    "prepare",
    "prepared",
    "record",
    "reduce",
    "report",
    "shapes",
    "tune",
    "tune_recorded",
    "unprepared",
]
