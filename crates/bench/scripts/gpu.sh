#!/bin/sh
# Runs the comparisons of docs/performance.md on a CUDA machine, each within its share of time, results as JSON lines.
# Usage: gpu.sh TILEWRIGHT_BENCH CASES OUT SECTION[=SECONDS]...
#   TILEWRIGHT_BENCH  the executable        CASES  folder of the case files        OUT  folder for results
#   SECTION           gemm-f32 deepbench conv opencl pick schedules throughput verify-cuda verify-opencl llm unaligned ...
#                     (any other name is a set of gemm.csv, compared with cuBLASLt)
# A section whose results are in OUT already goes on where it stopped.
set -u
if [ $# -lt 4 ]; then
    sed -n 2,8p "$0" >&2
    exit 2
fi
bench=$1 cases=$2 out=$3
shift 3
mkdir -p "$out"
export TILEWRIGHT_CACHE="${TILEWRIGHT_CACHE:-$out/cache}"
status=0
for section in "$@"; do
    name=${section%%=*}
    seconds=300
    case $section in *=*) seconds=${section#*=} ;; esac
    common="--json $out/$name.jsonl --resume --limit-seconds $seconds"
    echo "== $name, at most $seconds s"
    # shellcheck disable=SC2086
    case $name in
    gemm-f32) "$bench" gemm $common --cases "$cases/gemm.csv" --set f32 --against cublas ;;
    deepbench) "$bench" deepbench $common --cases "$cases/deepbench_gemm.csv" --against cublas --measure 500ms ;;
    conv) "$bench" conv $common --cases "$cases/conv_forward_f32.csv" --sample-loop ;;
    opencl) "$bench" opencl-vs-cuda $common --cases "$cases/gemm.csv" --set f32 --measure 500ms ;;
    pick) "$bench" pick-quality $common --cases "$cases/gemm.csv" --set f32 --measure 500ms ;;
    schedules) sh "$(dirname "$0")/schedules.sh" "$bench" "$out/$name.jsonl" ;;
    throughput) "$bench" throughput --cases "$cases/gemm.csv" --set f32 --only "1x(1024x1024x1024)" --budget 10s ;;
    verify-cuda) "$bench" verify-random --json "$out/$name.jsonl" --limit-seconds "$seconds" --count 2000 ;;
    verify-opencl)
        "$bench" verify-random --device opencl:NVIDIA --json "$out/$name.jsonl" --limit-seconds "$seconds" --count 2000
        ;;
    *) "$bench" gemm $common --cases "$cases/gemm.csv" --set "$name" --against cublaslt,cublaslt-1g ;;
    esac >"$out/$name.txt" 2>"$out/$name.log" || { status=1; tail -n 3 "$out/$name.log"; }
    tail -n 6 "$out/$name.txt"
done
exit $status
