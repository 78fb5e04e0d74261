/* One decision of a policy: a small perceptron, and the best of what is allowed. */

#pragma once

#include <math.h>
#include <stdint.h>

/* Laid out by native_network.py. `features` are the first of the widths, `allowed` of the last. */
typedef struct {
    const float *parameters; /* of each layer its weights (inputs, outputs), then its biases */
    const int64_t *widths;
    int64_t layers, widest;
    const float *features, *allowed; /* allowed: not 0 */
    float *scratch; /* twice the widest layer */
    float *outputs;
    int32_t smooth; /* between layers tanh, else ReLU */
} Decision;

/* One layer of it: out[o] = bias[o] + sum over i, in order. */
static void dense(const float *restrict input, int64_t wide, const float *restrict weights, int64_t out,
                  float *restrict to) {
    const float *restrict bias = weights + wide * out;
    for (int64_t o = 0; o < out; o++) to[o] = bias[o];
    for (int64_t i = 0; i < wide; i++)
        for (int64_t o = 0; o < out; o++) to[o] += input[i] * weights[i * out + o];
}

/* The largest allowed output, the first of equals, as in training; -1 if one that is allowed is not finite: it may have
   been the best, or the worst. */
int64_t decide(const Decision *d) {
    const float *input = d->features, *parameters = d->parameters;
    for (int64_t l = 0; l < d->layers; l++) {
        const int64_t wide = d->widths[l], out = d->widths[l + 1];
        float *to = l == d->layers - 1 ? d->outputs : d->scratch + (l % 2) * d->widest;
        dense(input, wide, parameters, out, to);
        parameters += (wide + 1) * out;
        if (l < d->layers - 1)
            for (int64_t o = 0; o < out; o++)
                to[o] = d->smooth ? tanhf(to[o]) : to[o] < 0.0f ? 0.0f : to[o]; /* NaN stays */
        input = to;
    }
    int64_t best = -1;
    for (int64_t action = 0; action < d->widths[d->layers]; action++) {
        if (d->allowed[action] == 0.0f) continue;
        if (!isfinite(d->outputs[action])) return -1;
        if (best < 0 || d->outputs[action] > d->outputs[best]) best = action;
    }
    return best;
}
