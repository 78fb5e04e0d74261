/* One forward of a stack of Llama layers for a few rows, on a CPU, in fp32.

Compiled once a machine by native.py, called from fast_forward.py. What decoding needs and BLAS does not give:
  - A forward of few rows is bound by reading the weights. They lie packed in the order in which they are read; where
    every weight is a bf16 number (as in most checkpoints), two of them share 32 bits, which halves the reading and
    changes no value.
  - The arithmetic of a row does not depend on which rows come with it, nor on the slots that its ancestors have in the
    cache: every sum runs over the same numbers in the same order. So a row of a verified tree has, bit for bit, the
    logits that plain decoding computes there.

Legend: R rows, H hidden size, K length of a sum, A attention heads, G key/value heads, D head size, T cache slots.
A panel is PANEL neighbouring outputs of a product, or PANEL neighbouring slots of the key cache.
*/

#include "attention.h"
#include "decision.h"
#include "noise.h"
#include "perturbed.h"
#include "products.h"
#include "scores.h"
#include "stack.h"
#include "team.h"

/* Root-mean-square norm of a row. */
static void rms_norm(const float *x, const float *weight, float eps, int64_t size, float *y) {
    vf squares = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        vf v = *(const vfu *)(x + i);
        squares += v * v;
    }
    float scale = 1.0f / sqrtf(lane_sum(squares) / (float)size + eps);
    for (int64_t i = 0; i < size; i += LANES)
        *(vfu *)(y + i) = *(const vfu *)(weight + i) * (*(const vfu *)(x + i) * scale);
}

/* One panel of SwiGLU: silu(gate) * up. `both` holds 2 R PANEL floats. */
static void gated_panel(const Stack *s, const Layer *layer, const float *x, int64_t rows, int64_t p, float *both,
                        float *y) {
    int64_t h = s->hidden, i = s->intermediate;
    panel_product(s->half_layers, x, h, rows, h, layer->gate_up, p, both, PANEL, 0);
    panel_product(s->half_layers, x, h, rows, h, layer->gate_up, p + i / PANEL, both + rows * PANEL, PANEL, 0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < PANEL; j += LANES) {
            vf gate = *(vfu *)(both + r * PANEL + j), up = *(vfu *)(both + (rows + r) * PANEL + j);
            *(vfu *)(y + r * i + p * PANEL + j) = gate / (1.0f + exponential(-gate)) * up;
        }
}

static void add_bias(const float *bias, int64_t p, int64_t rows, float *y, int64_t ldy) {
    if (bias)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < PANEL; j++) y[r * ldy + j] += bias[p * PANEL + j];
}

static float *captured_row(const Stack *s, const Call *c, int64_t row, int64_t f) {
    return c->captured + (row * c->capture_count + f) * s->hidden;
}

static int64_t input_width(const Stack *s) { return s->embedding_norm ? 2 * s->hidden : s->hidden; }

static int64_t score_room(const Call *c) {
    int64_t most = 0;
    for (int64_t p = 0; p < c->part_count; p++) most = max_of(most, c->parts[p].length + c->parts[p].rows);
    return (most + PANEL - 1) / PANEL * PANEL;
}

/* Rows whose attention is computed together: they share the reading of keys and values. */
static int64_t attended_rows(const Stack *s) { return max_of(1, 2 * TILE / (s->heads / s->kv_heads)); }

static int64_t own_room(const Stack *s, const Call *c) {
    int64_t heads = attended_rows(s) * (s->heads / s->kv_heads);
    return max_of(2 * c->rows * PANEL, heads * (2 * s->head_dim + score_room(c)));
}

int64_t workspace_floats(const Stack *s, const Call *c) {
    int64_t attended = s->heads * s->head_dim, wide = attended + 2 * s->kv_heads * s->head_dim;
    int64_t row = s->hidden + max_of(input_width(s), attended) + max_of(wide, s->intermediate);
    return c->rows * row + c->threads * own_room(s, c);
}

typedef struct {
    const Stack *stack;
    const Call *call;
    Barrier *barrier;
} Forward;

/* Attention of all rows, dealt in turn to the team by groups of one request's neighbouring rows and heads: later rows may
   see more. */
static void attend_all(const Stack *s, const Call *c, int64_t layer, int64_t me, int64_t team, const float *qkv, int64_t wide,
                       float *scratch, float *out) {
    const int64_t most = attended_rows(s), lds = score_room(c);
    for (int64_t p = 0, turn = 0; p < c->part_count; p++) {
        const Part *part = c->parts + p;
        const int64_t groups = (part->rows + most - 1) / most;
        for (int64_t i = 0; i < groups * s->kv_heads; i++, turn++) {
            if (turn % team != me) continue;
            int64_t group = i / s->kv_heads, first = part->rows * group / groups;
            int64_t count = part->rows * (group + 1) / groups - first;
            attend(s, part, layer, part->first + first, count, i % s->kv_heads, qkv, wide, scratch, lds, out);
        }
    }
}

