#!/bin/sh
# Runs sets of convolutions (and products) on one or two GPUs, each within its own time, and prints a short table last.
# Usage: conv-sets.sh TILEWRIGHT_BENCH CASES OUT NAME[/PART]=SECONDS...
#   CASES  folder of the case files        OUT  folder for results, JSON lines that `tilewright-bench table` reads
#   NAME   retinanet-DIRECTION-DTYPE-LAYOUT  with DIRECTION forward, backward-data or backward-weight: retinanet-forward-bf16-nhwc
#          ck-DIRECTION   conv-f32   networks-DIRECTION   f32-gemm
#   PART   1/3 runs the first third of the cases by number: cut a set that is too long before it runs
# Environment: GPUS=2 deals sets out to two GPUs; TUNE=1500ms MEASURE=250ms per case.
# A set whose results are in OUT already goes on where it stopped. OUT/records.sqlite keeps the trials.
set -u
if [ $# -lt 4 ]; then
    sed -n 2,10p "$0" >&2
    exit 2
fi
bench=$1 cases=$2 out=$3
shift 3
mkdir -p "$out"
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c GPU)}
[ "$gpus" -ge 1 ] || gpus=1
[ "$gpus" -le 2 ] || gpus=2
export TILEWRIGHT_CACHE="${TILEWRIGHT_CACHE:-$out/cache}"

# one GPU NAME PART SECONDS
one() {
    gpu=$1 name=$2 part=$3 seconds=$4
    case $name in
    retinanet-*-*-*)
        rest=${name#retinanet-} layout=${name##*-}
        rest=${rest%-*}
        set -- conv --cases "$cases/retinanet_conv.csv" --direction "${rest%-*}" --dtype "${rest##*-}" --layout "$layout"
        ;;
    ck-*) set -- conv --cases "$cases/ck_grouped_conv.csv" --direction "${name#ck-}" --dtype f16 --layout nhwc --dims 2 ;;
    networks-*) set -- conv --cases "$cases/networks.csv" --direction "${name#networks-}" --dtype bf16 --layout nhwc ;;
    conv-f32) set -- conv --cases "$cases/conv_forward_f32.csv" ;;
    f32-gemm) set -- gemm --cases "$cases/gemm.csv" --set f32 --against cublas,cublaslt ;;
    *)
        echo "$name: no such set" >&2
        return 2
        ;;
    esac
    file=$out/$name.$(echo "$part" | tr / -)
    timeout "$((seconds + 20))" "$bench" "$@" --device "cuda:$gpu" --part "$part" --budget "${TUNE:-1500ms}" --measure "${MEASURE:-250ms}" \
        --records "$out/records.sqlite" --out "$file.jsonl" --resume --limit "${seconds}s" >"$file.txt" 2>"$file.log"
    echo "$name $part: exit $?, $(wc -l <"$file.jsonl" 2>/dev/null || echo 0) records" >>"$out/ended.txt"
}

# Every second set goes to the second GPU.
gpu=0
while [ $gpu -lt "$gpus" ]; do
    (
        n=0
        for set in "$@"; do
            if [ $((n % gpus)) -eq $gpu ]; then
                name=${set%%=*} seconds=${set#*=} part=1/1
                case $name in */*) part=${name#*/} name=${name%%/*} ;; esac
                one "$gpu" "$name" "$part" "$seconds"
            fi
            n=$((n + 1))
        done
    ) &
    gpu=$((gpu + 1))
done
wait
cat "$out/ended.txt"
for file in "$out"/*.jsonl; do
    [ -s "$file" ] && "$bench" table --brief "$file" | grep -v '^$' | tail -n 4
done
