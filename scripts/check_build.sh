#!/bin/sh
# The build on other people's machines: every compiler that is here, a compiler without OpenMP, one that takes
# -fopenmp and cannot link it, and a CPU without AVX-512. Each program must run, say what it is doing, and (for one
# compiler and one CPU) give the same losses with and without OpenMP.
set -eu
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
tree="$tmp/tree"
mkdir "$tree"
cp -r Makefile train_oomb.c oomb kernels "$tree"
cd "$tree"

# builds with the given make arguments and trains two steps into $tmp/NAME.jsonl
try() {
    name=$1
    shift
    make -s clean
    make -s train_oomb "$@" >"$tmp/$name.make" 2>&1 || { cat "$tmp/$name.make"; echo "FAILED: $name does not build"; exit 1; }
    ./train_oomb -n 2 -B 2 --val-seqs 2 --log "$tmp/$name.jsonl" >/dev/null || { echo "FAILED: $name does not run"; exit 1; }
    echo "ok: $name$(sed 's/^/ - /' "$tmp/$name.make")"
}
says_off() { grep -q 'OpenMP is off' "$tmp/$1.make" || { echo "FAILED: $1 does not say that OpenMP is off"; exit 1; }; }
losses() { sed 's/,"ms":.*//' "$tmp/$1.jsonl"; }
same() { [ "$(losses "$1")" = "$(losses "$2")" ] || { echo "FAILED: $1 and $2 differ"; exit 1; }; }

for cc in gcc clang; do
    command -v $cc >/dev/null || { echo "skipped: $cc is not here"; continue; }
    try $cc CC=$cc
    if echo 'int main(void) { return 0; }' | $cc -fopenmp -x c - -o "$tmp/probe" 2>/dev/null; then
        nm train_oomb | grep -q -i omp || { echo "FAILED: $cc has OpenMP and the program does not use it"; exit 1; }
    fi
    # a compiler that refuses the flag, and one that takes it and has no library to link
    for without in refuses unlinked; do
        [ $without = refuses ] && cut='echo "unknown option" >&2; exit 1' || cut='set -- "$@" -lno-such-openmp'
        printf '#!/bin/sh\ncase " $* " in *" -fopenmp "*) %s ;; esac\nexec %s "$@"\n' "$cut" $cc >"$tmp/$cc-$without"
        chmod +x "$tmp/$cc-$without"
        try $cc-$without CC="$tmp/$cc-$without"
        says_off $cc-$without
        same $cc $cc-$without
    done
    case $(uname -m) in x86_64)
        try $cc-sse2 CC=$cc ARCH=
        try $cc-avx2 CC=$cc ARCH=-march=haswell ;;
    esac
done
