/* The ops of train_oomb.c one by one, gradients against mathematics; and what they are built from. Part of test_oomb.c. */

// ----------------------------------------------------------------------------------------------
// ops: gradients in double against 4-point differences, at several scales of the input

/* An op under test: out = f(in...), and the gradients of sum(dout * out) with respect to each in. */
enum { MAX_IN = 4 };
typedef struct {
    int num_in;
    const char *in_name[MAX_IN];
    int adds[MAX_IN]; /* the backward must add to this gradient; else it must write it */
    floatX *in[MAX_IN], *din[MAX_IN];
    size_t n[MAX_IN];
    floatX *out, *dout;
    size_t nout;
} Op;

static Op op; /* the one under test: C has no closures */

static void op_begin(size_t nout, Rng *r) {
    memset(&op, 0, sizeof op);
    op.nout = nout;
    op.out = random_floats(nout, 1, r);
    op.dout = random_floats(nout, 1, r);
}

static floatX *op_input(const char *name, size_t n, double scale, int adds, Rng *r) {
    int i = op.num_in++;
    op.in_name[i] = name;
    op.adds[i] = adds;
    op.n[i] = n;
    op.in[i] = random_floats(n, scale, r);
    op.din[i] = (floatX *)xcalloc(n + 64, sizeof(floatX));
    return op.in[i];
}

static void op_end(void) {
    for (int i = 0; i < op.num_in; i++) {
        free(op.in[i]);
        free(op.din[i]);
    }
    free(op.out);
    free(op.dout);
}

static double op_value(void (*forward)(void)) {
    forward();
    double sum = 0;
    for (size_t i = 0; i < op.nout; i++) sum += (double)op.out[i] * (double)op.dout[i];
    return sum;
}

/* f'(x) = (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h + O(h^4). With h = 1e-3 of the input's scale both
   the h^4 term and the rounding of f (1e-16 / h) are below 1e-11 of the function's size, so 1e-8 of the largest
   gradient leaves room for ill-conditioned elements and none for a wrong formula. */
static void op_check(const char *name, double scale, void (*forward)(void), void (*backward)(void)) {
    forward();
    for (int k = 0; k < op.num_in; k++) { /* what stands there before: to be added to, or to be overwritten */
        for (size_t i = 0; i < op.n[k]; i++) op.din[k][i] = op.adds[k] ? (floatX)0.5 : (floatX)NAN;
    }
    backward();
    for (int k = 0; k < op.num_in; k++) {
        for (size_t i = 0; op.adds[k] && i < op.n[k]; i++) op.din[k][i] -= (floatX)0.5;
    }
    for (int k = 0; is_double && k < op.num_in; k++) {
        double largest = 1e-6, worst = 0;
        size_t worst_at = 0;
        for (size_t i = 0; i < op.n[k]; i++) largest = fmax(largest, fabs((double)op.din[k][i]));
        for (size_t i = 0; i < op.n[k]; i++) {
            floatX *x = &op.in[k][i], x0 = *x, h = (floatX)(1e-3 * scale);
            double f[4];
            const int at[4] = {1, -1, 2, -2};
            for (int j = 0; j < 4; j++) {
                *x = x0 + at[j] * h;
                f[j] = op_value(forward);
            }
            *x = x0;
            double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * (double)h);
            double error = fabs(numeric - (double)op.din[k][i]) / largest;
            if (!isfinite(error)) error = INFINITY;
            if (error > worst) {
                worst = error;
                worst_at = i;
            }
        }
        check(worst < 1e-8, "%s at scale %g: d%s[%zu] is off by %.2e of the largest", name, scale, op.in_name[k],
              worst_at, worst);
    }
    forward(); /* leaves the output of the inputs as they are */
}

static struct {
    int B, T, t0, Tc, C, OC, NH, NKV, HD, P, rows, V, Vp, layernorm, bias, residual, accumulate;
    floatX *mean, *rstd, *cosine, *sine;
    int *tokens, *guesses;
} d; /* dimensions and saved values of the op under test */

static void f_embedding(void) { embedding_forward(op.out, d.tokens, op.in[0], op.in[1], d.B, d.T, d.t0, d.Tc, d.C); }
static void b_embedding(void) {
    embedding_backward(op.din[0], op.din[1], op.dout, d.tokens, d.B, d.T, d.t0, d.Tc, d.C);
}

static void test_embedding(void) {
    Rng r = rng_stream(1, 1, 1);
    d.B = 2, d.T = 9, d.t0 = 3, d.Tc = 5, d.C = 70;
    int tokens[18];
    for (int i = 0; i < 18; i++) tokens[i] = (int)rng_below(&r, 4); /* repeated ids: their gradients add up */
    d.tokens = tokens;
    op_begin((size_t)d.B * d.Tc * d.C, &r);
    const floatX *wte = op_input("wte", 4 * 70, 1, 1, &r), *wpe = op_input("wpe", 9 * 70, 1, 1, &r);
    op_check("embedding", 1, f_embedding, b_embedding);
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i < 5 * 70; i++) {
            const int t = 3 + i / 70, c = i % 70;
            check(op.out[b * 5 * 70 + i] == wte[tokens[b * 9 + t] * 70 + c] + wpe[t * 70 + c],
                  "embedding: sequence %d, position %d, channel %d", b, t, c);
        }
    }
    op_end();
}

