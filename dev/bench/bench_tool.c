/* bench_tool.c: what scripts/bench_cpu.sh needs besides the programs it compares.

   bench_tool tokens FILE COUNT V    a token file of COUNT random ids below V (uint16, as llm.c writes them)
   bench_tool llmc DIR FILE          gives llm.c's trainer in DIR what it loads: gpt2_124M.bin with random weights, a
                                     tokenizer with nothing in it, and the token FILE in the place of its data
   bench_tool peak FILE COMMAND...   runs COMMAND; its peak resident memory, in bytes, goes to FILE */
#define _GNU_SOURCE
#include "../../oomb/rng.h"
#include "../../oomb/util.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *create(const char *path) {
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: cannot be written", path);
    return f;
}

static void put(FILE *f, const void *p, size_t bytes) {
    if (fwrite(p, 1, bytes, f) != bytes) die("writing failed: is the disk full?");
}

static void finish(FILE *f, const char *path) {
    if (fclose(f) != 0) die("%s: writing failed: is the disk full?", path);
}

static void write_tokens(const char *path, size_t count, int V) {
    if (count < 1 || V < 1 || V > 65536) die("tokens: COUNT and V are positive, V at most 65536");
    int header[256] = {20240520, 1, (int)count};
    FILE *f = create(path);
    Rng r = rng_stream(1, 2, 3);
    put(f, header, sizeof header);
    for (size_t i = 0; i < count; i++) {
        const uint16_t id = (uint16_t)rng_below(&r, V);
        put(f, &id, sizeof id);
    }
    finish(f, path);
}

static void write_llmc(const char *dir, const char *tokens) {
    enum { T = 1024, V = 50257, Vp = 50304, L = 12, NH = 12, C = 768 };
    const size_t c = C, params = Vp * c + T * c + L * (12 * c * c + 13 * c) + 2 * c;
    const int model[256] = {20240326, 3, T, V, L, NH, C, Vp}, tokenizer[256] = {20240328, 2, 1, 0};
    char path[4096], command[9000];
    snprintf(path, sizeof path, "%s/gpt2_124M.bin", dir);
    FILE *f = create(path);
    Rng r = rng_stream(1, 2, 4);
    put(f, model, sizeof model);
    for (size_t i = 0; i < params; i++) {
        const float w = 0.02f * (float)rng_normal(&r);
        put(f, &w, sizeof w);
    }
    finish(f, path);
    snprintf(path, sizeof path, "%s/gpt2_tokenizer.bin", dir);
    f = create(path);
    put(f, tokenizer, sizeof tokenizer);
    put(f, "\1x", 2);
    finish(f, path);
    snprintf(command, sizeof command,
             "d='%s/dev/data/tinyshakespeare'; mkdir -p \"$d\" && for x in train val; do cp '%s' "
             "\"$d/tiny_shakespeare_$x.bin\" || exit 1; done",
             dir, tokens);
    if (system(command) != 0) die("%s: cannot copy %s there", dir, tokens);
}

static int run_and_measure(const char *path, char **command) {
    struct rusage use;
    int status;
    const pid_t pid = fork();
    if (pid < 0) die("cannot start another process");
    if (pid == 0) {
        execvp(command[0], command);
        fprintf(stderr, "%s: cannot be run\n", command[0]);
        _exit(127);
    }
    if (wait4(pid, &status, 0, &use) != pid) die("lost %s", command[0]);
    FILE *f = create(path);
    fprintf(f, "%.0f\n", use.ru_maxrss * 1024.0);
    finish(f, path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "tokens") && argc == 5) write_tokens(argv[2], (size_t)atoll(argv[3]), atoi(argv[4]));
    else if (!strcmp(what, "llmc") && argc == 4) write_llmc(argv[2], argv[3]);
    else if (!strcmp(what, "peak") && argc > 3) return run_and_measure(argv[2], argv + 3);
    else die("usage: bench_tool tokens FILE COUNT V | llmc DIR FILE | peak FILE COMMAND...");
    return 0;
}
