/* What is decided with integers: the table of tensors, schedules, pages, planned work, limits of a container. Part of
   test_oomb.c. */

// ----------------------------------------------------------------------------------------------
// tables and plans: integers only

static void test_tensors(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        TensorInfo t[NUM_TENSORS];
        tensors_describe(&config, t);
        const size_t total = tensors_total(t, config.L);
        uint8_t *owner = (uint8_t *)xcalloc(total, 1);
        for (int id = 0; id < NUM_TENSORS; id++) {
            for (int l = 0; l < tensor_copies(t, config.L, id); l++) {
                for (size_t i = 0; i < tensor_size(t, id); i++) owner[tensor_offset(t, config.L, id, l) + i]++;
            }
        }
        size_t wrong = 0;
        for (size_t i = 0; i < total; i++) wrong += owner[i] != 1;
        check(wrong == 0, "%s: %zu elements belong to no tensor or to several", family_names[family], wrong);
        free(owner);
    }
    const struct {
        const char *preset;
        size_t params;
    } known[] = {{"gpt2", 124439808},
                 {"llama-15m", 15191712}, /* stories15M */
                 {"qwen2.5-0.5b", 494032768},
                 {"qwen2.5-7b", 7615616512},
                 {"qwen3-0.6b", 596049920}}; /* the published counts */
    for (int i = 0; i < COUNT(known); i++) {
        ModelConfig m = model_config(preset_find(known[i].preset));
        TensorInfo t[NUM_TENSORS];
        tensors_describe(&m, t);
        size_t n = tensors_total(t, m.L) - (size_t)(m.Vp - m.V) * m.C * (m.tied ? 1 : 2);
        check(n == known[i].params, "%s has %zu parameters, not %zu", known[i].preset, n, known[i].params);
    }
}

/* Every chunk is filled before a later one attends to it, goes back after all later ones, and each exactly once. */
static void test_schedule(void) {
    ChunkStep s[64];
    for (int N = 1; N <= 9; N++) {
        int n = chunks_schedule_train(s, N, 3, CARRY_EXACT), written[9] = {0}, back[9] = {0};
        check(n == 2 * N - 1 && (size_t)n <= chunks_max_steps(N), "exact, %d chunks: %d steps", N, n);
        for (int i = 0; i < n; i++) {
            for (int ck = 0; ck < s[i].ck; ck++)
                check(written[ck] == 1, "exact: chunk %d runs before chunk %d has its pages", s[i].ck, ck);
            check(s[i].write_kv != written[s[i].ck],
                  "exact: chunk %d writes its pages twice, or reads what is not there", s[i].ck);
            written[s[i].ck] = 1;
            if (s[i].pass != PASS_BACKWARD) continue;
            for (int ck = s[i].ck + 1; ck < N; ck++)
                check(back[ck] == 1, "exact: chunk %d goes back before chunk %d", s[i].ck, ck);
            check(back[s[i].ck]++ == 0, "exact: chunk %d goes back twice", s[i].ck);
        }
        for (int i = 0; i < n; i++)
            check(!(s[i].pass == PASS_FILL && s[i].ck == N - 1), "exact: the last chunk is filled");
        n = chunks_schedule_train(s, N, 3, CARRY_NONE);
        for (int i = 0; i < n; i++)
            check(s[i].ck == i && s[i].pass == PASS_BACKWARD && s[i].write_kv, "none: step %d", i);
        check(n == N && chunks_schedule_forward(s, N, 3) == N && s[0].pass == PASS_FORWARD,
              "none and forward: %d steps", n);
    }
    int covered = 0;
    for (int ck = 0; ck < chunks_count(2049, 512); ck++) covered += chunks_range(2049, 512, ck).Tc;
    check(chunks_count(2049, 512) == 5 && covered == 2049 && chunks_range(2049, 512, 4).Tc == 1, "T 2049, chunk 512");
}

