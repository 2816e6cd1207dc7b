/* The program as a user meets it: command lines, resumed and killed runs, logs, dumps, memory. Part of test_oomb.c. */

// ----------------------------------------------------------------------------------------------
// the program, as a user meets it

#ifndef PROGRAM
#define PROGRAM "./train_oomb"
#endif

/* Runs the program; returns its exit status and the first bytes of what it printed, errors included. */
static int run_program(const char *arguments, char *output, size_t size) {
    char command[1024];
    snprintf(command, sizeof command, "%s %s 2>&1", PROGRAM, arguments);
    FILE *p = popen(command, "r");
    if (!p) die("popen: %s", strerror(errno));
    size_t n = fread(output, 1, size - 1, p);
    output[n] = 0;
    while (fgetc(p) != EOF) continue;
    int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* file: one that test_bad_input makes, "" for none. LOG in the arguments: a file that must survive the refusal. */
static const struct {
    const char *arguments, *file, *says[3];
} bad_input[] = {
    {"--nonsense 3", "", {"--nonsense", "--help"}},
    {"stray", "", {"stray", "--help", "quotes"}},
    {"--lr", "", {"--lr", "needs a value"}},
    {"--lr fast", "", {"--lr fast", "not a number"}},
    {"--lr nan", "", {"--lr nan", "not a number"}},
    {"--lr -1", "", {"--lr -1", "0 or more"}},
    {"--chunk 4Q", "", {"--chunk 4Q", "whole number"}},
    {"--chunk 1.5", "", {"--chunk 1.5", "whole number"}},
    {"--steps K", "", {"--steps K", "whole number"}},
    {"--chunk -9223372036854775807K", "", {"--chunk -9223372036854775807K", "at least 1"}},
    {"--threads 100000", "", {"--threads 100000", "at most"}},
    {"--chunk 0", "", {"--chunk 0", "at least 1"}},
    {"--chunk -32", "", {"--chunk -32", "at least 1"}},
    {"-T 4000000000", "", {"--seq-len 4000000000", "too large"}},
    {"-T 4096M", "", {"--seq-len 4096M", "too large"}},
    {"-T 99999999999999999999", "", {"too large"}},
    {"--chunk 100", "", {"--chunk 100", "--page 32", "--chunk 128"}},
    {"--carry some", "", {"--carry some", "exact|none"}},
    {"--carry exac", "", {"--carry exac", "exact|none"}},
    {"--model gpt5", "", {"--model gpt5", "recall, tiny, gpt2"}},
    {"--model gpt2 -T 2048 --data", "small", {"--seq-len 2048", "1024"}},
    {"--chunk 256 --page 32", "", {"--recall-distance", "--seq-len 512"}},
    {"--chunk 512", "", {"--recall-distance", "one --chunk", "--seq-len 512"}},
    {"--page 100000", "", {"--page 100000", "--chunk 32"}},
    {"--val-every 1 --val-seqs 0", "", {"--val-seqs 0", "--val-every"}},
    {"-T 64 --chunk 8 --page 8", "", {"--seq-len 64", "128"}},
    {"--data", "missing", {"missing", "No such file"}},
    {"--data", "", {"--data", "needs a value"}},
    {"--data=", "", {"--data", "empty"}},
    {"--data", "dir", {"not a regular file"}},
    {"--data", "empty", {"/empty: the file is empty"}},
    {"-T 256 -B 2 --data", "exact", {"512 tokens", "needs 513"}},
    {"-T 50 --chunk 64 -n 1 --val /nonexistent --data", "small", {"/nonexistent", "No such file"}},
    {"-n 1 --log", "dir", {"--log", "cannot open"}},
    {"-n 1 --val x", "", {"--val x", "recall"}},
    {"--recall-distance 5 -T 50 --chunk 64 --data", "small", {"--recall-distance 5"}},
    {"--page 1 --chunk 1 --seq-len 2047M --model tiny --recall-distance 32", "", {"--page 1", "larger --page"}},
    {"-T 1024M --page 64 --chunk 64 -n 1", "", {"this run needs", "pages", "--seq-len"}},
    {"-n 3 --lr 1e30 --warmup 0 --clip 0", "", {"step", "gradient", "--lr"}},
    {"-T 50 --chunk 64 -n 1 --data LOG --log LOG", "", {"--log", "another name"}},
    {"--data /nonexistent --log LOG", "", {"/nonexistent"}},
    {"-T 50 --chunk 64 -n 1 --data LOG --dump LOG", "", {"--dump", "another name"}},
    {"--save-every 5", "", {"--save-every 5", "--out DIR"}},
    {"--resume", "", {"--resume", "--out DIR"}},
    {"--resume=yes --out x", "", {"--resume=yes", "takes no value"}},
    {"-n 1 --out LOG/a/b", "", {"--out", "/a/b: cannot make the directory: Not a directory"}},
    {"-n 1 --log LOG", "", {"--log", "not a log of this program"}},
    {"-n 1 --dump", "dir", {"--dump", "no regular file"}},
    {"-n 1 --dump", "fifo", {"--dump", "no regular file"}},
    {"-n 1 --out LOG", "", {"--out", "cannot open the directory"}},
    {"--sample-len 5", "", {"--sample-len 5", "--prompt"}},
    {"--top-k 5", "", {"--top-k 5", "--prompt"}},
    {"--temperature -1", "", {"--temperature -1", "0 (always the likeliest token) or more"}},
    {"--prompt", "", {"--prompt", "needs a value"}},
    {"--prompt hello", "", {"--prompt hello", "list of them", "below 304"}},
    {"--prompt 304", "", {"--prompt 304", "below 304"}},
    {"--sample-every 5", "", {"--sample-every", "--prompt 0"}},
    {"-T 50 --chunk 64 --prompt aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa --data",
     "small",
     {"53 tokens", "--seq-len 50"}},
    {"-T 50 --chunk 64 --prompt aaaa --sample-len 46 --data", "small", {"--sample-len 46", "room for 45"}},
    {"--dump x -n 0", "", {"--dump x", "--steps 0"}},
    {"--plan -T 50 --chunk 64 --data LOG --log LOG", "", {"--log", "another name"}},
    {"--plan --resume --out x", "", {"--plan", "leave --resume out"}},
    {"--plan -T 2147483647 --chunk 2147483647", "", {"--seq-len 2147483647", "whole pages"}},
    {"--keep 7", "", {"--keep 7", "--out DIR"}},
    {"--temperature 0.3", "", {"--temperature 0.3", "--prompt"}},
    {"-n 1 --log LOG --dump LOG", "", {"--dump", "the file of --log"}},
    {"-n 1 --data", "fifo", {"not a regular file"}},
    {"--plan -T 2048 --model gpt2", "", {"--seq-len 2048", "1024"}},
};

/* Bad input: exit status 1, and a last line that begins with "error:" and holds what the user must know. */
static void test_bad_input(void) {
    char dir[300], empty[300], small[300], exact[300], fifo[300], command[800], output[8192];
    snprintf(fifo, sizeof fifo, "%s", scratch_path("fifo"));
    if (mkfifo(fifo, 0666) != 0) die("%s: cannot make a pipe", fifo);
    snprintf(dir, sizeof dir, "%s", scratch_dir);
    snprintf(empty, sizeof empty, "%s", write_file("empty", 0));
    snprintf(small, sizeof small, "%s", write_file("small", 100));
    snprintf(exact, sizeof exact, "%s", write_file("exact", 511)); /* 512 tokens: one too few for 2 x 256 */
    for (int i = 0; i < COUNT(bad_input); i++) {
        const char *f = bad_input[i].file, *file = !strcmp(f, "dir")     ? dir
                                                   : !strcmp(f, "empty") ? empty
                                                   : !strcmp(f, "small") ? small
                                                   : !strcmp(f, "exact") ? exact
                                                   : !strcmp(f, "fifo")  ? fifo
                                                                         : f;
        snprintf(command, sizeof command, "%s %s", bad_input[i].arguments, file);
        for (char *at; (at = strstr(command, "LOG")) != NULL;) { /* a file that must survive the refusal */
            char rest[800];
            snprintf(rest, sizeof rest, "%s", at + 3);
            snprintf(at, sizeof command - (size_t)(at - command), "%s%s", small, rest);
        }
        const int status = run_program(command, output, sizeof output);
        char *line = strstr(output, "error: ");
        check(status == 1 && line && strchr(line, '\n') && !strchr(line, '\n')[1],
              "train_oomb %s: status %d, no last line with an error", command, status);
        for (int k = 0; k < 3 && bad_input[i].says[k]; k++)
            check(line && strstr(line, bad_input[i].says[k]), "train_oomb %s: the error does not say \"%s\": %s",
                  command, bad_input[i].says[k], line ? line : "");
    }
    const char *const prints[] = {"-n 1", "--plan", "--help"};
    for (int i = 0; access("/dev/full", W_OK) == 0 && i < COUNT(prints); i++) {
        snprintf(command, sizeof command, "%s >/dev/full", prints[i]);
        check(run_program(command, output, sizeof output) == 1, "%s: a full disk under standard output goes unseen",
              prints[i]);
    }
    struct stat st;
    check(stat(small, &st) == 0 && st.st_size == 100, "a refused run has touched the file that --log named");
}

/* --help names every option of the table, with the defaults of the model at hand, and exits with 0. */
static void test_help(void) {
    char output[16384];
    check(run_program("--help", output, sizeof output) == 0, "--help fails");
    TrainConfig c = train_config(&presets[0]);
    Option table[MAX_OPTIONS];
    const int n = options_table(&c, table);
    for (int i = 0; i < n; i++) {
        char name[64], value[200], shown[220] = "", line[400] = "";
        snprintf(name, sizeof name, "\n  --%s%s", table[i].name, table[i].letter ? "," : " ");
        option_format(&table[i], value, sizeof value);
        if (*value) snprintf(shown, sizeof shown, "[%s]", value);
        const char *at = strstr(output, name);
        if (at) snprintf(line, sizeof line, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
        check(strstr(line, table[i].help) && strstr(line, shown), "--help on %s says \"%s\", not \"%s %s\"",
              table[i].name, line, table[i].help, shown);
    }
    for (int i = 0; i < NUM_PRESETS; i++)
        check(strstr(output, presets[i].name) != NULL, "--help does not name the preset %s", presets[i].name);
    check(run_program("--model gpt2 -h", output, sizeof output) == 0 && strstr(output, "whole context [1024]"),
          "--help with the defaults of gpt2");
}

/* The log of a run without what time and memory did to it. */
static char *read_log(const char *arguments) {
    char command[900], output[256];
    const char *path = scratch_path("log");
    snprintf(command, sizeof command, "%s --log %s", arguments, path);
    const int status = run_program(command, output, sizeof output);
    check(status == 0, "train_oomb %s: status %d", command, status);
    FILE *f = fopen(path, "r");
    char *text = (char *)xcalloc(1, 1 << 20), line[8192];
    while (f && fgets(line, sizeof line, f)) {
        char *ms = strstr(line, ",\"ms\":");
        if (ms) snprintf(ms, 3, "\n");
        strncat(text, line, (1 << 20) - strlen(text) - 1);
    }
    if (f) fclose(f);
    return text;
}

/* Whether two files are the same, byte for byte. */
static int same_bytes(const char *a, const char *b) {
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int same = f && g, x = 0, y = 0;
    while (same && x != EOF) same = (x = fgetc(f)) == (y = fgetc(g));
    if (f) fclose(f);
    if (g) fclose(g);
    return same;
}

/* The checkpoints of a step in two directories, all three files. */
static void check_same_checkpoint(const char *what, const char *a, const char *b, int step, int state) {
    const char *const files[] = {"weights.safetensors", "optimizer.safetensors", "state.json"};
    for (int i = 0; i < 2 + state; i++) {
        char x[600], y[600];
        snprintf(x, sizeof x, "%s/step-%08d/%s", a, step, files[i]);
        snprintf(y, sizeof y, "%s/step-%08d/%s", b, step, files[i]);
        check(same_bytes(x, y), "%s: %s of step %d differs", what, files[i], step);
    }
}

/* The log in a directory without what time and memory did to it. The caller frees. */
static char *read_out_log(const char *dir) {
    char path[600], *line = NULL, *text = NULL;
    size_t room = 0, size = 0;
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    FILE *f = fopen(path, "r"), *to = open_memstream(&text, &size);
    while (f && getline(&line, &room, f) > 0) {
        char *ms = strstr(line, ",\"ms\":");
        if (ms) snprintf(ms, 3, "}\n");
        fputs(line, to);
    }
    if (f) fclose(f);
    fclose(to);
    free(line);
    return text;
}

static void check_same_log(const char *what, const char *a, const char *b) {
    char *x = read_out_log(a), *y = read_out_log(b);
    check(*x && strcmp(x, y) == 0, "%s: the logs differ:\n%s\nand\n%s", what, x, y);
    free(x), free(y);
}

static void run_ok(const char *what, const char *arguments) {
    char output[16384];
    const int status = run_program(arguments, output, sizeof output);
    check(status == 0, "%s: train_oomb %s: status %d: %s", what, arguments, status, output);
}

/* An option for two threads, where the program can have them. */
static const char *two_threads(void) {
    set_threads(2);
    const int threads = max_threads();
    set_threads(1);
    return threads == 2 ? "--threads 2" : "";
}

/* Three shards of 2,100 tokens: 32 sequences of 64, so that an epoch ends at step 16 of 2 sequences. */
static void write_shards(int masked) {
    uint32_t ids[900];
    Rng r = rng_stream(24, masked, 0);
    const int counts[] = {700, 500, 900};
    for (int k = 0; k < 3; k++) {
        char name[32];
        for (int i = 0; i < counts[k]; i++)
            ids[i] = masked && rng_below(&r, 5) == 0 ? (uint32_t)-100 : (uint32_t)rng_below(&r, 300);
        snprintf(name, sizeof name, "shard%d.bin", k);
        write_tokens(name, masked ? 20240801 : 20240520, masked ? 7 : 1, (uint32_t)counts[k], masked ? 4 : 2, ids,
                     (size_t)counts[k], 0);
    }
}

/* 20 steps against 10 + 10, over shard ends, an epoch's end (step 16) and inside warm-up (12 steps): the same log and the
   same checkpoint, to the last bit. Two whole runs write the same bytes too. Threads and samples change nothing. */
static void test_resume(void) {
    char a[300], b[300], base[900], command[1800], path[600];
    snprintf(a, sizeof a, "%s", scratch_path("resume_a")), snprintf(b, sizeof b, "%s", scratch_path("resume_b"));
    const char *const runs[][2] = {
        {"--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 --val-seqs 0", "--threads 1"},
        {"--data '%s/shard*.bin' --model recall -T 64 -B 1 --grad-accum 2 --chunk 32 --page 16 --val-every 5 --carry "
         "none",
         two_threads()},
        {"--data '%s/resume.txt' --model recall -T 50 -B 3 --chunk 16 --page 16 --val-every 3 --prompt ab "
         "--sample-every 4 --sample-len 9 "
         "--top-k 40 --recompute layer",
         ""},
        {"--data recall%.0s -T 128 -B 1 --chunk 32 --val-seqs 2 --val-every 4 --schedule constant", "--save-every 7"},
    };
    write_file("resume.txt", 4000);
    for (int i = 0; i < COUNT(runs); i++) {
        char data[500];
        write_shards(i & 1);
        remove_tree(a), remove_tree(b);
        snprintf(data, sizeof data, runs[i][0], scratch_dir);
        snprintf(base, sizeof base, "%s -n 20 --warmup 12 --save-every 5 --keep 0", data);
        snprintf(command, sizeof command, "%s --out %s", base, a);
        run_ok("20 steps", command);
        snprintf(command, sizeof command, "%s --out %s", base, b);
        run_ok("20 steps again", command);
        check_same_checkpoint("the same run twice", a, b, 20, 1);
        check_same_log("the same run twice", a, b);
        const int from = i == 2 ? 5 : 10; /* go back: newer checkpoints are gone, the log is too long */
        for (int step = from + 5; step <= 20; step += 5) {
            snprintf(path, sizeof path, "%s/step-%08d", b, step);
            remove_tree(path);
        }
        if (i == 1) { /* and its last line was cut off */
            snprintf(path, sizeof path, "%s/log.jsonl", b);
            if (truncate(path, 2000) != 0) die("%s", path);
        }
        snprintf(command, sizeof command, "--out %s --resume %s", b, runs[i][1]);
        run_ok("10 + 10 steps", command);
        check_same_checkpoint(data, a, b, 20, i != 3); /* there state.json has another --save-every */
        if (i != 1) check_same_log(data, a, b);
        char *log = read_out_log(b); /* of the line that was cut off nothing is left */
        int whole = 1;
        for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n"))
            whole &= strncmp(line, "{\"step\":", 8) == 0 && line[strlen(line) - 1] == '}';
        check(whole, "%s: the log has a broken line", data);
        free(log);
        run_ok("nothing left to do", command);
        if (i != 1) check_same_log("a run with nothing to do", a, b);
    }
}

/* Too few tokens for a batch, just enough, and none that is scored. */
static void test_data_sizes(void) {
    char output[16384], command[1800];
    const struct {
        int B;
        const char *says;
    } sizes[] = {{33, "2100 tokens, but a batch of 33 x 64 needs 2113"},
                 {32, "32 sequences, 51 tokens at the end unused"}}; /* 2100 = 1 + 32 * 64 + 51 */
    write_shards(0);
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command,
                 "--data '%s/shard*.bin' --model recall -T 64 -B %d --chunk 32 --page 16 -n 1 --val-seqs 0",
                 scratch_dir, sizes[i].B);
        check(run_program(command, output, sizeof output) == (i == 0) && strstr(output, sizes[i].says),
              "train_oomb %s: %s", command, output);
    }
    uint32_t ids[129] = {0}; /* a batch of 2 x 64 targets needs 129 tokens */
    for (int n = 128; n <= 129; n++) {
        write_tokens("exact.bin", 20240520, 1, (uint32_t)n, 2, ids, (size_t)n, 0);
        snprintf(command, sizeof command, "--data %s --model recall -T 64 -B 2 --chunk 32 --page 16 -n 1",
                 scratch_path("exact.bin"));
        check(run_program(command, output, sizeof output) == (n == 128) &&
                  strstr(output, n == 128 ? "128 tokens, but a batch of 2 x 64 needs 129"
                                          : "2 sequences, 0 tokens at the end unused"),
              "%d tokens for a batch of 128: %s", n, output);
    }
    for (int i = 0; i < 129; i++) ids[i] = (uint32_t)-1;
    write_tokens("masked.bin", 20240801, 7, 129, 4, ids, 129, 0);
    snprintf(command, sizeof command, "--data %s --model recall -T 64 -B 2 --chunk 32 --page 16 -n 1",
             scratch_path("masked.bin"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "no token is scored"),
          "nothing but masks: %s", output);
}

