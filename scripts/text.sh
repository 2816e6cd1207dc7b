#!/bin/sh
# Trains the tiny model on a text file for 5M tokens and prints validation bits per byte against tokens and time.
# Arguments: the text file, then options of train_oomb.
set -eu
[ $# -ge 1 ] || { echo "usage: scripts/text.sh FILE [options of train_oomb]" >&2; exit 1; }
text=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
cd "$(dirname "$0")/.."
make -s train_oomb
log=$(mktemp)
trap 'rm -f "$log"' EXIT
./train_oomb --data "$text" -T 4096 --chunk 512 -n 1280 --val-every 128 --log "$log" "$@" >/dev/null
awk -F'[:,]' '
    /"loss"/ && !/val_loss/ { for (i = 1; i < NF; i++) { if ($i ~ /"tokens"/) tokens = $(i + 1); if ($i ~ /"ms"/) ms += $(i + 1) } }
    /val_loss/ { printf "%8d tokens  %5d s  %.3f bits per byte\n", tokens, ms / 1000, $4 / log(2) }' "$log"
echo "loss by position, in bits, at the end:"
grep val_loss "$log" | tail -n 1 | tr '{' '\n' | sed -n 's/"from":\([0-9]*\),"to":\([0-9]*\),"count":[0-9]*,"loss":\([0-9.]*\).*/\1 \2 \3/p' |
    awk '{ printf "  %d-%d: %.3f\n", $1, $2, $3 / log(2) }'
