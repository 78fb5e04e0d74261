/* Noise: the functions of noise.py, bit for bit. */

#pragma once

#include <math.h>
#include "lanes.h"
#include "team.h"

#define GOLDEN 0x9E3779B97F4A7C15u

/* The uniform of a state in steps of 2^-53. */
ALWAYS uint64_t mixed(uint64_t state) {
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
    state = (state ^ state >> 27) * 0x94D049BB133111EBu;
    return (state ^ state >> 31) >> 11;
}

ALWAYS double uniform(uint64_t steps) { return (steps ? (double)(int64_t)steps : 0.5) * 0x1p-53; }

/* y (P, N): uniforms of N ids under P keys. */
void uniforms(const int64_t *keys, int64_t positions, const int64_t *ids, int64_t n, double *y) {
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < n; i++) y[p * n + i] = uniform(mixed(keys[p] + (ids[i] + (uint64_t)1) * GOLDEN));
}

/* At least the Gumbel value: -log(-log u) < -log(1 - u) < the bound. 1 - u is cut to 24 bits, so that it is an exact
   float; whose bits, read as a number, are its logarithm to base 2 but for a straight line between powers of 2, which
   lies below by .09 at most. 0 is as good as 2^-127. */
ALWAYS double gumbel_bound(uint64_t steps) {
    float rest = (float)(0xffffff - (int32_t)(steps >> 29));
    int32_t bits;
    memcpy(&bits, &rest, sizeof bits);
    return (127 + 24 - bits * 0x1p-23) * 0.6931471805599453;
}

#define NOISE_BLOCK 32

typedef struct {
    const float *logits;
    int64_t n, key, room;
    double temperature;
    int64_t *ids;
    double *scaled, *drawn;
    int64_t found[MOST_THREADS]; /* by each thread from place me * room on; above `room`: there were more */
} Race;

static double raced(double scaled, double drawn) { return scaled - log(-log(drawn)); }

/* A value less far more than all rounding, whoever computes the logarithms. */
static double at_least(double value) { return value - 1e-9 * (1 + fabs(value)); }

static void race_part(const void *argument, int64_t me, int64_t team) {
    Race *all = (Race *)argument; /* each thread writes its own part */
    const float *logits = all->logits;
    const int64_t n = all->n, room = all->room, first = me * room, blocks = (n + NOISE_BLOCK - 1) / NOISE_BLOCK;
    int64_t found = 0;
    double floor = -INFINITY;
    SHARE(b, blocks) {
        const int64_t start = b * NOISE_BLOCK, m = n - start < NOISE_BLOCK ? n - start : NOISE_BLOCK;
        uint64_t steps[NOISE_BLOCK], state = all->key + (uint64_t)start * GOLDEN;
        double bounds[NOISE_BLOCK];
        int any = start == 0;
        for (int64_t j = 0; j < m; j++) steps[j] = mixed(state += GOLDEN);
        for (int64_t j = 0; j < m; j++) {
            bounds[j] = logits[start + j] / all->temperature + gumbel_bound(steps[j]);
            any |= !(bounds[j] <= floor);
        }
        for (int64_t j = 0; any && j < m; j++) {
            if (bounds[j] <= floor && start + j) continue;
            if (found == room) {
                all->found[me] = room + 1;
                return;
            }
            all->ids[first + found] = start + j;
            all->scaled[first + found] = logits[start + j] / all->temperature;
            all->drawn[first + found] = uniform(steps[j]);
            double value = at_least(raced(all->scaled[first + found], all->drawn[first + found]));
            if (value > floor) floor = value;
            found++;
        }
    }
    all->found[me] = found;
}

/* Ascending ids of tokens that may be the argmax of logits / temperature + Gumbel noise: those whose value no other
   exceeds by more than rounding can, and every NaN and +infinity. Writes their scaled logits and uniforms too; there is room
   for `room` a thread. Returns how many, at least 1; -1 if there was too little room. */
int64_t contenders(const float *logits, int64_t n, double temperature, int64_t key, int64_t room, int64_t *ids,
                   double *scaled, double *drawn, int32_t threads) {
    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    Race all = {logits, n, key, room, temperature, ids, scaled, drawn, {0}};
    share(race_part, &all, threads);
    double floor = -INFINITY;
    for (int64_t t = 0; t < threads; t++) {
        if (all.found[t] > room) return -1;
        for (int64_t i = t * room; i < t * room + all.found[t]; i++) {
            double value = at_least(raced(scaled[i], drawn[i]));
            if (value > floor) floor = value;
        }
    }
    int64_t kept = 0;
    for (int64_t t = 0; t < threads; t++)
        for (int64_t i = t * room; i < t * room + all.found[t]; i++) {
            if (raced(scaled[i], drawn[i]) < floor) continue;
            ids[kept] = ids[i];
            scaled[kept] = scaled[i];
            drawn[kept] = drawn[i];
            kept++;
        }
    return kept;
}
