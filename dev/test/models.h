/* Whole models: gradients against the loss, every schedule against the one-chunk run, repeatable bits. Part of
   test_oomb.c. */

// ----------------------------------------------------------------------------------------------
// models: the whole gradient

typedef enum { FAMILY_GPT2, FAMILY_LLAMA, FAMILY_QWEN2, FAMILY_QWEN3, NUM_FAMILIES } Family;
static const char *const family_names[] = {"gpt2", "llama", "qwen2", "qwen3"};

/* Tiny models of every family: three layers, odd sizes, a head size that does not follow from C, padded vocabulary.
   qwen3 has biases everywhere, which the real one has not, and an untied head. */
static ModelConfig tiny_config(Family family, int G) {
    ModelConfig m;
    memset(&m, 0, sizeof m);
    m.V = 37, m.Vp = 64, m.L = 3, m.C = 10, m.NKV = G >= 7 ? 1 : 2, m.NH = m.NKV * G, m.HD = 6, m.F = 14;
    m.norm = family == FAMILY_GPT2 ? NORM_LAYERNORM : NORM_RMSNORM;
    m.pos = family == FAMILY_GPT2 ? POS_LEARNED : POS_ROPE;
    m.mlp = family == FAMILY_GPT2 ? MLP_GELU : MLP_SWIGLU;
    m.max_T = family == FAMILY_GPT2 ? 128 : 0;
    m.qkv_bias = family != FAMILY_LLAMA;
    m.o_bias = m.mlp_bias = family == FAMILY_GPT2 || family == FAMILY_QWEN3;
    m.qk_norm = family == FAMILY_QWEN3;
    m.tied = family != FAMILY_QWEN3;
    m.norm_eps = 1e-5, m.rope_theta = 100, m.init_std = 0.4;
    return m;
}

static TrainConfig tiny_run(int T, int B, int chunk_size, int P) {
    TrainConfig run = train_config(&presets[0]);
    run.T = T, run.B = B, run.chunk_size = chunk_size, run.P = P, run.grad_accum = 1;
    return run;
}

/* A model with weights of every kind away from 0 and 1, a batch with masked targets, everything allocated. */
typedef struct {
    Model m;
    Memory mem;
    Batch batch;
    Progress progress;
} Trial;

static Trial *trial_new(const ModelConfig *config, const TrainConfig *run) {
    Trial *t = (Trial *)xcalloc(1, sizeof(Trial));
    model_alloc(&t->m, &t->mem, config, run);
    batch_alloc(&t->batch, &t->mem, config, run);
    memory_poison(&t->mem);
    model_init(&t->m, 7);
    Rng r = rng_stream(12, 0, 0);
    for (int id = 0; id < NUM_TENSORS; id++) { /* biases and norm weights too */
        for (int l = 0; l < tensor_copies(t->m.tensors, config->L, id); l++) {
            floatX *w = tensor(&t->m, t->m.params, (TensorId)id, l);
            for (size_t i = 0; !t->m.tensors[id].decay && i < tensor_size(t->m.tensors, id); i++)
                w[i] += (floatX)(0.3 * rng_normal(&r));
        }
    }
    for (size_t i = 0; i < t->m.num_params; i++)
        t->m.params[i] = (floatX)(float)t->m.params[i]; /* the same in both builds */
    for (size_t i = 0; i < t->batch.per_batch * run->grad_accum; i++) {
        t->batch.inputs[i] = (int)rng_below(&r, config->V);
        t->batch.targets[i] = rng_below(&r, 5) == 0 ? TARGET_MASKED : (int)rng_below(&r, config->V);
    }
    return t;
}

static void trial_free(Trial *t) {
    model_free(&t->m);
    memory_free_all(&t->mem);
    free(t);
}

static double trial_gradients(Trial *t) { return step_gradients(&t->m, &t->batch, &t->progress); }

static double largest_of(const floatX *g, size_t n) {
    double x = 0;
    for (size_t i = 0; i < n; i++) x = fmax(x, fabs((double)g[i]));
    return x;
}

/* Largest difference of two gradients, tensor by tensor, relative to the tensor's largest element. A bias is measured
   with its matrix, of which it is one more column (with input 1): alone, bk without RoPE has a gradient of
   exactly zero, because a constant added to all keys leaves a softmax as it is. Names the worst tensor. */
