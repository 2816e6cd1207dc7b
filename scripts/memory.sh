#!/bin/sh
# How memory and time grow with the length of the sequence: one training step of the tiny model at T = 4K .. 64K.
# Arguments: a text file of over 64 KB (default: the project's own sources).
set -eu
cd "$(dirname "$0")/.."
make -s train_oomb
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
text=${1:-}
[ -z "$text" ] || [ -r "$text" ] || { echo "usage: scripts/memory.sh [FILE]; $text cannot be read" >&2; exit 1; }
if [ -z "$text" ]; then
    text="$tmp/sources"
    cat train_oomb.c test_oomb.c oomb/*.h kernels/*.h >"$text"
fi
page_bytes=4096 # tiny: 4 layers x 2 heads of 32 x (K, V, dK, dV) x 4 bytes
echo "      T   ledger MB   measured MB   ms per step   tokens/s   bytes per token since the last T (pages: $page_bytes)"
before_t=0
before_b=0
for T in 4096 8192 16384 32768 65536; do
    ./train_oomb --data "$text" --model tiny -T $T -n 1 --val-seqs 0 --log "$tmp/log" >"$tmp/out"
    ledger=$(grep '  total' "$tmp/out" | head -n 1 | awk '{ print $3 * ($4 == "GB" ? 1024 : 1) }')
    ms=$(sed 's/.*"ms":\([0-9]*\).*/\1/' "$tmp/log")
    bytes=$(sed 's/.*"peak_bytes":\([0-9]*\).*/\1/' "$tmp/log")
    awk -v t=$T -v l="$ledger" -v ms="$ms" -v b="$bytes" -v bt=$before_t -v bb="$before_b" 'BEGIN {
        printf "%7d   %9.1f   %11.1f   %11d   %8.0f   %s\n", t, l, b / 1048576, ms, t / ms * 1000, bt ? sprintf("%.0f", (b - bb) / (t - bt)) : "-" }'
    before_t=$T
    before_b=$bytes
done
