/* Checkpoints, stopped and with a full disk at every system call; sampling. Part of test_oomb.c. */

// ----------------------------------------------------------------------------------------------
// checkpoints

static void remove_tree(const char *path) {
    char command[1000];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0) die("%s: cannot remove", path);
}

static int count_entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return n;
}

static const char *saved_at;
static void die_of_load(void *trial) { checkpoint_load(&((Trial *)trial)->m, saved_at); }
static void die_of_state(void *path) { state_read((const char *)path); }

/* Another model is refused, by the name of what differs; and half a checkpoint. b: a model like the saved one. */
static void check_other_models(Trial *b, const ModelConfig *config, const TrainConfig *run, const char *file) {
    ModelConfig other = *config;
    saved_at = file;
    other.L = 2;
    Trial *fewer = trial_new(&other, run);
    check_dies("fewer layers", die_of_load, fewer, (const char *[3]){"weights.safetensors", "another model"});
    other.L = 4;
    Trial *more = trial_new(&other, run);
    check_dies("more layers", die_of_load, more, (const char *[3]){"layer.3.", "missing"});
    other = *config;
    other.F += 2;
    Trial *wider = trial_new(&other, run);
    check_dies("a wider MLP", die_of_load, wider, (const char *[3]){"layer.0.w", "another model"});
    char part[500];
    snprintf(part, sizeof part, "%s/optimizer.safetensors", file);
    if (truncate(part, 5000) != 0) die("%s", part);
    check_dies("half an optimizer", die_of_load, b, (const char *[3]){"optimizer.safetensors", "byte"});
    remove(part);
    check_dies("no optimizer state", die_of_load, b, (const char *[3]){"optimizer.safetensors", "No such file"});
    trial_free(fewer), trial_free(more), trial_free(wider);
}

/* What is saved comes back bit for bit, and only into the model it came from. */
static void test_checkpoint(void) {
    char dir[300], file[400];
    snprintf(dir, sizeof dir, "%s", scratch_path("checkpoint"));
    const char *const options[][2] = {{"data", "a \"quoted\\\" name\n"}, {"lr", "0.001"}};
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        const TrainConfig run = tiny_run(16, 1, 8, 8);
        Trial *a = trial_new(&config, &run), *b = trial_new(&config, &run);
        const RunState state = {7, (uint64_t)1 << 40, 123, 456, UINT64_MAX};
        trial_gradients(a);
        step_update(&a->m, 0.01, 0.1, 1, 1);
        for (size_t i = 0; i < b->m.num_params; i++) b->m.params[i] = b->m.m[i] = b->m.v[i] = (floatX)NAN;
        remove_tree(dir);
        close(checkpoint_open_dir(dir));
        check(checkpoint_save(&a->m, dir, &state, options, 2, 2) == 0 && checkpoint_latest(dir, INT32_MAX) == 7,
              "cannot save");
        snprintf(file, sizeof file, "%s/step-00000007", dir);
        checkpoint_load(&b->m, file);
        check(memcmp(a->m.params, b->m.params, a->m.num_params * sizeof(floatX)) == 0 &&
                  memcmp(a->m.m, b->m.m, a->m.num_params * sizeof(floatX)) == 0 &&
                  memcmp(a->m.v, b->m.v, a->m.num_params * sizeof(floatX)) == 0,
              "%s: what comes back differs", family_names[family]);
        SavedState s = state_read(file);
        check(s.run.step == 7 && s.run.sample == (uint64_t)1 << 40 && s.run.tokens == 123 && s.run.data_tokens == 456 &&
                  s.run.data_hash == UINT64_MAX && s.count == 2 &&
                  strcmp(s.options[0], "--data=a \"quoted\\\" name\n") == 0,
              "state.json: step %d, %d options, %s", s.run.step, s.count, s.count ? s.options[0] : "");
        for (int i = 0; i < NUM_CONFIG_FIELDS; i++) {
            check(s.model[i] == config_get(&config, i), "state.json: %s is %g", config_fields[i].name, s.model[i]);
            if (!strcmp(config_fields[i].name, "norm_eps"))
                check(s.model[i] == config.norm_eps, "norm_eps is %g", s.model[i]);
        }
        state_free(&s);
        check_other_models(b, &config, &run, file);
        trial_free(a), trial_free(b);
    }
}