static void forward_part(const void *argument, int64_t me, int64_t team) {
    const Forward *all = argument;
    const Stack *s = all->stack;
    const Call *c = all->call;
    Barrier *barrier = all->barrier;
    const int64_t rows = c->rows, h = s->hidden, attended = s->heads * s->head_dim;
    const int64_t wide = attended + 2 * s->kv_heads * s->head_dim, width = input_width(s);
    const int half = s->half_layers;
    float *x = c->workspace;                               /* (R, H) */
    float *input = x + rows * h;                           /* (R, width), then (R, A * D), then (R, H) */
    float *inner = input + rows * max_of(width, attended); /* (R, wide), then (R, intermediate) */
    float *mine = inner + rows * max_of(wide, s->intermediate) + me * own_room(s, c);
    SHARE(r, rows) {
        int64_t place = c->states ? (c->state_rows ? c->state_rows[r] : r) : c->tokens[r];
        memcpy(x + r * h, (c->states ? c->states : s->embeddings) + place * h, h * sizeof(float));
    }
    for (int64_t l = 0; l < s->layer_count; l++) {
        const Layer *layer = s->layers + l;
        if (l) wait_for_all(barrier, team);
        SHARE(r, rows) {
            float *to = input + r * width;
            if (s->embedding_norm) {
                rms_norm(s->embeddings + c->tokens[r] * h, s->embedding_norm, s->eps, h, to);
                to += h;
            }
            rms_norm(x + r * h, layer->attention_norm, s->eps, h, to);
            for (int64_t f = 0; f < c->capture_count; f++)
                if (c->capture[f] == l) memcpy(captured_row(s, c, r, f), x + r * h, h * sizeof(float));
        }
        wait_for_all(barrier, team);
        SHARE(p, wide / PANEL) {
            panel_product(half, input, width, rows, width, layer->qkv, p, inner + p * PANEL, wide, 0);
            add_bias(layer->qkv_bias, p, rows, inner + p * PANEL, wide);
        }
        wait_for_all(barrier, team);
        for (const Part *part = c->parts; part < c->parts + c->part_count; part++)
            SHARE(r, part->rows) place_row(s, c, part, l, part->first + r, inner + (part->first + r) * wide);
        wait_for_all(barrier, team);
        attend_all(s, c, l, me, team, inner, wide, mine, input);
        wait_for_all(barrier, team);
        SHARE(p, h / PANEL) {
            panel_product(half, input, attended, rows, attended, layer->out, p, x + p * PANEL, h, 1);
            add_bias(layer->out_bias, p, rows, x + p * PANEL, h);
        }
        wait_for_all(barrier, team);
        SHARE(r, rows) rms_norm(x + r * h, layer->mlp_norm, s->eps, h, input + r * h);
        wait_for_all(barrier, team);
        SHARE(p, s->intermediate / PANEL) gated_panel(s, layer, input, rows, p, mine, inner);
        wait_for_all(barrier, team);
        SHARE(p, h / PANEL) panel_product(half, inner, s->intermediate, rows, s->intermediate, layer->down, p,
                                          x + p * PANEL, h, 1);
    }
    wait_for_all(barrier, team);
    SHARE(i, c->scored_count) rms_norm(x + (c->scored ? c->scored[i] : i) * h, s->final_norm, s->eps, h, input + i * h);
    SHARE(r, rows) {
        for (int64_t f = 0; f < c->capture_count; f++)
            if (c->capture[f] == s->layer_count) memcpy(captured_row(s, c, r, f), x + r * h, h * sizeof(float));
    }
    wait_for_all(barrier, team);
    if (!c->scored_count) return;
    SHARE(p, s->vocabulary / PANEL) panel_product(s->half_logits, input, h, c->scored_count, h, s->logits, p,
                                                  c->logits + p * PANEL, s->vocabulary, 0);
    wait_for_all(barrier, team);
    SHARE(r, c->scored_count) {
        const float *scores = c->logits + r * s->vocabulary;
        if (c->width)
            survival(scores, c->outputs, c->kappa, c->log_a, c->width, c->normalisers + 2 * r, c->best + r * c->width,
                     c->best_tokens + r * c->width);
        else
            largest(scores, c->outputs, c->best + r, c->best_tokens + r);
    }
}

/* Run the rows of every part on top of its cache. */
void forward(const Stack *stack, const Call *call) {
    Barrier barrier = {0};
    Forward all = {stack, call, &barrier};
    share(forward_part, &all, call->threads);
}

int64_t panel(void) { return PANEL; }
