#!/bin/bash
# The CPU program against its peers and against the machine's limits, on this machine.
#
#   scripts/bench_cpu.sh [--blas LIB.so] [--llmc DIR] [--python PYTHON] [--rounds N] [gemm] [ops] [models] [growth] [reach]
#
# gemm     the matrix product against LIB.so (a BLAS with cblas_sgemm), on all cores and on one
# ops      attention against the matrix product, the other ops against a copy of memory
# models   training steps against PyTorch, if PYTHON has torch, plain and with its checkpointing, and against llm.c's
#          trainer, if DIR is a checkout of llm.c: same model, same tokens
# growth   time and memory of a step from T = 1K to 64K
# reach    a step at a T that PyTorch cannot do in 20 GB
#
# Without names, the first four. In `models` the programs take turns, N rounds (3), all with as many threads as there
# are processors; a number is the median of all steps but each run's first, with the least and the largest. `growth`
# shows one step. All of it takes about half an hour on two cores, and wants the machine to itself: another program on
# the same cores can make a number many times worse. Nothing is installed and nothing in DIR is changed.
set -euo pipefail
blas='' llmc='' python=python3 rounds=3 parts=()
usage() { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 1; }
threads=$(nproc)
export OMP_NUM_THREADS=$threads
while [ $# -gt 0 ]; do
    case $1 in
    --blas | --llmc | --python | --rounds) [ $# -gt 1 ] || usage; declare "${1#--}=$2"; shift 2 ;;
    gemm | ops | models | growth | reach) parts+=("$1"); shift ;;
    *) usage ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(gemm ops models growth)
[[ $rounds =~ ^[1-9][0-9]?$ && $rounds -le 20 ]] || { echo "--rounds is 1 .. 20" >&2; exit 1; }
[[ $python != */* ]] || [ -x "$python" ] || { echo "$python cannot be run" >&2; exit 1; }
[ -z "$blas" ] || [ -r "$blas" ] || { echo "$blas cannot be read" >&2; exit 1; }
[ -z "$llmc" ] || [ -r "$llmc/train_gpt2.c" ] || { echo "$llmc/train_gpt2.c cannot be read" >&2; exit 1; }
[ -z "$blas" ] || blas=$(realpath "$blas")
[ -z "$llmc" ] || llmc=$(realpath "$llmc")
[[ $python != */* ]] || python=$(realpath -s "$python")
cd "$(dirname "$0")/.."
echo "building"
make -s train_oomb bench >/dev/null
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"; kill $(jobs -p) 2>/dev/null || true' EXIT
# Memory that PyTorch frees stays with it for the next step; otherwise each step pays for its pages anew.
torch() {
    env CUDA_VISIBLE_DEVICES= MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_MMAP_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=1000000 \
        "$python" dev/bench/bench_torch.py "$@" --threads "$threads"
}
have_torch() { "$python" -c 'import torch' 2>/dev/null; }
want() { [[ " ${parts[*]} " == *" $1 "* ]]; }

if want gemm; then
    for t in "$threads" 1; do
        # OpenBLAS chooses its kernel by the processor, unless these say otherwise
        env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE OMP_NUM_THREADS="$t" dev/bench/bench_gemm -t "$t" -r $((2 * rounds + 1)) ${blas:+"$blas"}
        echo
    done
fi
if want ops; then
    dev/bench/bench_ops -r $((4 * rounds + 1))
    echo
fi

# Each runner: MODEL B T STEPS -> "ms ms ... peak_bytes", the first step left out.
ours() {
    rm -f "$tmp/log"
    dev/bench/bench_tool peak "$tmp/peak" ./train_oomb --data "$tmp/tokens.bin" --model "$1" -B "$2" -T "$3" -n $(($4 + 1)) \
        --threads "$threads" --val-seqs 0 --log "$tmp/log" ${5:+--chunk "$5"} >/dev/null &&
        echo "$(sed -n 's/.*"ms":\([0-9.]*\).*/\1/p' "$tmp/log" | tail -n "$4" | xargs) $(cat "$tmp/peak")"
}
theirs() { torch "$1" "$2" "$3" "$4" --tokens "$tmp/tokens.bin" ${5:+"$5"}; }
karpathy() {
    local dir="$tmp/llmc"
    rm -rf "$dir" && mkdir "$dir" && cp -r "$llmc/train_gpt2.c" "$llmc/llmc" "$dir" &&
        sed -i "s/int B = 4;/int B = $2;/; s/int T = 64;/int T = $3;/; s/step <= 40/step <= $4/; s/val_num_batches = 5/val_num_batches = 1/" \
            "$dir/train_gpt2.c" &&
        [ "$(grep -c -e "int B = $2;" -e "int T = $3;" -e "step <= $4;" -e 'val_num_batches = 1;' "$dir/train_gpt2.c")" = 4 ] &&
        "${CC:-cc}" -Ofast -fno-finite-math-only -Wno-unused-result -march=native -fopenmp -DOMP "$dir/train_gpt2.c" -o "$dir/train_gpt2" -lm &&
        dev/bench/bench_tool llmc "$dir" "$tmp/tokens.bin" &&
        (tool=$PWD/dev/bench/bench_tool && cd "$dir" && "$tool" peak "$tmp/peak" ./train_gpt2 >out) &&
        echo "$(sed -n 's/^step [0-9]*: .*took \([0-9.]*\) ms.*/\1/p' "$dir/out" | tail -n "$4" | xargs) $(cat "$tmp/peak")"
}