/* What a power cut would lose is on the disk before it has its name: each of the three files is opened, written and
   synced, then their directory; the rename, and the directory of that; then an old checkpoint goes the reverse way. */
static void test_checkpoint_order(void) {
    char dir[300];
    snprintf(dir, sizeof dir, "%s", scratch_path("checkpoint"));
    const char *const options[][2] = {{"lr", "0.001"}};
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    Trial *t = trial_new(&config, &run);
    char short_trace[64] = "";
    remove_tree(dir);
    close(checkpoint_open_dir(dir));
    for (int step = 1; step <= 5; step++) {
        const RunState state = {step, 0, 0, 0, 0};
        fault_count = 0;
        check(checkpoint_save(&t->m, dir, &state, options, 1, 2) == 0, "cannot save step %d", step);
    }
    for (const char *c = fault_trace; *c; c++) { /* several writes in a row as one */
        const size_t n = strlen(short_trace);
        if ((*c != 'w' || n == 0 || short_trace[n - 1] != 'w') && n < sizeof short_trace - 1) short_trace[n] = *c;
    }
    check(strcmp(short_trace, "mowsowsowsosrosrosuuud") == 0, "the calls of a save are %s", short_trace);
    check(checkpoint_latest(dir, INT32_MAX) == 5 && checkpoint_latest(dir, 5) == 4 && checkpoint_latest(dir, 4) == -1 &&
              count_entries(dir) == 2,
          "--keep 2 keeps %d", count_entries(dir));
    const RunState state = {7, 0, 0, 0, 0};
    check(checkpoint_save(&t->m, dir, &state, options, 1, 0) == 0 && count_entries(dir) == 3, "--keep 0 keeps all");
    trial_free(t);
}

/* Every key of state.json must be there, once, and nothing of it may be cut off. */
static void test_checkpoint_state(void) {
    char dir[300], file[400];
    snprintf(dir, sizeof dir, "%s", scratch_path("state"));
    const char *const options[][2] = {{"data", "a"}, {"lr", "0.001"}};
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const RunState saved = {7, 1, 2, 3, 4};
    mkdir(dir, 0777);
    check(state_write(dir, &saved, &config, options, 2) == 0, "cannot write");
    snprintf(file, sizeof file, "%s/state.json", dir);
    FILE *f = fopen(file, "r");
    char text[4096];
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *const keys[] = {"format", "step", "sample", "tokens", "data_tokens", "data_hash", "model", "options"};
    for (int i = 0; i < 2 * COUNT(keys); i++) { /* one is missing, one is there twice */
        char quoted[32], changed[8192];
        snprintf(quoted, sizeof quoted, "\"%s\": ", keys[i / 2]);
        char *at = strstr(text, quoted), *end = at + strcspn(at, "\n");
        if (i / 2 == 7) end = strstr(at, "\n}\n") + 2; /* options: to its bracket */
        const int before = (int)(at - text), length = (int)(end - at), last = i / 2 == 7;
        if (i & 1) snprintf(changed, sizeof changed, "%.*s%.*s%s%s", before, text, length, at, last ? "," : "", at);
        else if (last) snprintf(changed, sizeof changed, "%.*s}", before - 2, text);
        else snprintf(changed, sizeof changed, "%.*s%s", before, text, end);
        f = fopen(file, "w");
        fputs(changed, f);
        fclose(f);
        check_dies(changed, die_of_state, dir,
                   (const char *[3]){"state.json: the key", keys[i / 2], i & 1 ? "twice" : "missing"});
    }
    f = fopen(file, "w");
    fputs(text, f);
    fclose(f);
    for (size_t cut = 0; cut < n - 1; cut += 1 + cut / 20) { /* without its last newline it is still whole */
        if (truncate(file, (off_t)(n - 2 - cut)) != 0) die("%s", file);
        check_dies("half a state.json", die_of_state, dir, (const char *[3]){"state.json"});
    }
}

/* The machine stops, or the disk is full, at every single system call of a save: afterwards there is a checkpoint, the old
   one or the new one, and it is whole. */
