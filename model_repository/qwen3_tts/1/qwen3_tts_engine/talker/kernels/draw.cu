// Draws one code per row from its logits, like sampling.py; one block per row.
//
// Compiled with these macros:
//   VOCABULARY, CODES    logits per row; ids below CODES are codes, of the others only `eos` may be drawn
//   CODEBOOKS            codes per frame
//   WIDTH                width of the drawn code's embedding
//   FIRST                1: codebook 0, with repetition penalty and suppressed ids
//   THREADS              threads per block, each with VOCABULARY / THREADS contiguous logits, a multiple of 4

#include "bfloat16.cuh"

static_assert(VOCABULARY % (4 * THREADS) == 0, "a thread reads its logits in vectors of four");

constexpr int EACH = VOCABULARY / THREADS;
constexpr int WARPS = THREADS / LANES;
constexpr float NEVER = -1e30f;

// Values of all warps, in two buffers in turn: one barrier separates the reads of one from the writes of the next.
__shared__ float shared_floats[2][WARPS];
__shared__ int shared_ints[2][WARPS];

template <typename Value, typename Combine>
__device__ __forceinline__ Value over_warps(Value value, Value (&scratch)[2][WARPS], int& turn, Combine combine) {
    Value* const values = scratch[turn ^= 1];
    if (threadIdx.x % LANES == 0) values[threadIdx.x / LANES] = value;
    __syncthreads();
    value = values[0];
    #pragma unroll
    for (int warp = 1; warp < WARPS; warp++) value = combine(value, values[warp]);
    return value;
}

template <typename Combine>
__device__ __forceinline__ float over_block(float value, int& turn, Combine combine) {
    #pragma unroll
    for (int other = 1; other < LANES; other *= 2) value = combine(value, __shfl_xor_sync(ALL, value, other));
    return over_warps(value, shared_floats, turn, combine);
}

__device__ __forceinline__ int count(int value, int& turn) {
    return over_warps(__reduce_add_sync(ALL, value), shared_ints, turn, [](int a, int b) { return a + b; });
}

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float smaller(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ float sum(float a, float b) { return a + b; }

// SplitMix64 of (seed, frame, codebook); see sampling.uniforms.
__device__ __forceinline__ float uniform(unsigned long long seed, unsigned long long counter) {
    unsigned long long x = seed + counter * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    return (float)(x >> 40) * (1.0f / 16777216.0f);
}

// The largest threshold that satisfies `enough`, by bisection between `low`, which satisfies it, and `high`.
template <typename Enough>
__device__ __forceinline__ float largest(float low, float high, Enough enough) {
    if (enough(high) >= 0) return high;
    while (true) {
        const float middle = 0.5f * (low + high);
        if (middle <= low || middle >= high) return low;
        const int verdict = enough(middle);
        if (verdict == 0) return middle;
        if (verdict > 0) low = middle;
        else high = middle;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
draw(const float* logits, const long long* slots, const long long* seeds, const long long* frames, const double* options,
     unsigned char* seen, long long* codes, const bf16* __restrict__ inputs, bf16* out,
     int codebook, int stride_fields, int stride_out, int eos) {
    __shared__ float warp_sums[WARPS];
    __shared__ int drawn;

    int turn = 0;
    const int row = blockIdx.x, thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES, base = thread * EACH;
    const long long slot = slots[row], frame = frames[slot * stride_fields];
    const double* own = options + slot * stride_fields + (FIRST ? 0 : 4);
    const float temperature = (float)own[0], top_p = (float)own[2], penalty = FIRST ? (float)own[3] : 1.0f;
    const int top_k = (int)own[1];
    const float number = uniform(seeds[slot * stride_fields], frame * CODEBOOKS + codebook + 1);
    bool drawn_before[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; i++) drawn_before[i] = FIRST && base + i < CODES && seen[slot * CODES + base + i];
    wait_for_previous();
    // Only now: whatever starts after a draw may then read at once what was written before it (frame_attention).
    let_next_start();

    float x[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; i += 4) *(float4*)(x + i) = *(const float4*)(logits + (size_t)row * VOCABULARY + base + i);
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int id = base + i;
        if (drawn_before[i]) x[i] = x[i] > 0 ? x[i] / penalty : x[i] * penalty;
        if (FIRST && id >= CODES && !(id == eos && frame >= 2)) x[i] = NEVER;
        if (temperature > 0 && x[i] > NEVER) x[i] /= temperature;
    }
    float mine = NEVER, least = -NEVER;
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine = fmaxf(mine, x[i]);
        if (x[i] > NEVER) least = fminf(least, x[i]);
    }
    if (thread == 0) drawn = VOCABULARY;
    const float top = over_block(mine, turn, larger);

    if (temperature > 0) {
        float threshold = NEVER;
        if (top_k > 0 && top_k < VOCABULARY) {
            const float bottom = over_block(least, turn, smaller);
            threshold = largest(bottom, top, [&](float middle) {
                int reached = 0;
                #pragma unroll
                for (int i = 0; i < EACH; i++) reached += x[i] >= middle;
                return count(reached, turn) - top_k;
            });
        }
        float mass[EACH], before[EACH], total = 0.0f;
        #pragma unroll
        for (int i = 0; i < EACH; i++) mass[i] = x[i] >= threshold && x[i] > NEVER ? __expf(x[i] - top) : 0.0f;
        if (top_p < 1.0f) {
            float part = 0.0f;
            #pragma unroll
            for (int i = 0; i < EACH; i++) part += mass[i];
            const float needed = top_p * over_block(part, turn, sum);
            const float heavy = largest(0.0f, 1.0f, [&](float middle) {
                float reached = 0.0f;
                #pragma unroll
                for (int i = 0; i < EACH; i++) reached += mass[i] >= middle ? mass[i] : 0.0f;
                return over_block(reached, turn, sum) >= needed ? 1 : -1;
            });
            #pragma unroll
            for (int i = 0; i < EACH; i++) mass[i] = mass[i] >= heavy ? mass[i] : 0.0f;
        }
        // Inverse transform sampling in id order.
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            before[i] = total;
            total += mass[i];
        }
        float prefix = total;
        #pragma unroll
        for (int other = 1; other < LANES; other *= 2) {
            const float left = __shfl_up_sync(ALL, prefix, other);
            if (lane >= other) prefix += left;
        }
        if (lane == LANES - 1) warp_sums[warp] = prefix;
        __syncthreads();
        float offset = prefix - total, block_total = 0.0f;
        #pragma unroll
        for (int other = 0; other < WARPS; other++) {
            if (other < warp) offset += warp_sums[other];
            block_total += warp_sums[other];
        }
        const float target = number * block_total;
        #pragma unroll
        for (int i = 0; i < EACH; i++)
            if (mass[i] > 0.0f && offset + before[i] + mass[i] > target) {
                atomicMin(&drawn, base + i);
                break;
            }
        __syncthreads();
    }
    // Greedy, or a target beyond the last code due to rounding.
    if (drawn == VOCABULARY) {
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < EACH; i++)
            if (x[i] == top) atomicMin(&drawn, base + i);
        __syncthreads();
    }

    if (thread == 0) {
        codes[row * CODEBOOKS + codebook] = drawn;
        if (FIRST && drawn < CODES) seen[slot * CODES + drawn] = 1;
    }
    const bf16* source = inputs + (size_t)drawn * WIDTH;
    for (int i = 8 * thread; i < WIDTH; i += 8 * THREADS)
        *(uint4*)(out + (size_t)row * stride_out + i) = *(const uint4*)(source + i);
}
