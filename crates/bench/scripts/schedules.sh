#!/bin/sh
# Measures the schedules of docs/schedules.md at one tiling, in turn and cold, through each device of the same GPU.
# Usage: schedules.sh TILEWRIGHT_BENCH JSON [DEVICE...]      (cuda:0 and opencl:NVIDIA); JSON grows by a line per device
# The table of the document: schedules-table.py JSON
set -u
if [ $# -lt 2 ]; then
    sed -n 2,4p "$0" >&2
    exit 2
fi
bench=$1 json=$2
shift 2
[ $# -gt 0 ] || set -- cuda:0 opencl:NVIDIA
plans=$(dirname "$0")/schedules.plans
base=$(sed -n 's/.*--base //p' "$plans")
size=4096
problem=tC0_tA1_tB0_colMaj0_m${size}_n${size}_k${size}_lda${size}_ldb${size}_ldc${size}_ws0_f32
status=0
for device; do
    "$bench" plans --device "$device" --problem "$problem" --base "$base" --plans-file "$plans" --measure 4s \
        --json "$json" || status=1
done
exit $status