static void test_checkpoint_faults(void) {
    const ModelConfig config = tiny_config(FAMILY_QWEN3, 2);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    const char *const options[][2] = {{"lr", "0.001"}};
    Trial *t = trial_new(&config, &run), *back = trial_new(&config, &run);
    const size_t bytes = t->m.num_params * sizeof(floatX);
    for (size_t i = 0; i < t->m.num_params; i++) t->m.m[i] = t->m.v[i] = (floatX)i;
    floatX *first = (floatX *)xcalloc(t->m.num_params, sizeof(floatX));
    memcpy(first, t->m.params, bytes);
    for (int stops = 0; stops < 2; stops++) {
        int points = 0, kept_old = 0;
        for (int at = 1;; at++) {
            char dir[300], path[400];
            snprintf(dir, sizeof dir, "%s", scratch_path("faults"));
            remove_tree(dir);
            close(checkpoint_open_dir(dir));
            RunState state = {1, 10, 100, 0, 0};
            memcpy(t->m.params, first, bytes);
            check(checkpoint_save(&t->m, dir, &state, options, 1, 1) == 0, "the first checkpoint");
            fflush(stdout);
            const pid_t child = fork();
            if (child == 0) {
                state.step = 2;
                for (size_t i = 0; i < t->m.num_params; i++) t->m.params[i] += 1;
                fault_stops = stops;
                fault_count = 0;
                fault_at = at;
                const int error = checkpoint_save(&t->m, dir, &state, options, 1, 1);
                _exit(fault_count < at ? 77 : error ? 1 : 0);
            }
            int status = 0;
            waitpid(child, &status, 0);
            const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            check(code == 77 || (stops ? code == 9 : code == 0 || code == 1), "call %d: status %d", at, code);
            const int latest = checkpoint_latest(dir, INT32_MAX);
            close(checkpoint_open_dir(dir)); /* the next start sweeps up */
            check(latest == 1 || latest == 2, "call %d: the newest checkpoint is of step %d", at, latest);
            check(code != 0 || latest == 2, "call %d: saved without an error, and is not there", at);
            check(count_entries(dir) <= 2 && checkpoint_latest(dir, INT32_MAX) == latest,
                  "call %d: %d entries are left", at, count_entries(dir));
            checkpoint_path(path, dir, "step-", latest);
            checkpoint_load(&back->m, path);
            SavedState s = state_read(path);
            int same = s.run.step == latest;
            for (size_t i = 0; i < t->m.num_params; i++)
                same &= back->m.params[i] == first[i] + (latest == 2) && back->m.v[i] == (floatX)i;
            check(same, "call %d: the checkpoint of step %d is not what was saved", at, latest);
            state_free(&s);
            kept_old += latest == 1;
            points = at - 1;
            if (code == 77 || failed_here) break;
        }
        check(points > 20 && kept_old > 10, "only %d calls, %d of them before the new checkpoint was there", points,
              kept_old);
        printf("    %s at each of %d system calls: %d times the old checkpoint is left, else the new one\n",
               stops ? "stopped" : "a full disk", points, kept_old);
    }
    free(first);
    trial_free(t), trial_free(back);
}

// ----------------------------------------------------------------------------------------------
// sampling

/* One token at a time is the same forward: after each token, the final activations are those of a whole forward, bit
   for bit; what is drawn without chance is what that forward finds likeliest. Training afterwards is unchanged. */
