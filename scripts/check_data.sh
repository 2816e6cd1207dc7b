#!/bin/sh
# dev/data/prepare.py: what it writes is what train_oomb reads, and a run that fails half-way (a missing text, text that is
# none, a broken line, a full disk, no tokenizer) ends with an error and leaves no file. Skipped where there is no Python; the
# part with the vocabularies of models where the package tokenizers is not installed. PYTHON=... chooses another.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 0; }
make -s train_oomb
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prepare="$python dev/data/prepare.py"

fail() { echo "FAILED: $*"; exit 1; }
fails() { # NAME WORD command...: must fail, say WORD, and leave nothing under $tmp/out*
    name=$1 word=$2
    shift 2
    if "$@" >"$tmp/said" 2>&1; then fail "$name: exit status 0"; fi
    grep -q -- "$word" "$tmp/said" || { cat "$tmp/said"; fail "$name does not say $word"; }
    [ -z "$(ls "$tmp" | grep '^out' || true)" ] || fail "$name leaves $(ls "$tmp")"
    echo "ok: $name"
}
says() { # WORD command...: must succeed and say WORD
    word=$1
    shift
    "$@" >"$tmp/said" 2>&1 || { cat "$tmp/said"; fail "$*: exit status $?"; }
    grep -q -- "$word" "$tmp/said" || { cat "$tmp/said"; fail "$* does not say $word"; }
}
fails_jsonl() { # NAME WORD LINE: a .jsonl with that as its second line
    printf '{"text": "one"}\n%s\n' "$3" >"$tmp/bad.jsonl"
    fails "$1" "bad.jsonl, line 2.*$2" $prepare --tokenizer bytes --out "$tmp/out" --shard-tokens 3 "$tmp/bad.jsonl"
}

awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%d and %d; ", i, i * i }' >"$tmp/a.txt"
printf 'caf\303\251\n' >"$tmp/b.txt"
printf 'caf\351\n' >"$tmp/latin1.txt"
small="--tokenizer bytes --out $tmp/out --shard-tokens 1000"
fails "a missing text" "missing.txt" $prepare $small "$tmp/a.txt" "$tmp/missing.txt"
fails "text that is none" "latin1.txt" $prepare $small "$tmp/a.txt" "$tmp/latin1.txt"
fails "no tokenizer" "nothing.json: no such file" $prepare --tokenizer "$tmp/nothing.json" --out "$tmp/out" "$tmp/a.txt"
fails "no model" "tokenizer.json: no such file" $prepare --model "$tmp" --out "$tmp/out" "$tmp/a.txt"
fails "no directory" "a.txt/no" $prepare --tokenizer bytes --out "$tmp/a.txt/no/out" "$tmp/a.txt"
fails "an end that is no id" "must be a token id" $prepare --tokenizer bytes --end x --out "$tmp/out" "$tmp/a.txt"
fails "a full disk" "File too large" sh -c "ulimit -f 20; exec $prepare --tokenizer bytes --out '$tmp/out' --shard-tokens 30000 '$tmp/a.txt' '$tmp/a.txt'"
fails_jsonl "a line that is no JSON" "Expecting" '{"text": "x"'
fails_jsonl "a line that is no object" 'no string "text"' '["text"]'
fails_jsonl "a line without text" 'no string "text"' '{"prompt": "x"}'
fails_jsonl "half a surrogate pair" "surrogate" '{"text": "\ud800"}'
fails_jsonl "spans that are none" "list of spans" '{"text": "abc", "unscored": 3}'
fails_jsonl "spans that are an object" "list of spans" '{"text": "abc", "unscored": {}}'
fails_jsonl "a span past the end" "text of 3 characters" '{"text": "abc", "unscored": [[1, 4]]}'
fails_jsonl "a span that ends before it begins" "is no span" '{"text": "abc", "unscored": [[2, 1]]}'
fails_jsonl "spans that overlap" "overlap" '{"text": "abc", "unscored": [[1, 3], [0, 2]]}'

