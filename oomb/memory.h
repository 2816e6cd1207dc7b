/* memory.h: the ledger. Every large allocation has a name, a tier, and the option that shrinks
   it; the table printed at the start of a run is this list.

   With plan_only set, the same calls fill the same list and allocate nothing: that is how the
   program knows what a run would need without running it. */
#ifndef OOMB_MEMORY_H
#define OOMB_MEMORY_H

#include "util.h"

typedef enum { TIER_DEVICE, TIER_HOST, TIER_DISK } Tier;
static const char *const tier_names[] = {"device", "host", "disk"};

/* What happens to an allocation between steps. A test fills MEMORY_SCRATCH with NaN before a
   step and expects not one bit to change. */
typedef enum { MEMORY_KEPT, MEMORY_SCRATCH } Lifetime;

enum { MEMORY_MAX_ENTRIES = 128, MEMORY_ALIGN = 64 };

typedef struct {
    const char *group;  /* the ledger's line: entries of one group are added up */
    const char *name;   /* this buffer */
    const char *option; /* what shrinks it, "" if nothing does */
    Tier tier;
    Lifetime lifetime;
    size_t bytes;
    void *ptr; /* NULL when planning, and for what memory_note() counts */
} MemoryEntry;

typedef struct {
    MemoryEntry entries[MEMORY_MAX_ENTRIES];
    int count;
    int plan_only;
} Memory;

/* Counts bytes that something else allocates: thread-local tables, the program itself. */
static inline MemoryEntry *memory_note(Memory *mem, const char *group, const char *name, const char *option, Tier tier,
                                       Lifetime lifetime, size_t bytes) {
    if (mem->count == MEMORY_MAX_ENTRIES)
        die("memory ledger: more than %d entries; raise MEMORY_MAX_ENTRIES", MEMORY_MAX_ENTRIES);
    MemoryEntry *e = &mem->entries[mem->count++];
    e->group = group;
    e->name = name;
    e->option = option;
    e->tier = tier;
    e->lifetime = lifetime;
    e->bytes = bytes;
    e->ptr = NULL;
    return e;
}

/* count * size bytes, aligned for vectors, contents undefined; NULL when count is 0 or when
   planning. Ends the program when there is no memory, naming the buffer and the option. */
static inline void *memory_alloc(Memory *mem, const char *group, const char *name, const char *option, Tier tier,
                                 Lifetime lifetime, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        die("%s/%s: %zu x %zu bytes is more than an address can hold", group, name, count, size);
    if (bytes == 0) return NULL;
    MemoryEntry *e = memory_note(mem, group, name, option, tier, lifetime, bytes);
    if (mem->plan_only) return NULL;
    if (posix_memalign(&e->ptr, MEMORY_ALIGN, bytes) != 0) {
        die("out of memory: cannot get %s for %s (%s)%s%s", text_bytes((double)bytes).text, group, name,
            *option ? "; smaller with " : "", option);
    }
    return e->ptr;
}

static inline size_t memory_total(const Memory *mem, Tier tier) {
    size_t sum = 0;
    for (int i = 0; i < mem->count; i++) {
        if (mem->entries[i].tier == tier) sum += mem->entries[i].bytes;
    }
    return sum;
}

/* Ends the program if what is planned cannot fit, naming the largest group and what shrinks it: an operating system that
   overcommits would let the run start and kill it later. */
static inline void memory_check(const Memory *mem, Tier tier, size_t available) {
    size_t total = memory_total(mem, tier), most = 0;
    const MemoryEntry *largest = NULL;
    for (int i = 0; i < mem->count; i++) {
        const MemoryEntry *e = &mem->entries[i];
        if (e->tier == tier && e->bytes > most) {
            most = e->bytes;
            largest = e;
        }
    }
    if (total <= available) return;
    die("this run needs %s of %s memory, but this machine has %s; the largest part is \"%s\" (smaller with %s)",
        text_bytes((double)total).text, tier_names[tier], text_bytes((double)available).text, largest->group,
        largest->option);
}

/* Every byte of every scratch buffer becomes 0xFF: a NaN in float and double. */
static inline void memory_poison(Memory *mem) {
    for (int i = 0; i < mem->count; i++) {
        MemoryEntry *e = &mem->entries[i];
        if (e->ptr && e->lifetime == MEMORY_SCRATCH) memset(e->ptr, 0xFF, e->bytes);
    }
}

static inline void memory_free_all(Memory *mem) {
    for (int i = 0; i < mem->count; i++) free(mem->entries[i].ptr);
    mem->count = 0;
}

/* One line per group in order of first appearance, then the totals of the tiers in use. */
static inline void memory_print(const Memory *mem, FILE *out) {
    fprintf(out, "%-34s %-7s %10s   %s\n", "memory", "tier", "bytes", "smaller with");
    for (int i = 0; i < mem->count; i++) {
        const MemoryEntry *e = &mem->entries[i];
        size_t bytes = 0;
        int first = 1;
        for (int j = 0; j < mem->count; j++) {
            const MemoryEntry *o = &mem->entries[j];
            if (o->tier != e->tier || strcmp(o->group, e->group) != 0) continue;
            if (j < i) first = 0;
            bytes += o->bytes;
        }
        if (first)
            fprintf(out, "  %-32s %-7s %10s%s%s\n", e->group, tier_names[e->tier], text_bytes((double)bytes).text,
                    *e->option ? "   " : "", e->option);
    }
    for (int t = TIER_DEVICE; t <= TIER_DISK; t++) {
        size_t total = memory_total(mem, (Tier)t);
        if (total) fprintf(out, "  %-32s %-7s %10s\n", "total", tier_names[t], text_bytes((double)total).text);
    }
}

#endif
