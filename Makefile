# make            the CPU program (a C compiler is all it needs), and dev/compare_dumps
# make run        train the generated recall task: under 3 minutes on two cores
# make test       build and run the tests: under 5 minutes
# make headers    every header compiles alone, as C11 and as C++17
# make sanitize   the tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make fuzz       the readers of files under libFuzzer, for a minute
# make bench      the programs of scripts/bench_cpu.sh
# make check      the build itself: other compilers, no OpenMP
# make ref        against transformers, of which it installs a copy into .venv (needs pip; 4 GB on Linux)
#
# Choose: CC=clang   ARCH=-march=x86-64-v3   OPENMP=no   CFLAGS=-O2

CC ?= cc
CXX ?= c++
CFLAGS ?= -O3

# A flag is used only if a program builds and links with it: a compiler may know -fopenmp and have no libgomp.
builds_with = $(shell echo 'int main(void) { return 0; }' | $(CC) $(1) -x c - -o /dev/null 2>/dev/null && echo yes)

ARCH ?= $(if $(call builds_with,-march=native),-march=native)
OPENMP ?= $(or $(call builds_with,-fopenmp),no)
ifeq ($(OPENMP),yes)
  OPENMP_FLAG = -fopenmp
else
  $(info OpenMP is off: one thread (the compiler does not link -fopenmp, or OPENMP=no was given))
endif

# No errno from sqrt: it keeps a loop from becoming vectors. Values do not change.
FLAGS = -std=gnu11 -fno-math-errno -D_FILE_OFFSET_BITS=64 -Wall -Wextra -Wno-unknown-pragmas $(ARCH) $(OPENMP_FLAG)
HEADERS = $(wildcard oomb/*.h kernels/*.h)
TEST_SOURCES = test_oomb.c train_oomb.c $(wildcard dev/test/*.h) $(HEADERS)

all: train_oomb dev/compare_dumps

# What a program was built with: another compiler or flag builds it again.
.flags: FORCE
	@echo '$(CC) $(CFLAGS) $(FLAGS)' | cmp -s - $@ || echo '$(CC) $(CFLAGS) $(FLAGS)' >$@

train_oomb: train_oomb.c $(HEADERS) Makefile .flags
	$(CC) $(CFLAGS) $(FLAGS) $< -o $@ -lm

dev/compare_dumps: dev/compare_dumps.c $(HEADERS) Makefile .flags
	$(CC) $(CFLAGS) $(FLAGS) $< -o $@ -lm

train_oomb_double: train_oomb.c $(HEADERS) Makefile .flags
	$(CC) $(CFLAGS) $(FLAGS) -DFLOATX_DOUBLE $< -o $@ -lm

test_oomb: $(TEST_SOURCES) Makefile .flags
	$(CC) $(CFLAGS) $(FLAGS) $(if $(filter -O3,$(CFLAGS)),-DCOUNT_INSTRUCTIONS) $< -o $@ -lm

test_oomb_double: $(TEST_SOURCES) Makefile .flags
	$(CC) $(CFLAGS) $(FLAGS) -DFLOATX_DOUBLE $< -o $@ -lm

# Timings: scripts/bench_cpu.sh runs them. No part of `all` or of the tests.
BENCHES = dev/bench/bench_gemm dev/bench/bench_ops dev/bench/bench_tool
bench: $(BENCHES)
dev/bench/%: dev/bench/%.c dev/bench/bench.h train_oomb.c $(HEADERS) Makefile .flags
	$(CC) $(CFLAGS) $(FLAGS) -Wno-unused-function $< -o $@ -lm -ldl

run: train_oomb
	./train_oomb

test: all test_oomb test_oomb_double
	./test_oomb_double
	./test_oomb

headers:
	@for h in $(HEADERS); do \
	  $(CC) -std=c11 -D_DEFAULT_SOURCE -D_FILE_OFFSET_BITS=64 -Wall -Wextra -Werror -fsyntax-only -x c $$h || exit 1; \
	  $(CXX) -std=c++17 -D_FILE_OFFSET_BITS=64 -Wall -Wextra -Werror -fsyntax-only -x c++ $$h || exit 1; \
	done; echo "$(words $(HEADERS)) headers compile alone, as C11 and as C++17"

# No OpenMP: its runtime is not instrumented. Without the test of measured memory: a sanitizer has its own.
SANITIZE = -O2 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SANITIZED_NAMES = -DPROGRAM='"./train_oomb_sanitized"' -DDOUBLE_TESTS='"./test_oomb_double_sanitized"' \
                  -DCOMPARE='"./compare_dumps_sanitized"'
sanitize: $(TEST_SOURCES)
	$(MAKE) OPENMP=no CFLAGS="$(SANITIZE)" sanitized
sanitized: $(TEST_SOURCES)
	$(CC) $(CFLAGS) $(FLAGS) train_oomb.c -o train_oomb_sanitized -lm
	$(CC) $(CFLAGS) $(FLAGS) dev/compare_dumps.c -o compare_dumps_sanitized -lm
	$(CC) $(CFLAGS) $(FLAGS) $(SANITIZED_NAMES) test_oomb.c -o test_oomb_sanitized -lm
	$(CC) $(CFLAGS) $(FLAGS) $(SANITIZED_NAMES) -DFLOATX_DOUBLE test_oomb.c -o test_oomb_double_sanitized -lm
	./test_oomb_double_sanitized
	./test_oomb_sanitized -memory

# What reads other people's files, under libFuzzer. It starts from dev/fuzz/seeds (made by make_seeds.py); inputs and
# findings stay in dev/fuzz/corpus.
FUZZ_SECONDS ?= 60
fuzz: dev/fuzz/fuzz_readers
	mkdir -p dev/fuzz/corpus
	cp dev/fuzz/seeds/* dev/fuzz/corpus
	dev/fuzz/fuzz_readers -max_total_time=$(FUZZ_SECONDS) -max_len=2000 -dict=dev/fuzz/readers.dict \
	  -artifact_prefix=dev/fuzz/corpus/ -print_final_stats=1 dev/fuzz/corpus
dev/fuzz/fuzz_readers: dev/fuzz/fuzz_readers.c $(HEADERS) Makefile
	clang -O1 -g -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Wall -Wextra -fsanitize=fuzzer,address,undefined \
	  -fno-sanitize-recover=all $< -o $@ -lm || { echo "make fuzz needs clang with its libFuzzer (Debian 12: clang, libclang-rt-14-dev)"; exit 1; }

check:
	scripts/check_build.sh

# transformers as an independent witness. REF_PYTHON=python3 uses what is installed.
REF_PYTHON ?= .venv/bin/python
ref: all train_oomb_double
	test "$(REF_PYTHON)" != .venv/bin/python || test -e .venv/installed || \
	  { python3 -m venv .venv && .venv/bin/pip install -r dev/ref/requirements.txt && touch .venv/installed; }
	$(REF_PYTHON) dev/ref/check.py

clean:
	rm -f .flags train_oomb train_oomb_double $(BENCHES) dev/compare_dumps dev/fuzz/fuzz_readers test_oomb test_oomb_double *_sanitized

.PHONY: all bench run test headers sanitize sanitized fuzz check ref clean FORCE