static double gradient_difference(const Model *m, const floatX *a, const floatX *b, const char **name) {
    double worst = 0;
    *name = "none";
    for (int id = 0; id < NUM_TENSORS; id++) {
        const size_t n = tensor_size(m->tensors, id);
        for (int l = 0; l < tensor_copies(m->tensors, m->config.L, id); l++) {
            const size_t o = tensor_offset(m->tensors, m->config.L, id, l);
            double largest = fmax(largest_of(b + o, n), 1e-30), off = 0;
            if (m->tensors[id].name[0] == 'b')
                largest = fmax(largest, largest_of(b + tensor_offset(m->tensors, m->config.L, id - 1, l),
                                                   tensor_size(m->tensors, id - 1)));
            for (size_t i = 0; i < n; i++)
                off = isfinite(a[o + i]) && isfinite(b[o + i]) ? fmax(off, fabs((double)a[o + i] - (double)b[o + i]))
                                                               : INFINITY;
            if (off / largest > worst) worst = off / largest, *name = m->tensors[id].name;
        }
    }
    return worst;
}

/* The one-chunk run against the loss itself: every tensor of every layer, along a random direction and at two single
   elements, by 4-point differences. A step has length 2e-4 whatever the tensor's size: the loss is of order 1, so its
   rounding enters as 1e-16 / h = 1e-11, and the h^4 term stays below that. */
static void test_model_gradient(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const int ratios[] = {1, 2, 3, 7, 8};
        for (int g = 0; g < 5; g++) {
            const int G = ratios[g];
            const ModelConfig config = tiny_config((Family)family, G);
            const TrainConfig run = tiny_run(21, 2, 21 * 8, 8);
            Trial *t = trial_new(&config, &run);
            Model *m = &t->m;
            trial_gradients(t);
            floatX *g = (floatX *)xcalloc(m->num_params, sizeof(floatX)),
                   *w0 = (floatX *)xcalloc(m->num_params, sizeof(floatX));
            memcpy(g, m->grads, m->num_params * sizeof(floatX));
            memcpy(w0, m->params, m->num_params * sizeof(floatX));
            const double scored = (double)count_scored(t->batch.targets, t->batch.per_batch);
            Rng r = rng_stream(13, family, G);
            for (int id = 0; id < NUM_TENSORS; id++) {
                const size_t n = tensor_size(m->tensors, id);
                for (int l = 0; l < tensor_copies(m->tensors, config.L, id); l++) {
                    const size_t o = tensor_offset(m->tensors, config.L, id, l);
                    for (int trial = 0; trial < 3; trial++) {
                        floatX *dir = random_floats(n, 1, &r);
                        size_t one = rng_below(&r, id == WTE || id == WHEAD ? (size_t)config.V * config.C : n);
                        for (size_t i = 0; trial && i < n; i++) dir[i] = i == one;
                        double slope = 0, f[4];
                        for (size_t i = 0; i < n; i++) slope += (double)dir[i] * (double)g[o + i];
                        const double h = 2e-4 / sqrt((double)vec_dot(dir, dir, n));
                        const int step[4] = {1, -1, 2, -2};
                        for (int j = 0; j < 4; j++) {
                            for (size_t i = 0; i < n; i++)
                                m->params[o + i] = w0[o + i] + (floatX)(step[j] * h) * dir[i];
                            f[j] = sequence_step(m, t->batch.inputs, t->batch.targets, 0, 0, NULL, NULL, &t->progress) /
                                   scored;
                        }
                        memcpy(m->params + o, w0 + o, n * sizeof(floatX));
                        double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
                        check(fabs(numeric - slope) < 1e-8 * (1 + fabs(slope)),
                              "%s G %d: %s of layer %d: difference %.12g, gradient %.12g", family_names[family], G,
                              m->tensors[id].name, l, numeric, slope);
                        free(dir);
                    }
                }
            }
            free(g), free(w0);
            trial_free(t);
        }
    }
}

/* Every schedule against the one-chunk, one-page run: chunk {P, 2P, 3P, 5P, >= T} x P {1, 7, 16} x T {below one page, odd,
   multiple of all, one more} x families x GQA ratios. double: 1e-10. float: a gradient is a sum of at most B * T terms
   that went through some 30 roundings each; two orders of the same sum differ by a few sqrt(B T) * 2^-24 of its largest
   element when terms do not cancel, and we allow a factor 20 for those that do: 20 * sqrt(194) * 6e-8 = 1.7e-5. The
   scale in gradient_difference is the largest element, so this is tight: a missing page shows up at 1e-2. */
