#!/bin/sh
# Runs CLBlast's own tuners for one size of matrix product in f32 and leaves their results (JSON) in a folder of that size.
# Usage: clblast-tune.sh M N K FOLDER [PLATFORM [DEVICE [FRACTION]]]
# FRACTION thins out the random part of the search (1 = all, 256 = one in 256; the default takes minutes on a CPU).
# Needs: apt install clblast-utils
set -eu
if [ $# -lt 4 ]; then
    sed -n 2,5p "$0" >&2
    exit 2
fi
m=$1 n=$2 k=$3 folder=$4/$1x$2x$3
shift 4
platform=${1:-0} device=${2:-0} fraction=${3:-256}
for tuner in xgemm_direct xgemm; do
    if ! command -v "clblast_tuner_$tuner" >/dev/null; then
        echo "clblast_tuner_$tuner is not installed: apt install clblast-utils" >&2
        exit 1
    fi
done
mkdir -p "$folder"
cd "$folder"
for tuner in xgemm_direct xgemm; do
    echo "clblast_tuner_$tuner $m x $n x $k" >&2
    "clblast_tuner_$tuner" -platform "$platform" -device "$device" -m "$m" -n "$n" -k "$k" -alpha 1 -beta 0 \
        -fraction "$fraction" >"$tuner.log" 2>&1
done
