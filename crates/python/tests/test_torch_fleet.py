"""Shapes of torch that other processes tune: on several devices, and in a fleet. Two variables name the command and a server."""

import json
import os
import subprocess
import unittest
from unittest import mock

import torch

import tilewright as tw
import tilewright.torch as twt
from torch_case import TorchCase

COMMAND, FLEET = (os.environ[f"TILEWRIGHT_TEST_{name}"] for name in ("COMMAND", "FLEET"))


class OtherProcesses(TorchCase):
    def setUp(self):
        super().setUp()
        self.records = os.path.join(self.folder.name, "records.sqlite")
        variables = mock.patch.dict(os.environ, TILEWRIGHT_WORKER=COMMAND, TILEWRIGHT_RECORDS=self.records)
        # A busy machine gives shapes no verdict.
        for patch in (variables, mock.patch.object(tw._shapes, "_WITHIN", float("inf"))):
            patch.start()
            self.addCleanup(patch.stop)
        tw.use("emu", records=self.records)
        with twt.record(self.path):
            torch.mm(torch.ones(4, 5), torch.ones(5, 6))
            torch.mm(torch.ones(16, 8), torch.ones(8, 16))

    def recorded(self):
        listed = subprocess.run([COMMAND, "records", "list", "--json", "--records", self.records], capture_output=True, text=True, check=True)
        return [json.loads(line) for line in listed.stdout.splitlines()]

    def tuned(self, rows):
        self.assertTrue(all(row.ours_us > 0 for row in rows), rows)
        self.assertEqual([(of["trials"], of["stale"]) for of in self.recorded()], [(2, False)] * 2)

    def test_on_several_devices(self):
        self.tuned(twt.tune_recorded(self.path, trials=2, devices="emu,emu"))

    def test_on_all_devices(self):
        # Where no GPU and no OpenCL is seen, the emulator is all there is.
        hidden = dict(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="", OCL_ICD_VENDORS=self.folder.name)
        with mock.patch.dict(os.environ, hidden):
            self.tuned(twt.tune_recorded(self.path, trials=2, devices="all"))

    def test_in_a_fleet(self):
        self.tuned(twt.tune_recorded(self.path, trials=2, devices="emu", fleet=FLEET, run="night"))
        # Others have done all of it: nothing is left for this one.
        self.assertEqual(len(twt.tune_recorded(self.path, trials=2, devices="emu", fleet=FLEET, run="night")), 2)
        with self.assertRaisesRegex(tw.TuneError, "--run night: the run has other options"):
            twt.tune_recorded(self.path, trials=3, devices="emu", fleet=FLEET, run="night")
        with self.assertRaisesRegex(tw.TuneError, "cannot be reached"):
            twt.tune_recorded(self.path, trials=2, devices="emu", fleet="postgresql://me@localhost:1/fleet", run="night")

    def test_no_password_is_on_a_command_line(self):
        with mock.patch.object(subprocess, "run", wraps=subprocess.run) as run:
            with self.assertRaisesRegex(tw.TuneError, "PGPASSFILE") as refused:
                twt.tune_recorded(self.path, trials=2, devices="emu", fleet="postgresql://me:hunter2@localhost/fleet", run="night")
        self.assertEqual(run.call_count, 1)
        self.assertNotIn("hunter2", f"{run.call_args.args} {refused.exception}")


if __name__ == "__main__":
    unittest.main()