static void test_schedule_sweep(void) {
    const int pages[] = {1, 7, 16}, ratios[] = {1, 2, 3, 7};
    const double bound = is_double ? 1e-10 : 1.7e-5;
    double worst_of_all = 0;
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int g = 0; g < 4; g++) {
            for (int p = 0; p < 3; p++) {
                const int P = pages[p], lengths[] = {P > 1 ? P - 1 : 1, (5 * P + P / 2) | 1, 6 * P, 6 * P + 1};
                for (int i = 0; i < 4; i++) {
                    const int T = lengths[i], chunks[] = {P, 2 * P, 3 * P, 5 * P, (int)round_up(T, P)};
                    const ModelConfig config = tiny_config((Family)family, ratios[g]);
                    TrainConfig run = tiny_run(T, 2, T, T);
                    Trial *ref = trial_new(&config, &run);
                    const double loss = trial_gradients(ref);
                    floatX *each = random_floats(2 * T, 0, &(Rng){1}), *ref_each = random_floats(2 * T, 0, &(Rng){1});
                    sequence_step(&ref->m, ref->batch.inputs, ref->batch.targets, 0, 0, ref_each, NULL, &ref->progress);
                    for (int c = 0; c < 5; c++) {
                        run = tiny_run(T, 2, chunks[c], P);
                        Trial *t = trial_new(&config, &run);
                        const char *name;
                        const double l = trial_gradients(t),
                                     off = gradient_difference(&t->m, t->m.grads, ref->m.grads, &name);
                        worst_of_all = fmax(worst_of_all, off);
                        check(off < bound && fabs(l - loss) < bound,
                              "%s G %d, T %d, chunk %d, page %d: %s off by %.2e, loss %.12g, not %.12g",
                              family_names[family], ratios[g], T, chunks[c], P, name, off, l, loss);
                        check(pages_in_use(&t->m.pages) == 0, "pages left in use");
                        sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, each, NULL, &t->progress);
                        double token = 0;
                        for (int k = 0; k < 2 * T; k++)
                            token = fmax(token, fabs((double)each[k] - (double)ref_each[k]));
                        check(token < bound, "%s G %d, T %d, chunk %d, page %d: a token's loss is off by %.2e",
                              family_names[family], ratios[g], T, chunks[c], P, token);
                        trial_free(t);
                    }
                    free(each), free(ref_each);
                    trial_free(ref);
                }
            }
        }
    }
    printf("    worst difference from the one-chunk run: %.2e (bound %.1e)\n", worst_of_all, bound);
}

/* T = 2049, chunk 512: the target at each chunk's edge is scored once, with the whole sequence's gradient. */
static void test_chunk_edges(void) {
    ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    config.L = 2;
    TrainConfig run = tiny_run(2048, 1, 2048, 64);
    Trial *one = trial_new(&config, &run);
    run.chunk_size = 512;
    Trial *four = trial_new(&config, &run);
    run.chunk_size = 448; /* a short last chunk */
    Trial *five = trial_new(&config, &run);
    const char *name;
    const double loss = trial_gradients(one), l4 = trial_gradients(four), l5 = trial_gradients(five);
    /* float: the argument of schedule_sweep with T = 2048 terms: 20 * sqrt(2048) * 6e-8 */
    const double bound = is_double ? 1e-10 : 5.4e-5,
                 off4 = gradient_difference(&one->m, four->m.grads, one->m.grads, &name),
                 off5 = gradient_difference(&one->m, five->m.grads, one->m.grads, &name);
    check(fabs(l4 - loss) < bound && fabs(l5 - loss) < bound && off4 < bound && off5 < bound,
          "losses %.12g, %.12g, %.12g; gradients off by %.2e, %.2e", loss, l4, l5, off4, off5);
    trial_free(one), trial_free(four), trial_free(five);
}

/* The float program against the double one, over the same weights and tokens: the double build of this file prints its
   gradient, this one reads it. Bound: as between two orders of a sum (schedule_sweep), for the errors are the same kind. */
#ifndef DOUBLE_TESTS
#define DOUBLE_TESTS "./test_oomb_double"
#endif

static Trial *reference_trial(int family) {
    const ModelConfig config = tiny_config((Family)family, 3);
    const TrainConfig run = tiny_run(97, 2, 32, 16);
    return trial_new(&config, &run);
}

static int print_gradient(int family) {
    Trial *t = reference_trial(family);
    printf("%.17g\n", trial_gradients(t));
    for (size_t i = 0; i < t->m.num_params; i++) printf("%.17g\n", (double)t->m.grads[i]);
    trial_free(t);
    return 0;
}