static void test_sample(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int P = 1; P <= 16; P += 5) {
            const ModelConfig config = tiny_config((Family)family, 3);
            const int T = 45, V = config.V, C = config.C;
            TrainConfig run = tiny_run(T, 2, 2 * P, P);
            run.prompt = "1";
            Trial *t = trial_new(&config, &run);
            run = tiny_run(T, 1, T, P); /* the forward of a sequence in one chunk, with pages of the same size */
            Trial *whole = trial_new(&config, &run);
            Candidate *c = t->batch.candidates;
            const Sampler greedy = {0, 0};
            Rng rng = rng_stream(22, 0, 0);
            int tokens[45], guesses[45], targets[45], other[45];
            for (int i = 0; i < T; i++) tokens[i] = (int)rng_below(&rng, V), targets[i] = 0;
            const int prompt = 1 + (int)rng_below(&rng, min_size(3 * P, T - 1));
            memory_poison(&t->mem);
            sample_tokens(&t->m, tokens, prompt, T, &greedy, &rng, c);
            sequence_step(&whole->m, tokens, targets, 0, 0, NULL, guesses, &whole->progress);
            for (int i = prompt; i < T; i++)
                check(tokens[i] == guesses[i - 1], "%s, page %d: token %d is %d, not the likeliest, %d",
                      family_names[family], P, i, tokens[i], guesses[i - 1]);
            for (int n = 2; n < T; n += 7) { /* the last of n tokens, whether it came alone or with the prompt */
                memcpy(other, tokens, sizeof tokens);
                sample_tokens(&t->m, other, n / 2, n + 1, &greedy, &rng, c);
                if (n / 2 < prompt)
                    memcpy(other, tokens, sizeof tokens), sample_tokens(&t->m, other, n, n + 1, &greedy, &rng, c);
                check(memcmp(t->m.lnf, whole->m.lnf + (size_t)(n - 1) * C, C * sizeof(floatX)) == 0,
                      "%s, page %d: after %d tokens a sample is not where a forward is", family_names[family], P, n);
            }
            check(pages_in_use(&t->m.pages) == 0, "a sample keeps %d pages", pages_in_use(&t->m.pages));
            run = tiny_run(T, 2, 2 * P, P);
            Trial *fresh = trial_new(&config, &run);
            memcpy(t->batch.inputs, fresh->batch.inputs, sizeof(int) * 2 * T);
            check_same_bits("training after a sample", t, fresh);
            trial_free(t), trial_free(whole), trial_free(fresh);
        }
    }
}

/* Frequencies follow exp(logit / temperature); top_k and ties; text that is safe to print. */
static void test_sampler(void) {
    enum { V = 5, N = 200000 };
    const float logits[V] = {0, 1, 2, 1, -50};
    Candidate c[V];
    Rng rng = rng_stream(23, 0, 0);
    const Sampler samplers[] = {{1, 0}, {0.5, 0}, {1, 2}, {1, 3}, {1, 5}};
    for (int k = 0; k < COUNT(samplers); k++) {
        double p[V], sum = 0;
        int count[V] = {0};
        for (int i = 0; i < V; i++) { /* among the first two of logits 2, 1, 1 the tie goes to the lower id */
            const int in = samplers[k].top_k == 0 || samplers[k].top_k == 5 || i == 2 || i == 1 ||
                           (samplers[k].top_k == 3 && i == 3);
            p[i] = in ? exp((double)logits[i] / samplers[k].temperature) : 0;
            sum += p[i];
        }
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < V; i++) c[i].p = logits[i], c[i].id = i;
            count[sampler_pick(&samplers[k], c, V, &rng)]++;
        }
        for (int i = 0; i < V; i++) { /* 5 standard deviations of a binomial */
            const double want = p[i] / sum, bound = 5 * sqrt(want * (1 - want) / N) + 1e-9;
            check(fabs((double)count[i] / N - want) <= bound, "sampler %d: token %d has frequency %g, not %g", k, i,
                  (double)count[i] / N, want);
        }
    }
    const float extreme[3] = {1e30f, -1e30f, 1e30f};
    for (int i = 0; i < 3; i++) c[i].p = extreme[i], c[i].id = i;
    const Sampler cold = {1e-6, 0}, zero = {0, 0};
    check(sampler_pick(&zero, c, 3, &rng) == 0, "of two likeliest tokens the lower id");
    check(sampler_pick(&cold, c, 3, &rng) != 1, "a logit of -1e30 is drawn");

    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    const char *raw = "a\n\x1b[2J\x7f\xC3\xA9\xC2\x9B\xFF\xE2\x82\xAC\xED\xA0\x80\xC0\x80\xE2\x82";
    print_text(f, (const unsigned char *)raw, (int)strlen(raw));
    fclose(f);
    check(strcmp(text, "a\n\\x1b[2J\\x7f\xC3\xA9\\xc2\\x9b\\xff\xE2\x82\xAC\\xed\\xa0\\x80\\xc0\\x80\\xe2\\x82") == 0,
          "printed: %s", text);
    free(text);
}
