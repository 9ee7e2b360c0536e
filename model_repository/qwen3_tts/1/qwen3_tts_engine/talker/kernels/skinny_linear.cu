// y = x @ w.T for few rows of x: each warp multiplies all rows by a slice of K; partial sums meet in shared memory.
//
// Compiled once for each shape, with these macros:
//   N, K            outputs, inputs (a gated layer has 2 N rows of weights: N gates, then N ups)
//   HALVES          groups of 8 rows of x per block: 1 or 2; blockIdx.y selects them
//   WARPS           warps per block, each with K / WARPS inputs, a multiple of 32
//   TILES           tiles of 8 outputs per block
//   NORM            1: x is normalised first (RMSNorm, whose weights w includes)
//   GATED           1: y = silu(gate) * up
//   RESIDUAL        1: out += y
//   BIAS            1: y += bias
//   FLOAT_OUT       1: `out` is float, else bfloat16
//
// The norm's scale is one number per row, so it is applied to the sums, and the sum of squares is accumulated along with
// them. Weights do not depend on the previous kernel, so they are loaded before waiting for its end (programmatic
// dependent launch).

#include "barriers.cuh"
#include "bfloat16.cuh"

constexpr int STEPS = K / WARPS / 32;
constexpr int UNITS = (GATED ? 2 : 1) * TILES;      // tiles of gates, then of ups
constexpr int PAIRS = (UNITS + 1) / 2;              // an instruction multiplies two tiles by 8 rows of x
constexpr int ROWS = 8 * HALVES;
constexpr int OUTPUTS = 8 * TILES;
constexpr int PITCH = 8 * UNITS + 4;                // per row of sums: keeps rows off the same banks
constexpr int THREADS = WARPS * LANES;
constexpr int STORES = (ROWS * OUTPUTS + THREADS - 1) / THREADS;  // per thread

extern "C" __global__ void __launch_bounds__(THREADS, 1)
skinny_linear(const bf16* x, const bf16* w, const bf16* __restrict__ bias, void* out, int rows, int stride_x,
              int stride_out, float eps) {
    DYNAMIC_SHARED(shared);
    auto sums = (float (*)[ROWS][PITCH])shared;
    auto row_squares = (float (*)[ROWS])(sums + WARPS);

    x += (size_t)blockIdx.y * ROWS * stride_x;
    rows = min(ROWS, rows - (int)blockIdx.y * ROWS);
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    // A lane's 16 bytes are contiguous in K. Any order of K will do, since both operands use the same.
    const int group = lane / 4, quarter = lane % 4, k = warp * (K / WARPS) + quarter * 8;
    const int first_output = blockIdx.x * OUTPUTS;

    uint4 weights[UNITS][STEPS];
    #pragma unroll
    for (int unit = 0; unit < UNITS; unit++)
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int output = first_output + unit % TILES * 8 + group;
            weights[unit][step] = load_weights(w + (size_t)(unit / TILES * N + output) * K + k + step * 32);
        }
    let_next_start();
    wait_for_previous();

    // All loads before the products, which wait for them. Columns of products beyond the last row are unused.
    uint4 inputs[HALVES][STEPS];
    #pragma unroll
    for (int half = 0; half < HALVES; half++)
        #pragma unroll
        for (int step = 0; step < STEPS; step++)
            inputs[half][step] = *(const uint4*)(x + (size_t)min(half * 8 + group, rows - 1) * stride_x + k + step * 32);
    auto place = [&](int i) { return (size_t)(blockIdx.y * ROWS + i / OUTPUTS) * stride_out + first_output + i % OUTPUTS; };
    bf16 residual[STORES];
    #pragma unroll
    for (int i = 0; RESIDUAL && i < STORES; i++)
        residual[i] = ((const bf16*)out)[place(min((int)threadIdx.x + i * THREADS, rows * OUTPUTS - 1))];
    float products[HALVES][PAIRS][4] = {};
    float partial[HALVES] = {};
    #pragma unroll
    for (int step = 0; step < STEPS; step++)
        #pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const uint4 v = inputs[half][step];
            if (NORM) partial[half] += squares(v);
            #pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) {
                const uint4 first = weights[2 * pair][step];
                const uint4 second = 2 * pair + 1 < UNITS ? weights[2 * pair + 1][step] : make_uint4(0, 0, 0, 0);
                multiply(products[half][pair], first.x, second.x, first.y, second.y, v.x, v.y);
                multiply(products[half][pair], first.z, second.z, first.w, second.w, v.z, v.w);
            }
        }

    #pragma unroll
    for (int half = 0; half < HALVES; half++) {
        if (NORM) {
            float total = partial[half];
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            if (quarter == 0) row_squares[warp][half * 8 + group] = total;
        }
        #pragma unroll
        for (int unit = 0; unit < UNITS; unit++)
            #pragma unroll
            for (int odd = 0; odd < 2; odd++)
                if (const int row = half * 8 + quarter * 2 + odd; row < rows)
                    sums[warp][row][unit * 8 + group] = products[half][unit / 2][unit % 2 * 2 + odd];
    }
    __syncthreads();

    #pragma unroll
    for (int j = 0; j < STORES; j++) {
        const int i = threadIdx.x + j * THREADS, m = i / OUTPUTS, n = i % OUTPUTS;
        if (i >= rows * OUTPUTS) break;
        float value = 0.0f, up = 0.0f, square = 0.0f;
        #pragma unroll
        for (int other = 0; other < WARPS; other++) {
            value += sums[other][m][n];
            if (GATED) up += sums[other][m][(UNITS - TILES) * 8 + n];
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
        if (RESIDUAL) value = rounded(value) + widen(residual[j]);
        if (FLOAT_OUT) ((float*)out)[place(i)] = value;
        else ((bf16*)out)[place(i)] = (bf16)pack(value, 0.0f);
    }
}