static void test_pages(void) {
    PageTable t;
    pages_init(&t, 2, 1, 3, 4, 6, 6);
    pages_alloc_range(&t, 0, 2, 0, 3);
    int seen[6] = {0};
    for (int i = 0; i < 6; i++) seen[t.kv_slot[i]]++;
    for (int i = 0; i < 6; i++) check(seen[i] == 1, "slot %d is used %d times", i, seen[i]);
    const int last = t.kv_slot[pages_row(&t, 1, 0) + 2];
    page_free(&t, 1, 0, 2);
    page_alloc(&t, 1, 0, 2);
    check(t.kv_slot[pages_row(&t, 1, 0) + 2] == last, "the slot given back last is taken first");
    page_alloc_grad(&t, 0, 0, 1);
    check(t.dkv_fresh[1] == 1 && t.dkv_slot[1] == 0 && t.dkv_slot[0] == -1,
          "a gradient page is fresh at first, and only where it was asked for");
    t.dkv_fresh[1] = 0;
    page_alloc_grad(&t, 0, 0, 1);
    check(t.dkv_fresh[1] == 0, "asking again does not make it fresh");
    page_free_grad(&t, 0, 0, 1);
    pages_free_range(&t, 0, 2, 0, 3);
    check(pages_in_use(&t) == 0 && t.kv.peak == 6 && t.dkv.peak == 1, "in use %d, peaks %d and %d", pages_in_use(&t),
          t.kv.peak, t.dkv.peak);
    pages_destroy(&t);
}

static void test_lr(void) {
    check(schedule_lr(SCHEDULE_COSINE, 2, 1, 4, 100) == 0.5 && schedule_lr(SCHEDULE_COSINE, 2, 4, 4, 100) == 2,
          "warm-up is linear to lr");
    check(fabs(schedule_lr(SCHEDULE_COSINE, 2, 52, 4, 100) - 1.1) < 1e-12 &&
              fabs(schedule_lr(SCHEDULE_COSINE, 2, 100, 4, 100) - 0.2) < 1e-12,
          "cosine: half way and the end");
    check(schedule_lr(SCHEDULE_CONSTANT, 2, 77, 4, 100) == 2 && schedule_lr(SCHEDULE_CONSTANT, 2, 1, 0, 100) == 2,
          "constant");
}

// ----------------------------------------------------------------------------------------------
// plans

