#!/bin/sh
# Runs the comparisons of benchmarks/method.md on a CUDA machine, each within its share of time, results as JSON lines.
# Usage: gpu.sh TILEWRIGHT_BENCH CASES OUT SECTION[=SECONDS]...
#   TILEWRIGHT_BENCH  the executable        CASES  folder of the case files        OUT  folder for results
#   SECTION           deepbench opencl pick schedules throughput verify-cuda verify-opencl (sets.sh runs the published sets)
# Environment:
#   GPUS=8            deals the cases of deepbench and pick out to as many GPUs, a process with cores of its own each
#   TUNE=4s           tuning of each case            MEASURE=350ms  measuring of each case
#   CACHE=warm        runs back to back instead of with cold caches; results go to SECTION-warm
# A section whose results are in OUT already goes on where it stopped.
. "$(dirname "$0")/begin.sh"
gpus=${GPUS:-1}
status=0

# deal NAME SECONDS ARGUMENT...: the command on every GPU, each with its part of the cases; OUT/NAME.jsonl holds the records of all.
deal() {
    name=$1 seconds=$2
    shift 2
    processes=
    n=0
    while [ $n -lt "$gpus" ]; do
        part=$out/$name.$n
        # shellcheck disable=SC2046,SC2086
        $(pinned "$n" "$gpus") "$bench" "$@" --device "cuda:$n" --part "$((n + 1))/$gpus" --out "$part.jsonl" --resume --limit "${seconds}s" \
            ${TUNE:+--budget "$TUNE"} ${MEASURE:+--measure "$MEASURE"} ${CACHE:+--cache "$CACHE"} >"$part.txt" 2>"$part.log" &
        processes="$processes $!"
        n=$((n + 1))
    done
    failed=0
    for process in $processes; do
        wait "$process" || failed=1
    done
    cat "$out/$name".[0-9]*.jsonl >"$out/$name.jsonl"
    cat "$out/$name".[0-9]*.log >&2
    "$bench" table --brief "$out/$name.jsonl"
    return $failed
}

for section in "$@"; do
    name=${section%%=*}
    seconds=300
    case $section in *=*) seconds=${section#*=} ;; esac
    file=$name${CACHE:+-$CACHE}
    echo "== $file, at most $seconds s"
    case $name in
    deepbench) deal "$file" "$seconds" deepbench --cases "$cases/deepbench_gemm.csv" --against cublas ;;
    pick) deal "$file" "$seconds" pick-quality --cases "$cases/gemm.csv" --set f32 ;;
    opencl)
        "$bench" opencl-vs-cuda --out "$out/$name.jsonl" --resume --limit "${seconds}s" --cases "$cases/gemm.csv" --set f32 \
            --measure 500ms
        ;;
    schedules) sh "$(dirname "$0")/schedules.sh" "$bench" "$out/$name.jsonl" ;;
    throughput) "$bench" throughput --cases "$cases/gemm.csv" --set f32 --only "1x(1024x1024x1024)" --budget 10s ;;
    verify-cuda) "$bench" verify-random --out "$out/$name.jsonl" --limit "${seconds}s" --count 2000 ;;
    verify-opencl)
        "$bench" verify-random --device opencl:NVIDIA --out "$out/$name.jsonl" --limit "${seconds}s" --count 2000
        ;;
    *)
        echo "$name: no such section" >&2
        false
        ;;
    esac >"$out/$file.txt" 2>"$out/$file.log" || { status=1; tail -n 3 "$out/$file.log"; }
    tail -n 12 "$out/$file.txt"
done
exit $status