static void f_norm(void) {
    norm_forward(op.out, d.layernorm ? d.mean : NULL, d.rstd, op.in[0], op.in[1], d.layernorm ? op.in[2] : NULL, d.rows,
                 d.C, 1e-5);
}
static void b_norm(void) {
    norm_backward(op.din[0], op.din[1], d.layernorm ? op.din[2] : NULL, op.dout, op.in[0], op.in[1],
                  d.layernorm ? d.mean : NULL, d.rstd, d.rows, d.C, d.accumulate);
}

static void test_norm(void) {
    const double scales[] = {1e-2, 1, 100};
    for (int layernorm = 0; layernorm < 2; layernorm++) {
        for (int s = 0; s < 3; s++) {
            Rng r = rng_stream(2, layernorm, s);
            d.rows = 3, d.C = s == 1 ? 67 : 24, d.layernorm = layernorm, d.accumulate = s != 0;
            op_begin((size_t)d.rows * d.C, &r);
            op_input("x", (size_t)d.rows * d.C, scales[s], d.accumulate, &r);
            op_input("w", d.C, scales[s], 1, &r);
            if (layernorm) op_input("b", d.C, scales[s], 1, &r);
            d.mean = random_floats(d.rows, 0, &r);
            d.rstd = random_floats(d.rows, 0, &r);
            op_check(layernorm ? "layernorm" : "rmsnorm", scales[s], f_norm, b_norm);
            free(d.mean);
            free(d.rstd);
            op_end();
        }
    }
}

/* inputs: x, w, then the residual and the bias where there are such */
static void f_matmul(void) {
    const int k = 2 + d.residual;
    matmul_forward(op.out, op.in[0], op.in[1], d.residual ? op.in[2] : NULL, d.bias ? op.in[k] : NULL, d.rows, d.C,
                   d.OC);
}
static void b_matmul(void) {
    const int k = 2 + d.residual;
    matmul_backward(op.din[0], op.din[1], d.bias ? op.din[k] : NULL, op.dout, op.in[0], op.in[1], d.rows, d.C, d.OC,
                    d.accumulate);
    if (d.residual) memcpy(op.din[2], op.dout, op.nout * sizeof(floatX));
}

static void test_matmul(void) {
    const double scales[] = {1, 0.01, 100, 1};
    for (int s = 0; s < 4; s++) {
        Rng r = rng_stream(3, s, 0);
        d.rows = s == 0 ? 1 : 14, d.C = 9 + 8 * s, d.OC = 33 - s, d.bias = s & 1, d.accumulate = s >> 1,
        d.residual = s > 1;
        op_begin((size_t)d.rows * d.OC, &r);
        op_input("x", (size_t)d.rows * d.C, scales[s], d.accumulate, &r);
        op_input("w", (size_t)d.OC * d.C, scales[s], 1, &r);
        if (d.residual) op_input("residual", op.nout, scales[s], 0, &r);
        if (d.bias) op_input("bias", d.OC, scales[s], 1, &r);
        op_check("matmul", scales[s], f_matmul, b_matmul);
        op_end();
    }
}

static void f_rope(void) {
    memcpy(op.out, op.in[0], op.nout * sizeof(floatX));
    rope_forward(op.out, d.cosine, d.sine, d.B, d.Tc, d.NH, d.HD);
}
static void b_rope(void) {
    memcpy(op.din[0], op.dout, op.nout * sizeof(floatX));
    rope_backward(op.din[0], d.cosine, d.sine, d.B, d.Tc, d.NH, d.HD);
}

static void test_rope(void) {
    Rng r = rng_stream(4, 0, 0);
    const RopeScaling none = {ROPE_NONE, 0, 0, 0, 0, 0, 0}, yarn = {ROPE_YARN, 64, 4, 1, 32, 1.3, 1};
    d.B = 2, d.Tc = 5, d.NH = 3, d.HD = 10;
    d.cosine = random_floats(25, 0, &r);
    d.sine = random_floats(25, 0, &r);
    rope_table(d.cosine, d.sine, 1000003, d.Tc, d.HD, 10000, &none);
    double angle = 1000005 * pow(10000, -2.0 * 3 / 10);
    check(fabs(d.cosine[2 * 5 + 3] - cos(angle)) < 1e-7 && fabs(d.sine[2 * 5 + 3] - sin(angle)) < 1e-7,
          "rope_table: position 1000005, pair 3");
    op_begin((size_t)d.B * d.Tc * d.NH * d.HD, &r);
    const floatX *x = op_input("x", op.nout, 1, 0, &r);
    op_check("rope", 1, f_rope, b_rope);
    /* channel i turns with channel i + HD/2, by + the angle, as Hugging Face's rotate_half has it */
    for (int i = 0; i < 5; i++) {
        const floatX *u = x + (size_t)(2 * 3 + 1) * 10, *v = op.out + (size_t)(2 * 3 + 1) * 10; /* token 2, head 1 */
        const double a = 1000005 * pow(10000, -2.0 * i / 10), want = (double)u[i] * cos(a) - (double)u[i + 5] * sin(a);
        const double other = (double)u[i + 5] * cos(a) + (double)u[i] * sin(a);
        check(fabs(v[i] - want) < 1e-6 && fabs(v[i + 5] - other) < 1e-6, "rope: pair %d is (%g, %g), not (%g, %g)", i,
              (double)v[i], (double)v[i + 5], want, other);
    }
    /* a magnitude stays where the angle changes sign: the gradient is the transpose, not the inverse */
    rope_table(d.cosine, d.sine, 1000003, d.Tc, d.HD, 10000, &yarn);
    check(fabs(hypot((double)d.cosine[7], (double)d.sine[7]) - 1.3) < 1e-6, "yarn: the tables have its magnitude");
    op_check("rope, yarn", 1, f_rope, b_rope);
    op_end();
    free(d.cosine);
    free(d.sine);
}

