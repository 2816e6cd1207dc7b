#!/bin/sh
# The recall task with and without gradients across chunk edges, three seeds each: the README's table of
# accuracy by distance. Then one longer run at T = 2048. Arguments are passed on to every run (like -n 200).
set -eu
cd "$(dirname "$0")/.."
make -s train_oomb
out=$(mktemp)
trap 'rm -f "$out"' EXIT
run() {
    name=$1
    shift
    start=$(date +%s)
    ./train_oomb "$@" >"$out"
    echo "$name: $(grep 'recall by distance' "$out" | tail -n 1 | sed 's/ *recall by distance: *//'), $(($(date +%s) - start)) s"
}
for carry in exact none; do
    for seed in 1 2 3; do run "carry $carry, seed $seed" --carry $carry --seed $seed "$@"; done
done
run "carry exact, T 2048, batch 2, 2400 steps" -T 2048 -B 2 -n 2400 "$@"
