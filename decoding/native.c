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

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#ifndef LANES
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#endif
#define PANEL (2 * LANES)
#define TILE 6 /* rows: 12 sums, 2 vectors of weights and 1 input fill the 16 registers of AVX2 */
#define ALWAYS static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef float vfu __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t vuu __attribute__((vector_size(LANES * 4), aligned(4)));

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

typedef struct {
    const int64_t *tokens;    /* (R) */
    const int64_t *positions; /* (R) */
    const float *states;      /* (any, H), the layers' input, in place of the tokens' embeddings; null = these */
    const int64_t *state_rows; /* (R), the row of `states` that each row takes; null = its own */
    const uint8_t *mask;      /* (R, seen): which of the last `seen` slots a row attends to; null = all up to its own */
    const float *cos, *sin;   /* (positions, D / 2) */
    float *captured;          /* (R, capture_count * H): outputs of the layers in `capture`, 1 = the first; or null */
    const int64_t *capture;
    float *logits;            /* (R or 1, vocabulary) */
    float *best;              /* of each row with logits, (width or 1): see survival(), or largest() where width is 0 */
    int64_t *best_tokens;     /* the same */
    float *normalisers;       /* (R or 1, 2), where width is not 0 */
    float *workspace;         /* workspace_floats() */
    int64_t rows, length, seen, capture_count, outputs, width; /* of the logits `outputs` are no padding */
    int32_t last_logits_only, threads;
    float kappa, log_a;
} Call;

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

/* e^x within 2 ulp: 2^n times a polynomial (Cephes' expf); 0 below -87, held above 88. */
ALWAYS vf exponential(vf x) {
    vi small = x < -87.0f;
    vf held = (vf)(((vi)x & ~small) | ((vi)(vf){0} & small));
    vi large = held > 88.0f;
    held = (vf)(((vi)held & ~large) | ((vi)((vf){0} + 88.0f) & large));
    vf scaled = held * 1.44269504f;
    vf half = (vf)(((vi)scaled & (int32_t)0x80000000) | (vi)((vf){0} + 0.5f)); /* rounds to the nearest either side of 0 */
    vi n = __builtin_convertvector(scaled + half, vi);
    vf whole = __builtin_convertvector(n, vf);
    vf r = held - whole * 0.693359375f + whole * 2.12194440e-4f;
    vf p = (vf){0} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vf)((vi)(p * (vf)((n + 127) << 23)) & ~small);
}

ALWAYS float lane_sum(vf x) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
}

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

static void rotate(float *x, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = first * cos[i] - second * sin[i];
        x[i + half] = second * cos[i] + first * sin[i];
    }
}