/* What a checkpoint does not allow, and what it does. */
static void test_resume_refused(void) {
    char a[300], output[16384], command[1800];
    write_shards(0);
    snprintf(a, sizeof a, "%s", scratch_path("refused/below/others"));
    snprintf(command, sizeof command,
             "--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 -n 4 --out %s", scratch_dir, a);
    run_ok("4 steps", command);
    const struct {
        const char *arguments, *says[2];
    } bad[] = {
        {"", {"step 4", "--resume"}},
        {"--resume --seed 2", {"--seed 2", "the checkpoint has 1"}},
        {"--resume -T 32", {"--seq-len 32", "the checkpoint has 64"}},
        {"--resume --model tiny --data recall", {"V = 304", "tiny has 257"}},
        {"--resume --data recall -T 64", {"--seq-len 64", "128"}},
        {"--resume --val SHARD", {"2100 tokens", "1890"}},
        {"--resume --data SHARD", {"630", "1890"}},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        char arguments[500];
        snprintf(arguments, sizeof arguments, "%s", bad[i].arguments);
        char *at = strstr(arguments, "SHARD");
        if (at) snprintf(at, sizeof arguments - (size_t)(at - arguments), "%s/shard0.bin", scratch_dir);
        snprintf(command, sizeof command, "--out %s %s", a, arguments);
        const int status = run_program(command, output, sizeof output);
        const char *error = strstr(output, "error: ");
        check(status == 1 && error && strstr(error, bad[i].says[0]) && strstr(error, bad[i].says[1]),
              "train_oomb %s: status %d: %s", command, status, error ? error : output);
    }
    snprintf(command, sizeof command, "--out %s --resume -n 6 --lr 0.001 --chunk 64", a);
    check(run_program(command, output, sizeof output) == 0 &&
              strstr(output, "resume: --lr is 0.001, and was 0.004 before") && strstr(output, "resume: step 4 of 6") &&
              strstr(output, "step     6/6"),
          "a longer run with another rate: %s", output);
    snprintf(command, sizeof command, "--out %s/none --resume", a);
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "No such file"),
          "a directory that is not there: %s", output);
    mkdir(scratch_path("begun"), 0777);
    snprintf(command, sizeof command, "--out %s --resume", scratch_path("begun"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "no checkpoint; to begin a run there"),
          "an empty directory: %s", output);
    snprintf(command, sizeof command, "--out %s --resume --data recall -n 1 -T 128 --val-seqs 0",
             scratch_path("begun"));
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "no checkpoint yet; from the start"),
          "an empty directory: %s", output);
    write_file("notes", 100);
    snprintf(command, sizeof command, "--out %s --resume -n 9 --log %s", a, scratch_path("notes"));
    struct stat st;
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "not a log of this program") &&
              stat(scratch_path("notes"), &st) == 0 && st.st_size == 100,
          "a log that is none: %s", output);

    char log[400];
    snprintf(log, sizeof log, "%s/log.jsonl", a);
    const Logger other = logger_open(log, INT32_MAX);
    snprintf(command, sizeof command, "-n 1 --log %s", log);
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "another run is writing there"),
          "two runs in one log: %s", output);
    fclose(other.file);
    const int lock = checkpoint_open_dir(a); /* this process is the other run */
    snprintf(command, sizeof command, "--out %s --resume -n 9", a);
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "another run is writing there"),
          "two runs in one place: %s", output);
    close(lock);
}