$prepare --tokenizer bytes --out "$tmp/made/by/it" "$tmp/b.txt" >/dev/null
[ -e "$tmp/made/by/it_0000.bin" ] || fail "no directories made"
$prepare --tokenizer bytes --out "$tmp/out" --shard-tokens 20000 "$tmp/a.txt" "$tmp/b.txt"
size=$(($(cat "$tmp/a.txt" "$tmp/b.txt" | wc -c) + 2))
# The same text, read directly and as token files, gives the same first step.
says "$size tokens" ./train_oomb --data "$tmp/[ab].txt" --val-seqs 0 --model tiny -T 512 -n 2 --log "$tmp/direct"
says "$size tokens" ./train_oomb --data "$tmp/out_*.bin" --val-seqs 0 --model tiny -T 512 -n 2 --log "$tmp/shards"
sed -i 's/,"ms".*//' "$tmp/direct" "$tmp/shards"
cmp "$tmp/direct" "$tmp/shards" || fail "the same text gives other losses as token files"
echo "ok: $size tokens in $(ls "$tmp" | grep -c '^out_') shards train like the text they came from"
rm "$tmp"/out*
touch "$tmp/taken_0003.bin"
fails "shards are there already" "another --out" $prepare --tokenizer bytes --out "$tmp/taken" "$tmp/a.txt"
[ -e "$tmp/taken_0003.bin" ] || fail "a file that was there is gone"

# Spans: bytes of their characters are marked, no others. Ids of 32 bits where a span or an id needs them, and only there.
printf '{"text": "h\\u00e9llo", "unscored": [[3, 4], [1, 2]]}\n\n{"text": ""}\n{"text": "xy"}\n' >"$tmp/c.jsonl"
says "2 documents (1 empty.*10 tokens, 3 of" $prepare --tokenizer bytes --out "$tmp/span" --shard-tokens 7 "$tmp/c.jsonl"
words() { tail -c +1025 "$1" | od -An -v -tu"$2" -w4096 | tr -s ' ' | sed 's/^ //'; }
[ "$(words "$tmp/span_0000.bin" 4)" = "256 104 2147483843 2147483817 108 2147483756 111" ] || fail "span_0000: $(words "$tmp/span_0000.bin" 4)"
[ "$(words "$tmp/span_0001.bin" 2)" = "256 120 121" ] || fail "span_0001: $(words "$tmp/span_0001.bin" 2)"
$prepare --tokenizer bytes --begin none --end 70000 --out "$tmp/wide" "$tmp/b.txt" >/dev/null
[ "$(words "$tmp/wide_0000.bin" 4)" = "99 97 102 195 169 10 70000" ] || fail "wide_0000: $(words "$tmp/wide_0000.bin" 4)"
echo "ok: spans, and ids that need 32 bits"
[ "$($prepare --tokenizer bytes --ids "hé")" = "256 104 195 169" ] || fail "--ids"
fails "--ids with files" "only prints" $prepare --tokenizer bytes --ids x --out "$tmp/out" "$tmp/b.txt"

"$python" -c 'import tokenizers' 2>/dev/null || { echo "skipped: vocabularies of models; the Python package tokenizers is not installed"; exit 0; }
for kind in byte-level byte-fallback; do
    model="$tmp/$kind/model"
    ./train_oomb --data recall --model llama-15m -T 128 --chunk 32 --page 32 -n 0 --val-seqs 0 --out "$tmp/$kind" >/dev/null
    "$python" dev/ref/make_tokenizer.py $kind train_oomb.c "$model"
    text="Let's see: (x + 1)  café 🙂 twice"
    ids=$($prepare --model "$model" --ids "$text")
    ./train_oomb --model "$model" -n 0 -T 128 --prompt "$ids" --sample-len 1 >"$tmp/said" || fail "$kind: --prompt"
    grep -q -F "$text" "$tmp/said" || fail "$kind: the sample does not begin with its prompt: $text"
    # the span ends inside the spaces in front of its answer
    printf '{"text": "Question: what is it?\\n        return x", "unscored": [[0, 26]]}\n{"text": "another"}\n' >"$tmp/d.jsonl"
    rm -f "$tmp"/tok_*
    $prepare --model "$model" --out "$tmp/tok" "$tmp/d.jsonl" README.md >"$tmp/counts"
    "$python" dev/ref/make_tokenizer.py check "$model" "$tmp/tok_0000.bin" "Question: what is it?" "Question: what is it?
        return x" another README.md || fail "$kind: other tokens"
    says "of them not scored" ./train_oomb --model "$model" --data "$tmp/tok_0000.bin" -T 64 -n 1 --val-seqs 0
    fails "$kind: a vocabulary larger than the model's" "ids up to" sh -c "sed -i 's/\"vocab_size\": [0-9]*/\"vocab_size\": 300/' '$model/config.json'; exec $prepare --model '$model' --out '$tmp/out' README.md"
    sed -i 's/"vocab_size": [0-9]*/"vocab_size": 32000/' "$model/config.json"
    rm "$model/tokenizer_config.json"
    fails "$kind: no end of text" "--end ID" $prepare --model "$model" --out "$tmp/out" README.md
    echo "ok: $kind: $(cat "$tmp/counts")"
done