/* Flops of products are those of the schedule's matrix products, to the last one; pairs are those of causal attention. */
static void test_work(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int i = 0; i < 16; i++) {
            const ModelConfig config = tiny_config((Family)family, 3);
            TrainConfig run = tiny_run(i & 1 ? 97 : 64, 2, i & 2 ? 16 : 128, 8);
            run.carry = i & 4 ? CARRY_NONE : CARRY_EXACT;
            run.recompute = i & 8 ? RECOMPUTE_LAYER : RECOMPUTE_CHUNK;
            Trial *t = trial_new(&config, &run);
            for (int train = 0; train < 2; train++) {
                double products = 0;
                gemm_flops = 0;
                if (train) trial_gradients(t);
                else sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, NULL, NULL, &t->progress);
                for (int k = 0, n = sequence_schedule(&t->m, train); k < n; k++) {
                    Work w[WORK_KINDS];
                    step_work(&t->m, &t->m.schedule[k], w);
                    for (int j = 0; j < WORK_KINDS; j++) products += w[j].products;
                }
                check(products == gemm_flops, "%s, case %d, train %d: %g flops planned, %g done", family_names[family],
                      i, train, products, gemm_flops);
            }
            /* what the gradient itself takes does not depend on how it is made; in one chunk only scores are made again */
            if (run.carry == CARRY_EXACT) {
                const double model = sequence_model_cost(&t->m), all = sequence_cost(&t->m, 1);
                const double pairs = run.B * run.T * (run.T + 1) / 2.0;
                const double scores = config.L * 2.0 * config.HD * config.NH * pairs;
                const double weights = 2.0 * config.C * (config.NKV + config.NH) * config.HD +
                                       (config.mlp == MLP_SWIGLU ? 3.0 : 2.0) * config.C * config.F;
                const double want =
                    6.0 * run.B * run.T * (config.L * weights + (double)config.C * config.Vp) + 6 * scores;
                check(fabs(model / want - 1) < 1e-12, "%s, case %d: %g flops of the model, not %g",
                      family_names[family], i, model, want);
                if (run.chunk_size >= run.T && run.recompute == RECOMPUTE_CHUNK)
                    check(fabs(all - model - scores) < 1, "%s, case %d: %g flops made again, not %g",
                          family_names[family], i, all - model, scores);
            }
            /* bytes, loop by loop: every layer of every pass touches each page once per loop over it */
            double read = 0, written = 0, bytes[2] = {0}, params = 0, param_bytes = 0;
            const double page = 2.0 * run.B * 8 * config.NKV * config.HD * sizeof(floatX);
            const double kv = 2.0 * config.C * config.NKV * config.HD,
                         rest = 2.0 * config.C * config.NH * config.HD +
                                (config.mlp == MLP_SWIGLU ? 3.0 : 2.0) * config.C * config.F,
                         head = (double)config.C * config.Vp;
            for (int k = 0, n = sequence_schedule(&t->m, 1); k < n; k++) {
                const ChunkStep *c = &t->m.schedule[k];
                Work w[WORK_KINDS];
                step_work(&t->m, c, w);
                for (int j = 0; j < WORK_KINDS; j++) {
                    bytes[0] += w[j].pages_read;
                    bytes[1] += w[j].pages_written;
                    param_bytes += w[j].param_bytes;
                }
                const ChunkRange range = chunks_range(run.T, t->m.chunk_size, c->ck);
                const int first = range.t0 / 8, end = chunks_pages_end(range, 8), back = c->pass == PASS_BACKWARD;
                for (int l = 0; l < config.L; l++) {
                    const int stops = !back && l == config.L - 1,
                              again = back && run.recompute == RECOMPUTE_LAYER && l < config.L - 1;
                    const double k_again = config.qk_norm ? kv / 2 : 0; /* the norm's backward wants k */
                    params += c->write_kv ? kv : k_again;
                    params += (stops ? 0 : rest) + (again ? rest + k_again : 0) + (back ? 3 * (kv + rest) : 0);
                    for (int p = 0; p < end; p++) {
                        const int own = p >= first, later = range.t0 + range.Tc < run.T,
                                  carried = run.carry == CARRY_EXACT;
                        written += page * (c->write_kv && own);       /* K, V */
                        read += page * (!stops + again);              /* attention_forward */
                        read += page * back * 1.5;                    /* K, V for ds; K for dq */
                        read += page * (back && carried && later);    /* dK, dV that are added to */
                        written += page * (back && (carried || own)); /* dK, dV */
                        read += page * (back && own);                 /* the chunk's own, complete */
                    }
                }
                params += back ? 4 * head : 0;
            }
            check(bytes[0] == read && bytes[1] == written && param_bytes == params * sizeof(floatX),
                  "%s, case %d: %g bytes of pages read, %g written, %g of parameters; by loops %g, %g, %g",
                  family_names[family], i, bytes[0], bytes[1], param_bytes, read, written, params * sizeof(floatX));
            double pairs = 0, counted = 0;
            for (int ck = 0; ck < t->m.N; ck++) pairs += work_pairs(&t->m, chunks_range(run.T, t->m.chunk_size, ck), 1);
            for (int q = 0; q < run.T; q++) counted += 2.0 * (q + 1);
            check(pairs == counted, "%g pairs of query and key, not %g", pairs, counted);
            trial_free(t);
        }
    }
}

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(scratch_path(name), "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0) die("%s: cannot write", name);
}

/* Limits of a container, from files like those of the system: the least on the way up counts. */
static void test_cgroup(void) {
    char root[300], self[300];
    snprintf(root, sizeof root, "%s", scratch_path("cgroup"));
    snprintf(self, sizeof self, "%s", scratch_path("self"));
    mkdir(root, 0777), mkdir(scratch_path("cgroup/a"), 0777), mkdir(scratch_path("cgroup/a/b"), 0777);
    write_text("self", "3:cpu:/elsewhere\n0::/a/b\n");
    check(cgroup_limit(root, self, "cpu.max") == UINT64_MAX, "no files, no limit");
    write_text("cgroup/a/b/cpu.max", "max 100000\n");
    check(cgroup_limit(root, self, "cpu.max") == UINT64_MAX, "max is no limit");
    write_text("cgroup/a/cpu.max", "250000 100000\n");
    check(cgroup_limit(root, self, "cpu.max") == 3, "two and a half processors are three threads");
    write_text("cgroup/cpu.max", "150000 100000\n");
    write_text("cgroup/a/b/memory.max", "1000000\n");
    check(cgroup_limit(root, self, "cpu.max") == 2 && cgroup_limit(root, self, "memory.max") == 1000000,
          "the least counts");
    write_text("self", "0::/\n");
    check(cgroup_limit(root, self, "cpu.max") == 2, "at the root of a container");
    check(cgroup_limit(root, scratch_path("no such file"), "cpu.max") == 2, "no name of the group");
}