/* A gradient that is not finite ends the run; the checkpoint of the step before is kept, and is good. */
static void test_resume_nan(void) {
    char output[16384], command[1800], path[600];
    snprintf(command, sizeof command,
             "--out %s -n 9 -T 128 -B 1 --val-seqs 0 --save-every 1 --lr 1e30 --warmup 0 --clip 0",
             scratch_path("nan"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "the gradient of"),
          "no NaN at --lr 1e30: %s", output);
    const int kept = checkpoint_latest(scratch_path("nan"), INT32_MAX);
    checkpoint_path(path, scratch_path("nan"), "step-", kept);
    char find[64];
    snprintf(find, sizeof find, "error: step %d: the gradient", kept + 1);
    SavedState s = state_read(path);
    check(kept >= 1 && s.run.step == kept && strstr(output, find), "the checkpoint kept is of step %d: %s", kept,
          output);
    state_free(&s);
}

/* What a resume does to the log, and what it asks of data, the recall task and state.json. */
static void test_resume_files(void) {
    char output[16384], command[1800], path[600];
    write_shards(0);
    /* A checkpoint that cannot be loaded is refused before the log is touched. */
    snprintf(command, sizeof command,
             "--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 -n 4 --save-every 2 --val-seqs 0 "
             "--out %s/logged",
             scratch_dir, scratch_dir);
    run_ok("4 steps with a log", command);
    remove_tree(scratch_path("logged/step-00000004"));
    if (truncate(scratch_path("logged/step-00000002/weights.safetensors"), 1000) != 0)
        die("truncate: %s", strerror(errno));
    char *before = read_out_log(scratch_path("logged"));
    snprintf(command, sizeof command, "--out %s --resume", scratch_path("logged"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "weights.safetensors"),
          "half of the weights: %s", output);
    char *after = read_out_log(scratch_path("logged"));
    check(*before && strcmp(before, after) == 0, "a refused run has changed the log from\n%s to\n%s", before, after);
    free(before), free(after);

    /* What a power cut can leave at the end of a log; and other data of the same length. */
    snprintf(command, sizeof command,
             "--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 -n 4 --val-seqs 0 --out %s/cut",
             scratch_dir, scratch_dir);
    run_ok("4 steps", command);
    FILE *f = fopen(scratch_path("cut/log.jsonl"), "a");
    for (int i = 0; i < 300; i++) fputc(0, f);
    fclose(f);
    snprintf(command, sizeof command, "--out %s --resume -n 5", scratch_path("cut"));
    run_ok("zeros behind the log", command);
    before = read_out_log(scratch_path("cut"));
    check(strstr(before, "\n{\"step\":5,") && !strstr(before, "step\":6"), "the log after zeros: %s", before);
    free(before);
    const int fd = open(scratch_path("shard1.bin"), O_WRONLY);
    if (write_at(fd, 1024 + 100, "\x01\x00\x02", 3)) die("shard1.bin");
    close(fd);
    snprintf(command, sizeof command, "--out %s --resume -n 6", scratch_path("cut"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "as many tokens") &&
              strstr(output, "but other ones"),
          "other data: %s", output);
    write_shards(0);

    /* The recall task's distance is one chunk, unless it is said: another chunk asks for it, and that advice is good. */
    snprintf(command, sizeof command, "-n 2 -T 256 -B 1 --val-seqs 0 --out %s", scratch_path("distance"));
    run_ok("recall", command);
    snprintf(command, sizeof command, "--out %s --resume -n 3 --chunk 64", scratch_path("distance"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "add --recall-distance 32"),
          "another chunk: %s", output);
    strcat(command, " --recall-distance 32");
    run_ok("another chunk, the same distance", command);

    /* Options that a checkpoint does not keep, in its state.json: refused, for they would write files. */
    snprintf(path, sizeof path, "%s/distance/step-00000003/state.json", scratch_dir);
    char *text = (char *)xcalloc(1, 8192);
    f = fopen(path, "r");
    if (!f || fread(text, 1, 8191, f) == 0) die("%s", path);
    fclose(f);
    char *options = strstr(text, "\"options\": {");
    f = fopen(path, "w");
    fprintf(f, "%.*s\"options\": {\"dump\": \"victim\",%s", (int)(options - text), text,
            options + strlen("\"options\": {"));
    fclose(f);
    snprintf(command, sizeof command, "--out %s --resume -n 4", scratch_path("distance"));
    check(run_program(command, output, sizeof output) == 1 &&
              strstr(output, "state.json: \"dump\" is no option that a checkpoint keeps"),
          "--dump in state.json: %s", output);
    free(text);
}

