#!/bin/sh
# What --plan says, against what one training step then takes, for three presets and three lengths each.
# Arguments: other presets, as NAME:T,T,T (the default takes 8 GB and about 6 minutes on two cores).
set -eu
cd "$(dirname "$0")/.."
make -s train_oomb
[ $# -gt 0 ] || set -- tiny:4096,16384,32768 llama-15m:1024,2048,4096 qwen2.5-0.5b:512,1024,2048
log=$(mktemp)
text=$(mktemp)
trap 'rm -f "$log" "$text"' EXIT
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "%d and %d; ", i, i * i }' >"$text"
wrong=0
field() { sed -n "s/.*\"$1\":\([0-9.e+]*\).*/\1/p" "$log" | head -n 1; }
printf '%-14s %7s %12s %12s %8s %10s %8s\n' model T 'planned MB' 'measured MB' off 'planned GF' seconds
for each; do
    model=${each%%:*}
    for T in $(echo "${each#*:}" | tr ',' ' '); do
        run="--model $model -T $T -B 1 -n 1 --data $text --val-seqs 0 --log $log"
        rm -f "$log"
        ./train_oomb --plan $run >/dev/null
        planned=$(field host_bytes) products=$(field flops_products) attention=$(field flops_attention)
        ./train_oomb $run >/dev/null
        awk -v m="$model" -v T="$T" -v p="$planned" -v q="$(field peak_bytes)" -v f="$products" -v a="$attention" -v ms="$(field ms)" 'BEGIN {
            printf "%-14s %7d %12.1f %12.1f %+7.2f%% %10.0f %8.1f\n", m, T, p / 1048576, q / 1048576, 100 * (q / p - 1), (f + a) / 1e9, ms / 1000
            exit q > p * 1.05 || q < p * 0.95 }' || wrong=1
    done
done
[ $wrong = 0 ] || { echo "FAILED: more than 5 % off"; exit 1; }
