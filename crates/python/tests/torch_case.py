"""What tests of PyTorch models share: a fresh context on the emulator, a file of shapes, and who answered calls."""

import os
import tempfile
import unittest

import torch

import tilewright as tw
import tilewright.torch as twt
from tilewright import _native


def answered():
    """Calls of the dispatcher by who answered them."""
    told = {True: 0, False: 0}
    for *_, calls, ours, _ in _native.torch_calls():
        told[ours] += calls
    return told


class TorchCase(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        tw.use("emu", records="")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(twt.disable)
        self.path = os.path.join(self.folder.name, "shapes.csv")


class CompiledCase(TorchCase):
    """Graphs that torch compiles anew, with a rewriter of ours that `fuse` sets."""

    fuse = None

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        # Torch keeps compiled graphs on the disk, with the backward pass of an earlier version.
        patch = torch._inductor.config.patch(force_disable_caches=True)
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)
        self.addCleanup(self.fuse, False)
