/* compare_dumps: two dumps of one step (train_oomb --dump), tensor by tensor.

     dev/compare_dumps A B [--bound X] [--common]

   The dumps may come from other chunk sizes, another build or another machine: pieces of a tensor are put together
   along the tokens. Prints a table in the order of the computation, and the first tensor that diverges: that is where
   to look, what follows has only inherited it. Exit status 0: none diverges; 1: one does; 2: cannot compare.

   --common leaves out what only one of them has: another program (dev/ref/dump_transformers.py) may not name everything. Give
   the dump of train_oomb first, for its order.

   A difference is measured relative to the tensor's largest element. The gradient of a bias is measured with that of its
   matrix, of which it is one more column: alone it may be zero but for rounding, as that of bk is without RoPE. */
#include "../oomb/safetensors.h"

#include <limits.h>

enum { BLOCK = 1 << 16 }; /* elements read at once */

/* A tensor of the computation: in one file its pieces are "name.t0", "name.t512", ...; others have one, "name". */
typedef struct {
    char name[SAFE_NAME];
    double largest, scale; /* largest element of both dumps; what differences are relative to */
    double off;            /* largest difference */
    uint64_t at[3];        /* where it is: sequence, token, column; or row, column */
    uint64_t elements;
    const char *fault; /* NULL, or why it cannot be compared */
    int alone;         /* only one dump has it */
    int exact;         /* integers */
} Row;

/* The name without its token, and the token; -1: there is none. */
static int64_t split_name(const char *full, char *name) {
    const char *dot = strrchr(full, '.');
    snprintf(name, SAFE_NAME, "%s", full);
    if (!dot || dot[1] != 't' || !dot[2] || strspn(dot + 2, "0123456789") != strlen(dot + 2)) return -1;
    name[dot - full] = 0;
    return strtoll(dot + 2, NULL, 10);
}

/* A tensor of a file under its name of the computation. t0: its first token, -1: it has none. */
typedef struct {
    int64_t t0;
    int index;
    char name[SAFE_NAME];
} Piece;

typedef struct {
    SafeFile file;
    Piece *pieces; /* (file.count) by name, then token */
} Dump;

static int compare_pieces(const void *a, const void *b) {
    const Piece *x = (const Piece *)a, *y = (const Piece *)b;
    const int order = strcmp(x->name, y->name);
    return order ? order : x->t0 < y->t0 ? -1 : x->t0 > y->t0;
}

static Dump dump_open(const char *path) {
    Dump d;
    d.file = safe_open(path);
    d.pieces = (Piece *)xcalloc((size_t)d.file.count, sizeof(Piece));
    for (int i = 0; i < d.file.count; i++) {
        d.pieces[i].t0 = split_name(d.file.tensors[i].name, d.pieces[i].name);
        d.pieces[i].index = i;
    }
    if (d.file.count) qsort(d.pieces, (size_t)d.file.count, sizeof(Piece), compare_pieces);
    return d;
}

static void dump_close(Dump *d) {
    safe_close(&d->file);
    free(d->pieces);
}

/* Pieces first .. last-1 of d have this name; first == last: none. */
static void find_pieces(const Dump *d, const char *name, int *first, int *last) {
    int low = 0, high = d->file.count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (strcmp(d->pieces[middle].name, name) < 0) low = middle + 1;
        else high = middle;
    }
    *first = low;
    while (low < d->file.count && strcmp(d->pieces[low].name, name) == 0) low++;
    *last = low;
}

static const SafeTensor *piece_tensor(const Dump *d, int i) { return &d->file.tensors[d->pieces[i].index]; }

/* Tokens of a piece that has them (its second dimension), else all its elements in one row. */
static uint64_t piece_tokens(const Dump *d, int i) {
    const SafeTensor *t = piece_tensor(d, i);
    return d->pieces[i].t0 >= 0 && t->dims == 3 ? t->shape[1] : 1;
}

/* Elements first .. first+n-1 of the two, the second already found to have the same shape. */
static void compare_block(Row *r, const Dump *a, int i, uint64_t at_a, const Dump *b, int k, uint64_t at_b, size_t n,
                          const uint64_t *place, uint64_t width) {
    static double x[BLOCK], y[BLOCK];
    safe_read_doubles(&a->file, piece_tensor(a, i), at_a, n, x);
    safe_read_doubles(&b->file, piece_tensor(b, k), at_b, n, y);
    for (size_t j = 0; j < n; j++) {
        const double off = isfinite(x[j]) && isfinite(y[j]) ? fabs(x[j] - y[j]) : INFINITY; /* NaN is never right */
        if (isfinite(x[j])) r->largest = fmax(r->largest, fabs(x[j]));
        if (isfinite(y[j])) r->largest = fmax(r->largest, fabs(y[j]));
        if (off <= r->off) continue;
        r->off = off;
        r->at[0] = place[0];
        r->at[1] = place[1] + (place[2] + j) / width;
        r->at[2] = (place[2] + j) % width;
    }
    r->elements += n;
}

