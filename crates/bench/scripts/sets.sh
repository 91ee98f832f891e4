#!/bin/sh
# Runs published sets on the GPUs of a host, each within its own time, and prints a short table last.
# Usage: sets.sh TILEWRIGHT_BENCH CASES OUT NAME[/PART]=SECONDS...
#   CASES  folder of the case files        OUT  folder for results, JSON lines that `tilewright-bench table` reads
#   NAME   retinanet-DIRECTION-DTYPE-LAYOUT  with DIRECTION forward, backward-data or backward-weight: retinanet-forward-bf16-nhwc
#          networks-DIRECTION   groups-DIRECTION   ck-DIRECTION   conv-f32   conv-tf32x3
#          gemm-SET of gemm.csv   gemm-f32-as-MODE   formats-SET of formats.csv   complex   grouped-SET of grouped.csv
#          weights   block-scales
#   PART   1/3 runs the first third of the cases, dealt out by number: cut a set that is too long before it runs
# Environment: GPUS=4 takes so many GPUs (all by default); TUNE=1500ms MEASURE=250ms per case.
# A free GPU takes the next part in the order of the arguments, so begin with the longest. Each GPU has cores of its own.
# A part whose results are in OUT already goes on where it stopped. OUT/records.GPU.sqlite keeps the trials.
. "$(dirname "$0")/begin.sh"
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c GPU)}
[ "$gpus" -ge 1 ] || gpus=1
taken=$(mktemp -d)
trap 'rm -rf "$taken"' EXIT

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
    groups-*) set -- conv --cases "$cases/groups.csv" --direction "${name#groups-}" --dtype f16 --layout nhwc ;;
    conv-f32) set -- conv --cases "$cases/conv_forward_f32.csv" ;;
    conv-tf32x3) set -- conv --cases "$cases/conv_forward_f32.csv" --math tf32x3 ;;
    gemm-f32) set -- gemm --cases "$cases/gemm.csv" --set f32 --against cublas,cublaslt ;;
    gemm-f32-as-*) set -- gemm --cases "$cases/gemm.csv" --set f32 --math "${name#gemm-f32-as-}" --against cublas,cublaslt ;;
    gemm-tf32) set -- gemm --cases "$cases/gemm.csv" --set tf32 --math tf32 --against cublaslt,cublaslt-1g ;;
    gemm-*) set -- gemm --cases "$cases/gemm.csv" --set "${name#gemm-}" --against cublaslt,cublaslt-1g ;;
    formats-*) set -- gemm --cases "$cases/formats.csv" --set "${name#formats-}" --against cublas,cublaslt ;;
    complex) set -- gemm --cases "$cases/complex.csv" --against cublas,cublas-3m ;;
    grouped-*) set -- gemm --cases "$cases/grouped.csv" --set "${name#grouped-}" --plain --against cublas,cublas-grouped ;;
    weights) set -- gemm --cases "$cases/weights.csv" --plain --against cublas,cublaslt ;;
    block-scales) set -- gemm --cases "$cases/block_scales.csv" --plain --against cublaslt ;;
    *)
        echo "$name: no such set" >&2
        return 2
        ;;
    esac
    file=$out/$name.$(echo "$part" | tr / -)
    begun=$(date +%s)
    # shellcheck disable=SC2046
    $(pinned "$gpu" "$gpus") timeout "$((seconds + 20))" "$bench" "$@" --device "cuda:$gpu" --part "$part" --budget "${TUNE:-1500ms}" --measure "${MEASURE:-250ms}" \
        --records "$out/records.$gpu.sqlite" --out "$file.jsonl" --resume --limit "${seconds}s" >"$file.txt" 2>"$file.log"
    echo "$name $part: exit $?, $(wc -l <"$file.jsonl" 2>/dev/null || echo 0) records, $(($(date +%s) - begun)) s on GPU $gpu" >>"$out/ended.txt"
}

gpu=0
while [ $gpu -lt "$gpus" ]; do
    (
        n=0
        for set in "$@"; do
            n=$((n + 1))
            # The folder is made once, so one GPU takes the part.
            mkdir "$taken/$n" 2>/dev/null || continue
            name=${set%%=*} seconds=${set#*=} part=1/1
            case $name in */*) part=${name#*/} name=${name%%/*} ;; esac
            one "$gpu" "$name" "$part" "$seconds"
        done
    ) &
    gpu=$((gpu + 1))
done
wait
cat "$out/ended.txt"
for file in "$out"/*.jsonl; do
    [ -s "$file" ] && "$bench" table --brief "$file" | grep -v '^$' | tail -n 4
done
