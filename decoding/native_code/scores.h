/* The best of a row of logits, and the survival of a drafted level. */

#pragma once

#include <math.h>
#include "lanes.h"

/* The largest of n and its place, the lowest where several are; any NaN makes the value NaN. */
static void largest(const float *x, int64_t n, float *value, int64_t *place) {
    enum { BLOCK = 32 * LANES }; /* searched for the place once it is known to hold the largest so far */
    float best = -INFINITY;
    vi odd = {0};
    int nan = 0;
    *place = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = start + BLOCK < n ? start + BLOCK : n, i = start;
        vf most = (vf){0} - INFINITY;
        for (; i + LANES <= end; i += LANES) {
            vf v = *(const vfu *)(x + i);
            vi more = v > most;
            odd |= v != v;
            most = (vf)(((vi)v & more) | ((vi)most & ~more));
        }
        float here = -INFINITY;
        for (int lane = 0; lane < LANES; lane++) here = most[lane] > here ? most[lane] : here;
        for (; i < end; i++) {
            nan |= x[i] != x[i];
            here = x[i] > here ? x[i] : here;
        }
        if (here > best) {
            best = here;
            for (*place = start; x[*place] != best;) ++*place;
        }
    }
    *value = nan || any_lane(odd) ? NAN : best;
}

/* Offer a value to the `width` best of a row so far: best first, the lower place before its equals, NaN last. Returns
   how many are held. */
static int64_t offer(float x, int64_t place, int64_t held, int64_t width, float *values, int64_t *places) {
    float value = x == x ? x : -INFINITY;
    if (held == width && !(value > values[width - 1])) return held;
    int64_t at = held < width ? held : width - 1;
    for (; at > 0 && values[at - 1] < value; at--) {
        values[at] = values[at - 1];
        places[at] = places[at - 1];
    }
    values[at] = value;
    places[at] = place;
    return held < width ? held + 1 : held;
}

/* log survival of a level's tokens after one parent: (x - m) / kappa - log sum e^((x - m) / kappa) + log_a, m the
   largest of n logits x, see Scorer. `normalisers` (2): m and the logarithm; `values` and `places` (width <= n): the best,
   best first. */
static void survival(const float *x, int64_t n, float kappa, float log_a, int64_t width, float *normalisers, float *values,
                     int64_t *places) {
    int64_t i = 0, held = 0;
    float most;
    vf sums = {0};
    largest(x, n, &most, places);
    for (; i + LANES <= n; i += LANES) {
        vf v = *(const vfu *)(x + i);
        sums += exponential((v - most) / kappa);
        if (held == width && !any_lane(v > values[width - 1])) continue;
        for (int64_t j = i; j < i + LANES; j++) held = offer(x[j], j, held, width, values, places);
    }
    float sum = lane_sum(sums);
    for (; i < n; i++) {
        sum += expf((x[i] - most) / kappa);
        held = offer(x[i], i, held, width, values, places);
    }
    normalisers[0] = most;
    normalisers[1] = logf(sum);
    for (int64_t w = 0; w < width; w++) values[w] = (values[w] - most) / kappa - normalisers[1] + log_a;
}

/* `largest` of each row of logits (R, n), rows ld apart. */
void largest_of_rows(const float *logits, int64_t rows, int64_t ld, int64_t n, float *values, int64_t *places) {
    for (int64_t r = 0; r < rows; r++) largest(logits + r * ld, n, values + r, places + r);
}

/* `survival` of each row of logits (R, n), rows ld apart. */
void survival_of_rows(const float *logits, int64_t rows, int64_t ld, int64_t n, float kappa, float log_a, int64_t width,
                      float *normalisers, float *values, int64_t *places) {
    for (int64_t r = 0; r < rows; r++)
        survival(logits + r * ld, n, kappa, log_a, width, normalisers + 2 * r, values + r * width, places + r * width);
}
