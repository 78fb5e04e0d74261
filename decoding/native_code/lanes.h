/* Vectors of fp32 numbers as wide as the processor's, and what is computed on them. */

#pragma once

#include <stdint.h>
#include <string.h>

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

/* 2 atanh(s) = log((1 + s) / (1 - s)) for |s| <= 1/3, by its series: what is left out is below 2e-9 of it. */
ALWAYS vf twice_atanh(vf s) {
    vf t = s * s, p = (vf){0} + 2.0f / 17;
    for (int n = 15; n > 0; n -= 2) p = p * t + 2.0f / n;
    return p * s;
}

/* Natural logarithm of positive normal numbers, within a few ulp of 1 + its size. */
ALWAYS vf logarithm(vf x) {
    vi n = ((vi)x - 0x3f3504f3) >> 23; /* x = 2^n m, m from sqrt(1/2) to sqrt(2) */
    vf m = (vf)((vi)x - (n << 23));
    return __builtin_convertvector(n, vf) * 0.693147181f + twice_atanh((m - 1.0f) / (m + 1.0f));
}

ALWAYS float lane_sum(vf x) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
}

/* Whether any of LANES comparisons came out true. */
ALWAYS int any_lane(vi truth) {
    int32_t any = 0;
    for (int lane = 0; lane < LANES; lane++) any |= truth[lane];
    return any != 0;
}
