/* rng.h: seeded random numbers with a state of 8 bytes. Integers and uniforms are the same everywhere; normals go
   through the C library's log and cos, whose last bit may differ between libraries. */
#ifndef OOMB_RNG_H
#define OOMB_RNG_H

#include <math.h>
#include <stdint.h>

typedef struct {
    uint64_t state;
} Rng;

/* splitmix64 (Steele, Lea, Flood 2014): passes BigCrush, every seed is a good seed. */
static inline uint64_t rng_u64(Rng *r) {
    uint64_t z = (r->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* An independent stream for each (seed, a, b): each is mixed before the next is added. */
static inline Rng rng_stream(uint64_t seed, uint64_t a, uint64_t b) {
    Rng r = {seed};
    r.state = rng_u64(&r) + a;
    r.state = rng_u64(&r) + b;
    r.state = rng_u64(&r);
    return r;
}

/* A number for a name (FNV-1a), to be a stream's: it stays the same whatever other names come and go. */
static inline uint64_t rng_name(const char *name) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001B3u;
    return hash;
}

/* uniform in [0, 1), 53 bits */
static inline double rng_uniform(Rng *r) { return (double)(rng_u64(r) >> 11) * 0x1p-53; }

/* uniform in [0, n), n >= 1; the bias is below n / 2^64 */
static inline uint64_t rng_below(Rng *r, uint64_t n) { return (uint64_t)(((unsigned __int128)rng_u64(r) * n) >> 64); }

/* standard normal (Box and Muller); two numbers are drawn for each, so no state is carried */
static inline double rng_normal(Rng *r) {
    double u = 1.0 - rng_uniform(r), v = rng_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
