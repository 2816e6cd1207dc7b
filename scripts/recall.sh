#!/bin/sh
# The recall task with and without gradients across chunk edges, three seeds each: the README's table of
# accuracy by distance. Then one run at T = 2048. Arguments are passed on to every run (like -n 200).
set -eu
cd "$(dirname "$0")/.."
make -s train_oomb
final() { grep 'recall by distance' | tail -n 1 | sed 's/ *recall by distance: *//; s/ *(guess.*//'; }
for carry in exact none; do
    for seed in 1 2 3; do
        echo "carry $carry, seed $seed: $(./train_oomb --carry $carry --seed $seed "$@" | final)"
    done
done
start=$(date +%s)
echo "T 2048, chunk 32, batch 2: $(./train_oomb -T 2048 -B 2 "$@" | final), $(($(date +%s) - start)) s"