static void f_gelu(void) { gelu_forward(op.out, op.in[0], op.nout); }
static void b_gelu(void) { gelu_backward(op.din[0], op.dout, op.in[0], op.nout); }
static void f_swiglu(void) { swiglu_forward(op.out, op.in[0], op.in[1], op.nout); }
static void b_swiglu(void) { swiglu_backward(op.din[0], op.din[1], op.dout, op.in[0], op.in[1], op.nout); }

static void test_activation(void) {
    const double scales[] = {0.01, 1, 20};
    for (int s = 0; s < 3; s++) {
        Rng r = rng_stream(5, s, 0);
        op_begin(45, &r);
        op_input("up", 45, scales[s], 0, &r);
        /* the fifth derivative of a sigmoid is of order 1 whatever the input's scale: keep h small */
        op_check("gelu", fmin(scales[s], 1), f_gelu, b_gelu);
        op_end();
        op_begin(45, &r);
        const floatX *gate = op_input("gate", 45, scales[s], 0, &r), *up = op_input("up", 45, scales[s], 0, &r);
        op_check("swiglu", fmin(scales[s], 1), f_swiglu, b_swiglu);
        for (int i = 0; i < 45; i++) {
            const double want = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
            check(fabs(op.out[i] - want) < (is_double ? 1e-13 : 1e-6) * (1 + fabs(want)), "swiglu: %.9g, not %.9g",
                  (double)op.out[i], want);
        }
        op_end();
    }
    /* the tanh form, by its textbook formula; erf's differs by up to 5e-4 */
    const double tolerance = is_double ? 1e-14 : 1e-6;
    for (double x = -6; x <= 6; x += 0.125) {
        floatX in = (floatX)x, out;
        gelu_forward(&out, &in, 1);
        double want = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        check(fabs(out - want) < tolerance, "gelu(%g) is %.9g, not %.9g", x, (double)out, want);
    }
    const floatX far[] = {-1e4f, -100, 100, 1e4f};
    floatX out[4], one[4] = {1, 1, 1, 1}, dg[4], du[4];
    gelu_forward(out, far, 4);
    check(out[0] == 0 && out[1] == 0 && out[2] == 100 && out[3] == (floatX)1e4f, "gelu far from zero: %g %g %g %g",
          (double)out[0], (double)out[1], (double)out[2], (double)out[3]);
    swiglu_forward(out, far, one, 4);
    check(fabs(out[0]) < 1e-30 && fabs(out[1]) < 1e-30 && out[3] == (floatX)1e4f, "swiglu far from zero");
    swiglu_backward(dg, du, one, far, one, 4);
    check(fabs(dg[0]) < 1e-30 && dg[3] == 1 && du[3] == (floatX)1e4f, "swiglu_backward far from zero");
}

static void f_classifier(void) {
    static floatX logits[8 * 64];
    memcpy(logits, op.in[0], (size_t)d.rows * d.Vp * sizeof(floatX));
    classifier(op.out, d.guesses, logits, d.tokens, d.rows, d.V, d.Vp, 0);
}
static void b_classifier(void) {
    floatX losses[8];
    memcpy(op.din[0], op.in[0], (size_t)d.rows * d.Vp * sizeof(floatX));
    classifier(losses, d.guesses, op.din[0], d.tokens, d.rows, d.V, d.Vp, (floatX)0.25);
}

static void test_classifier(void) {
    const double scales[] = {0.1, 1, 30};
    for (int s = 0; s < 3; s++) {
        Rng r = rng_stream(6, s, 0);
        int targets[8] = {3, TARGET_MASKED, 0, 40, 17, TARGET_MASKED, 5, 5}, guesses[8];
        d.rows = 8, d.V = 41, d.Vp = 64, d.tokens = targets, d.guesses = guesses;
        op_begin(8, &r);
        for (int i = 0; i < 8; i++) op.dout[i] = (floatX)0.25;
        floatX *logits = op_input("logits", 8 * 64, scales[s], 0, &r);
        for (int row = 0; row < 8; row++) {
            for (int c = 41; c < 64; c++) logits[row * 64 + c] = 1000; /* padding must not be seen */
        }
        op_check("classifier", fmin(scales[s], 1), f_classifier, b_classifier);
        for (int row = 0; row < 8; row++) { /* the loss by its formula */
            double top = -INFINITY, sum = 0;
            for (int c = 0; c < 41; c++) top = fmax(top, (double)logits[row * 64 + c]);
            for (int c = 0; c < 41; c++) sum += exp((double)logits[row * 64 + c] - top);
            const double want =
                targets[row] == TARGET_MASKED ? 0 : top + log(sum) - (double)logits[row * 64 + targets[row]];
            check(fabs(op.out[row] - want) < (is_double ? 1e-12 : 2e-6 * (1 + fabs(top))),
                  "classifier: loss of row %d is %.9g, not %.9g", row, (double)op.out[row], want);
        }
        check(guesses[1] == -1 && op.out[1] == 0 && op.din[0][64] == 0,
              "classifier: a masked row has no loss, gradient or guess");
        int best = 0;
        for (int c = 1; c < 41; c++) best = logits[c] > logits[best] ? c : best;
        check(guesses[0] == best, "classifier: guess %d, not %d", guesses[0], best);
        op_end();
    }
    /* the guess among many classes: the first of the largest, wherever blocks of the search begin and end */
    for (int V = 254; V < 1100; V += 211) {
        Rng r = rng_stream(6, V, 1);
        floatX *logits = random_floats(V, 1, &r);
        for (int at = 0; at < V; at += 51) {
            int target = 1, guess = -1;
            floatX loss = 0;
            const floatX before[2] = {logits[at], logits[V - 1]};
            logits[at] = logits[V - 1] = 9;
            classifier(&loss, &guess, logits, &target, 1, V, V, 0);
            check(guess == at, "classifier: %d classes, guess %d, not %d", V, guess, at);
            logits[at] = before[0], logits[V - 1] = before[1];
        }
        free(logits);
    }
}

