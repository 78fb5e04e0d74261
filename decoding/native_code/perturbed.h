/* The survival of a drafted level at a temperature above 0, where the noise of the target's tokens is in the scores. */

#pragma once

#include "noise.h"
#include "scores.h"
#include "team.h"

/* Gumbel values of n <= LANES ids under a key in fp32: -log(-log u). Near 1 the inner logarithm is taken of 1 - u, which
   the steps tell exactly: -log(1 - w) = 2 atanh(w / (2 - w)). */
static void gumbel_lanes(int64_t key, const int64_t *ids, int64_t n, float *y) {
    float low[LANES], rest[LANES];
    for (int64_t i = 0; i < LANES; i++) {
        uint64_t steps = mixed(key + (ids[i < n ? i : 0] + (uint64_t)1) * GOLDEN);
        low[i] = (steps ? (float)(int64_t)steps : 0.5f) * 0x1p-53f;
        rest[i] = (float)(int64_t)(((uint64_t)1 << 53) - steps) * 0x1p-53f;
    }
    vf u = *(vfu *)low, w = *(vfu *)rest;
    vi high = w <= 0.5f;
    vf held = (vf)(((vi)w & high) | ((vi)((vf){0} + 0.5f) & ~high));
    vi near = (vi)twice_atanh(held / (2.0f - held)), far = (vi)-logarithm(u);
    vf gumbel = -logarithm((vf)((near & high) | (far & ~high)));
    memcpy(y, &gumbel, n * sizeof(float));
}

typedef struct {
    const float *logits;
    int64_t rows, ld, n;
    float temperature;
    int64_t key;
    const int64_t *ids;
    float kappa, log_a;
    int64_t width;
    float *z, *normalisers, *values;
    int64_t *places;
    Barrier *barrier;
} Level;

static void level_part(const void *argument, int64_t me, int64_t team) {
    const Level *v = argument;
    const int64_t n = v->n;
    float *noise = v->z + v->rows * n;
    SHARE(b, (n + LANES - 1) / LANES) {
        int64_t i = b * LANES;
        gumbel_lanes(v->key, v->ids + i, n - i < LANES ? n - i : LANES, noise + i);
    }
    wait_for_all(v->barrier, team);
    SHARE(r, v->rows) {
        float *z = v->z + r * n;
        for (int64_t i = 0; i < n; i++) z[i] = v->logits[r * v->ld + i] / v->temperature + noise[i];
        survival(z, n, v->kappa, v->log_a, v->width, v->normalisers + 2 * r, v->values + r * v->width,
                 v->places + r * v->width);
    }
}

/* `survival` of each row of z = logits / temperature + Gumbel noise; logits (R, n), rows ld apart. Writes z (R, n); after
   it there is room for n more. */
void survival_under_noise(const float *logits, int64_t rows, int64_t ld, int64_t n, double temperature, int64_t key,
                          const int64_t *ids, float kappa, float log_a, int64_t width, float *z, float *normalisers,
                          float *values, int64_t *places, int32_t threads) {
    Barrier barrier = {0};
    Level level = {logits, rows, ld, n, temperature, key, ids, kappa, log_a, width, z, normalisers, values, places, &barrier};
    share(level_part, &level, threads);
}