static void test_resume_values(void) {
    char command[1800];
    /* Long values come back whole; --log is kept; a log that is a pipe is left alone. */
    char prompt[2001] = "";
    memset(prompt, 'a', 2000);
    write_file("long.txt", 9000);
    snprintf(
        command, sizeof command,
        "--data %s -T 2048 -B 1 --chunk 64 -n 1 --val-seqs 0 --model recall --sample-len 3 --out %s --log %s --prompt ",
        scratch_path("long.txt"), scratch_path("long"), scratch_path("long.log"));
    char *all = (char *)xcalloc(1, 8192);
    snprintf(all, 8192, "%s%s %s", PROGRAM, "", command);
    strcat(strcat(all, prompt), " >/dev/null 2>&1");
    check(system(all) == 0, "a prompt of 2,000 bytes");
    snprintf(all, 8192, "%s --out %s --resume -n 2 >/dev/null 2>&1", PROGRAM, scratch_path("long"));
    check(system(all) == 0, "resumed with a prompt of 2,000 bytes");
    int samples = 0, tokens = 0;
    FILE *f = fopen(scratch_path("long.log"), "r");
    for (int c, in = 0; f && (c = fgetc(f)) != EOF;) {
        if (c == '[') in = 1, samples++;
        if (c == ']') in = 0;
        tokens += in && c == ',';
    }
    if (f) fclose(f);
    check(samples == 2 && tokens == 2 * 2003, "%d samples with %d commas in the log", samples, tokens);
    snprintf(all, 8192,
             "timeout 60 sh -c '%s --out %s --resume -n 3 --log %s >/dev/null & cat %s >/dev/null; wait $!' 2>&1",
             PROGRAM, scratch_path("long"), scratch_path("fifo2"), scratch_path("fifo2"));
    if (mkfifo(scratch_path("fifo2"), 0666) != 0) die("fifo2");
    check(system(all) == 0, "resumed with a log that is a pipe");
    free(all);
}

/* Runs a command of the shell, without waiting for it. */
static pid_t start(const char *command) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child;
}

/* Waits until the log of a run in dir is there and has more than this many bytes, but no longer than a minute. */
static void wait_for_log(const char *dir, off_t bytes) {
    char log[400];
    struct stat st;
    snprintf(log, sizeof log, "%s/log.jsonl", dir);
    for (int wait = 0; wait < 60000 && (stat(log, &st) != 0 || st.st_size < bytes); wait++) usleep(1000);
}