/* Attention of a chunk at t0 over pages. Inputs: q (B, Tc, NH, HD) of the chunk; k, v (B, end, NKV, HD) of all tokens up to
   its end, which go into pages. Slots are handed out so that a sequence's pages lie scattered, and every pool
   starts as NaN. */
static struct {
    floatX *kpages, *vpages, *dkpages, *dvpages, *lse, *delta, *ds, *scratch;
    PageTable pages;
    size_t pool;
} at;

static void attention_begin(int B, int t0, int Tc, int NH, int NKV, int HD, int P, double scale, Rng *r) {
    d.B = B, d.t0 = t0, d.Tc = Tc, d.NH = NH, d.NKV = NKV, d.HD = HD, d.P = P;
    const int end = t0 + Tc, NP = (int)ceil_div(end, P);
    pages_init(&at.pages, 1, B, NP, P, B * NP, B * NP);
    for (int p = NP - 1; p >= 0; p--) {
        for (int b = 0; b < B; b++) page_alloc(&at.pages, 0, b, p);
    }
    pages_alloc_grad_range(&at.pages, 0, 0, NP);
    at.pool = (size_t)B * NP * NKV * P * HD;
    floatX **pools[] = {&at.kpages, &at.vpages, &at.dkpages, &at.dvpages};
    for (int i = 0; i < 4; i++) {
        *pools[i] = random_floats(at.pool, 0, r);
        memset(*pools[i], 0xFF, at.pool * sizeof(floatX));
    }
    at.lse = random_floats((size_t)B * NH * Tc, 0, r);
    at.delta = random_floats((size_t)B * NH * Tc, 0, r);
    Rng other = *r; /* however many numbers the scratch takes, q, k, v and dout are the same */
    at.ds = random_floats(attention_ds_size(max_threads(), B, NH, NKV, Tc, P, NP), 0, &other);
    at.scratch = random_floats(attention_scratch_size(P, NH / NKV, HD) * max_threads(), 0, &other);
    op_begin((size_t)B * Tc * NH * HD, r);
    op_input("q", op.nout, scale, 0, r);
    op_input("k", (size_t)B * end * NKV * HD, scale, 0, r);
    op_input("v", (size_t)B * end * NKV * HD, 1, 0, r);
}

static void attention_end(void) {
    pages_destroy(&at.pages);
    floatX *all[] = {at.kpages, at.vpages, at.dkpages, at.dvpages, at.lse, at.delta, at.ds, at.scratch};
    for (int i = 0; i < 8; i++) free(all[i]);
    op_end();
}

static void f_attention(void) {
    page_write(at.kpages, at.vpages, op.in[1], op.in[2], &at.pages, 0, 0, d.t0 + d.Tc, d.NKV, d.HD);
    attention_forward(op.out, at.lse, op.in[0], at.kpages, at.vpages, &at.pages, 0, d.t0, d.Tc, d.NH, d.NKV, d.HD,
                      at.scratch);
}

static void b_attention(void) {
    memset(at.pages.dkv_fresh, 1, (size_t)d.B * at.pages.max_NP);
    attention_backward(op.din[0], at.dkpages, at.dvpages, at.delta, at.ds, op.dout, op.out, at.lse, op.in[0], at.kpages,
                       at.vpages, &at.pages, 0, 0, d.t0, d.Tc, d.NH, d.NKV, d.HD, at.scratch);
    page_read(op.din[1], op.din[2], at.dkpages, at.dvpages, &at.pages, at.pages.dkv_slot, 0, 0, d.t0 + d.Tc, d.NKV,
              d.HD);
}

/* {B, t0, Tc, NH, NKV, HD, P}: GQA ratios 1, 2, 3, 7, 8; head sizes with and without padding; a short last page; a page
   larger than the chunk's rows; chunks deep in the sequence and at its start; a group of over ATTENTION_ROWS heads. */
static const int attention_shapes[][7] = {
    {2, 0, 11, 2, 2, 6, 4},   {1, 12, 7, 2, 1, 8, 4},  {2, 6, 9, 6, 2, 4, 3},  {1, 8, 9, 7, 1, 2, 8},
    {1, 10, 5, 3, 1, 40, 5},  {1, 0, 70, 1, 1, 4, 16}, {1, 3, 3, 4, 4, 16, 1}, {1, 16, 5, 2, 1, 64, 16},
    {1, 64, 3, 70, 1, 2, 32}, {2, 4, 6, 16, 2, 4, 4},
};

