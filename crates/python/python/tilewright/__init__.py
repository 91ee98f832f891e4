"""Matrix products, convolutions and reductions by kernels that are generated, verified and tuned for your shape on your device.

    import numpy as np, tilewright as tw

    tw.use("emu")                                    # the built-in emulator; without this line: the most capable device
    a, b = np.ones((96, 64), "f4"), np.ones((64, 80), "f4")
    print(tw.tune(tw.gemm, a, b, trials=20).time_us)   # once: later runs find the plan in the records
    c = tw.gemm(a, b, activation="relu")

An array is any object with ``__array_interface__``, DLPack or the buffer protocol: numpy, torch, cupy, array.array. Arrays in
host memory run on any device and are copied there and back. Arrays on a CUDA or HIP device are used in place. ``tilewright.torch`` has
operators for PyTorch models.
"""

from ._chains import cross_entropy, glu
from ._core import (
    Context,
    Outcome,
    conv,
    devices,
    emit,
    explain,
    gemm,
    reduce,
    tune,
    use,
)
from ._native import (
    DeviceError,
    Error,
    OperandError,
    OutOfMemory,
    PlanError,
    ProblemError,
    RecordsError,
    TuneError,
    __version__,
)

__all__ = [
    "Context",
    "DeviceError",
    "Error",
    "OperandError",
    "OutOfMemory",
    "Outcome",
    "PlanError",
    "ProblemError",
    "RecordsError",
    "TuneError",
    "__version__",
    "conv",
    "cross_entropy",
    "devices",
    "emit",
    "explain",
    "gemm",
    "glu",
    "reduce",
    "tune",
    "use",
]
