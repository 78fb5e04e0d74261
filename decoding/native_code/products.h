/* Products of few rows with packed weights. */

#pragma once

#include "lanes.h"
#include "team.h"

/* m <= TILE rows times one panel: y[r][j] = sum over k of x[r][k] w[k][j], each sum in ascending k. Here and in
   add_values() the compiler makes one fused operation of product and sum, or in neither: else rows would differ. */
ALWAYS void tile(const int m, const int half, const float *x, int64_t ldx, int64_t depth, const float *w, int64_t ldw,
                 float *y, int64_t ldy, int add) {
    vf left[TILE], right[TILE];
    for (int r = 0; r < m; r++) left[r] = right[r] = (vf){0};
    for (int64_t k = 0; k < depth; k++) {
        vf w0, w1;
        if (half) { /* the upper halves of 32 bits are the second vector, as bf16 is a truncated fp32 */
            vuu pair = *(const vuu *)(w + k * ldw);
            w0 = (vf)(pair << 16);
            w1 = (vf)(pair & 0xffff0000u);
        } else {
            w0 = *(const vfu *)(w + k * ldw);
            w1 = *(const vfu *)(w + k * ldw + LANES);
        }
        for (int r = 0; r < m; r++) {
            float input = x[r * ldx + k];
            left[r] += input * w0;
            right[r] += input * w1;
        }
    }
    for (int r = 0; r < m; r++) {
        vfu *out = (vfu *)(y + r * ldy);
        out[0] = add ? out[0] + left[r] : left[r];
        out[1] = add ? out[1] + right[r] : right[r];
    }
}

ALWAYS void tiles(const int half, const float *x, int64_t ldx, int64_t rows, int64_t depth, const float *w, int64_t ldw,
                  float *y, int64_t ldy, int add) {
    int64_t blocks = (rows + TILE - 1) / TILE, done = 0;
    for (int64_t left = blocks; left > 0; left--) { /* even blocks: 8 rows are 4 + 4, since 6 + 2 would take longer */
        int64_t m = (rows - done) / left;
        const float *from = x + done * ldx;
        float *to = y + done * ldy;
        switch (m) {
            case 1: tile(1, half, from, ldx, depth, w, ldw, to, ldy, add); break;
            case 2: tile(2, half, from, ldx, depth, w, ldw, to, ldy, add); break;
            case 3: tile(3, half, from, ldx, depth, w, ldw, to, ldy, add); break;
            case 4: tile(4, half, from, ldx, depth, w, ldw, to, ldy, add); break;
            case 5: tile(5, half, from, ldx, depth, w, ldw, to, ldy, add); break;
            default: tile(6, half, from, ldx, depth, w, ldw, to, ldy, add);
        }
        done += m;
    }
}

/* All rows times panel number p of packed weights (K, PANEL). */
static void panel_product(int half, const float *x, int64_t ldx, int64_t rows, int64_t depth, const void *w, int64_t p,
                          float *y, int64_t ldy, int add) {
    if (half)
        tiles(1, x, ldx, rows, depth, (const float *)w + p * depth * LANES, LANES, y, ldy, add);
    else
        tiles(0, x, ldx, rows, depth, (const float *)w + p * depth * PANEL, PANEL, y, ldy, add);
}

typedef struct {
    const void *weights;
    const float *x;
    const int64_t *places;
    float *gathered, *y;
    int64_t rows, depth, outputs;
    int32_t half;
    Barrier *barrier;
} Product;

static void product_part(const void *argument, int64_t me, int64_t team) {
    const Product *p = argument;
    const float *x = p->x;
    if (p->places) {
        SHARE(r, p->rows) memcpy(p->gathered + r * p->depth, x + p->places[r] * p->depth, p->depth * sizeof(float));
        wait_for_all(p->barrier, team);
        x = p->gathered;
    }
    SHARE(i, p->outputs / PANEL) panel_product(p->half, x, p->depth, p->rows, p->depth, p->weights, i, p->y + i * PANEL,
                                               p->outputs, 0);
}

/* y (R, N) = x (R, K) times packed weights; of the rows `places` (R) of x, if given: `gathered` (R, K) is room for them. */
void product(const void *weights, int32_t half, const float *x, const int64_t *places, float *gathered, int64_t rows,
             int64_t depth, int64_t outputs, float *y, int32_t threads) {
    Barrier barrier = {0};
    Product all = {weights, x, places, gathered, y, rows, depth, outputs, half, &barrier};
    share(product_part, &all, threads);
}

/* Whether n weights are all bf16 numbers. */
int32_t is_half(const float *weights, int64_t n) {
    const uint32_t *bits = (const uint32_t *)weights;
    uint32_t lost = 0;
    for (int64_t i = 0; i < n; i++) lost |= bits[i] & 0xffffu;
    return lost == 0;
}

typedef struct {
    const uint32_t *bits;
    uint32_t *packed;
    int64_t outputs, depth;
    int32_t half;
} Packing;

static void pack_part(const void *argument, int64_t me, int64_t team) {
    const Packing *w = argument;
    SHARE(p, (w->outputs + PANEL - 1) / PANEL)
    for (int64_t k = 0; k < w->depth; k++) {
        uint32_t word[PANEL];
        for (int64_t j = 0; j < PANEL; j++) {
            int64_t n = p * PANEL + j;
            word[j] = n < w->outputs ? w->bits[n * w->depth + k] : 0;
        }
        uint32_t *to = w->packed + (p * w->depth + k) * (w->half ? LANES : PANEL);
        for (int64_t j = 0; j < LANES; j++) {
            to[j] = w->half ? word[j] >> 16 | (word[j + LANES] & 0xffff0000u) : word[j];
            if (!w->half) to[j + LANES] = word[j + LANES];
        }
    }
}

/* Weights (N, K) -> (panels, K, PANEL): all that one input meets lies together; N is padded with zeros. Half: one
   32-bit word holds the bf16 numbers of output j and of output j + LANES of the panel. */
void pack(const float *weights, int64_t outputs, int64_t depth, int32_t half, void *packed, int32_t threads) {
    Packing all = {(const uint32_t *)weights, packed, outputs, depth, half};
    share(pack_part, &all, threads);
}
