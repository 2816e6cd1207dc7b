#!/bin/sh
# dev/data/tokenize_text.py: what it writes is what train_oomb reads, and a run that fails half-way (a missing text, text that
# is none, a full disk, no tokenizer) ends with an error and leaves no file. Skipped where there is no Python.
set -eu
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 0; }
make -s train_oomb
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
tokenize="python3 dev/data/tokenize_text.py"

fails() { # NAME WORD command...: must fail, say WORD, and leave nothing under $tmp/out*
    name=$1 word=$2
    shift 2
    if "$@" >"$tmp/said" 2>&1; then echo "FAILED: $name: exit status 0"; exit 1; fi
    grep -q -- "$word" "$tmp/said" || { echo "FAILED: $name does not say $word:"; cat "$tmp/said"; exit 1; }
    [ -z "$(ls "$tmp" | grep '^out' || true)" ] || { echo "FAILED: $name leaves $(ls "$tmp")"; exit 1; }
    echo "ok: $name"
}

awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%d and %d; ", i, i * i }' >"$tmp/a.txt"
printf 'caf\303\251\n' >"$tmp/b.txt"
printf 'caf\351\n' >"$tmp/latin1.txt"
fails "a missing text" "missing.txt" $tokenize --tokenizer bytes --out "$tmp/out" --shard-tokens 1000 "$tmp/a.txt" "$tmp/missing.txt"
fails "text that is none" "latin1.txt" $tokenize --tokenizer bytes --out "$tmp/out" --shard-tokens 1000 "$tmp/a.txt" "$tmp/latin1.txt"
fails "no tokenizer" "nothing.json: no such file" $tokenize --tokenizer "$tmp/nothing.json" --out "$tmp/out" "$tmp/a.txt"
fails "no directory" "a.txt/no" $tokenize --tokenizer bytes --out "$tmp/a.txt/no/out" "$tmp/a.txt"
fails "a full disk" "File too large" sh -c "ulimit -f 20; exec $tokenize --tokenizer bytes --out '$tmp/out' --shard-tokens 30000 '$tmp/a.txt' '$tmp/a.txt'"

$tokenize --tokenizer bytes --separator 256 --out "$tmp/made/by/it" "$tmp/b.txt" >/dev/null
[ -e "$tmp/made/by/it_0000.bin" ] || { echo "FAILED: no directories made"; exit 1; }
$tokenize --tokenizer bytes --separator 256 --out "$tmp/out" --shard-tokens 20000 "$tmp/a.txt" "$tmp/b.txt"
size=$(($(cat "$tmp/a.txt" "$tmp/b.txt" | wc -c) + 2))
# The same text, read directly and as token files, gives the same first step: the separator is the start token of a text.
./train_oomb --data "$tmp/[ab].txt" --val-seqs 0 --model tiny -T 512 -n 2 --log "$tmp/direct" | grep "$size tokens" >/dev/null
./train_oomb --data "$tmp/out_*.bin" --val-seqs 0 --model tiny -T 512 -n 2 --log "$tmp/shards" | grep "$size tokens" >/dev/null
sed -i 's/,"ms".*//' "$tmp/direct" "$tmp/shards"
cmp "$tmp/direct" "$tmp/shards" || { echo "FAILED: the same text gives other losses as token files"; exit 1; }
echo "ok: $size tokens in $(ls "$tmp" | grep -c '^out_') shards train like the text they came from"
rm "$tmp"/out*
touch "$tmp/taken_0003.bin"
fails "shards are there already" "another --out" $tokenize --tokenizer bytes --out "$tmp/taken" "$tmp/a.txt"
[ -e "$tmp/taken_0003.bin" ] || { echo "FAILED: a file that was there is gone"; exit 1; }
