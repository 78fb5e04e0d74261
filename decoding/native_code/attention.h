/* The cache, and attention of a few rows over it. */

#pragma once

#include <math.h>
#include <string.h>
#include "products.h"
#include "stack.h"

static void rotate(float *x, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = first * cos[i] - second * sin[i];
        x[i + half] = second * cos[i] + first * sin[i];
    }
}

/* Turn queries and keys of a row to its position; put its keys and values into their slot. */
static void place_row(const Stack *s, const Call *c, const Part *part, int64_t layer, int64_t row, float *qkv) {
    int64_t d = s->head_dim, slot = part->length + row - part->first;
    const float *cos = c->cos + c->positions[row] * (d / 2), *sin = c->sin + c->positions[row] * (d / 2);
    for (int64_t head = 0; head < s->heads + s->kv_heads; head++) rotate(qkv + head * d, cos, sin, d / 2);
    for (int64_t g = 0; g < s->kv_heads; g++) {
        const float *key = qkv + (s->heads + g) * d, *value = key + s->kv_heads * d;
        int64_t lot = layer * s->kv_heads + g;
        float *panel = part->keys + (lot * part->slots + slot / PANEL * PANEL) * d + slot % PANEL;
        for (int64_t i = 0; i < d; i++) panel[i * PANEL] = key[i];
        memcpy(part->values + (lot * part->slots + slot) * d, value, d * sizeof(float));
    }
}

/* Softmax over n scores, scaled first; writes e^(score - max) and returns their sum. Room for a whole vector after n. */
static float softmax_terms(float *scores, int64_t n, float scale) {
    for (int64_t i = n; i % LANES; i++) scores[i] = -INFINITY;
    float most = -INFINITY;
    for (int64_t i = 0; i < n; i++) most = scores[i] > most ? scores[i] : most;
    vf sum = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        vf term = exponential((*(vfu *)(scores + i) - most) * scale);
        *(vfu *)(scores + i) = term;
        sum += term;
    }
    return lane_sum(sum);
}

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* Slots that a row sees: all below `open`, then up to `end` those that its mask names. */
typedef struct {
    int64_t open, end, first;
    const uint8_t *named; /* of slot i at i - first; null where end is open */
} Sight;

static Sight sight_of(const Part *part, int64_t row) {
    int64_t own = part->length + row - part->first + 1;
    Sight s = {own, own, 0, 0};
    if (part->mask) {
        int64_t first = part->length + part->rows - part->seen;
        const uint8_t *mask = part->mask + (row - part->first) * part->seen;
        for (s.open = 0; s.open < part->seen && mask[s.open];) s.open++;
        for (s.end = part->seen; s.end > s.open && !mask[s.end - 1];) s.end--;
        s.open += first;
        s.end += first;
        s.first = first;
        s.named = mask;
    }
    return s;
}

/* out (D) += the values that a row of terms sees in slots from .. end - 1, one after the other; the first of these terms
   is terms[from]. */
static void add_values(const Sight *s, const float *terms, const float *values, int64_t d, int64_t from, float *out) {
    int64_t n = from;
    for (int64_t slot = from; slot < s->end; slot++) {
        if (slot >= s->open && !s->named[slot - s->first]) continue;
        float term = terms[n++];
        for (int64_t i = 0; i < d; i += LANES) *(vfu *)(out + i) += term * *(const vfu *)(values + slot * d + i);
    }
}

/* Attention of `count` rows from `row` on, for the query heads that share key/value head g. qkv is (R, wide), out
   (R, A * D). Scratch: queries and sums (count * group, D) each, scores (count * group, lds). */
static void attend(const Stack *s, const Part *part, int64_t layer, int64_t row, int64_t count, int64_t g, const float *qkv, int64_t wide, float *scratch, int64_t lds, float *out) {
    const int64_t d = s->head_dim, group = s->heads / s->kv_heads, lot = layer * s->kv_heads + g, heads = count * group;
    const float *keys = part->keys + lot * part->slots * d, *values = part->values + lot * part->slots * d;
    float *queries = scratch, *sums = queries + heads * d, *scores = sums + heads * d;
    Sight sights[2 * TILE];
    int64_t end = 0, shared = INT64_MAX;
    for (int64_t r = 0; r < count; r++) {
        sights[r] = sight_of(part, row + r);
        end = max_of(end, sights[r].end);
        shared = sights[r].open < shared ? sights[r].open : shared;
        memcpy(queries + r * group * d, qkv + (row + r) * wide + g * group * d, group * d * sizeof(float));
    }
    for (int64_t p = 0; p * PANEL < end; p++)
        tiles(0, queries, d, heads, d, keys + p * PANEL * d, PANEL, scores + p * PANEL, lds, 0);
    float totals[heads];
    for (int64_t h = 0; h < heads; h++) {
        const Sight *sight = sights + h / group;
        float *terms = scores + h * lds;
        /* Close the gaps: then the row's terms stand, and are summed, as in a text without the other rows. */
        int64_t n = sight->open;
        for (int64_t slot = n; slot < sight->end; slot++)
            if (sight->named[slot - sight->first]) terms[n++] = terms[slot];
        totals[h] = softmax_terms(terms, n, 1.0f / sqrtf((float)d));
    }
    for (int64_t i = 0; i < d; i += PANEL)
        tiles(0, scores, lds, heads, shared, values + i, d, sums + i, d, 0);
    for (int64_t h = 0; h < heads; h++) {
        float *to = out + (row + h / group) * s->heads * d + (g * group + h % group) * d;
        add_values(sights + h / group, scores + h * lds, values, d, shared, sums + h * d);
        for (int64_t i = 0; i < d; i += LANES) *(vfu *)(to + i) = *(vfu *)(sums + h * d + i) / totals[h];
    }
}

/* Move slots base + rows[i], ascending, to base + i in all layers. */
void keep(const Stack *s, const Slots *slots, int64_t base, const int64_t *rows, int64_t count) {
    int64_t d = s->head_dim;
    for (int64_t lot = 0; lot < s->layer_count * s->kv_heads; lot++) {
        float *keys = slots->keys + lot * slots->slots * d, *values = slots->values + lot * slots->slots * d;
        for (int64_t i = 0; i < count; i++) {
            int64_t to = base + i, from = base + rows[i];
            if (to == from) continue;
            float *key = keys + to / PANEL * PANEL * d + to % PANEL;
            const float *its = keys + from / PANEL * PANEL * d + from % PANEL;
            for (int64_t j = 0; j < d; j++) key[j * PANEL] = its[j * PANEL];
            memcpy(values + to * d, values + from * d, d * sizeof(float));
        }
    }
}