static void test_attention_gradient(void) {
    const double scales[] = {0.3, 1, 3};
    for (int i = 0; i < COUNT(attention_shapes); i++) {
        for (int s = 0; s < 3; s++) {
            const int *a = attention_shapes[i];
            Rng r = rng_stream(7, i, s);
            char name[96];
            snprintf(name, sizeof name, "attention B%d t0 %d Tc %d NH %d NKV %d HD %d P %d", a[0], a[1], a[2], a[3],
                     a[4], a[5], a[6]);
            attention_begin(a[0], a[1], a[2], a[3], a[4], a[5], a[6], scales[s], &r);
            op_check(name, scales[s] / 3, f_attention, b_attention);
            attention_end();
        }
    }
}

/* The forward against the formula, in double with a full row of scores. `scale` up to scores of 6e4 and more: an online
   softmax that forgets its maximum overflows there. In float a score s of size S carries an error of about
   S * sqrt(HD) * 2^-24, which moves the weights by as much; 8 times that is the bound, and 1e-6 where S is small. */
static void test_attention_forward(void) {
    const double scales[] = {1, 8, 250};
    double largest_of_all = 0;
    for (int i = 0; i < COUNT(attention_shapes); i++) {
        for (int s = 0; s < 3; s++) {
            const int *a = attention_shapes[i];
            Rng r = rng_stream(8, i, s);
            attention_begin(a[0], a[1], a[2], a[3], a[4], a[5], a[6], scales[s], &r);
            f_attention();
            const int end = d.t0 + d.Tc, G = d.NH / d.NKV;
            double worst = 0, largest = 1, *score = (double *)xcalloc(end, sizeof(double));
            for (int row = 0; row < d.B * d.Tc * d.NH; row++) {
                const int h = row % d.NH, t = row / d.NH % d.Tc, b = row / d.NH / d.Tc, seen = d.t0 + t + 1;
                double top = -INFINITY, sum = 0;
                for (int j = 0; j < seen; j++) {
                    double x = 0;
                    for (int c = 0; c < d.HD; c++)
                        x += (double)op.in[0][(size_t)row * d.HD + c] *
                             op.in[1][(((size_t)b * end + j) * d.NKV + h / G) * d.HD + c];
                    score[j] = x / sqrt(d.HD);
                    top = fmax(top, score[j]);
                    largest = fmax(largest, fabs(score[j]));
                }
                for (int j = 0; j < seen; j++) sum += exp(score[j] - top);
                for (int c = 0; c < d.HD; c++) {
                    double want = 0;
                    for (int j = 0; j < seen; j++)
                        want +=
                            exp(score[j] - top) / sum * op.in[2][(((size_t)b * end + j) * d.NKV + h / G) * d.HD + c];
                    worst = fmax(worst, fabs((double)op.out[(size_t)row * d.HD + c] - want));
                    if (!isfinite(op.out[(size_t)row * d.HD + c])) worst = INFINITY;
                }
                double lse = at.lse[((size_t)b * d.NH + h) * d.Tc + t];
                worst = isfinite(lse) ? fmax(worst, fabs(lse - top - log(sum)) / largest) : INFINITY;
            }
            largest_of_all = fmax(largest_of_all, largest);
            double bound = is_double ? 1e-9 : 1e-6 + 8 * largest * sqrt(d.HD) * 6e-8;
            check(worst < bound, "shape %d, scores up to %.3g: off by %.2e, bound %.2e", i, largest, worst, bound);
            b_attention();
            for (size_t k = 0; k < op.nout; k++) worst = isfinite(op.din[0][k]) ? worst : INFINITY;
            for (size_t k = 0; k < op.n[1]; k++)
                worst = isfinite(op.din[1][k]) && isfinite(op.din[2][k]) ? worst : INFINITY;
            check(isfinite(worst), "shape %d, scores up to %.3g: a gradient is not finite", i, largest);
            free(score);
            attention_end();
        }
    }
    check(largest_of_all > 6e4, "the largest score was %g only", largest_of_all);
}

/* How many pages, and pairs of sequence and head, make a block of the backward depends on the threads: 8 of 33 pages,
   16, 32, all pages of two of three pairs. No bit of dq, dk, dv does. */
static void test_attention_blocks(void) {
    const int threads = max_threads(), many[] = {1, 2, 4, 12};
    floatX *first[3] = {0};
    for (int i = 0; i < COUNT(many); i++) {
        Rng r = rng_stream(16, 0, 0);
        set_threads(many[i]);
        attention_begin(1, 33 * 64 - 250, 250, 6, 3, 8, 64, 1, &r);
        const size_t unit = 250 * 2 * 64, pages = attention_ds_size(many[i], 1, 6, 3, 250, 64, 33) / unit;
        check(pages >= (size_t)many[i] * 8 && pages < (size_t)many[i] * 9, "%d threads: blocks of %zu pages", many[i],
              pages);
        f_attention();
        b_attention();
        for (int k = 0; k < 3; k++) {
            if (first[k])
                check(memcmp(first[k], op.din[k], op.n[k] * sizeof(floatX)) == 0, "%d threads: d%s has other bits",
                      many[i], op.in_name[k]);
            free(first[k]);
            first[k] = (floatX *)xcalloc(op.n[k], sizeof(floatX));
            memcpy(first[k], op.din[k], op.n[k] * sizeof(floatX));
        }
        attention_end();
    }
    for (int k = 0; k < 3; k++) free(first[k]);
    set_threads(threads);
}