/* A run that saves every step, killed at 100 random moments: every resume goes on bit for bit. */
static void test_kill(void) {
    char a[300], b[300], base[900], command[1800];
    int kills = 0, runs = 0, in_save = 0, resumes = 0;
    double whole_ms =
        0; /* of a run that is left alone: a life lasts up to a tenth of it, so that there are some steps in it */
    const uint64_t seed =
        (uint64_t)getpid() * 1000003 + (uint64_t)time(NULL); /* other moments in every run of the test */
    Rng r = rng_stream(seed, 25, 0);
    while (kills < 100 && !failed_here) {
        snprintf(a, sizeof a, "%s", scratch_path("kill_a")), snprintf(b, sizeof b, "%s", scratch_path("kill_b"));
        remove_tree(a), remove_tree(b);
        snprintf(base, sizeof base,
                 "--data recall -n 120 -T 128 -B 1 --chunk 32 --val-seqs 1 --val-every 10 --save-every 1 --seed %d "
                 "--threads 1",
                 ++runs);
        snprintf(command, sizeof command, "%s --out %s", base, a);
        const double began = now_ms();
        run_ok("the run that is left alone", command);
        whole_ms = now_ms() - began;
        mkdir(b, 0777);
        snprintf(command, sizeof command, "exec %s %s --out %s --resume >/dev/null 2>&1", PROGRAM, base, b);
        for (int status = -1; status != 0 && !failed_here;) {
            const pid_t child = start(command);
            if (kills < 100) usleep((useconds_t)(1000 * (0.01 + 0.1 * rng_uniform(&r)) * whole_ms));
            if (kills < 100) kill(child, SIGKILL);
            waitpid(child, &status, 0);
            kills += WIFSIGNALED(status);
            resumes += checkpoint_latest(b, INT32_MAX) > 0;
            DIR *d = opendir(b);
            for (struct dirent *e; d && (e = readdir(d)) != NULL;)
                in_save += checkpoint_step_of(e->d_name, ".writing-") > 0;
            if (d) closedir(d);
            check(WIFSIGNALED(status) || status == 0, "after %d kills: the run ended with status %d", kills, status);
        }
        check_same_checkpoint("killed again and again", a, b, 120, 1);
        check_same_log("killed again and again", a, b);
    }
    check(resumes > 50 && in_save > 0, "%d lives ended with a checkpoint, %d in the middle of one", resumes, in_save);
    printf("    %d kills over %d runs, %d of them while a checkpoint was being written (moments from seed %llu)\n",
           kills, runs, in_save, (unsigned long long)seed);
}

/* Ctrl-C and SIGTERM: the step is finished, saved, and the run goes on later as if nothing had been. */
static void test_interrupt(void) {
    char a[300], b[300], command[1800];
    snprintf(a, sizeof a, "%s", scratch_path("int_a")), snprintf(b, sizeof b, "%s", scratch_path("int_b"));
    const char *base = "--data recall -n 400 -T 256 -B 1 --chunk 32 --val-seqs 1 --val-every 7 --threads 1";
    snprintf(command, sizeof command, "%s --out %s", base, a);
    run_ok("the run that is left alone", command);
    snprintf(command, sizeof command, "exec %s %s --out %s --resume >/dev/null 2>&1", PROGRAM, base, b);
    const int signals[] = {SIGINT, SIGTERM};
    mkdir(b, 0777);
    int reached = 0;
    for (int i = 0; i < 2; i++) {
        int status = 0;
        const pid_t child = start(command);
        wait_for_log(b, (i + 1) * 1500); /* until it has trained a few steps */
        kill(child, signals[i]);
        waitpid(child, &status, 0);
        const int latest = checkpoint_latest(b, INT32_MAX);
        check(WIFEXITED(status) && WEXITSTATUS(status) == 128 + signals[i], "signal %d: status %x", signals[i], status);
        check(latest > reached && latest < 400, "signal %d: the newest checkpoint is of step %d", signals[i], latest);
        reached = latest;
    }
    snprintf(command, sizeof command, "--out %s --resume --threads 1", b);
    run_ok("the rest", command);
    check_same_checkpoint("interrupted twice", a, b, 400, 1);
    check_same_log("interrupted twice", a, b);

    remove_tree(
        a); /* a second Ctrl-C within one long step ends the program at once, if it is not the first one repeated */
    snprintf(command, sizeof command,
             "exec %s -n 9 -T 4096 -B 16 --chunk 256 --val-seqs 0 --threads 1 --out %s >/dev/null 2>%s", PROGRAM, a,
             scratch_path("said"));
    int status = 0;
    const pid_t child = start(command);
    wait_for_log(a, 0);
    struct stat said;
    for (int wait = 0; wait < 600 && (stat(scratch_path("said"), &said) != 0 || said.st_size == 0); wait++) {
        kill(child, wait ? 0 : SIGINT); /* until it has said that it will stop after this step */
        usleep(100000);
    }
    kill(child, SIGTERM); /* at once: the same request, sent twice */
    usleep(1100000);
    check(waitpid(child, &status, WNOHANG) == 0, "two signals at once: status %x", status);
    kill(child, SIGINT);
    waitpid(child, &status, 0);
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT && checkpoint_latest(a, INT32_MAX) == -1,
          "two Ctrl-C: status %x", status);
}

/* A real full disk, and a read-only one: the run ends with one line, what was saved is intact, and goes on when there is
   room. Needs a file system of its own: unshare, where the system allows it. */
static void test_full_disk(void) {
    char output[16384], command[2400], dir[300], a[300];
    snprintf(dir, sizeof dir, "%s", scratch_path("disk")), snprintf(a, sizeof a, "%s", scratch_path("roomy"));
    mkdir(dir, 0777);
    snprintf(command, sizeof command, "unshare -rm sh -c 'mount -t tmpfs -o size=5m tmpfs %s' >/dev/null 2>&1", dir);
    if (system(command) != 0) {
        printf("    skipped: no file system of its own for a test here\n");
        return;
    }
    const char *base = "-n 8 -T 128 -B 1 --chunk 32 --val-seqs 0 --save-every 2 --keep 0 --threads 1";
    snprintf(command, sizeof command, "%s --out %s", base, a);
    run_ok("a disk with room", command);
    snprintf(command, sizeof command, /* a filler makes room when it goes; a remount is not allowed everywhere */
             "unshare -rm sh -c 'p=\"$PWD\"/%s; mount -t tmpfs -o size=9m tmpfs %s && cd %s || exit; "
             "dd if=/dev/zero of=filler bs=1024 count=4096 2>/dev/null; \"$p\" %s --out o; echo status $?; ls -A o; "
             "if mount -o remount,ro %s 2>/dev/null; then \"$p\" --out o --resume; echo read-only status $?; "
             "mount -o remount,rw %s; fi; rm filler; "
             "\"$p\" --out o --resume >/dev/null; echo last status $?; cp -r o %s/../disk_end' 2>&1",
             PROGRAM, dir, dir, base, dir, dir, dir);
    FILE *p = popen(command, "r");
    const size_t n = p ? fread(output, 1, sizeof output - 1, p) : 0;
    output[n] = 0;
    if (p) pclose(p);
    /* a limit on the size of files, as a shell can set it, is the same: one line, not a signal */
    char limited[16384];
    snprintf(command, sizeof command, "ulimit -f 200; exec %s -n 3 -T 128 -B 1 --val-seqs 0 --out %s/limited 2>&1",
             PROGRAM, dir);
    p = popen(command, "r");
    const size_t got = p ? fread(limited, 1, sizeof limited - 1, p) : 0;
    limited[got] = 0;
    const int limit = p ? pclose(p) : -1;
    check(WIFEXITED(limit) && WEXITSTATUS(limit) == 1 && strstr(limited, "cannot save step 3: File too large"),
          "a limit on files: status %x: %s", limit, limited);
    const char *full = strstr(
        output, "error: --out o: cannot save step 6: No space left on device. The checkpoint of step 4 is intact");
    const char *status = full ? strstr(full, "status 1\nlog.jsonl\nstep-00000002\nstep-00000004\n") : NULL;
    check(full && status && strstr(status, "last status 0\n"), "a full disk: %s", output);
    if (strstr(output, "read-only status")) {
        check(strstr(output, "error: --out o: cannot write there: Read-only file system\nread-only status 1\n") != NULL,
              "a read-only disk: %s", output);
    } else {
        printf("    skipped: a disk that becomes read-only, which is not allowed here\n");
    }
    check_same_checkpoint("after the disk was full", a, scratch_path("disk_end"), 8, 1);
    check_same_log("after the disk was full", a, scratch_path("disk_end"));
}

