#!/usr/bin/env python3
"""Seconds that NVRTC takes for the picks of problems: sources that `tilewright emit` prints, one after another on one core. Needs NVRTC and no GPU.

Usage: compile_times.py [--tilewright PATH] [--arch sm_90a] [--out FILE.jsonl] CASES.csv...
CASES are files as `tilewright tune --cases` reads them; `cargo xtask cases SEED FOLDER` draws some.
NVRTC is libnvrtc in the folder TILEWRIGHT_NVRTC, or where the loader finds it.
Prints the slowest picks, then median and 95th percentile of the seconds, with spilled bytes in all.
"""

import argparse
import csv
import ctypes
import glob
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time


class Nvrtc:
    def __init__(self):
        folder = os.environ.get("TILEWRIGHT_NVRTC", "")
        for builtins in glob.glob(os.path.join(folder, "libnvrtc-builtins.so*")):
            # NVRTC opens them by name, which finds them once they are loaded.
            ctypes.CDLL(builtins)
        found = [path for path in glob.glob(os.path.join(folder, "libnvrtc.so*")) if "alt" not in path] if folder else []
        self.lib = ctypes.CDLL(found[0] if found else "libnvrtc.so")

    def checked(self, status, what):
        if status:
            raise RuntimeError(f"{what}: NVRTC status {status}")

    def text(self, program, size_of, get):
        size = ctypes.c_size_t()
        self.checked(size_of(program, ctypes.byref(size)), "size")
        buffer = ctypes.create_string_buffer(size.value)
        self.checked(get(program, buffer), "text")
        return buffer.raw

    def compile(self, source, arch):
        """Processor seconds, and what ptxas says."""
        program = ctypes.c_void_p()
        self.checked(self.lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "program")
        options = [f"--gpu-architecture={arch}", "-std=c++17", "-default-device", "--ptxas-options=-v"]
        begin = time.process_time()
        status = self.lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options)))
        seconds = time.process_time() - begin
        log = self.text(program, self.lib.nvrtcGetProgramLogSize, self.lib.nvrtcGetProgramLog).decode(errors="replace")
        self.checked(status, log)
        image = self.text(program, self.lib.nvrtcGetCUBINSize, self.lib.nvrtcGetCUBIN)
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return seconds, log, len(image)


def sources(args):
    """Name and source of each case's pick."""
    for path in args.cases:
        with open(path, encoding="utf-8") as file:
            rows = list(csv.reader(file))
        for row in rows[1:]:
            with tempfile.NamedTemporaryFile("w", suffix=".csv", encoding="utf-8") as one:
                out = io.StringIO()
                csv.writer(out).writerows([rows[0], row])
                one.write(out.getvalue())
                one.flush()
                command = [args.tilewright, "emit", "--quiet", "--cases", one.name, "--target", "cuda", "--arch", args.arch, "--records", args.records]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            name = " ".join(x for x in row if x)
            if done.returncode:
                print(f"{name}: {done.stderr.strip()[:200]}", file=sys.stderr)
                continue
            yield name, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASES")
    parser.add_argument("--tilewright", default="target/release/tilewright")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--out", default=os.devnull, help="JSON lines")
    args = parser.parse_args()
    nvrtc, done = Nvrtc(), []
    nvrtc.compile('extern "C" __global__ void first() {}', args.arch)
    with tempfile.TemporaryDirectory() as folder, open(args.out, "w", encoding="utf-8") as out:
        args.records = os.path.join(folder, "records.sqlite")
        for name, source in sources(args):
            seconds, log, size = nvrtc.compile(source, args.arch)
            counts = {what: sum(map(int, re.findall(rf"(\d+) {words}", log))) for what, words in (("spilled", "bytes spill stores"), ("registers", "registers"))}
            row = {"case": name, "seconds": round(seconds, 3), "source_bytes": len(source), "cubin_bytes": size, **counts}
            done.append(row)
            out.write(json.dumps(row) + "\n")
    done.sort(key=lambda row: row["seconds"])
    for row in done[-12:]:
        print(f"{row['seconds']:.2f} s, {row['source_bytes'] // 1024} KiB of source, {row['spilled']} bytes spilled: {row['case']}")
    times = [row["seconds"] for row in done]
    last = times[min(len(times) - 1, round(0.95 * len(times)))]
    print(f"{len(times)} picks: median {statistics.median(times):.2f} s, 95 % within {last:.2f} s, {sum(row['spilled'] for row in done)} bytes spilled in all")


if __name__ == "__main__":
    main()