static void test_float_against_double(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        char command[200];
        snprintf(command, sizeof command, "%s --print-gradient %d", DOUBLE_TESTS, family);
        FILE *p = popen(command, "r");
        if (!p) die("popen: %s", strerror(errno));
        Trial *t = reference_trial(family);
        const double loss = trial_gradients(t);
        double want = NAN, worst = 0;
        int read = fscanf(p, "%lf", &want) == 1;
        check(read && fabs(loss - want) < 1e-6 * want, "%s: loss %.9g, in double %.12g", family_names[family], loss,
              want);
        floatX *g = (floatX *)xcalloc(t->m.num_params, sizeof(floatX));
        for (size_t i = 0; i < t->m.num_params; i++) {
            read &= fscanf(p, "%lf", &want) == 1;
            g[i] = (floatX)want;
        }
        const char *name;
        worst = gradient_difference(&t->m, t->m.grads, g, &name);
        check(pclose(p) == 0 && read, "%s: cannot read the gradient of %s; `make test_oomb_double` first",
              family_names[family], command);
        check(worst < 1.7e-5, "%s: %s is off by %.2e from double", family_names[family], name, worst);
        printf("    %s: float is off by %.2e from double\n", family_names[family], worst);
        free(g);
        trial_free(t);
    }
}

/* Runs the same step twice, the second time changed; every bit of loss and gradient must be the same. */
static void check_same_bits(const char *what, Trial *a, Trial *b) {
    const double la = trial_gradients(a), lb = trial_gradients(b);
    check(isfinite(la) && la == lb, "%s: loss %.17g against %.17g", what, la, lb);
    check(isfinite(grad_norm(a->m.norm_partial, a->m.grads, a->m.num_params)), "%s: the gradient is not finite", what);
    check(memcmp(a->m.grads, b->m.grads, a->m.num_params * sizeof(floatX)) == 0, "%s: gradients differ", what);
}

static void test_bits_recompute(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        for (int chunk = 8; chunk <= 128; chunk *= 4) {
            TrainConfig run = tiny_run(97, 2, chunk, 8);
            Trial *a = trial_new(&config, &run);
            run.recompute = RECOMPUTE_LAYER;
            Trial *b = trial_new(&config, &run);
            check_same_bits(family_names[family], a, b);
            /* recomputing takes no page twice: every pool was filled to the last slot and no further */
            const PageTable *pa = &a->m.pages, *pb = &b->m.pages;
            check(pa->kv.peak == pa->kv.capacity && pa->dkv.peak == pa->dkv.capacity &&
                      pb->kv.peak == pb->kv.capacity && pb->dkv.peak == pb->dkv.capacity &&
                      pa->kv.capacity == config.L * 2 * 13,
                  "chunk %d: K, V peak %d of %d, dK, dV peak %d of %d", chunk, pa->kv.peak, pa->kv.capacity,
                  pa->dkv.peak, pa->dkv.capacity);
            trial_free(a), trial_free(b);
        }
    }
}

/* Large enough that every parallel loop and every matrix product is divided between threads (see FEW, and gemm). */
static void test_bits_threads(void) {
    set_threads(2);
    if (max_threads() == 1) printf("    skipped: built without OpenMP\n");
    for (int family = 0; family < NUM_FAMILIES && max_threads() > 1; family++) {
        ModelConfig config = tiny_config((Family)family, 2);
        config.C = 96, config.F = 200, config.V = 301, config.Vp = 320, config.HD = 32, config.L = 2, config.max_T *= 8;
        const TrainConfig run = tiny_run(613, 2, 320, 16);
        check(2 * 320 * config.NKV * config.HD > FEW, "the smallest loop is not divided: raise its size with FEW");
        set_threads(1);
        Trial *a = trial_new(&config, &run);
        trial_gradients(a);
        const double norm = step_update(&a->m, 0.01, 0.1, 1, 1);
        const int counts[] = {2, 4, 7};
        for (int i = 0; i < 3; i++) {
            set_threads(counts[i]);
            Trial *b = trial_new(&config, &run);
            trial_gradients(b);
            check(memcmp(a->m.grads, b->m.grads, a->m.num_params * sizeof(floatX)) == 0, "%s: %d threads differ from 1",
                  family_names[family], counts[i]);
            check(norm == step_update(&b->m, 0.01, 0.1, 1, 1), "%s: grad_norm with %d threads", family_names[family],
                  counts[i]);
            check(memcmp(a->m.params, b->m.params, a->m.num_params * sizeof(floatX)) == 0,
                  "%s: the update with %d threads differs", family_names[family], counts[i]);
            trial_free(b);
        }
        trial_free(a);
    }
    set_threads(1);
}