/* Samples change not a bit of training. They are in the log, and the same again with another number of threads. */
static void test_sample_run(void) {
    char a[300], b[300], command[1800], output[16384];
    write_file("sampled.txt", 5000);
    snprintf(a, sizeof a, "%s", scratch_path("sampled")), snprintf(b, sizeof b, "%s", scratch_path("plain"));
    const char *base = "-T 200 -B 2 --chunk 48 --page 16 -n 6 --save-every 3 --keep 0 --data";
    snprintf(command, sizeof command, "%s %s --out %s", base, scratch_path("sampled.txt"), b);
    run_ok("without samples", command);
    snprintf(command, sizeof command, "%s %s --out %s --sample-every 2 --prompt 'abc' --temperature 0.8 --top-k 50",
             base, scratch_path("sampled.txt"), a);
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "sample   2 | abc") &&
              strstr(output, "sample   6 | abc"),
          "no samples: %s", output);
    check_same_checkpoint("with samples", a, b, 3, 0);
    check_same_checkpoint("with samples", a, b, 6, 0);
    char *with = read_out_log(a), *without = read_out_log(b), *kept = (char *)xcalloc(strlen(with) + 1, 1);
    int samples = 0, tokens = 0;
    for (char *line = strtok(with, "\n"); line; line = strtok(NULL, "\n")) {
        char *ids = strstr(line, "\"sample\":[256,97,98,99,");
        if (ids && ++samples == 1)
            for (char *c = ids; *c; c++) tokens += *c == ',';
        if (!ids) strcat(strcat(kept, line), "\n");
    }
    check(samples == 3 && tokens + 1 == 200 && strcmp(kept, without) == 0,
          "%d samples, the first of %d tokens; without them the log is\n%s", samples, tokens + 1, kept);
    free(with), free(without), free(kept);
    snprintf(command, sizeof command, "--out %s --resume %s --prompt xy --sample-len 5 --temperature 0", a,
             two_threads());
    char again[16384];
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "sample   6 | xy") &&
              run_program(command, again, sizeof again) == 0,
          "a sample of a finished run: %s", output);
    const char *x = strstr(output, "sample "), *y = strstr(again, "sample ");
    check(x && y && strcmp(x, y) == 0, "two samples of one checkpoint: %s and %s", x, y);
    check(run_program("-T 128 -B 1 -n 1 --val-seqs 0 --prompt '1, 2 3' --sample-len 4", output, sizeof output) == 0 &&
              strstr(output, "sample   1 |  1 2 3 | "),
          "a sample of token ids: %s", output);
}

/* 2,000 steps with everything on: memory, file descriptors and pages stay where they are. */
static void test_memory_flat(void) {
    char command[1800], dir[300], log[400], fds[64];
    snprintf(dir, sizeof dir, "%s", scratch_path("flat")), snprintf(log, sizeof log, "%s/log.jsonl", dir);
    write_shards(1);
    snprintf(command, sizeof command,
             "exec %s --data '%s/shard*.bin' --model recall -n 2000 -T 64 -B 2 --chunk 32 --page 16 --val-every 20 "
             "--save-every 100 --prompt 1 "
             "--sample-every 50 --sample-len 20 --threads 1 --out %s >/dev/null 2>&1",
             PROGRAM, scratch_dir, dir);
    const pid_t child = start(command);
    int status = 0, most[2] = {0},
        looks = 0; /* descriptors, early and later: a leak grows, what is inherited does not */
    char log_now[400];
    struct stat st;
    snprintf(log_now, sizeof log_now, "%s", log);
    snprintf(fds, sizeof fds, "/proc/%d/fd", child);
    while (waitpid(child, &status, WNOHANG) == 0) {
        const int n = count_entries(fds);
        const int late = stat(log_now, &st) == 0 && st.st_size > 100000;
        most[late] = n > most[late] ? n : most[late];
        looks += n > 0;
        usleep(2000);
    }
    check(status == 0, "status %x", status);
    if (access("/proc/self/fd", F_OK) == 0)
        check(looks > 50 && most[0] > 0 && most[1] <= most[0], "at %d moments up to %d file descriptors, later %d",
              looks, most[0], most[1]);
    double peak[2] = {0};
    char line[8192];
    FILE *f = fopen(log, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"peak_bytes\":");
        const long step = strtol(line + strlen("{\"step\":"), NULL, 10);
        if (at && step == 200) peak[0] = strtod(at + strlen("\"peak_bytes\":"), NULL);
        if (at && step == 2000) peak[1] = strtod(at + strlen("\"peak_bytes\":"), NULL);
    }
    if (f) fclose(f);
    /* 64 KB: the C library's own buffers may settle late; a leak of 40 bytes a step would show */
    check(peak[0] > 0 && peak[1] <= peak[0] + 65536, "peak memory was %.0f bytes at step 200, %.0f at step 2000",
          peak[0], peak[1]);
    printf("    peak %.0f KB at step 200, %.0f KB at step 2000; at most %d and %d file descriptors\n", peak[0] / 1024,
           peak[1] / 1024, most[0], most[1]);
}

#ifndef COMPARE
#define COMPARE "dev/compare_dumps"
#endif