/* Turn queries and keys of a row to its position; put its keys and values into their slot. */
static void place_row(const Stack *s, const Call *c, const Slots *slots, int64_t layer, int64_t row, float *qkv) {
    int64_t d = s->head_dim, slot = c->length + row;
    const float *cos = c->cos + c->positions[row] * (d / 2), *sin = c->sin + c->positions[row] * (d / 2);
    for (int64_t head = 0; head < s->heads + s->kv_heads; head++) rotate(qkv + head * d, cos, sin, d / 2);
    for (int64_t g = 0; g < s->kv_heads; g++) {
        const float *key = qkv + (s->heads + g) * d, *value = key + s->kv_heads * d;
        int64_t lot = layer * s->kv_heads + g;
        float *panel = slots->keys + (lot * slots->slots + slot / PANEL * PANEL) * d + slot % PANEL;
        for (int64_t i = 0; i < d; i++) panel[i * PANEL] = key[i];
        memcpy(slots->values + (lot * slots->slots + slot) * d, value, d * sizeof(float));
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

static Sight sight_of(const Call *c, int64_t row) {
    Sight s = {c->length + row + 1, c->length + row + 1, 0, 0};
    if (c->mask) {
        int64_t first = c->length + c->rows - c->seen;
        const uint8_t *mask = c->mask + row * c->seen;
        for (s.open = 0; s.open < c->seen && mask[s.open];) s.open++;
        for (s.end = c->seen; s.end > s.open && !mask[s.end - 1];) s.end--;
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
static void attend(const Stack *s, const Call *c, const Slots *slots, int64_t layer, int64_t row, int64_t count, int64_t g,
                   const float *qkv, int64_t wide, float *scratch, int64_t lds, float *out) {
    const int64_t d = s->head_dim, group = s->heads / s->kv_heads, lot = layer * s->kv_heads + g, heads = count * group;
    const float *keys = slots->keys + lot * slots->slots * d, *values = slots->values + lot * slots->slots * d;
    float *queries = scratch, *sums = queries + heads * d, *scores = sums + heads * d;
    Sight sights[2 * TILE];
    int64_t end = 0, shared = INT64_MAX;
    for (int64_t r = 0; r < count; r++) {
        sights[r] = sight_of(c, row + r);
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

static int64_t score_room(const Call *c) { return (c->length + c->rows + PANEL - 1) / PANEL * PANEL; }

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

/* A team of threads that yield the core while they wait. OpenMP's spin on it and then sleep: where another process
   wants a core, each of the hundreds of waits in a forward can cost a time slice of milliseconds. */
typedef void (*Task)(const void *argument, int64_t me, int64_t team);

enum { SPINS = 4096, YIELDS = 2048, MOST_THREADS = 256 };

static struct {
    pthread_mutex_t busy, lock; /* one task at a time; of `wake` */
    pthread_cond_t wake;
    atomic_uint round, running;
    unsigned born[MOST_THREADS]; /* the round before a member's first */
    int64_t members, team;       /* beside the caller; with it, in this round */
    Task task;
    const void *argument;
} pool;

static void reset_pool(void) {
    pthread_mutex_init(&pool.busy, 0);
    pthread_mutex_init(&pool.lock, 0);
    pthread_cond_init(&pool.wake, 0);
    pool.members = 0;
}

__attribute__((constructor)) static void prepare(void) {
    reset_pool();
    pthread_atfork(0, 0, reset_pool); /* the child has none of the threads */
}

/* Whether *value has come to differ from `old` before patience, if any, was over. */
static int changed(atomic_uint *value, unsigned old, int patience) {
    for (int waits = 0; atomic_load_explicit(value, memory_order_acquire) == old; waits++) {
        if (patience && waits > patience) return 0;
        if (waits > SPINS) sched_yield();
        if (waits > 1 << 30) waits = SPINS;
    }
    return 1;
}

static void *member(void *number) {
    int64_t me = (int64_t)number;
    for (unsigned seen = pool.born[me];; seen++) {
        if (!changed(&pool.round, seen, SPINS + YIELDS)) {
            pthread_mutex_lock(&pool.lock);
            while (atomic_load(&pool.round) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            pthread_mutex_unlock(&pool.lock);
        }
        if (me < pool.team) pool.task(pool.argument, me, pool.team);
        atomic_fetch_sub(&pool.running, 1); /* those outside the team too: nobody may miss a round */
    }
    return 0;
}

/* Have `threads` threads, the caller among them, do a task; fewer where they cannot be had. */
static void share(Task task, const void *argument, int64_t threads) {
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads <= 1) {
        task(argument, 0, 1);
        return;
    }
    pthread_mutex_lock(&pool.busy);
    while (pool.members < threads - 1) {
        pthread_t thread;
        int64_t number = pool.members + 1;
        pool.born[number] = atomic_load(&pool.round);
        if (pthread_create(&thread, 0, member, (void *)number)) break;
        pthread_detach(thread);
        pool.members = number;
    }
    pool.task = task;
    pool.argument = argument;
    pool.team = threads <= pool.members ? threads : pool.members + 1;
    atomic_store(&pool.running, (unsigned)pool.members);
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.round, 1);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    task(argument, 0, pool.team);
    for (unsigned left; (left = atomic_load(&pool.running)) > 0;) changed(&pool.running, left, 0);
    pthread_mutex_unlock(&pool.busy);
}

typedef struct {
    atomic_uint arrived, round;
} Barrier;

static void wait_for_all(Barrier *barrier, int64_t team) {
    unsigned round = atomic_load(&barrier->round);
    if (atomic_fetch_add(&barrier->arrived, 1) == team - 1) {
        atomic_store(&barrier->arrived, 0);
        atomic_store(&barrier->round, round + 1);
    } else {
        changed(&barrier->round, round, 0);
    }
}

/* This thread's part of 0 .. n - 1. What it does for one of them does not depend on who does it. */
#define SHARE(i, n) for (int64_t i = (n) * me / team, end_##i = (n) * (me + 1) / team; i < end_##i; i++)

/* Whether any of LANES comparisons came out true. */
ALWAYS int any_lane(vi truth) {
    int32_t any = 0;
    for (int lane = 0; lane < LANES; lane++) any |= truth[lane];
    return any != 0;
}

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

typedef struct {
    const Stack *stack;
    const Slots *slots;
    const Call *call;
    Barrier *barrier;
} Forward;

static void forward_part(const void *argument, int64_t me, int64_t team) {
    const Forward *all = argument;
    const Stack *s = all->stack;
    const Slots *slots = all->slots;
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
        SHARE(r, rows) place_row(s, c, slots, l, r, inner + r * wide);
        wait_for_all(barrier, team);
        const int64_t most = attended_rows(s), parts = (rows + most - 1) / most;
        for (int64_t i = me; i < parts * s->kv_heads; i += team) { /* later rows may see more: dealt in turn */
            int64_t part = i / s->kv_heads, first = rows * part / parts, count = rows * (part + 1) / parts - first;
            attend(s, c, slots, l, first, count, i % s->kv_heads, inner, wide, mine, score_room(c), input);
        }
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
    const int64_t first = c->last_logits_only ? rows - 1 : 0;
    SHARE(r, rows) {
        if (r >= first) rms_norm(x + r * h, s->final_norm, s->eps, h, input + r * h);
        for (int64_t f = 0; f < c->capture_count; f++)
            if (c->capture[f] == s->layer_count) memcpy(captured_row(s, c, r, f), x + r * h, h * sizeof(float));
    }
    wait_for_all(barrier, team);
    SHARE(p, s->vocabulary / PANEL) panel_product(s->half_logits, input + first * h, h, rows - first, h, s->logits, p,
                                                  c->logits + p * PANEL, s->vocabulary, 0);
    wait_for_all(barrier, team);
    SHARE(r, rows - first) {
        const float *scores = c->logits + r * s->vocabulary;
        if (c->width)
            survival(scores, c->outputs, c->kappa, c->log_a, c->width, c->normalisers + 2 * r, c->best + r * c->width,
                     c->best_tokens + r * c->width);
        else
            largest(scores, c->outputs, c->best + r, c->best_tokens + r);
    }
}

/* Run the rows on top of `length` slots; they take the slots after these. */
void forward(const Stack *stack, const Slots *slots, const Call *call) {
    Barrier barrier = {0};
    Forward all = {stack, slots, call, &barrier};
    share(forward_part, &all, call->threads);
}

typedef struct {
    const void *weights;
    const float *x;
    float *y;
    int64_t rows, depth, outputs;
    int32_t half;
} Product;

static void product_part(const void *argument, int64_t me, int64_t team) {
    const Product *p = argument;
    SHARE(i, p->outputs / PANEL) panel_product(p->half, p->x, p->depth, p->rows, p->depth, p->weights, i, p->y + i * PANEL,
                                               p->outputs, 0);
}

/* y (R, N) = x (R, K) times packed weights. */
void product(const void *weights, int32_t half, const float *x, int64_t rows, int64_t depth, int64_t outputs, float *y,
             int32_t threads) {
    Product all = {weights, x, y, rows, depth, outputs, half};
    share(product_part, &all, threads);
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

int64_t panel(void) { return PANEL; }

/* Noise: the functions of noise.py, bit for bit. */
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

/* Ascending ids of tokens that may be the argmax of logits / temperature + Gumbel noise: the first, and
   those whose bound exceeds the best value before them, as that of the argmax and of all that tie with it does; NaN and
   +infinity always stay. Writes their scaled logits and uniforms too; there is room for n. Returns how many. */
int64_t contenders(const float *logits, int64_t n, double temperature, int64_t key, int64_t *ids, double *scaled,
                   double *drawn) {
    int64_t found = 0;
    double floor = -INFINITY;
    for (int64_t start = 0; start < n; start += NOISE_BLOCK) {
        const int64_t m = n - start < NOISE_BLOCK ? n - start : NOISE_BLOCK;
        uint64_t steps[NOISE_BLOCK], state = key + (uint64_t)start * GOLDEN;
        double bounds[NOISE_BLOCK];
        int any = start == 0;
        for (int64_t j = 0; j < m; j++) steps[j] = mixed(state += GOLDEN);
        for (int64_t j = 0; j < m; j++) {
            bounds[j] = logits[start + j] / temperature + gumbel_bound(steps[j]);
            any |= !(bounds[j] <= floor);
        }
        for (int64_t j = 0; any && j < m; j++) {
            if (bounds[j] <= floor && start + j) continue;
            ids[found] = start + j;
            scaled[found] = logits[start + j] / temperature;
            drawn[found] = uniform(steps[j]);
            double value = scaled[found] - log(-log(drawn[found]));
            value -= 1e-9 * (1 + fabs(value)); /* far more than all rounding, whoever computes the logarithms */
            if (value > floor) floor = value;
            found++;
        }
    }
    return found;
}