/* One tensor of the computation over all its pieces. */
static void compare_tensor(Row *r, const Dump *a, const Dump *b) {
    int a0, a1, b0, b1;
    find_pieces(a, r->name, &a0, &a1);
    find_pieces(b, r->name, &b0, &b1);
    r->fault = a0 == a1 ? "only in the second dump" : b0 == b1 ? "only in the first dump" : NULL;
    r->alone = r->fault != NULL;
    if (r->fault) return;
    const SafeTensor *s = piece_tensor(a, a0), *t = piece_tensor(b, b0);
    const int tokens = a->pieces[a0].t0 >= 0 && s->dims == 3;
    const uint64_t sequences = tokens ? s->shape[0] : 1;
    r->exact = s->type == SAFE_I32 || s->type == SAFE_I64;
    if (s->dims != t->dims) r->fault = "another number of dimensions";
    for (int i = 0; !r->fault && i < s->dims; i++) {
        if (s->shape[i] != t->shape[i] && !(tokens && i == 1)) r->fault = "another shape";
    }
    for (int i = a0, k = b0; !r->fault && i < a1 && k < b1;) { /* where the pieces of both overlap */
        const uint64_t ta = tokens ? (uint64_t)a->pieces[i].t0 : 0, na = piece_tokens(a, i),
                       tb = tokens ? (uint64_t)b->pieces[k].t0 : 0, nb = piece_tokens(b, k);
        const uint64_t from = ta > tb ? ta : tb, to = ta + na < tb + nb ? ta + na : tb + nb;
        uint64_t width = 1, all = 1;
        for (int d = 0; d < s->dims; d++) all *= s->shape[d];
        width = tokens ? s->shape[2] : s->dims ? s->shape[s->dims - 1] : 1;
        if ((i == a0 && k == b0 && ta != tb) || to <= from) {
            r->fault = "other tokens";
            return;
        }
        for (uint64_t q = 0; q < sequences; q++) {
            const uint64_t n = tokens ? (to - from) * width : all;
            for (uint64_t at = 0; at < n; at += BLOCK) {
                const uint64_t place[3] = {q, from, at};
                compare_block(r, a, i, tokens ? (q * na + from - ta) * width + at : at, b, k,
                              tokens ? (q * nb + from - tb) * width + at : at,
                              (size_t)(n - at < BLOCK ? n - at : BLOCK), place, width ? width : 1);
            }
        }
        i += to == ta + na;
        k += to == tb + nb;
        if ((i == a1) != (k == b1)) r->fault = "other tokens";
    }
}

/* The scale of a bias gradient is its matrix's: "layer.0.dbq" goes with "layer.0.dwq". */
static double bias_scale(const Row *rows, int n, const Row *r) {
    char name[SAFE_NAME];
    snprintf(name, sizeof name, "%s", r->name);
    char *last = strrchr(name, '.');
    last = last ? last + 1 : name;
    if (last[0] != 'd' || last[1] != 'b') return r->largest;
    last[1] = 'w';
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].name, name) == 0) return fmax(rows[i].largest, r->largest);
    }
    return r->largest;
}

/* Two orders of the same sum of n rounded terms differ by about sqrt(n) roundings of its largest element when terms
   do not cancel. n is the tokens of the step, the longest sum there is; 30 leaves room for layers that hand errors
   on and for terms that cancel. */
static double default_bound(const Dump *a, const Dump *b) {
    double epsilon = 0x1p-53, tokens = 1;
    for (int i = 0; i < a->file.count; i++) {
        const SafeTensor *t = &a->file.tensors[i];
        if (strncmp(t->name, "inputs", 6) == 0 && t->dims == 3) tokens += (double)t->shape[0] * (double)t->shape[1];
        if (t->type == SAFE_F32) epsilon = fmax(epsilon, 0x1p-24);
        if (t->type == SAFE_BF16) epsilon = fmax(epsilon, 0x1p-8);
    }
    for (int i = 0; i < b->file.count; i++) {
        if (b->file.tensors[i].type == SAFE_F32) epsilon = fmax(epsilon, 0x1p-24);
        if (b->file.tensors[i].type == SAFE_BF16) epsilon = fmax(epsilon, 0x1p-8);
    }
    return 30 * sqrt(tokens) * epsilon;
}

