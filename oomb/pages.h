/* pages.h: the page table. Which place ("slot") of the pools holds which page.

   A page is P consecutive tokens of one sequence in one layer; in memory it is (NKV, P, HD), so
   that one head's keys are contiguous. Four pools hold pages: kpages and vpages, which come and
   go together, and dkpages and dvpages, which do too. So a page has at most two slots: one for
   its K, V and one for its dK, dV.

   This file handles integers only. It knows no pointers and copies nothing; the programs do. */
#ifndef OOMB_PAGES_H
#define OOMB_PAGES_H

#include "util.h"

#include <assert.h>

/* Free slots, last in first out: a slot that was just given back is the next one taken, and
   is still warm. */
typedef struct {
    int *free; /* (capacity) */
    int num_free, capacity;
    int peak; /* most slots in use at once */
} SlotStack;

typedef struct {
    int L, B, max_NP, P; /* layers, sequences, pages of a whole sequence, tokens per page */
    SlotStack kv, dkv;
    int *kv_slot;       /* (L, B, max_NP) slot in kpages, vpages; -1: absent */
    int *dkv_slot;      /* (L, B, max_NP) slot in dkpages, dvpages; -1: absent, counts as zero */
    uint8_t *dkv_fresh; /* (L, B, max_NP) 1: taken but not written yet; the next touch writes the whole page */
} PageTable;

static inline void slots_init(SlotStack *s, int capacity) {
    s->free = (int *)xcalloc((size_t)capacity, sizeof(int));
    s->capacity = s->num_free = capacity;
    s->peak = 0;
    for (int i = 0; i < capacity; i++) s->free[i] = capacity - 1 - i; /* slot 0 is taken first */
}

static inline int slots_take(SlotStack *s, const char *pool) {
    if (s->num_free == 0)
        die("%s: all %d slots are taken; the pool was sized for fewer pages than the schedule needs", pool,
            s->capacity);
    int slot = s->free[--s->num_free];
    if (s->capacity - s->num_free > s->peak) s->peak = s->capacity - s->num_free;
    return slot;
}

static inline void slots_give_back(SlotStack *s, int slot) {
    assert(slot >= 0 && slot < s->capacity && s->num_free < s->capacity);
    s->free[s->num_free++] = slot;
}

/* kv_slots and dkv_slots: capacity of the two pairs of pools, in pages. dkv_slots may be 0. */
static inline void pages_init(PageTable *t, int L, int B, int max_NP, int P, int kv_slots, int dkv_slots) {
    size_t n = (size_t)L * B * max_NP;
    t->L = L;
    t->B = B;
    t->max_NP = max_NP;
    t->P = P;
    slots_init(&t->kv, kv_slots);
    slots_init(&t->dkv, dkv_slots);
    t->kv_slot = (int *)xcalloc(n, sizeof(int));
    t->dkv_slot = (int *)xcalloc(n, sizeof(int));
    t->dkv_fresh = (uint8_t *)xcalloc(n, 1);
    for (size_t i = 0; i < n; i++) t->kv_slot[i] = t->dkv_slot[i] = -1;
}

static inline size_t pages_table_bytes(int L, int B, int max_NP, int kv_slots, int dkv_slots) {
    return (size_t)L * B * max_NP * (2 * sizeof(int) + 1) + ((size_t)kv_slots + dkv_slots) * sizeof(int);
}

static inline void pages_destroy(PageTable *t) {
    free(t->kv.free);
    free(t->dkv.free);
    free(t->kv_slot);
    free(t->dkv_slot);
    free(t->dkv_fresh);
}

/* First entry of layer l, sequence b: its max_NP pages follow. */
static inline size_t pages_row(const PageTable *t, int l, int b) { return ((size_t)l * t->B + b) * t->max_NP; }

static inline void page_alloc(PageTable *t, int l, int b, int p) {
    int *slot = &t->kv_slot[pages_row(t, l, b) + p];
    assert(*slot < 0);
    *slot = slots_take(&t->kv, "kpages, vpages");
}

/* Takes a gradient page if page p has none yet; it is fresh until its first touch. */
static inline void page_alloc_grad(PageTable *t, int l, int b, int p) {
    size_t i = pages_row(t, l, b) + p;
    if (t->dkv_slot[i] >= 0) return;
    t->dkv_slot[i] = slots_take(&t->dkv, "dkpages, dvpages");
    t->dkv_fresh[i] = 1;
}

static inline void page_free(PageTable *t, int l, int b, int p) {
    size_t i = pages_row(t, l, b) + p;
    assert(t->kv_slot[i] >= 0);
    slots_give_back(&t->kv, t->kv_slot[i]);
    t->kv_slot[i] = -1;
}

static inline void page_free_grad(PageTable *t, int l, int b, int p) {
    size_t i = pages_row(t, l, b) + p;
    assert(t->dkv_slot[i] >= 0 && !t->dkv_fresh[i]); /* a page nobody wrote was never needed */
    slots_give_back(&t->dkv, t->dkv_slot[i]);
    t->dkv_slot[i] = -1;
}

/* Pages p0 .. p1-1 of layers l0 .. l1-1 of every sequence. */
static inline void pages_alloc_range(PageTable *t, int l0, int l1, int p0, int p1) {
    for (int l = l0; l < l1; l++) {
        for (int b = 0; b < t->B; b++) {
            for (int p = p0; p < p1; p++) page_alloc(t, l, b, p);
        }
    }
}

/* The reverse order of pages_alloc_range: last in, first out. */
static inline void pages_free_range(PageTable *t, int l0, int l1, int p0, int p1) {
    for (int l = l1 - 1; l >= l0; l--) {
        for (int b = t->B - 1; b >= 0; b--) {
            for (int p = p1 - 1; p >= p0; p--) page_free(t, l, b, p);
        }
    }
}

/* The same two for the gradient pages p0 .. p1-1 of one layer; pages that are there already stay. */
static inline void pages_alloc_grad_range(PageTable *t, int l, int p0, int p1) {
    for (int b = 0; b < t->B; b++) {
        for (int p = p0; p < p1; p++) page_alloc_grad(t, l, b, p);
    }
}

static inline void pages_free_grad_range(PageTable *t, int l, int p0, int p1) {
    for (int b = t->B - 1; b >= 0; b--) {
        for (int p = p1 - 1; p >= p0; p--) page_free_grad(t, l, b, p);
    }
}

static inline int pages_in_use(const PageTable *t) {
    return t->kv.capacity - t->kv.num_free + t->dkv.capacity - t->dkv.num_free;
}

#endif
