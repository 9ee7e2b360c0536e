// y = x @ w.T for few rows of x: each warp multiplies all rows by a slice of K; partial sums meet in shared memory.
//
// Compiled once for each shape, with these macros:
//   N, K            outputs, inputs (a gated layer has 2 N rows of weights: N gates, then N ups)
//   TILES           tiles of 8 outputs per block
//   HALVES          groups of 8 rows of x per block: 1, 2 or 4; blockIdx.y selects them
//   WARPS           warps per block, each with K / WARPS inputs, a multiple of 32
//   NORM            1: x is normalised first (RMSNorm, whose weights w includes)
//   GATED           1: y = silu(gate) * up
//   RESIDUAL        1: out += y
//   BIAS            1: y += bias
//   FLOAT_OUT       1: `out` is float, else bfloat16
//
// The norm's scale is one number per row, so it is applied to the sums, and the sum of squares is accumulated along with
// them. Weights do not depend on the previous kernel, so they are loaded before waiting for its end (programmatic
// dependent launch).

#include "bfloat16.cuh"

constexpr int STEPS = K / WARPS / 32;
constexpr int PARTS = GATED ? 2 : 1;
constexpr int PAIRS = (HALVES + 1) / 2;
constexpr int ROWS = 8 * HALVES;
constexpr int OUTPUTS = 8 * TILES;

// 8 weights of a lane for one step.
__device__ __forceinline__ uint4 load_weights(const bf16* address) {
    uint4 weights;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(weights.x), "=r"(weights.y), "=r"(weights.z), "=r"(weights.w) : "l"(address));
    return weights;
}

extern "C" __global__ void __launch_bounds__(WARPS * LANES)
skinny_linear(const bf16* x, const bf16* __restrict__ w, const bf16* __restrict__ bias, void* out, int rows, int stride_x,
              int stride_out, float eps) {
    // Dynamic, since it may exceed the default limit of 48 KB; SkinnyLinear.shared_bytes is its size.
    extern __shared__ float shared[];
    auto sums = (float (*)[PARTS][ROWS][OUTPUTS])shared;
    auto row_squares = (float (*)[ROWS])(shared + WARPS * PARTS * ROWS * OUTPUTS);

    x += (size_t)blockIdx.y * ROWS * stride_x;
    rows = min(ROWS, rows - (int)blockIdx.y * ROWS);
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    // A lane's 16 bytes are contiguous in K. Any order of K will do, since both operands use the same.
    const int row = lane / 4, k = warp * (K / WARPS) + (lane % 4) * 8;
    const int first_output = blockIdx.x * OUTPUTS;

    uint4 weights[PARTS][TILES][STEPS];
    #pragma unroll
    for (int part = 0; part < PARTS; part++)
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            #pragma unroll
            for (int step = 0; step < STEPS; step++)
                weights[part][tile][step] =
                    load_weights(w + (size_t)(part * N + first_output + tile * 8 + row) * K + k + step * 32);

    let_next_start();
    wait_for_previous();

    float tiles[PARTS][TILES][PAIRS][4] = {};
    float partial[2 * PAIRS] = {};
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int offset = k + step * 32;
        #pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            uint4 a = make_uint4(0, 0, 0, 0), b = a;
            const int upper = pair * 16 + row, lower = upper + 8;
            if (upper < rows) a = *(const uint4*)(x + (size_t)upper * stride_x + offset);
            if (HALVES > 1 && lower < rows) b = *(const uint4*)(x + (size_t)lower * stride_x + offset);
            if (NORM) {
                partial[2 * pair] += squares(a);
                if (HALVES > 1) partial[2 * pair + 1] += squares(b);
            }
            #pragma unroll
            for (int part = 0; part < PARTS; part++)
                #pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    const uint4 c = weights[part][tile][step];
                    multiply(tiles[part][tile][pair], a.x, b.x, a.y, b.y, c.x, c.y);
                    multiply(tiles[part][tile][pair], a.z, b.z, a.w, b.w, c.z, c.w);
                }
        }
    }

    #pragma unroll
    for (int half = 0; half < HALVES; half++) {
        if (NORM) {
            float total = partial[half];
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            if (lane % 4 == 0) row_squares[warp][half * 8 + row] = total;
        }
        #pragma unroll
        for (int part = 0; part < PARTS; part++)
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const float* tail = tiles[part][tile][half / 2] + 2 * (half % 2);
                float* target = &sums[warp][part][half * 8 + row][tile * 8 + (lane % 4) * 2];
                target[0] = tail[0];
                target[1] = tail[1];
            }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < rows * OUTPUTS; i += WARPS * LANES) {
        const int m = i / OUTPUTS, n = i % OUTPUTS;
        float value = 0.0f, up = 0.0f, square = 0.0f;
        #pragma unroll
        for (int other = 0; other < WARPS; other++) {
            value += sums[other][0][m][n];
            if (GATED) up += sums[other][PARTS - 1][m][n];
            if (NORM) square += row_squares[other][m];
        }
        if (NORM) {
            const float inverse = rsqrtf(square / K + eps);
            value *= inverse;
            up *= inverse;
        }
        if (BIAS) value += widen(bias[first_output + n]);
        if (GATED) {
            const float gate = rounded(value);
            value = rounded(gate / (1.0f + __expf(-gate))) * rounded(up);
        }
        const size_t at = (size_t)(blockIdx.y * ROWS + m) * stride_out + first_output + n;
        if (FLOAT_OUT) {
            ((float*)out)[at] = value;
        } else {
            bf16* target = (bf16*)out + at;
            if (RESIDUAL) value = rounded(value) + widen(*target);
            *target = (bf16)pack(value, 0.0f);
        }
    }
}
