/* What python hands over: layers, cache and call. */

#pragma once

#include <stdint.h>

/* The fields of these are native.py's too. */
typedef struct {
    const void *qkv, *out, *gate_up, *down; /* packed, see pack() */
    const float *qkv_bias, *out_bias;       /* null where there is none */
    const float *attention_norm, *mlp_norm; /* (H) */
} Layer;

typedef struct {
    const Layer *layers;
    const float *embeddings;      /* (vocabulary, H) */
    const float *embedding_norm;  /* (H) in an EAGLE head, whose layer reads [embedding, state]; else null */
    const float *final_norm;      /* (H) */
    const void *logits;           /* packed */
    int64_t layer_count, hidden, intermediate, heads, kv_heads, head_dim, vocabulary; /* padded to whole panels */
    int32_t half_layers, half_logits; /* whether the packed weights are pairs of bf16 numbers */
    float eps;
} Stack;

typedef struct {
    float *keys;   /* (layers, G, T / PANEL, D, PANEL) */
    float *values; /* (layers, G, T, D) */
    int64_t slots; /* T, a multiple of PANEL */
} Slots;

/* The rows of one request: they take the slots of its cache after the first `length`. */
typedef struct {
    float *keys, *values; /* see Slots */
    const uint8_t *mask;  /* (rows, seen): which of the last `seen` slots a row attends to; null = all up to its own */
    int64_t slots, first, rows, length, seen; /* rows first .. first + rows - 1 of the call */
} Part;

typedef struct {
    const Part *parts;        /* in the order of their rows */
    const int64_t *tokens;    /* (R) */
    const int64_t *positions; /* (R) */
    const float *states;      /* (any, H), the layers' input, in place of the tokens' embeddings; null = these */
    const int64_t *state_rows; /* (R), the row of `states` that each row takes; null = its own */
    const float *cos, *sin;   /* (positions, D / 2) */
    float *captured;          /* (R, capture_count * H): outputs of the layers in `capture`, 1 = the first; or null */
    const int64_t *capture;
    const int64_t *scored;    /* (S), ascending: the rows whose logits are wanted; null = all */
    float *logits;            /* (S, vocabulary) */
    float *best;              /* (S, width or 1): see survival(), or largest() where width is 0 */
    int64_t *best_tokens;     /* the same */
    float *normalisers;       /* (S, 2), where width is not 0 */
    float *workspace;         /* workspace_floats() */
    int64_t rows, part_count, scored_count, capture_count, outputs, width; /* of the logits `outputs` are no padding */
    int64_t threads;
    float kappa, log_a;
} Call;
