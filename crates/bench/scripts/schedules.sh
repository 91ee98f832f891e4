#!/bin/sh
# Measures schedules (docs/internals/schedules.md): each list of plans beside this script alternately and cold, on a fixed tiling.
# Usage: schedules.sh TILEWRIGHT_BENCH JSON [DEVICE...]      (cuda:0 and opencl:NVIDIA); JSON grows by a line per list and device
# OpenCL runs the first list alone. SCHEDULES_MEASURE=2s sets the time per list (3s).
# Tables: schedules-table.py JSON
set -u
if [ $# -lt 2 ]; then
    sed -n 2,5p "$0" >&2
    exit 2
fi
bench=$1 json=$2
shift 2
[ $# -gt 0 ] || set -- cuda:0 opencl:NVIDIA
here=$(dirname "$0")
field() { sed -n "s/^# $1: //p" "$2"; }
status=0
for device; do
    for plans in "$here"/schedules.plans "$here"/schedules-*.plans; do
        case $device,$plans in opencl*,*/schedules-*) continue ;; esac
        "$bench" plans --device "$device" --problem "$(field problem "$plans")" --base "$(field base "$plans")" \
            --plans-file "$plans" --measure "${SCHEDULES_MEASURE:-3s}" --out "$json" || status=1
    done
done
exit $status
