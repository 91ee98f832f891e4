# The beginning of gpu.sh and sets.sh, which read it with their arguments: TILEWRIGHT_BENCH CASES OUT and at least one more.
set -u
if [ $# -lt 4 ]; then
    sed -n '2,/^[^#]/{/^#/p;}' "$0" >&2
    exit 2
fi
bench=$1 cases=$2 out=$3
shift 3
mkdir -p "$out"
export TILEWRIGHT_CACHE="${TILEWRIGHT_CACHE:-$out/cache}"

# pinned GPU GPUS: the command that gives a process cores of its own, of as many processes
pinned() {
    cores=$(($(nproc) / $2))
    [ "$cores" -ge 1 ] || cores=1
    if [ "$2" -gt 1 ] && command -v taskset >/dev/null; then
        echo "taskset -c $(($1 * cores))-$(($1 * cores + cores - 1))"
    fi
}
