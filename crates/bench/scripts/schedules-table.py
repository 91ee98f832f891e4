#!/usr/bin/env python3
"""Prints the table of docs/schedules.md, "Measured", from records of schedules.sh: one column per device."""
import json
import sys

columns, rows = [], {}
for path in sys.argv[1:]:
    with open(path) as lines:
        for record in map(json.loads, lines):
            if record.get("experiment") != "plans":
                continue
            device = record["environment"]["device"].split(":")[0].upper()
            columns.append(device)
            for side in record["sides"]:
                cell = "(none)"
                if side.get("time") and side.get("correct"):
                    us = side["time"]["median_us"]
                    cell = f"{record['flop'] / us / 1e6:.1f} ({us:.0f} us)"
                rows.setdefault(side["name"], {})[device] = cell
if not rows:
    sys.exit("no records of `tilewright-bench plans` in the files given")
columns = list(dict.fromkeys(columns))
print("| schedule | " + " | ".join(columns) + " |")
print("|---" * (len(columns) + 1) + "|")
for name, cells in rows.items():
    print(f"| {name} | " + " | ".join(cells.get(c, "") for c in columns) + " |")