/* AdamW against its definition, three steps, in double. */
static void test_adamw(void) {
    Rng r = rng_stream(9, 0, 0);
    floatX *w = random_floats(70, 1, &r), *m = random_floats(70, 0, &r), *v = random_floats(70, 0, &r),
           *g = random_floats(70, 1, &r);
    double w0[70], m0[70] = {0}, v0[70] = {0};
    for (int i = 0; i < 70; i++) w0[i] = w[i];
    for (int step = 1; step <= 3; step++) {
        adamw_update(w, m, v, g, 70, 0.01, 0.1, 0.5, step);
        for (int i = 0; i < 70; i++) {
            double gi = 0.5 * (double)g[i];
            m0[i] = 0.9 * m0[i] + 0.1 * gi;
            v0[i] = 0.95 * v0[i] + 0.05 * gi * gi;
            w0[i] -= 0.01 * 0.1 * w0[i] +
                     0.01 * (m0[i] / (1 - pow(0.9, step))) / (sqrt(v0[i] / (1 - pow(0.95, step))) + 1e-8);
            check(fabs(w[i] - w0[i]) < (is_double ? 1e-13 : 2e-6), "step %d: w[%d] is %.9g, not %.9g", step, i,
                  (double)w[i], w0[i]);
        }
    }
    free(w), free(m), free(v), free(g);
}

// ----------------------------------------------------------------------------------------------
// the CPU's building blocks

/* vec_exp within 1 ulp of double's exp over all of float's range; exact at the ends. */
static void test_vec_exp(void) {
    double worst = 0, worst_at = 0;
    for (int i = 0; !is_double && i < 3000000; i++) {
        float x = (float)(-87.29 + i * (87.29 + 88.69) / 3e6);
        double want = exp((double)x), got = vec_exp(vec_set(x))[VL - 1];
        float near = (float)want;
        double error = fabs(got - want) / (double)(nextafterf(near, INFINITY) - near);
        if (error > worst) worst = error, worst_at = x;
    }
    check(worst <= 1, "vec_exp(%g) is %.2f ulp off", worst_at, worst);
    vecX ends = vec_exp(vec_set(-INFINITY));
    check(ends[0] == 0, "exp(-inf) is %g", (double)ends[0]);
    check(vec_exp(vec_set(INFINITY))[0] == (floatX)INFINITY, "exp(inf)");
    check(vec_exp(vec_set(0))[0] == 1, "exp(0)");
    check(isnan(vec_exp(vec_set((floatX)NAN))[0]), "exp(NaN) must stay NaN");
}

/* gemm against three loops in double: all transposes, sizes around the register tile and the cache blocks. In
   float an element is a chain of K multiply-adds of terms of size 1: error below K * 2^-24 per unit, times 2. */
static void test_gemm(void) {
    const int sizes[][3] = {{1, 1, 1},     {1, 50, 7},     {13, 33, 20},   {12, 64, 256}, {31, 7, 300},
                            {200, 40, 33}, {5, 530, 257},  {67, 65, 1},    {3, 200, 40},  {1, 300, 33},
                            {1, 7, 5},     {9, 100, 1040}, {300, 1600, 20}};
    for (int i = 0; i < COUNT(sizes); i++) {
        const int M = sizes[i][0], N = sizes[i][1], K = sizes[i][2];
        for (int mode = 0; mode < 8; mode++) {
            const int ta = mode & 1, tb = mode >> 1 & 1, beta = mode >> 2;
            Rng r = rng_stream(10, i, mode);
            const size_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 1, ldc = N + 2;
            floatX *A = random_floats((ta ? K : M) * lda, 1, &r), *B = random_floats((tb ? N : K) * ldb, 1, &r),
                   *C = random_floats(M * ldc, 1, &r);
            double *want = (double *)xcalloc((size_t)M * N, sizeof(double)), worst = 0;
            for (int m = 0; m < M; m++) {
                for (int n = 0; n < N; n++) {
                    double sum = 0;
                    for (int k = 0; k < K; k++)
                        sum += (double)A[ta ? k * lda + m : m * lda + k] * (double)B[tb ? n * ldb + k : k * ldb + n];
                    want[(size_t)m * N + n] = 0.5 * sum + (beta ? (double)C[m * ldc + n] : 0);
                    if (!beta) C[m * ldc + n] = (floatX)NAN; /* beta = 0 must not read C */
                }
            }
            floatX outside = C[N];
            gemm(ta, tb, M, N, K, (floatX)0.5, A, lda, B, ldb, (floatX)beta, C, ldc);
            for (int m = 0; m < M; m++) {
                for (int n = 0; n < N; n++)
                    worst = fmax(worst, isnan(C[m * ldc + n]) ? INFINITY
                                                              : fabs((double)C[m * ldc + n] - want[(size_t)m * N + n]));
            }
            double bound = is_double ? 1e-13 * K : 2 * 6e-8 * K + 1e-6;
            check(worst < bound, "gemm %d x %d x %d, ta %d, tb %d, beta %d: off by %.2e", M, N, K, ta, tb, beta, worst);
            check(memcmp(&outside, &C[N], sizeof outside) == 0, "gemm %d x %d x %d wrote between the rows of C", M, N,
                  K);
            free(A), free(B), free(C), free(want);
        }
    }
}