/* Nothing that is not written in a step may reach its result: all scratch and all pages are NaN before it. */
static void test_bits_poison(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int carry = CARRY_EXACT; carry <= CARRY_NONE; carry++) {
            const ModelConfig config = tiny_config((Family)family, 3);
            TrainConfig run = tiny_run(45, 2, 16, 8);
            run.carry = carry;
            Trial *a = trial_new(&config, &run), *b = trial_new(&config, &run);
            for (size_t i = 0; i < b->m.num_params; i++) b->m.grads[i] = (floatX)NAN;
            trial_gradients(a);
            memory_poison(&b->mem);
            check_same_bits(family_names[family], a, b); /* a's second step, on warm buffers, against b's first */
            trial_free(a), trial_free(b);
        }
    }
}

/* Batch A, then B, then A again: both A are the same. A validation runs between, through the same buffers. */
static void test_bits_aba(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const TrainConfig run = tiny_run(61, 2, 16, 8);
    Trial *t = trial_new(&config, &run), *fresh = trial_new(&config, &run);
    trial_gradients(t);
    for (size_t i = 0; i < t->batch.per_batch; i++) t->batch.inputs[i] = (t->batch.inputs[i] + 5) % config.V;
    trial_gradients(t);
    sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, NULL, NULL, &t->progress); /* and a validation */
    memcpy(t->batch.inputs, fresh->batch.inputs, t->batch.per_batch * sizeof(int));
    check_same_bits("A, B, A", t, fresh);
    trial_free(t), trial_free(fresh);
}

/* Validation sees the losses that training sees, bit for bit, for any schedule of the same pages. */
static void test_bits_forward(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        const int pages[] = {1, 7, 16};
        double first = 0;
        for (int i = 0; i < 12; i++) {
            const int P = pages[i / 4], chunk = P * (1 << i % 4);
            const TrainConfig run = tiny_run(61, 1, chunk, P);
            Trial *t = trial_new(&config, &run);
            floatX *train = random_floats(61, 0, &(Rng){1}), *val = random_floats(61, 0, &(Rng){1});
            sequence_step(&t->m, t->batch.inputs, t->batch.targets, 1, 1, train, NULL, &t->progress);
            double sum = sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, val, NULL, &t->progress);
            check(memcmp(train, val, 61 * sizeof(floatX)) == 0, "%s, chunk %d: training and validation losses differ",
                  family_names[family], chunk);
            if (chunk == P) first = sum;
            check(sum == first, "%s: chunk %d changes the bits of the loss: %.17g, not %.17g", family_names[family],
                  chunk, sum, first);
            free(train), free(val);
            trial_free(t);
        }
    }
}

/* Causality: another token at j changes no loss before j - 1, not by one bit, in any chunk layout. (The loss at
   j - 1 changes through its target alone, which is held fixed here, so that one must not change either.) */
static void test_causal(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        const int layout[][2] = {{1, 1}, {7, 7}, {21, 7}, {16, 16}, {32, 16}, {64, 64}, {8, 2}};
        for (int k = 0; k < COUNT(layout); k++) {
            const int chunk = layout[k][0];
            const TrainConfig run = tiny_run(50, 1, chunk, layout[k][1]);
            Trial *t = trial_new(&config, &run);
            for (int i = 0; i < 50; i++) t->batch.targets[i] = i % config.V;
            floatX before[50], after[50];
            sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, before, NULL, &t->progress);
            for (int j = 0; j < 50; j += 7) {
                const int old = t->batch.inputs[j];
                t->batch.inputs[j] = (old + 1) % config.V;
                sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, after, NULL, &t->progress);
                check(memcmp(before, after, j * sizeof(floatX)) == 0, "%s, chunk %d: token %d reaches losses before it",
                      family_names[family], chunk, j);
                check(before[j] != after[j] && before[49] != after[49],
                      "%s, chunk %d: token %d does not reach the losses after it", family_names[family], chunk, j);
                t->batch.inputs[j] = old;
            }
            trial_free(t);
        }
    }
}