static int compare(const char *a, const char *b, char *output, size_t size) {
    char command[800];
    snprintf(command, sizeof command, "%s %s %s 2>&1", COMPARE, a, b);
    FILE *p = popen(command, "r");
    if (!p) die("popen: %s", strerror(errno));
    const size_t n = fread(output, 1, size - 1, p);
    output[n] = 0;
    while (fgetc(p) != EOF) continue;
    const int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void dump_trial(Trial *t, const char *path) {
    static Dump dump;
    dump.file = safe_create(path, dump_max_tensors(&t->m));
    t->m.dump = &dump;
    trial_gradients(t);
    t->m.dump = NULL;
    check(safe_finish(&dump.file) == 0, "%s: cannot write the dump", path);
}

/* One element of each tensor of dump a, of which f is the directory, is changed in turn: each is named. b: a dump that agrees. */
static void dump_change_elements(const SafeFile *f, const char *a, const char *b) {
    static char output[1 << 16];
    for (int i = 0; i < f->count; i++) {
        const SafeTensor *t = &f->tensors[i];
        double largest = 0;
        floatX x, y;
        floatX *all = (floatX *)xcalloc(t->end - t->begin, 1);
        char name[SAFE_NAME], says[300];
        snprintf(name, sizeof name, "%s", t->name);
        if (strstr(name, ".t0")) *strstr(name, ".t0") = 0;
        safe_read(f, t, all);
        const size_t n = (size_t)((t->end - t->begin) / sizeof(floatX)), at = n / 2;
        for (size_t k = 0; k < n; k++) largest = fmax(largest, fabs((double)all[k]));
        x = all[at];
        y = x + (floatX)(largest > 0 ? 1e-2 * largest : 1);
        check(largest > 0, "%s is zero", name);
        if (strncmp(name, "layer", 5) == 0 && strstr(name, ".db")) y = x + 1; /* measured with its matrix */
        free(all);
        if (t->type == SAFE_I32 && sizeof(floatX) == 8) continue; /* two of them to a floatX */
        if (i % 7 == 0) y = (floatX)NAN;
        if (t->type == SAFE_I32) y = x == 0 ? (floatX)1e-44 : 0; /* an id of 7, or 0 */
        const int fd = open(a, O_RDWR);
        if (write_at(fd, f->data + t->begin + at * sizeof(floatX), &y, sizeof y)) die("%s", a);
        snprintf(says, sizeof says, "1 diverge, the first is %s\n", name);
        check(compare(b, a, output, sizeof output) == 1 && strstr(output, says), "an error planted in %s: %s", name,
              strstr(output, "bound") ? strstr(output, "bound") : output);
        if (write_at(fd, f->data + t->begin + at * sizeof(floatX), &x, sizeof x)) die("%s", a);
        close(fd);
    }
}

/* An error in the computation of `plain`, which is `whole` but for it: what it touches first is named, not what
   inherits it. a: the dump of whole. b: a place for others. */
static void dump_change_model(Trial *whole, Trial *plain, const char *a, const char *b) {
    static char output[1 << 16];
    const ModelConfig config = whole->m.config;
    const struct {
        TensorId id;
        int l;
        const char *first;
    } planted[] = {{WTE, 0, "layer.0.x"},
                   {LN1W, 1, "layer.1.ln1"},
                   {WQ, 2, config.qk_norm ? "layer.2.qraw" : "layer.2.q"},
                   {WV, 1, "layer.1.v"},
                   {WK, 0, config.qk_norm ? "layer.0.kraw" : "layer.0.k"},
                   {WO, 2, "layer.2.xmid"},
                   {WUP, 1, "layer.1.up"},
                   {WDOWN, 2, "xlast"},
                   {LNFW, 0, "lnf"}};
    for (int i = 0; i < COUNT(planted); i++) {
        floatX *w = tensor(&plain->m, plain->m.params, planted[i].id, planted[i].l);
        const size_t n = tensor_size(plain->m.tensors, planted[i].id);
        const size_t used = planted[i].id == WTE ? (size_t)config.V * config.C : n;
        for (size_t k = 0; k < used; k++) w[k] *= (floatX)1.01;
        dump_trial(plain, b);
        char says[100];
        snprintf(says, sizeof says, "the first is %s\n", planted[i].first);
        check(compare(a, b, output, sizeof output) == 1 && strstr(output, says), "%s is 1 %% off: %s",
              whole->m.tensors[planted[i].id].name, strstr(output, "bound"));
        memcpy(w, tensor(&whole->m, whole->m.params, planted[i].id, planted[i].l), n * sizeof(floatX));
    }
    if (config.pos == POS_ROPE) {
        plain->m.config.rope_theta *= 1.01;
        dump_trial(plain, b);
        check(compare(a, b, output, sizeof output) == 1 && strstr(output, "the first is cosine\n"), "another theta: %s",
              strstr(output, "bound"));
        plain->m.config.rope_theta = config.rope_theta;
    }
    plain->batch.targets[5] = plain->batch.targets[5] == 3 ? 4 : 3;
    dump_trial(plain, b);
    check(compare(a, b, output, sizeof output) == 1 && strstr(output, "the first is targets\n"), "another target: %s",
          strstr(output, "bound"));
}

/* Dumps of one step by other schedules agree, tensor by tensor, for every family; a dump changes nothing. Every tensor
   that the step makes is there. Then one element of each tensor is changed, a tensor at a time: each is named. */
static void test_dump(void) {
    static char output[1 << 16];
    char a[300], b[300];
    snprintf(a, sizeof a, "%s", scratch_path("dump_a")), snprintf(b, sizeof b, "%s", scratch_path("dump_b"));
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 3);
        const TrainConfig one = tiny_run(61, 2, 64, 64);
        Trial *whole = trial_new(&config, &one), *plain = trial_new(&config, &one);
        dump_trial(whole, a);
        trial_gradients(plain);
        check(memcmp(whole->m.grads, plain->m.grads, plain->m.num_params * sizeof(floatX)) == 0,
              "%s: a dump changes the gradient", family_names[family]);
        for (int i = 0; i < 4; i++) {
            TrainConfig run = tiny_run(61, 2, i & 1 ? 8 : 24, 8);
            run.recompute = i & 2 ? RECOMPUTE_LAYER : RECOMPUTE_CHUNK;
            Trial *t = trial_new(&config, &run);
            dump_trial(t, b);
            check(compare(a, b, output, sizeof output) == 0 && strstr(output, "none diverges"), "%s, chunk %d:\n%s",
                  family_names[family], run.chunk_size, output);
            trial_free(t);
        }
        /* per layer: activations in use, k, v, 11 to 12 gradients; of the model: ids, head, losses; parameters */
        ActField acts[NUM_ACTS];
        acts_describe(&config, acts);
        int want = 0;
        for (int i = 0; i < NUM_ACTS; i++) want += acts[i].width > 0;
        want = config.L * (want + 2 + 13 + (config.mlp == MLP_SWIGLU)) + 2 + 8 + (config.norm == NORM_LAYERNORM) +
               2 * (config.pos == POS_ROPE);
        for (int id = 0; id < NUM_TENSORS; id++) want += tensor_copies(whole->m.tensors, config.L, id);
        SafeFile f = safe_open(a);
        check(f.count == want, "%s: %d tensors in the dump, not %d", family_names[family], f.count, want);
        dump_change_elements(&f, a, b);
        safe_close(&f);
        dump_change_model(whole, plain, a, b);
        trial_free(whole), trial_free(plain);
    }
}

/* Dumps that cannot be compared, and --dump as a user meets it. */
static void test_dump_run(void) {
    static char output[1 << 16];
    char a[300], b[300], command[800];
    snprintf(a, sizeof a, "%s", scratch_path("dump_a")), snprintf(b, sizeof b, "%s", scratch_path("dump_b"));
    const TrainConfig longer = tiny_run(61, 2, 64, 64), shorter = tiny_run(60, 2, 64, 64);
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 3);
    Trial *t = trial_new(&config, &shorter), *u = trial_new(&config, &longer);
    dump_trial(u, a);
    dump_trial(t, b);
    check(compare(a, b, output, sizeof output) == 1 && strstr(output, "other tokens"), "another length: %s", output);
    /* a dump of another program: it has not everything, and something more */
    SafeFile all = safe_open(b);
    SafeWriter some = safe_create(a, (size_t)all.count + 1), other = safe_create(scratch_path("other"), 1);
    for (int i = 0; i < all.count; i++) {
        const SafeTensor *x = &all.tensors[i];
        char *raw = (char *)xcalloc((size_t)(x->end - x->begin), 1);
        safe_read(&all, x, raw);
        if (strcmp(x->name, "layer.0.lse.t0") != 0)
            safe_write_at(&some, safe_add(&some, x->name, x->type, x->dims, x->shape), raw,
                          (size_t)(x->end - x->begin));
        free(raw);
    }
    const float zero = 0;
    const uint64_t one = 1;
    safe_write_at(&some, safe_add(&some, "more", SAFE_F32, 1, &one), &zero, sizeof zero);
    safe_write_at(&other, safe_add(&other, "more", SAFE_F32, 1, &one), &zero, sizeof zero);
    check(safe_finish(&some) == 0 && safe_finish(&other) == 0, "cannot write dumps");
    safe_close(&all);
    check(compare(b, a, output, sizeof output) == 1 && strstr(output, "> layer.0.lse ") && strstr(output, "> more "),
          "what only one has: %s", output);
    snprintf(command, sizeof command, "%s --common", a);
    check(compare(b, command, output, sizeof output) == 0 && strstr(output, "(2 that only one dump has left out)"),
          "--common: %s", output);
    t->m.params[0] += 1;
    dump_trial(t, b);
    check(compare(b, command, output, sizeof output) == 1 && strstr(output, "diverge, the first is"), "--common: %s",
          output);
    snprintf(command, sizeof command, "%s --common", scratch_path("other"));
    check(compare(b, command, output, sizeof output) == 2 && strstr(output, "no tensor in common"),
          "nothing in common: %s", output);
    trial_free(t), trial_free(u);
    check(compare(a, "", output, sizeof output) == 2 && compare(a, "/nonexistent", output, sizeof output) == 2 &&
              compare(a, write_file("no dump", 100), output, sizeof output) == 2,
          "no second dump: %s", output);
    snprintf(command, sizeof command, "--dump %s -n 2 -T 128 -B 1 --val-seqs 0", b);
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "every intermediate of step 1"),
          "--dump: %s", output);
    SafeFile f = safe_open(b);
    check(safe_find(&f, "layer.1.dkraw.t96") && safe_find(&f, "layer.0.dwq") && safe_find(&f, "dlogits.t0"),
          "--dump lacks tensors");
    safe_close(&f);
    if (access("/dev/full", W_OK) == 0)
        check(run_program("--dump /nonexistent/d -n 1", output, sizeof output) == 1 &&
                  strstr(output, "--dump /nonexistent/d: cannot write"),
              "a dump into nowhere: %s", output);
}