/* Names of both dumps, each once, in the order in which the first, then the second, has them. */
static Row *collect_rows(const Dump *a, const Dump *b, int *n) {
    Row *rows = (Row *)xcalloc((size_t)a->file.count + (size_t)b->file.count, sizeof(Row));
    *n = 0;
    for (int f = 0; f < 2; f++) {
        const Dump *d = f ? b : a;
        for (int i = 0; i < d->file.count; i++) {
            char name[SAFE_NAME];
            int first, last, earliest = INT_MAX, in_a, in_a_end;
            split_name(d->file.tensors[i].name, name);
            find_pieces(d, name, &first, &last);
            for (int k = first; k < last; k++) earliest = d->pieces[k].index < earliest ? d->pieces[k].index : earliest;
            find_pieces(a, name, &in_a, &in_a_end);
            if (earliest != i || (f && in_a < in_a_end)) continue;
            snprintf(rows[(*n)++].name, SAFE_NAME, "%s", name);
        }
    }
    return rows;
}

static int compared; /* a verdict is there */

/* die() ends with 1, which here means that a tensor diverges. */
static void cannot_compare(void) {
    if (compared) return;
    fflush(stdout);
    _exit(2);
}

int main(int argc, char **argv) {
    const char *path[2] = {NULL, NULL};
    double bound = -1;
    int n = 0, paths = 0, diverge = 0, common = 0, alone = 0;
    for (int i = 1; i < argc; i++) {
        char *end;
        if (strcmp(argv[i], "--bound") == 0 && i + 1 < argc) {
            bound = strtod(argv[++i], &end);
            if (*end || end == argv[i] || !(bound >= 0)) paths = 3;
        } else if (strcmp(argv[i], "--common") == 0) {
            common = 1;
        } else if (argv[i][0] == '-' || paths >= 2) {
            paths = 3;
        } else {
            path[paths++] = argv[i];
        }
    }
    if (paths != 2) {
        fprintf(stderr,
                "usage: compare_dumps A B [--bound X] [--common]\n\n"
                "Compares two dumps of one step (train_oomb --dump), tensor by tensor, and names the first that\n"
                "diverges. X: the largest difference to accept, relative to the tensor's largest element;\n"
                "without it 30 sqrt(tokens) roundings of the coarser of the two types. --common: leave out what only\n"
                "one of them has.\n");
        return 2;
    }
    atexit(cannot_compare);
    Dump a = dump_open(path[0]), b = dump_open(path[1]);
    if (bound < 0) bound = default_bound(&a, &b);
    Row *rows = collect_rows(&a, &b, &n);
    for (int i = 0; i < n; i++) compare_tensor(&rows[i], &a, &b);
    for (int i = 0; i < n; i++) rows[i].scale = bias_scale(rows, n, &rows[i]);

    printf("  %-24s %12s %12s %12s %12s   %s\n", "tensor", "elements", "largest", "difference", "relative",
           "at (sequence, token, column)");
    const Row *first = NULL;
    for (int i = 0; i < n; i++) {
        Row *r = &rows[i];
        if (common && r->alone) {
            alone++;
            continue;
        }
        const double relative = r->off == 0 ? 0 : r->scale > 0 ? r->off / r->scale : INFINITY;
        const int bad = r->fault || (r->exact ? r->off > 0 : !(relative <= bound));
        diverge += bad;
        if (bad && !first) first = r;
        if (r->fault) {
            printf("> %-24s %s\n", r->name, r->fault);
            continue;
        }
        printf("%c %-24s %12" PRIu64 " %12.4g %12.4g %12.4g   ", bad ? '>' : ' ', r->name, r->elements, r->largest,
               r->off, relative);
        printf("(%" PRIu64 ", %" PRIu64 ", %" PRIu64 ")\n", r->at[0], r->at[1], r->at[2]);
    }
    printf("\n%d tensors, bound %.3g: ", n - alone, bound);
    if (alone == n) die("%s and %s have no tensor in common", path[0], path[1]);
    if (alone) printf("(%d that only one dump has left out) ", alone);
    if (!first) printf("none diverges\n");
    else printf("%d diverge, the first is %s\n", diverge, first->name);
    check_stdout();
    compared = 1;
    free(rows);
    dump_close(&a);
    dump_close(&b);
    return diverge ? 1 : 0;
}