/* D that is not C, and a bias, at the edges of tiles and in every way through the code. */
static void test_gemm_add(void) {
    const int sizes[][3] = {{1, 1, 1}, {1, 40, 1}, {1, 70, 33}, {3, 130, 9}, {13, 33, 20}, {30, 100, 1100}};
    for (int i = 0; i < COUNT(sizes); i++) {
        const size_t M = sizes[i][0], N = sizes[i][1], K = sizes[i][2], ldd = N + 5, ldc = N + 2;
        for (int mode = 0; mode < 16; mode++) {
            const int ta = mode >> 2 & 1, tb = mode >> 3;
            Rng r = rng_stream(13, i, mode);
            floatX *A = random_floats(M * K, 1, &r), *B = random_floats(N * K, 1, &r),
                   *C = random_floats(M * ldc, 0, &r), *D = random_floats(M * ldd, 1, &r),
                   *bias = random_floats(N, 1, &r);
            const floatX beta = mode & 1 ? (floatX)0.25 : 0, *row = mode & 2 ? bias : NULL;
            for (size_t j = 0; !beta && j < M * ldd; j++) D[j] = (floatX)NAN; /* beta = 0 must not read D */
            memset(C, 0, M * ldc * sizeof(floatX));
            gemm_add(ta, tb, M, N, K, A, ta ? M : K, B, tb ? K : N, (GemmOut){2, beta, D, row, ldd, C, ldc});
            double worst = 0;
            for (size_t m = 0; m < M; m++) {
                for (size_t n = 0; n < N; n++) {
                    double want = (beta ? 0.25 * (double)D[m * ldd + n] : 0) + (row ? (double)row[n] : 0);
                    for (size_t k = 0; k < K; k++)
                        want += 2 * (double)A[ta ? k * M + m : m * K + k] * (double)B[tb ? n * K + k : k * N + n];
                    const double off = fabs((double)C[m * ldc + n] - want);
                    worst = isnan(off) ? INFINITY : fmax(worst, off);
                }
            }
            const double bound = is_double ? 4e-13 * (double)K : 4 * 6e-8 * (double)K + 2e-6;
            check(worst < bound, "gemm_add %zu x %zu x %zu, mode %d: off by %.2e", M, N, K, mode, worst);
            int outside = 0;
            for (size_t m = 0; m < M; m++) outside += C[m * ldc + N] != 0 || C[m * ldc + N + 1] != 0;
            check(outside == 0, "gemm_add %zu x %zu x %zu, mode %d wrote between the rows of C", M, N, K, mode);
            free(A), free(B), free(C), free(D), free(bias);
        }
    }
}

/* An element's bits depend on its row, its column and K alone: any part of the product, by any number of threads,
   equals the whole by one, however its operands are stored. The parts are of one row or a few now and then: those go
   other ways through the code. */
static void test_gemm_bits(void) {
    const int M = 161, N = 203, threads = max_threads(), some[] = {2, 3, 4, 6, 1};
    for (int mode = 0; mode < 12; mode++) {
        const int ta = mode & 1, tb = mode >> 1 & 1, K = mode < 4 ? 300 : mode < 8 ? 1 : 1100;
        Rng r = rng_stream(11, mode, 0);
        floatX *A = random_floats((size_t)M * K, 1, &r), *B = random_floats((size_t)K * N, 1, &r),
               *C = random_floats((size_t)M * N, 0, &r), *D = random_floats((size_t)M * N, 1, &r),
               *add = random_floats((size_t)M * N, 1, &r), *bias = random_floats(N, 1, &r);
        const int lda = ta ? M : K, ldb = tb ? K : N;
        set_threads(1);
        gemm_add(ta, tb, M, N, K, A, lda, B, ldb, (GemmOut){1, mode % 3 != 0, add, mode & 2 ? bias : NULL, N, C, N});
        for (int trial = 0; trial < 45; trial++) {
            const int few = trial % 3, m = (int)rng_below(&r, M), n = few == 2 ? 0 : (int)rng_below(&r, N),
                      h = few == 0 ? 1 : 1 + (int)rng_below(&r, few == 1 && M - m > 14 ? 14 : M - m),
                      w = few == 2 ? N : 1 + (int)rng_below(&r, N - n);
            set_threads(some[trial % 5]);
            gemm_add(ta, tb, h, w, K, A + (ta ? 1 : (size_t)K) * m, lda, B + (tb ? (size_t)K : 1) * n, ldb,
                     (GemmOut){1, mode % 3 != 0, add + (size_t)m * N + n, mode & 2 ? bias + n : NULL, N, D, N});
            for (int i = 0; i < h; i++)
                check(memcmp(D + (size_t)i * N, C + (size_t)(m + i) * N + n, w * sizeof(floatX)) == 0,
                      "ta %d, tb %d, K %d: rows %d+%d, columns %d+%d: row %d differs", ta, tb, K, m, h, n, w, i);
        }
        free(A), free(B), free(C), free(D), free(add), free(bias);
    }
    set_threads(threads);
}

