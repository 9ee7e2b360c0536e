// How threads share the sums of a product, and the order of channels that lets each of them load and store 16 bytes.
//
// `vectors` in shared memory are of COLUMNS each: bias, alpha and inverse_beta, of a unit those of both its products.
//
// An instruction leaves columns 8 j + 2 q and 8 j + 2 q + 1 to thread q of four. The rows of weights are in such an order
// that a thread's 8 columns of j = 4 g to 4 g + 3 are consecutive channels.
#pragma once

constexpr int LANES = 32;
constexpr int WARPS = 4;                            // per group
constexpr int GROUP = WARPS * LANES;
constexpr int PARTS = COLUMNS / 32;                 // of 8 channels in each of four threads
constexpr int SUMS = COLUMNS / 2;                   // per thread

__device__ __forceinline__ void read(float (&v)[8], const float* vector) {
    const float4 a = *(const float4*)vector, b = *(const float4*)(vector + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// The sum of channel 8 q + i of a part, in row lane / 4 + 8 half of the warp's 16.
__device__ __forceinline__ constexpr int sum_of(int part, int half, int i) { return 4 * (4 * part + i / 2) + 2 * half + i % 2; }

// The left operand of a unit's second product: the first one's sums, which are in the channels' own order, after SnakeBeta.
__device__ __forceinline__ void activate(unsigned (&inner)[SUMS / 2], const float (&sums)[SUMS], const float* vectors, int q) {
    #pragma unroll
    for (int j = 0; j < SUMS; j += 4) {
        const float* const own = vectors + 2 * j + 2 * q;
        const float2 b = *(const float2*)own, a = *(const float2*)(own + COLUMNS), i = *(const float2*)(own + 2 * COLUMNS);
        inner[j / 2] = pack(snake(sums[j] + b.x, a.x, i.x), snake(sums[j + 1] + b.y, a.y, i.y));
        inner[j / 2 + 1] = pack(snake(sums[j + 2] + b.x, a.x, i.x), snake(sums[j + 3] + b.y, a.y, i.y));
    }
}

// The sums that a unit's second product is added to.
__device__ __forceinline__ void begin_with(float (&sums)[SUMS], const uint4 (&residual)[PARTS][2], const float* bias, int q) {
    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
        float v[8];
        read(v, bias + 8 * q + 32 * part);
        #pragma unroll
        for (int i = 0; i < 16; i += 2) {
            const uint4 r = residual[part][i / 8];
            const unsigned pairs[4] = {r.x, r.y, r.z, r.w};
            const int j = sum_of(part, i / 8, i % 8);
            sums[j] = v[i % 8] + low(pairs[i % 8 / 2]), sums[j + 1] = v[i % 8 + 1] + high(pairs[i % 8 / 2]);
        }
    }
}