# MODEL B T STEPS, then "label|runner|its further argument" ...: a row for each
compare() {
    local model=$1 B=$2 T=$3 steps=$4 i r
    shift 4
    for ((r = 0; r < rounds; r++)); do
        for i in "$@"; do
            IFS='|' read -r label runner more <<<"$i"
            "$runner" "$model" "$B" "$T" "$steps" ${more:+"$more"} >>"$tmp/$label" || echo "$label failed" >&2
        done
    done
    local first=''
    for i in "$@"; do
        label=${i%%|*}
        [ -f "$tmp/$label" ] || continue
        awk '{ for (i = 1; i < NF; i++) print $i }' "$tmp/$label" | sort -n >"$tmp/ms"
        [ -s "$tmp/ms" ] || { rm "$tmp/$label"; continue; }
        awk -v model="$model" -v B="$B" -v T="$T" -v label="$label" -v first="$first" \
            -v peak="$(awk '{ if ($NF > p) p = $NF } END { printf "%.0f", p }' "$tmp/$label")" '
            { x[NR] = $1 }
            END { m = NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2
                  printf "%-9s %2d x %5d  %-22s %9.0f (%.0f to %.0f)  %8.0f  %8.0f  %s\n", model, B, T, label, m, x[1], x[NR],
                         B * T / m * 1000, peak / 1048576, first ? sprintf("%.2f", m / first) : "1" }' "$tmp/ms"
        [ -n "$first" ] || first=$(awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }' "$tmp/ms")
        rm "$tmp/$label"
    done
}

if want models; then
    dev/bench/bench_tool tokens "$tmp/tokens.bin" 600000 512
    peers() { # MODEL -> the labels
        echo "OOMB|ours|${2:-}"
        ! have_torch || printf '%s\n' "PyTorch|theirs|" "PyTorch, checkpointed|theirs|--checkpoint"
        [ -z "$llmc" ] || [ "$1" != gpt2 ] || echo "llm.c|karpathy|"
    }
    have_torch && echo "PyTorch $("$python" -c 'import torch; print(torch.__version__)')" || echo "no PyTorch in $python"
    echo "model      B x     T  program                ms per step (least, most)  tokens/s   peak MB  ms over ours"
    for shape in "4 64" "1 256" "1 1024"; do
        mapfile -t who < <(peers gpt2 1024)
        compare gpt2 $shape 4 "${who[@]}"
    done
    for T in 1024 2048 4096 8192; do
        mapfile -t who < <(peers llama-3m)
        compare llama-3m 1 $T 3 "${who[@]}"
    done
    echo
fi
if want growth; then
    dev/bench/bench_tool tokens "$tmp/tokens.bin" 600000 512
    echo "llama-3m, chunks of 512, one sequence"
    echo "      T   ms per step   tokens/s   GFLOP/s   the model's own   peak MB"
    for T in 1024 2048 4096 8192 16384 32768 65536; do
        ./train_oomb --data "$tmp/tokens.bin" --model llama-3m -T $T -n $((T < 16384 ? 4 : 2)) --val-seqs 0 --log "$tmp/log" >/dev/null
        tail -n 1 "$tmp/log" | awk -v T=$T -F'[:,]' '{
            for (i = 1; i < NF; i += 2) { gsub(/[{}" ]/, "", $i); v[$i] = $(i + 1) }
            printf "%7d   %11.0f   %8.0f   %7.0f   %13.0f %%   %7.1f\n", T, v["ms"], T / v["ms"] * 1000,
                v["flops"] / v["ms"] * 1e-6, 100 * v["flops_model"] / v["flops"], v["peak_bytes"] / 1048576 }'
        rm "$tmp/log"
    done
    echo
fi
if want reach; then
    dev/bench/bench_tool tokens "$tmp/tokens.bin" 600000 512
    echo "llama-15m, T = 65536, in 20 GB"
    (ulimit -d 20971520 && ours llama-15m 1 65536 1) | awk '{ printf "OOMB: %.0f s a step, peak %.0f MB\n", $1 / 1000, $2 / 1048576 }'
    ! have_torch || for how in '' --checkpoint; do
        (ulimit -d 20971520 && torch llama-15m 1 65536 1 --tokens "$tmp/tokens.bin" $how) >"$tmp/out" 2>"$tmp/error" &&
            awk -v how="$how" '{ printf "PyTorch %s: %.0f s a step, peak %.0f MB\n", how, $1 / 1000, $2 / 1048576 }' "$tmp/out" ||
            echo "PyTorch $how: $(tail -n 1 "$tmp/error" | cut -c 1-150)"
    done
fi
