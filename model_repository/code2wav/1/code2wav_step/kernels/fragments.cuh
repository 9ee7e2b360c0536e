// How threads share the sums of a product, and the order of channels that lets each of them load and store 16 bytes.
//
// An instruction leaves columns 8 j + 2 q and 8 j + 2 q + 1 to thread q of four. The rows of weights are in such an order
// that a thread's 8 columns of j = 4 g to 4 g + 3 are consecutive channels.
#pragma once

constexpr int LANES = 32;
constexpr int WARPS = 4;                            // of a group
constexpr int GROUP = WARPS * LANES;
constexpr int PARTS = COLUMNS / 32;                 // of 8 channels in each of four threads
constexpr int SUMS = COLUMNS / 2;                   // of a thread

__device__ __forceinline__ float snake(float x, float alpha, float inverse_beta) {
    const float sine = hardware_sine(x * alpha);
    return fmaf(sine * sine, inverse_beta, x);
}

__device__ __forceinline__ void read(float (&v)[8], const float* vector) {
    const float4 a = *(const float4*)vector, b = *(const float4*)(vector + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// The channel of a row of weights in shared memory, and the row of a channel.
__device__ __forceinline__ constexpr int channel_of(int n) { return n / 32 * 32 + n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2; }
__device__ __forceinline__ constexpr int place_of(int channel) {
    return channel / 32 * 32 + channel % 8 / 2 * 8 + channel % 32 / 8 * 2 + channel % 2;
}

// The sum of channel 8 q + i of a part, in row lane / 4 + 8 half of the warp's 16.
__device__ __forceinline__ constexpr int sum_of(int part, int half, int i) { return 4 * (4 * part + i / 2) + 2 * half + i % 2; }