/* --carry none: the gradient of each chunk's loss with the keys and values of earlier chunks held constant, summed over
   chunks. By 4-point differences of exactly that: earlier chunks' pages are made with the unmoved weights, then the chunk
   alone is run with the moved ones. */
static void test_carry_none_gradient(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        TrainConfig run = tiny_run(21, 2, 8, 4);
        run.carry = CARRY_NONE;
        Trial *t = trial_new(&config, &run);
        Model *m = &t->m;
        trial_gradients(t);
        floatX *w0 = (floatX *)xcalloc(m->num_params, sizeof(floatX));
        memcpy(w0, m->params, m->num_params * sizeof(floatX));
        const double scored = (double)count_scored(t->batch.targets, t->batch.per_batch), h = 1e-4;
        const int step[4] = {1, -1, 2, -2};
        Rng r = rng_stream(14, family, 0);
        for (int id = 0; id < NUM_TENSORS; id++) {
            const size_t n = tensor_size(m->tensors, id);
            for (int l = 0; l < tensor_copies(m->tensors, config.L, id); l++) {
                const size_t o = tensor_offset(m->tensors, config.L, id, l);
                floatX *dir = random_floats(n, 1, &r);
                double slope = 0, f[4] = {0};
                for (size_t i = 0; i < n; i++) slope += (double)dir[i] * (double)m->grads[o + i];
                for (int ck = 0; ck < m->N; ck++) {
                    const ChunkRange range = chunks_range(m->T, m->chunk_size, ck);
                    const ChunkStep s = {PASS_FORWARD, 0, config.L, ck, 1};
                    for (int j = 0; j < 5; j++) { /* four moved, then the unmoved one, whose pages stay */
                        for (size_t i = 0; i < n; i++)
                            m->params[o + i] = w0[o + i] + (j < 4 ? (floatX)(step[j] * h) * dir[i] : 0);
                        chunk_forward(m, &s, range, t->batch.inputs, t->batch.targets);
                        for (int i = 0; j < 4 && i < m->B * range.Tc; i++) f[j] += (double)m->losses[i] / scored;
                        if (j < 4)
                            pages_free_range(&m->pages, 0, config.L, range.t0 / m->P,
                                             (int)ceil_div(range.t0 + range.Tc, m->P));
                    }
                }
                pages_free_range(&m->pages, 0, config.L, 0, m->pages.max_NP);
                const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
                check(fabs(numeric - slope) < 1e-8 * (1 + fabs(slope)),
                      "%s: %s of layer %d: difference %.12g, gradient %.12g", family_names[family], m->tensors[id].name,
                      l, numeric, slope);
                free(dir);
            }
        }
        free(w0);
        trial_free(t);
    }
}

/* With one chunk nothing crosses an edge: both modes give the same bits. With several they must not. */
static void test_carry_modes(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    for (int chunk = 16; chunk <= 64; chunk *= 2) {
        TrainConfig run = tiny_run(61, 2, chunk, 8);
        Trial *exact = trial_new(&config, &run);
        run.carry = CARRY_NONE;
        Trial *none = trial_new(&config, &run);
        const char *name;
        const double le = trial_gradients(exact), ln = trial_gradients(none),
                     off = gradient_difference(&none->m, none->m.grads, exact->m.grads, &name);
        check(le == ln || fabs(le - ln) < 1e-6 * le, "chunk %d: carry changes the loss: %.9g, %.9g", chunk, le,
              ln); /* chunks are summed in another order */
        check(chunk == 64 ? off == 0 : off > 1e-3, "chunk %d: carry none differs from exact by %.2e", chunk, off);
        trial_free(exact), trial_free(none);
    }
}

/* The mean is over the scored targets of the whole step, however it is split: 8 x 1, 4 x 2, 1 x 8 sequences with unequal
   counts, one of them wholly masked. Same loss, gradient, norm, and weights after a clipped update. */