/* pack_panels against the definition, for both panel widths and both orders of memory; what it may not read is NaN. */
static void test_pack(void) {
    Rng r = rng_stream(14, 0, 0);
    for (int trial = 0; trial < 60; trial++) {
        const size_t n = 1 + rng_below(&r, 80), K = 1 + rng_below(&r, 90),
                     W = trial & 1   ? GEMM_MR
                         : trial & 4 ? round_up(n, VL)
                                     : GEMM_NR,
                     panels = ceil_div(n, W), rows = trial & 2, across = rows ? 1 : K + 3, down = rows ? n + 2 : 1;
        floatX *src = random_floats(rows ? K * down : n * across, 1, &r),
               *dst = random_floats(panels * W * K + VL, 0, &r);
        for (size_t j = 0; j < (rows ? K : n); j++) { /* between the rows of what is read */
            for (size_t k = rows ? n : K; k < (rows ? down : across); k++)
                src[j * (rows ? down : across) + k] = (floatX)NAN;
        }
        if (trial & 1) pack_panels(dst, GEMM_MR, src, across, down, n, K);
        else pack_panels(dst, W, src, across, down, n, K);
        int wrong = 0;
        for (size_t j = 0; j < panels * W; j++) {
            for (size_t k = 0; k < K; k++) {
                const floatX want = j < n ? src[j * across + k * down] : 0;
                wrong += dst[j / W * W * K + k * W + j % W] != want;
            }
        }
        check(wrong == 0, "pack %zu of %zu, panels of %zu, %s: %d elements are wrong", K, n, W,
              rows ? "rows" : "columns", wrong);
        free(src), free(dst);
    }
}

#if defined(__OPTIMIZE__) && defined(__FMA__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
/* Instructions that `run` takes on one thread, counted one by one by a debugger's means; 0 if that is not allowed here.
   Unlike a time they are the same in every run. */
static long count_instructions(void (*run)(void)) {
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) die("cannot start another process");
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(1);
        raise(SIGSTOP);
        run();
        raise(SIGSTOP);
        _exit(0);
    }
    long count = 0;
    int status;
    int stopped = waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
    while (stopped && ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0) {
        stopped = waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
        count += stopped;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return count;
}

static struct { floatX *a, *b, *c, *d; } work; /* of the counted ops: 8192 elements each */

static void count_nothing(void) {}
static void count_product(void) { gemm(0, 1, 24, 64, 64, 1, work.a, 64, work.b, 64, 0, work.c, 64); }
static void count_tile(void) { gemm_tile(24, 32, 64, 1, work.a, 64, 1, work.b, 32, 1, work.c, 32); }
static void count_exp(void) {
    for (int i = 0; i < 1024; i += VL) vec_store(work.c + i, vec_exp(vec_load(work.a + i)));
}
static void count_adamw(void) { adamw_update(work.a, work.b, work.c, work.d, 8192, 1e-3, 0.1, 1, 2); }
static void count_attention(void) { f_attention(); }
static void count_attention_backward(void) {
    attention_backward(op.din[0], at.dkpages, at.dvpages, at.delta, at.ds, op.dout, op.out, at.lse, op.in[0], at.kpages,
                       at.vpages, &at.pages, 0, 0, d.t0, d.Tc, d.NH, d.NKV, d.HD, at.scratch);
}

/* The hot loops, in instructions for each vector of work: of multiply-adds for products, of elements for the others.
   A tile of registers that spills, a loop that is no longer made of vectors, a packing that has become scalar: each
   costs far more than the quarter that the limits leave to other compilers (the numbers of gcc 12 stand beside them).
   They are checked where the Makefile builds with -O3, for CPUs with fused multiply-add. */
static void test_instructions(void) {
    Rng r = rng_stream(15, 0, 0);
    const int threads = max_threads();
    set_threads(1);
    work.a = random_floats(8192, 1, &r), work.b = random_floats(8192, 1, &r), work.c = random_floats(8192, 1, &r),
    work.d = random_floats(8192, 1, &r);
    for (int i = 0; i < 8192; i++) work.c[i] = fabs(work.c[i]);
    attention_begin(1, 32, 32, 1, 1, 32, 32, 1, &r);
    f_attention();
    memset(at.pages.dkv_fresh, 1, (size_t)d.B * at.pages.max_NP);
    const double pairs = 32 * 64 * 32 / VL; /* tiles are computed whole, and the masked half of one thrown away */
    const struct {
        const char *name;
        void (*run)(void);
        double vectors, limit;
    } ops[] = {
        {"gemm", count_product, 24 * 64 * 64 / VL, 5},                  /* 3.5: a small one, packing included */
        {"gemm_tile", count_tile, 24 * 32 * 64 / VL, 3.5},              /* 2.3 */
        {"vec_exp", count_exp, 1024 / VL, 32},                          /* 25.3 */
        {"adamw_update", count_adamw, 8192 / VL, 26},                   /* 20 */
        {"attention_forward", count_attention, 2 * pairs, 10.5},        /* 8.2 at head size 32 */
        {"attention_backward", count_attention_backward, 5 * pairs, 7}, /* 5.3 */
    };
    const long nothing = count_instructions(count_nothing);
    for (int i = 0; nothing && i < COUNT(ops); i++) {
        const double each = (double)(count_instructions(ops[i].run) - nothing) / ops[i].vectors;
        printf("    %s: %.2f instructions for each vector\n", ops[i].name, each);
#ifdef COUNT_INSTRUCTIONS
        check(each > 1 && each < ops[i].limit, "%s: %.2f instructions for each vector, not less than %.1f", ops[i].name,
              each, ops[i].limit);
#endif
    }
    if (!nothing) printf("    skipped: this system does not let a program be stepped through\n");
    attention_end();
    free(work.a), free(work.b), free(work.c), free(work.d);
    set_threads(threads);
}
#else
static void test_instructions(void) {
    printf("    skipped: not an optimized build for x86-64 with fused multiply-add\n");
}
#endif