/* A whole run is the same for any number of threads and either --recompute, and another seed is another run. */
static void test_same_log(void) {
    char text[600], base[700];
    snprintf(text, sizeof text, "%s", write_file("text", 5000));
    snprintf(base, sizeof base, "--data %s -T 300 -B 2 --chunk 160 --page 16 -n 3 --val-every 2 --grad-accum 2", text);
    const char *const more[] = {"--threads 2",       "--threads 1", "--threads 4",
                                "--recompute layer", "--seed 1",    "--seed 2"};
    char *first = NULL;
    set_threads(2);
    const int threads = max_threads();
    set_threads(1);
    if (threads == 1) printf("    threads skipped: built without OpenMP\n");
    for (int i = 0; i < COUNT(more); i++) {
        char command[800];
        if (threads == 1 && strstr(more[i], "threads")) continue;
        snprintf(command, sizeof command, "%s %s", base, more[i]);
        char *log = read_log(command);
        check(strstr(log, "val_by_position") && strstr(log, "grad_norm") && strstr(log, "\"tokens\":1200"),
              "the log lacks a key:\n%s", log);
        if (!first) {
            first = log;
            continue;
        }
        const int same = strcmp(first, log) == 0;
        check(same == (strcmp(more[i], "--seed 2") != 0), "%s: the log %s the first", more[i],
              same ? "equals" : "differs from");
        free(log);
    }
    free(first);
    char *recall = read_log("-n 1 -B 2 --val-seqs 3");
    check(strstr(recall, "\"recall_by_distance\":[{\"from\":32,\"to\":63,\"count\":") != NULL,
          "recall_by_distance is missing:\n%s", recall);
    free(recall);
}

static double log_number(const char *path, const char *key) {
    char line[4096] = "", find[64];
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    snprintf(find, sizeof find, "\"%s\":", key);
    const char *at = strstr(line, find);
    return at ? strtod(at + strlen(find), NULL) : NAN;
}

/* The ledger is what is measured, in every mode; and peak memory grows with T by the pages, 1.05 times at most. Planned
   memory may be up to 5 % more than the peak (what was planned and not touched to the last page), and at most 1 % less (what
   the C library keeps for itself). */
static void test_memory(void) {
    char command[700], output[16384], text[300];
    snprintf(text, sizeof text, "%s", write_file("long", 17000));
    const char *const modes[] = {
        "-T 4096 --val-seqs 0",
        "-T 16384 --val-seqs 0",
        "-T 8192 --prompt a",
        "-T 4096 --val-seqs 1 -B 2",
        "-T 4096 --carry none",
        "-T 4096 --recompute layer",
        "-T 2048 --chunk 4096",
        "-T 2048 --chunk 2048 --recompute layer -B 2",
        "-T 256 --model gpt2 -B 1 --val-seqs 0",
        "-T 512 --model gpt2 -B 1 --val-seqs 0",
        "-T 1024 --model gpt2 -B 1 --val-seqs 0 --chunk 1024",
        "-T 512 --model llama-15m -B 1 --val-seqs 0",
        "-T 1024 --model llama-15m -B 1 --val-seqs 0",
        "-T 2048 --model llama-15m -B 1 --val-seqs 0",
    };
    double peak[2] = {0};
    for (int i = 0; i < COUNT(modes); i++) {
        const char *log = scratch_path("memory.jsonl");
        remove(log); /* a plan writes behind what is there */
        snprintf(command, sizeof command, "--plan --data %s -n 1 --log %s %s", text, log, modes[i]);
        int status = run_program(command, output, sizeof output);
        const double bytes = log_number(log, "host_bytes");
        check(status == 0 && strstr(output, "work of a step"), "train_oomb %s: status %d", command, status);
        snprintf(command, sizeof command, "--data %s -n 1 --log %s %s", text, log, modes[i]);
        status = run_program(command, output, sizeof output);
        const char *at = strstr(output, "measured (");
        const double off = at ? strtod(at + strlen("measured ("), NULL) : NAN,
                     plan = 100 * (log_number(log, "peak_bytes") / bytes - 1);
        check(status == 0 && off > -5 && off <= 1,
              "train_oomb %s: status %d, measured memory is %+.1f %% of the ledger", command, status, off);
        check(plan > -5 && plan <= 1, "train_oomb %s: measured memory is %+.1f %% of --plan", command, plan);
        if (i < 2) peak[i] = log_number(log, "peak_bytes");
    }
    /* What no machine here can hold is planned in the memory of the program: 1 GB of address space is enough. */
    const char *log = scratch_path("large.jsonl");
    snprintf(command, sizeof command,
             "sh -c 'ulimit -v 1000000; exec %s --plan --model qwen2.5-7b -T 4M --threads 1 --log %s' 2>&1", PROGRAM,
             log);
    FILE *p = popen(command, "r");
    output[p ? fread(output, 1, sizeof output - 1, p) : 0] = 0;
    const int planned = p ? pclose(p) : -1;
    /* 4M tokens x 28 layers x 4 heads of 128 x K, V, dK, dV x 4 bytes alone are 939 GB */
    check(planned == 0 && log_number(log, "host_bytes") > 939e9 && strstr(output, "the run does not fit"),
          "a plan beyond the machine: status %x, %g bytes: %s", planned, log_number(log, "host_bytes"), output);
    const ModelConfig m = model_config(preset_find("tiny"));
    const double page_bytes = 4.0 * m.L * m.NKV * m.HD * sizeof(float), slope = (peak[1] - peak[0]) / (16384 - 4096);
    check(slope < 1.05 * page_bytes && slope > 0.9 * page_bytes,
          "peak memory grows by %.0f bytes per token; the pages of a token are %.0f", slope, page_bytes);
    printf("    %.0f bytes per token, of which pages %.0f\n", slope, page_bytes);
}
