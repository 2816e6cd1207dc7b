/* What reads files: text and token files, JSON, safetensors; and the helpers of tests that need files or expect the
   program to end. Part of test_oomb.c. */

// ----------------------------------------------------------------------------------------------
// data

static char scratch_dir[200];

static const char *scratch_path(const char *name) {
    static char path[4][256];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, 256, "%s/%s", scratch_dir, name);
    return p;
}

static const char *write_file(const char *name, size_t bytes) {
    const char *path = scratch_path(name);
    FILE *f = fopen(path, "wb");
    for (size_t i = 0; f && i < bytes; i++) fputc((int)(i * i / 7 % 251), f);
    if (!f || fclose(f) != 0) die("%s: cannot write", path);
    return path;
}

/* What die() leaves unfreed is no leak: out before a sanitizer looks. */
static void leave(void) { _exit(1); }

/* Runs f in a process of its own; it must end with status 1 and an error that says all of says (up to 3). */
static void check_dies(const char *what, void (*f)(void *), void *arg, const char *const *says) {
    char text[4096] = "";
    int to[2];
    fflush(stdout);
    if (pipe(to) != 0) die("pipe: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        dup2(to[1], 2);
        atexit(leave);
        f(arg);
        _exit(0);
    }
    close(to[1]);
    size_t n = 0;
    for (ssize_t got; n < sizeof text - 1 && (got = read(to[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    close(to[0]);
    int status = 0;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 1 && strncmp(text, "error: ", 7) == 0 && strchr(text, '\n') &&
              !strchr(text, '\n')[1],
          "%s: status %d, and says: %s", what, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), text);
    for (int i = 0; i < 3 && says[i]; i++)
        check(strstr(text, says[i]) != NULL, "%s: does not say \"%s\" but: %s", what, says[i], text);
}

/* A token file: header words 0 .. 2, then n ids of `width` bytes, then `extra` more (or fewer) bytes. */
static const char *write_tokens(const char *name, uint32_t magic, uint32_t version, uint32_t count, int width,
                                const uint32_t *ids, size_t n, int extra) {
    const char *path = scratch_path(name);
    uint32_t header[256] = {magic, version, count};
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: cannot write", path);
    fwrite(header, 4, 256, f);
    for (size_t i = 0; i < n; i++) fwrite(&ids[i], (size_t)width, 1, f);
    for (int i = 0; i < extra; i++) fputc(0, f);
    const long size = ftell(f) + (extra < 0 ? extra : 0);
    if (fclose(f) != 0 || truncate(path, size) != 0) die("%s: cannot write", path);
    return path;
}

/* Every token of the stream is an input once and a target once per epoch; epochs differ; the first token is the start. */
static void test_data_bytes(void) {
    const int T = 10, n = 1037;
    TokenFiles files = files_open("--data", write_file("bytes", n));
    Data d1 = data_open_files(&files, T, 0, n + 1, 1, 3), flat = data_open_files(&files, T, 0, n + 1, 0, 0);
    int in[10], out[10], seen[103] = {0}, moved = 0;
    check(files.kind == DATA_BYTES && files.count == (uint64_t)n + 1 && d1.samples == 103,
          "%d tokens make %llu samples", n + 1, (unsigned long long)d1.samples);
    for (int i = 0; i < 103; i++) {
        data_sample(&flat, i, in, out, NULL);
        for (int t = 0; t < T; t++) {
            const int at = i * T + t; /* token of the stream; byte at - 1 of the file */
            const int want = at ? (int)((size_t)(at - 1) * (at - 1) / 7 % 251) : BYTES_START;
            check(in[t] == want && out[t] == (int)((size_t)at * at / 7 % 251), "token %d: %d -> %d", at, in[t], out[t]);
        }
    }
    for (int epoch = 0; epoch < 3; epoch++) {
        for (int i = 0; i < 103; i++) {
            data_sample(&d1, epoch * 103 + i, in, out, NULL);
            seen[d1.order[i]]++;
            moved += d1.order[i] != (uint32_t)i;
        }
    }
    for (int epoch = 0; epoch < 2; epoch++) { /* the next one has another order */
        uint32_t order[103];
        int same = 0;
        data_sample(&d1, epoch * 103, in, out, NULL);
        memcpy(order, d1.order, sizeof order);
        data_sample(&d1, epoch * 103 + 103, in, out, NULL);
        for (int i = 0; i < 103; i++) same += order[i] == d1.order[i];
        check(same < 20, "epochs %d and %d have %d of 103 samples at the same place", epoch, epoch + 1, same);
    }
    for (int i = 0; i < 103; i++) check(seen[i] == 3, "sample %d came %d times in 3 epochs", i, seen[i]);
    check(moved > 250, "shuffled: %d of 309 moved", moved);
    data_close(&d1), data_close(&flat);
    Data part = data_open_files(&files, T, 500, 100, 0, 0); /* a range: tokens 500 .. 599 */
    data_sample(&part, 0, in, out, NULL);
    check(part.samples == 9 && in[0] == (int)(499u * 499 / 7 % 251), "a range of the stream");
    data_close(&part), files_close(&files);
}

/* Shards of both widths, and texts, as one stream: windows of every length from every place, across every edge, masks
   included. Documents are packed: what separates them is a token like others. */
static void test_data_shards(void) {
    const size_t counts[] = {1, 700, 2, 1, 333};
    uint32_t ids[1037];
    int seen_id[1037], scored_id[1037], out[1037];
    Rng r = rng_stream(21, 0, 0);
    uint64_t masked = 0;
    for (size_t k = 0, at = 0; k < 5; at += counts[k++]) {
        char name[32];
        const int wide = k % 2;
        for (size_t i = at; i < at + counts[k]; i++) {
            ids[i] = (uint32_t)rng_below(&r, 50000);
            seen_id[i] = scored_id[i] = (int)ids[i];
            const int kind = wide ? (int)rng_below(&r, 8) : 7;
            if (kind > 2) continue;
            if (kind < 2) ids[i] = kind ? (uint32_t)-1 : (uint32_t)-100, seen_id[i] = 0; /* no token */
            else ids[i] |= 0x80000000u;                                                  /* seen, not scored */
            scored_id[i] = TARGET_MASKED;
            masked++;
        }
        snprintf(name, sizeof name, "part_%zu.bin", k);
        write_tokens(name, wide ? 20240801 : 20240520, wide ? 7 : 1, (uint32_t)counts[k], wide ? 4 : 2, ids + at,
                     counts[k], 0);
    }
    TokenFiles f = files_open("--data", scratch_path("part_*.bin"));
    files_check(&f, 50000);
    check(f.kind == DATA_TOKENS && f.num_shards == 5 && f.count == 1037 && f.masked == masked && masked > 50,
          "%d shards, %llu tokens, %llu masked", f.num_shards, (unsigned long long)f.count,
          (unsigned long long)f.masked);
    for (int trial = 0; trial < 3000; trial++) {
        const size_t from = rng_below(&r, 1037), n = 1 + rng_below(&r, 1037 - from);
        files_read(&f, from, n, out);
        size_t right = 0;
        for (size_t i = 0; i < n; i++)
            right += token_input(out[i]) == seen_id[from + i] && token_target(out[i]) == scored_id[from + i];
        check(right == n, "tokens %zu .. %zu: %zu are right", from, from + n - 1, right);
    }
    Data d = data_open_files(&f, 100, 0, f.count, 1, 1);
    int in[100], target[100], seen = 0;
    for (uint64_t i = 0; i < d.samples; i++) {
        data_sample(&d, i, in, target, NULL);
        const int at = (int)d.order[i] * 100;
        for (int t = 0; t < 100; t++) seen += in[t] == seen_id[at + t] && target[t] == scored_id[at + t + 1];
    }
    check(d.samples == 10 && seen == 1000,
          "a masked id is no target, and token 0 as an input; a marked one is no target, and itself: %d of 1000", seen);
    data_close(&d), files_close(&f);

    write_file("text_a", 5), write_file("text_b", 3); /* each text begins with a start token */
    f = files_open("--data", scratch_path("text_?"));
    files_read(&f, 0, 10, out);
    const int text[] = {BYTES_START, 0, 0, 0, 1, 2, BYTES_START, 0, 0, 0};
    check(f.count == 10 && memcmp(out, text, sizeof text) == 0, "two texts as one stream");
    files_close(&f);
    write_file("odd[1].txt", 9); /* a name that looks like a pattern is a name */
    f = files_open("--data", scratch_path("odd[1].txt"));
    check(f.count == 10, "odd[1].txt");
    files_close(&f);
}

static void die_of_files(void *path) {
    TokenFiles f = files_open("--data", (const char *)path);
    files_check(&f, 1000); /* before anything is read to train on */
}

/* Every way in which a token file can be broken: one line that says which file, where, and what. */
static void test_data_hostile(void) {
    uint32_t ids[40];
    for (uint32_t i = 0; i < 40; i++) ids[i] = 10 * i;
    const uint32_t V_id = 1000, huge = 0x7FFFFFFF, marked = 0x80000000u + 1000, mask16 = 0xFFFF;
    const struct {
        const char *name;
        uint32_t magic, version, count;
        int width;
        const uint32_t *bad; /* planted at token 7 */
        int extra;
        const char *says[3];
    } cases[] = {
        {"magic.bin", 1234, 1, 40, 2, NULL, 0, {"magic.bin", "this one with 1234", "20240520"}},
        {"version16.bin", 20240520, 2, 40, 2, NULL, 0, {"version16.bin", "version 2", "version 1"}},
        {"version32.bin", 20240801, 1, 40, 4, NULL, 0, {"version32.bin", "version 1", "version 7"}},
        {"short.bin", 20240520, 1, 40, 2, NULL, -1, {"short.bin", "1104 bytes", "1103"}},
        {"long.bin", 20240520, 1, 40, 2, NULL, 1, {"long.bin", "1104 bytes", "1105"}},
        {"count.bin", 20240801, 7, 0xFFFFFFFFu, 4, NULL, 0, {"count.bin", "4294967295 tokens", "17179870204"}},
        {"fewer.bin", 20240801, 7, 39, 4, NULL, 0, {"fewer.bin", "39 tokens", "1184"}},
        {"none.bin", 20240520, 1, 0, 2, NULL, 0, {"none.bin", "without tokens"}},
        {"id16.bin", 20240520, 1, 40, 2, &V_id, 0, {"id16.bin: token 7 (byte 1038)", "id 1000", "999"}},
        {"id32.bin", 20240801, 7, 40, 4, &V_id, 0, {"id32.bin: token 7 (byte 1052)", "id 1000", "999"}},
        {"huge32.bin", 20240801, 7, 40, 4, &huge, 0, {"huge32.bin: token 7 (byte 1052)", "id 2147483647"}},
        {"marked32.bin", 20240801, 7, 40, 4, &marked, 0, {"marked32.bin: token 7 (byte 1052)", "id 1000", "999"}},
        {"mask16.bin", 20240520, 1, 40, 2, &mask16, 0, {"mask16.bin: token 7", "id 65535"}},
        {"renamed.txt",
         20240520,
         1,
         40,
         2,
         NULL,
         -1,
         {"renamed.txt", "1104 bytes"}}, /* the magic counts, not the name */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        uint32_t planted[40];
        memcpy(planted, ids, sizeof ids);
        if (cases[i].bad) planted[7] = *cases[i].bad;
        const char *path = write_tokens(cases[i].name, cases[i].magic, cases[i].version, cases[i].count, cases[i].width,
                                        planted, cases[i].count ? 40 : 0, cases[i].extra);
        check_dies(cases[i].name, die_of_files, (void *)path, cases[i].says);
    }
    const char *header = write_tokens("header.bin", 20240520, 1, 0, 2, ids, 0, -4);
    check_dies("half a header", die_of_files, (void *)header, (const char *[3]){"header.bin", "1020 bytes", "1024"});
    check_dies("an empty file", die_of_files, (void *)write_file("empty.bin", 0),
               (const char *[3]){"empty.bin", "0 bytes"});
    check_dies("an empty text", die_of_files, (void *)write_file("empty.txt", 0),
               (const char *[3]){"empty.txt", "empty"});
    check_dies("no match", die_of_files, (void *)scratch_path("nothing_*.bin"),
               (const char *[3]){"nothing_*.bin", "no file"});
    check_dies("a directory", die_of_files, (void *)scratch_path(""), (const char *[3]){"not a regular file"});
    check_dies("no such file", die_of_files, (void *)scratch_path("gone.bin"),
               (const char *[3]){"gone.bin", "No such file"});
    write_tokens("mix_a.bin", 20240520, 1, 40, 2, ids, 40, 0), write_file("mix_b.txt", 30);
    check_dies("text and ids", die_of_files, (void *)scratch_path("mix_*"),
               (const char *[3]){"mix_b.txt is text", "mix_a.bin"});
}

static void die_of_change(void *path) { /* the file changes after it was checked */
    int out[8];
    TokenFiles f = files_open("--data", (const char *)path);
    files_check(&f, 1000);
    const uint32_t bad = 5000;
    const int fd = open((const char *)path, O_WRONLY);
    if (write_at(fd, TOKENS_HEADER + 2 * 3, &bad, 2) != 0) _exit(2);
    close(fd);
    files_read(&f, 0, 8, out);
}

/* Files beyond 2 and 4 GiB: what lies past those offsets is read, and a bad id there is found. */
static void test_data_large(void) {
    const uint64_t count[2] = {2200000000u, 1100000000u}; /* 4.4 GB each, all but a few blocks of it a hole */
    uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t many[20000] = {0};
    const char *changed = write_tokens("changed.bin", 20240520, 1, 20000, 2, many, 20000, 0);
    check_dies("a file that changes", die_of_change, (void *)changed,
               (const char *[3]){"changed.bin: token 3", "id 5000"});
    for (int wide = 0; wide < 2; wide++) {
        const int width = wide ? 4 : 2;
        const char *path = write_tokens(wide ? "large32.bin" : "large16.bin", wide ? 20240801 : 20240520, wide ? 7 : 1,
                                        (uint32_t)count[wide], width, ids, 0, 0);
        const int fd = open(path, O_WRONLY);
        if (truncate(path, (off_t)(TOKENS_HEADER + count[wide] * (uint64_t)width)) != 0) {
            printf("    skipped: no file of 4.4 GB here: %s\n", strerror(errno));
            close(fd);
            return;
        }
        const uint64_t at[] = {((uint64_t)1 << 31) / width, ((uint64_t)1 << 32) / width, count[wide] - 3};
        for (int i = 0; i < 3; i++) {
            for (uint32_t k = 0; k < 6; k++) { /* around the offset of 2 and 4 GiB, and at the end */
                const uint32_t id = 100 * (uint32_t)(i + 1) + k;
                if (write_at(fd, TOKENS_HEADER + (at[i] - 3 + k) * (uint64_t)width, &id, (size_t)width))
                    die("%s", path);
            }
        }
        TokenFiles f = files_open("--data", path);
        f.V = 1000;
        for (int i = 0; i < 3; i++) {
            int out[6] = {0};
            files_read(&f, at[i] - 3, 6, out);
            for (int k = 0; k < 6; k++)
                check(out[k] == 100 * (i + 1) + k, "token %llu + %d is %d", (unsigned long long)at[i] - 3, k, out[k]);
        }
        Data d = data_open_files(&f, 1 << 20, 0, f.count, 0, 0); /* through sample numbers too */
        int *in = (int *)xcalloc(1 << 20, sizeof(int)), *target = (int *)xcalloc(1 << 20, sizeof(int));
        data_sample(&d, at[1] >> 20, in, target, NULL);
        check(in[at[1] & 0xFFFFF] == 203 && target[at[1] & 0xFFFFF] == 204, "the sample past 4 GiB begins with %d",
              in[at[1] & 0xFFFFF]);
        free(in), free(target);
        data_close(&d), files_close(&f);
        close(fd);
        if (!wide) {
            const uint32_t bad = 1001;
            const int again = open(path, O_WRONLY);
            if (write_at(again, TOKENS_HEADER + (at[1] + 5) * 2, &bad, 2)) die("%s", path);
            close(again);
            check_dies("an id past 4 GiB", die_of_files, (void *)path,
                       (const char *[3]){"large16.bin: token 2147483653 (byte 4294968330)", "id 1001"});
        }
        remove(path);
    }
    const char *path = write_file("large.txt", 10); /* text: token i is byte i - 1 */
    const uint64_t far = ((uint64_t)1 << 32) + 12345;
    const int fd = open(path, O_WRONLY);
    if (write_at(fd, far, "xyz", 3)) die("%s", path);
    close(fd);
    TokenFiles f = files_open("--data", path);
    int out[3];
    files_read(&f, far + 1, 3, out);
    check(f.count == far + 4 && out[0] == 'x' && out[2] == 'z', "a text past 4 GiB: %d %d %d", out[0], out[1], out[2]);
    files_close(&f);
    remove(path);
}

/* The promises of the recall task, over many sequences: one fact per key, every question at least `distance` after its
   fact and answered by it, nothing else scored, the answer never in the input. */
static void test_data_recall(void) {
    const int T = 512;
    int in[512], out[512], far[512];
    for (int distance = 1; distance <= 128; distance *= 2) {
        Data r = data_open_recall(T, distance, 5);
        for (int n = 0; n < 50; n++) {
            data_sample(&r, n, in, out, far);
            int fact[RECALL_KEYS], facts = 0, questions = 0;
            for (int t = 0; t < T; t++) {
                if (in[t] >= RECALL_KEY0) continue;
                fact[in[t] / RECALL_VALUES] = t;
                facts++;
            }
            check(facts == RECALL_KEYS, "%d facts", facts);
            for (int t = 0; t < T; t++) {
                const int key = in[t] - RECALL_KEY0;
                check(in[t] < RECALL_VALUE0 || (in[t] >= RECALL_FILLER0 && in[t] < RECALL_V), "position %d shows %d", t,
                      in[t]);
                if (key < 0 || key >= RECALL_KEYS) {
                    check(out[t] == TARGET_MASKED, "position %d is no question but scored", t);
                    continue;
                }
                questions++;
                check(far[t] == t - fact[key] && far[t] >= distance, "question at %d, fact at %d, distance %d", t,
                      fact[key], far[t]);
                check(out[t] - RECALL_VALUE0 == in[fact[key]] % RECALL_VALUES, "question at %d: answer %d", t, out[t]);
            }
            check(questions == T / RECALL_TOKENS_PER_QUESTION, "%d questions", questions);
        }
        int again[512], other[512];
        data_sample(&r, 7, again, out, NULL);
        data_sample(&r, 8, other, out, NULL);
        data_sample(&r, 7, in, out, NULL);
        check(memcmp(in, again, sizeof in) == 0 && memcmp(in, other, sizeof in) != 0,
              "a sample is a function of its number");
        data_close(&r);
    }
}

/* Validation through a batch that the sequences do not fill: each is counted once, by position and by distance. */
static void test_validate(void) {
    ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    config.V = RECALL_V, config.Vp = 320;
    const TrainConfig run = tiny_run(128, 2, 32, 16);
    Trial *t = trial_new(&config, &run);
    Data r = data_open_recall(128, 32, 5);
    const Validation three = validate(&t->m, &r, &t->batch, 3), four = validate(&t->m, &r, &t->batch, 4);
    long at = 0, asked = 0;
    double sum = 0;
    for (int i = 0; i < BUCKETS; i++) {
        at += three.at_position[i];
        asked += three.asked[i];
        sum += three.by_position[i];
        check(three.correct[i] <= three.asked[i], "bucket %d: %.0f of %ld are correct", i, three.correct[i],
              three.asked[i]);
    }
    check(three.scored == 48 && at == 48 && asked == 48 && four.scored == 64,
          "scored %ld, by position %ld, by distance %ld", three.scored, at, asked);
    check(fabs(sum - three.loss) < 1e-5 * sum && four.loss > three.loss, "losses by position add up to %g, not %g", sum,
          three.loss);
    check(three.asked[bucket(31)] == 0 && three.asked[bucket(64)] > 0, "distances begin at 32");
    check(bucket(0) == 0 && bucket(1) == 1 && bucket(2) == 2 && bucket(3) == 2 && bucket(4) == 3 && bucket(4095) == 12,
          "power-of-two buckets");
    data_close(&r);
    trial_free(t);
}

// ----------------------------------------------------------------------------------------------
// files: JSON and safetensors

/* 1 if the text is one whole value; its numbers and strings on the way go into what a caller would read. */
static int json_accepts(const char *text) {
    Json j = json_begin(text, strlen(text));
    json_skip(&j);
    return json_end(&j);
}

static void test_json(void) {
    const char *const good[] = {"0",
                                "-1.5e+10",
                                "\"\"",
                                "[]",
                                "{}",
                                " [ 1 , [2,{\"a\":null}] , true ] ",
                                "{\"a\":{\"b\":[false,3]},\"c\":\"\\\"]}\"}"};
    const char *const bad[] = {"",    "01",        "-",     "1.",        "1e",       "+1",         ".5",
                               "nul", "[1,]",      "[1 2]", "{\"a\"}",   "{\"a\":}", "{\"a\":1,}", "{a:1}",
                               "[",   "{\"a\":1",  "\"abc", "\"abc\\\"", "[1]]",     "1 2",        "{\"a\":1]",
                               "[1}", "[\"a\":1]", "NaN",   "Infinity",  "{,}"};
    for (int i = 0; i < COUNT(good); i++) check(json_accepts(good[i]), "refused: %s", good[i]);
    for (int i = 0; i < COUNT(bad); i++) check(!json_accepts(bad[i]), "accepted: %s", bad[i]);
    char deep[400], text[16], key[16];
    memset(deep, '[', sizeof deep);
    deep[199] = 0;
    check(!json_accepts(deep), "200 open brackets");

    const char *all =
        "{\"x\": -12.5e1, \"n\":18446744073709551615, \"s\":\"a\\u00e9\\ud83d\\ude00\\n\\\"\",\"l\":[1,2,3]}";
    Json j = json_begin(all, strlen(all));
    double x = 0;
    uint64_t n = 0, sum = 0;
    for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
        if (*key == 'x') json_double(&j, &x);
        else if (*key == 'n') json_u64(&j, &n);
        else if (*key == 's') json_string(&j, text, sizeof text);
        else
            for (json_open(&j, '['); json_item(&j); sum += n) json_u64(&j, &n);
    }
    check(json_end(&j) && x == -125 && sum == 6 && strcmp(text, "a\xC3\xA9\xF0\x9F\x98\x80\n\"") == 0,
          "%g, %llu, %s: %s", x, (unsigned long long)sum, text, j.error ? j.error : "");
    const char *const not_u64[] = {"-1", "1.5", "18446744073709551616", "1e3"};
    for (int i = 0; i < COUNT(not_u64); i++) {
        j = json_begin(not_u64[i], strlen(not_u64[i]));
        check(!json_u64(&j, &n), "%s is taken for a whole number", not_u64[i]);
    }
    const char *const not_string[] = {"\"0123456789abcdef\"", "\"\\x\"", "\"\\u12\"", "\"\\ud83d\"",
                                      "\"\\u0000\"",          "\"\t\"",  "3"};
    for (int i = 0; i < COUNT(not_string); i++) {
        j = json_begin(not_string[i], strlen(not_string[i]));
        check(!json_string(&j, text, sizeof text), "%s is taken for a string of 15 bytes", not_string[i]);
    }
    for (size_t cut = 0; cut < strlen(all); cut++) { /* a file that was cut anywhere is refused and read no further */
        char *part = (char *)malloc(cut + 1);
        memcpy(part, all, cut);
        j = json_begin(part, cut);
        json_skip(&j);
        check(!json_end(&j), "accepted: %.*s", (int)cut, part);
        free(part);
    }
}

/* A safetensors file of this header and this many bytes of data. */
static const char *write_safetensors(const char *name, uint64_t length, const char *header, size_t data) {
    const char *path = scratch_path(name);
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: cannot write", path);
    fwrite(&length, 8, 1, f);
    fputs(header, f);
    for (size_t i = 0; i < data; i++) fputc((int)i, f);
    fclose(f);
    return path;
}

static void die_of_safetensors(void *path) { safe_open((const char *)path); }

static void test_safetensors(void) {
    const char *path = scratch_path("round.safetensors");
    const uint64_t shapes[3][3] = {{2, 3, 4}, {5, 1, 1}, {0, 7, 1}};
    const double f64[5] = {1, -2.5, 1e300, 0, 3};
    float f32[24];
    for (int i = 0; i < 24; i++) f32[i] = (float)i / 7;
    SafeWriter w = safe_create(path, 5); /* the data in another order than the names */
    const uint64_t at_a = safe_add(&w, "b", SAFE_F32, 3, shapes[0]), at_b = safe_add(&w, "a", SAFE_F64, 1, shapes[1]);
    safe_add(&w, "empty", SAFE_I32, 2, shapes[2]);
    const uint16_t halves[6] = {0x3C00, 0xC100, 0x0001, 0x7C00, 0x3F80, 0xC020};
    const uint64_t three[1] = {3};
    const uint64_t at_h = safe_add(&w, "half", SAFE_F16, 1, three), at_bf = safe_add(&w, "bf", SAFE_BF16, 1, three);
    safe_write_at(&w, at_bf, halves + 3, 6);
    safe_write_at(&w, at_h, halves, 6);
    safe_write_at(&w, at_b, f64, sizeof f64);
    safe_write_at(&w, at_a, f32, sizeof f32);
    check(safe_finish(&w) == 0 && at_a % 64 == 0, "cannot write");
    SafeFile f = safe_open(path);
    const SafeTensor *a = safe_find(&f, "a"), *b = safe_find(&f, "b"), *e = safe_find(&f, "empty"),
                     *h = safe_find(&f, "half"), *bf = safe_find(&f, "bf");
    double d[24] = {0};
    float back[24] = {0};
    check(f.count == 5 && a && b && e && h && bf && !safe_find(&f, "c") && !safe_find(&f, ""), "%d tensors", f.count);
    safe_read(&f, b, back);
    check(b->type == SAFE_F32 && b->dims == 3 && b->shape[2] == 4 && memcmp(back, f32, sizeof f32) == 0, "tensor b");
    safe_read_doubles(&f, b, 3, 20, d);
    check(d[0] == (double)f32[3] && d[19] == (double)f32[22], "a part of b, as doubles");
    safe_read_doubles(&f, a, 0, 5, d);
    check(a->shape[0] == 5 && memcmp(d, f64, sizeof f64) == 0 && e->begin == e->end, "tensors a and empty");
    safe_read_doubles(&f, h, 0, 3, d);
    check(d[0] == 1 && d[1] == -2.5 && d[2] == 0x1p-24, "half: %g %g %g", d[0], d[1], d[2]);
    safe_read_doubles(&f, bf, 0, 3, d);
    check(d[0] > 1e36 && d[1] == 1 && d[2] == -2.5, "bfloat16: %g %g %g", d[0], d[1], d[2]);
    safe_close(&f);

    const struct {
        const char *header;
        int data; /* bytes behind it */
        const char *says[3];
    } bad[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, {"end at byte 8", "file at 7"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, {"end at byte 8", "file at 9"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, {"tensor a", "0 .. 8", "shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, {"tensor a", "8 .. 0"}},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, {"tensor a", "\"F31\"", "unknown"}},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, {"tensor a", "one shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, {"tensor a", "two data_offsets"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
         0,
         {"tensor a", "shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
         0,
         {"tensor a", "shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, {"header, byte", "whole number"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
         4,
         {"tensor a", "more than 8"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
         "offsets\":[1,3]}}",
         3,
         {"tensor b", "begins at byte 1", "ends at 2"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
         "offsets\":[3,5]}}",
         5,
         {"tensor b", "begins at byte 3", "ends at 2"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
         "offsets\":[1,2]}}",
         2,
         {"tensor a", "twice"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, {"header, byte"}},
        {"[]", 0, {"header, byte 0", "object"}},
        {"{} x", 0, {"header, byte 3", "more text"}},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        path = write_safetensors("bad.safetensors", strlen(bad[i].header), bad[i].header, (size_t)bad[i].data);
        check_dies(bad[i].header, die_of_safetensors, (void *)path, bad[i].says);
    }
    const char *promise[3] = {"bad.safetensors", "promise a header of", "2 follow"};
    path = write_safetensors("bad.safetensors", (uint64_t)1 << 62, "{}", 0);
    check_dies("a header of 4 EB", die_of_safetensors, (void *)path, promise);
    path = write_safetensors("bad.safetensors", 3, "{}", 0);
    check_dies("a header one byte too long", die_of_safetensors, (void *)path, promise);
    check_dies("7 bytes", die_of_safetensors, (void *)write_file("bad.safetensors", 7), (const char *[3]){"7 bytes"});
    const char *metadata = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"shape\":[],\"dtype\":\"U8\",\"data_"
                           "offsets\":[0,1],\"new\":[{}]}}";
    f = safe_open(write_safetensors("good.safetensors", strlen(metadata), metadata, 1));
    check(f.count == 1 && f.tensors[0].dims == 0, "metadata and unknown keys are skipped");
    safe_close(&f);
}
