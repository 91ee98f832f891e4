#!/usr/bin/env python3
"""Prints tables of the records of schedules.sh: first what each key alone changes (pairs of plans that
differ in nothing else), then every list of plans with one column per device."""
import json
import pathlib
import re
import sys

# Keys that make one choice: copies ahead need as many buffers, whichever waves issue them.
TOGETHER = {"PFG": "PFG, BUF", "BUF": "PFG, BUF", "A_ACP": "ACP", "B_ACP": "ACP"}


def titles():
    """Titles of the lists, in the document's order, by their problems' names."""
    here = pathlib.Path(__file__).parent
    found = {}
    for path in [here / "schedules.plans", *sorted(here.glob("schedules-*.plans"))]:
        field = dict(re.findall(r"^# (title|problem): (.*)$", path.read_text(), re.M))
        found[field["problem"]] = field["title"]
    return found


def keys(plan):
    """A plan's keys by name; those of the kernel without their part."""
    out = {}
    for part in plan.split("__"):
        side, *pairs = part.split("_")
        for pair in pairs:
            name, value = re.match(r"([A-Z]+)(\d+)$", pair).groups()
            out[name if side == "C" else f"{side}_{name}"] = int(value)
    return out


def no_store(plan):
    """Whether there is no choice where a store to shared memory stands (STP)."""
    at = plan.get
    return not at("PFG") or at("BUF", 1) == 1 or at("LWV") or at("A_ACP") and at("B_ACP")


def difference(one, other):
    """The key in which two plans differ, with both values; None where they differ in none, in several, or downwards."""
    a, b = keys(one), keys(other)
    if no_store(a) or no_store(b):
        a.pop("STP", None), b.pop("STP", None)
    defaults = {"MIW": 1, "BUF": 1}
    value = lambda plan, name: plan.get(name, defaults.get(name, 0))
    differ = sorted(name for name in a.keys() | b.keys() if value(a, name) != value(b, name))
    choices = {TOGETHER.get(name, name) for name in differ}
    if len(differ) > 1 and len(choices) > 1 or not differ:
        return None
    name = differ[0] if len(differ) == 1 and differ[0] in ("PFG", "BUF") else choices.pop()
    show = lambda plan: "/".join(str(value(plan, n)) for n in reversed(differ))
    if name == "ACP" and len(differ) == 1:
        name = differ[0]
    if name == "PFG, BUF" and any(value(plan, "BUF") != value(plan, "PFG") + 1 for plan in (a, b)):
        return None
    if sum(value(a, n) for n in differ) > sum(value(b, n) for n in differ):
        return None
    return name, show(a), show(b)


def main():
    lists = {}
    for path in sys.argv[1:]:
        with open(path) as lines:
            for record in map(json.loads, lines):
                if record.get("experiment") == "plans":
                    device = record["environment"]["device"].split(":")[0].upper()
                    lists.setdefault(record["case"], {})[device] = record
    if not lists:
        sys.exit("no records of `tilewright-bench plans` in the files given")
    named = titles()
    order = [*[case for case in named if case in lists], *[case for case in lists if case not in named]]

    print("| key | from, to | problem | plan | time | ratio |")
    print("|---|---|---|---|---|---|")
    rows = []
    for case in order:
        record = lists[case].get("CUDA") or next(iter(lists[case].values()))
        sides = [s for s in record["sides"] if s.get("time") and s.get("correct") and s.get("plan")]
        for other in sides:
            nearest = {}
            for one in sides:
                found = difference(one["plan"], other["plan"])
                if found:
                    name, before, after = found
                    us = [side["time"]["median_us"] for side in (one, other)]
                    row = (name, case, before, after, other["name"], *us)
                    nearest[name] = max(nearest.get(name, row), row, key=lambda row: row[2])
            rows.extend(nearest.values())
    for name, case, before, after, plan, was, now in sorted(rows, key=lambda row: (row[0], order.index(row[1]))):
        title = named.get(case, case).split(",")[0]
        print(f"| {name} | {before} to {after} | {title} | {plan} | {was:.4g} to {now:.4g} us | {was / now:.2f} |")

    for case in order:
        columns = list(lists[case])
        rows = {}
        for device, record in lists[case].items():
            for side in record["sides"]:
                cell = "(none)"
                if side.get("time") and side.get("correct"):
                    us = side["time"]["median_us"]
                    cell = f"{record['flop'] / us / 1e6:.1f} ({us:.4g} us)"
                rows.setdefault(side["name"], {})[device] = cell
        print(f"\n{named.get(case, case)}:\n")
        print("| schedule | " + " | ".join(columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        for name, cells in rows.items():
            print(f"| {name} | " + " | ".join(cells.get(c, "") for c in columns) + " |")


main()