static void test_accumulation(void) {
    const ModelConfig config = tiny_config(FAMILY_QWEN3, 2);
    const int splits[][2] = {{1, 8}, {2, 4}, {8, 1}, {4, 2}};
    const double bound = is_double ? 1e-12 : 1e-5; /* float: as in schedule_sweep */
    Trial *first = NULL;
    double loss0 = 0, norm0 = 0;
    for (int i = 0; i < 4; i++) {
        TrainConfig run = tiny_run(29, splits[i][1], 8, 8);
        run.grad_accum = splits[i][0];
        Trial *t = trial_new(&config, &run);
        for (int s = 0; s < 8; s++) {
            for (int k = 0; k < 29; k++) {
                if (k < 3 * s || s == 5) t->batch.targets[s * 29 + k] = TARGET_MASKED;
            }
        }
        const double loss = trial_gradients(t), norm = grad_norm(t->m.norm_partial, t->m.grads, t->m.num_params);
        const char *name;
        if (!first) {
            first = t, loss0 = loss, norm0 = norm;
            check(norm > 0.2, "the gradient is there: norm %g", norm);
            step_update(&t->m, 0.01, 0.1, 0.1, 1);
            continue;
        }
        check(fabs(loss - loss0) < bound && fabs(norm - norm0) < bound * norm0,
              "%d x %d: loss %.12g, not %.12g; norm %.12g, not %.12g", splits[i][0], splits[i][1], loss, loss0, norm,
              norm0);
        const double off = gradient_difference(&t->m, t->m.grads, first->m.grads, &name);
        check(off < bound, "%d x %d: gradient of %s off by %.2e", splits[i][0], splits[i][1], name, off);
        step_update(&t->m, 0.01, 0.1, 0.1, 1);
        /* AdamW's first step is lr * sign(gradient): where that is rounding alone, a weight may go either way */
        size_t differ = 0;
        for (size_t k = 0; k < t->m.num_params; k++) {
            differ += fabs((double)t->m.m[k] - (double)first->m.m[k]) > bound;
            differ += fabs((double)t->m.grads[k]) > 1e3 * bound &&
                      fabs((double)t->m.params[k] - (double)first->m.params[k]) > bound;
        }
        check(differ == 0, "%d x %d: m or the weights differ in %zu places after the update", splits[i][0],
              splits[i][1], differ);
        trial_free(t);
    }
    trial_free(first);
}

/* Nothing scored: in one chunk, or at all. Zeros, never NaN. */
static void test_masked(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const TrainConfig run = tiny_run(40, 1, 8, 8);
    Trial *t = trial_new(&config, &run), *one;
    for (int i = 16; i < 24; i++) t->batch.targets[i] = TARGET_MASKED; /* chunk 2, wholly */
    const TrainConfig whole = tiny_run(40, 1, 40, 40);
    one = trial_new(&config, &whole);
    for (int i = 16; i < 24; i++) one->batch.targets[i] = TARGET_MASKED;
    const char *name;
    const double a = trial_gradients(t), b = trial_gradients(one),
                 off = gradient_difference(&t->m, t->m.grads, one->m.grads, &name);
    check(fabs(a - b) < 1e-5 && off < (is_double ? 1e-10 : 1.7e-5), "a masked chunk: loss %g, %g, %s off by %.2e", a, b,
          name, off);
    for (int i = 0; i < 40; i++) t->batch.targets[i] = TARGET_MASKED;
    const double loss = trial_gradients(t);
    size_t nonzero = 0;
    for (size_t i = 0; i < t->m.num_params; i++) nonzero += t->m.grads[i] != 0;
    check(loss == 0 && nonzero == 0, "all masked: loss %g, %zu gradients not zero", loss, nonzero);
    floatX before = t->m.params[5];
    check(step_update(&t->m, 0.01, 0, 1, 1) == 0 && t->m.params[5] == before, "all masked: the update moves nothing");
    trial_free(t), trial_free(one);
}

/* Epsilon is the config's: where it is as large as the squared activations, by the formula; and a model heeds it. */
static void test_norm_eps(void) {
    const double eps[] = {1e-5, 1e-6};
    for (int i = 0; i < 4; i++) {
        Rng r = rng_stream(20, 0, 0);
        floatX *x = random_floats(40, 1e-3, &r), w[40], out[40], mean, rstd;
        double mu = 0, square = 0;
        for (int c = 0; c < 40; c++) {
            w[c] = 2;
            mu += i < 2 ? (double)x[c] / 40 : 0; /* layernorm, then rmsnorm */
        }
        for (int c = 0; c < 40; c++) square += ((double)x[c] - mu) * ((double)x[c] - mu) / 40;
        norm_forward(out, i < 2 ? &mean : NULL, &rstd, x, w, NULL, 1, 40, eps[i % 2]);
        for (int c = 0; c < 40; c++) {
            const double want = 2 * ((double)x[c] - mu) / sqrt(square + eps[i % 2]);
            check(fabs(out[c] - want) < (is_double ? 1e-13 : 1e-6), "%s, eps %g: %.9g, not %.9g",
                  i < 2 ? "layernorm" : "rmsnorm", eps[i % 2], (double)out[c], want);
        }
        free(x);
    }
    ModelConfig config = tiny_config(FAMILY_LLAMA, 1);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    double loss[2];
    for (int i = 0; i < 2; i++) {
        config.norm_eps = eps[i];
        Trial *t = trial_new(&config, &run);
        floatX *wte = tensor(&t->m, t->m.params, WTE, 0);
        for (size_t k = 0; k < (size_t)config.Vp * config.C; k++) wte[k] *= (floatX)1e-3;
        loss[i] = trial_gradients(t);
        trial_free(t);
    }
    check(loss[0] != loss[1], "the model does not look at norm_eps");
}

/* What page_write puts into pages is what was given, head by head, and zero past the end of a short page. */
static void test_page_write(void) {
    Rng r = rng_stream(21, 0, 0);
    attention_begin(2, 8, 7, 4, 2, 6, 8, 1, &r); /* 15 tokens in two pages; the pools are NaN so far */
    page_write(at.kpages, at.vpages, op.in[1], op.in[2], &at.pages, 0, 0, 15, 2, 6);
    for (int b = 0; b < 2; b++) {
        for (int t = 0; t < 16; t++) {
            for (int h = 0; h < 2; h++) {
                const size_t tile = page_tile(at.pages.kv_slot[b * 2 + t / 8], h, 2, 8, 6) + (size_t)(t % 8) * 6;
                for (int c = 0; c < 6; c++) {
                    const size_t from = (((size_t)b * 15 + t) * 2 + h) * 6 + c;
                    check(at.kpages[tile + c] == (t < 15 ? op.in[1][from] : 0) &&
                              at.vpages[tile + c] == (t < 15 ? op.in[2][from] : 0),
                          "sequence %d, token %d, head %d", b, t, h);
                }
            }
        }
    }
    attention_end();
}

/* A gradient of true norm 10 clipped to 1 is the gradient divided by 10; below the limit nothing is scaled; 0 is off. */
static void test_clip(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 1);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    const double clips[] = {1, 20, 0}, wants[] = {0.1, 1, 1};
    for (int i = 0; i < 3; i++) {
        Trial *t = trial_new(&config, &run);
        Rng r = rng_stream(15, 0, 0);
        for (size_t k = 0; k < t->m.num_params; k++) t->m.grads[k] = (floatX)rng_normal(&r);
        double norm = grad_norm(t->m.norm_partial, t->m.grads, t->m.num_params), naive = 0;
        for (size_t k = 0; k < t->m.num_params; k++) naive += (double)t->m.grads[k] * (double)t->m.grads[k];
        check(fabs(norm / sqrt(naive) - 1) < 1e-6, "grad_norm %.9g, not %.9g", norm, sqrt(naive));
        for (size_t k = 0; k < t->m.num_params; k++) t->m.grads[k] *= (floatX)(10 / norm);
        norm = step_update(&t->m, 0.01, 0, clips[i], 1);
        check(fabs(norm - 10) < 1e-4, "the norm reported is the one before clipping: %g", norm);
        double ratio =
            (double)t->m.m[3] / (0.1 * (double)t->m.grads[3]); /* m after one step is 0.1 times the gradient used */
        check(fabs(ratio - wants[i]) < 1e-5, "clip %g: scaled by %.7g, not %g", clips[i], ratio, wants[i]);
        trial_free(t);
    }
}

/* Decay reaches matrices only: with a zero gradient they shrink by lr * decay, norms and biases stay. */
static void test_decay(void) {
    const ModelConfig config = tiny_config(FAMILY_GPT2, 1);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    Trial *t = trial_new(&config, &run), *old = trial_new(&config, &run);
    memset(t->m.grads, 0, t->m.num_params * sizeof(floatX));
    step_update(&t->m, 0.5, 0.1, 1, 1);
    for (int id = 0; id < NUM_TENSORS; id++) {
        const TensorInfo *info = &t->m.tensors[id];
        if (!info->rows) continue;
        const double was = tensor(&old->m, old->m.params, (TensorId)id, 0)[0],
                     is = tensor(&t->m, t->m.params, (TensorId)id, 0)[0];
        const int matrix = strchr("w", info->name[0]) && info->rows > 1;
        check(fabs(is - was * (matrix ? 0.95 : 1)) < 1e-6, "%s went from %g to %g", info->name, was, is);
    }
    trial_free(t), trial_free(old);
}
