// y = x @ w.T for tens of rows of x: the blocks of a cluster split K. Each copies its slice of the weights to shared memory
// before the previous kernel ends; partial sums meet through distributed shared memory, in a fixed order.
//
// Compiled once for each shape, with these macros:
//   N, K            outputs, inputs (a gated layer has 2 N rows of weights: N gates, then N ups)
//   ROWS            rows of x that a block computes: 8, 16, 32, 64, 96 or 128
//   GROUPS          warpgroups per block, each with 64 rows of weights
//   SPLIT           blocks per cluster, each with K / SPLIT inputs, a multiple of 64
//   STAGES          steps of 64 inputs of which shared memory holds the weights
//   LAG             steps after which a stage is free: 1, or 2 to let two products overlap
//   DEPTH           steps of which registers hold rows of x on their way to shared memory
//   RESIDENT        blocks per multiprocessor that registers must suffice for
//   AHEAD           1: prefetches `ahead_bytes` a block of the next product's weights to L2
//   NORM, GATED, RESIDUAL, BIAS, FLOAT_OUT as in skinny_linear.cu; WGMMA and RELAXED as in the headers
//
// Weights are the left operand of the tensor cores, so that outputs fill the 64 rows of an instruction and rows of x its
// columns. The norm's scale is one number per row, so it is applied to the sums: the product takes x * weight.

#include "bfloat16.cuh"

constexpr int THREADS = 128 * GROUPS;
constexpr int STEP = 64;
constexpr int PIECES = STEP / 8;                    // of 16 bytes, in a tile's row of 128 bytes
constexpr int SLICE = K / SPLIT;
constexpr int STEPS = SLICE / STEP;
constexpr int HEIGHT = 64 * GROUPS;                 // rows of weights per block
constexpr int OUTPUTS = GATED ? HEIGHT / 2 : HEIGHT;
constexpr int W_STAGES = STAGES < STEPS ? STAGES : STEPS;
constexpr int X_STAGES = STEPS < LAG + 1 ? STEPS : LAG + 1;
constexpr int W_BYTES = HEIGHT * STEP * 2;
constexpr int X_BYTES = ROWS * STEP * 2;
constexpr int STRIDE = THREADS / PIECES;            // rows of a tile that the block copies at once
constexpr int COPIES = (ROWS + STRIDE - 1) / STRIDE;
constexpr int PITCH = HEIGHT + 4;                   // avoids bank conflicts
constexpr int STAGED = W_STAGES * W_BYTES + X_STAGES * X_BYTES;
constexpr int SUMMED = ROWS * PITCH * 4;
constexpr int SHARE = (ROWS + SPLIT - 1) / SPLIT;   // rows that a block of the cluster completes
constexpr int ITEMS = (SHARE * OUTPUTS / 4 + THREADS - 1) / THREADS;

static_assert(N % OUTPUTS == 0 && K % (SPLIT * STEP) == 0, "the shape must divide");
static_assert(STEPS <= STAGES || STAGES > LAG, "a stage is refilled LAG steps after its use");

#include "memory.cuh"
#include "tensor_cores.cuh"

__device__ __forceinline__ unsigned product(unsigned a, unsigned b) {
    unsigned result;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

__device__ __forceinline__ uint4 product(uint4 a, uint4 b) {
    return make_uint4(product(a.x, b.x), product(a.y, b.y), product(a.z, b.z), product(a.w, b.w));
}

__device__ __forceinline__ float squares(unsigned pair) { return low(pair) * low(pair) + high(pair) * high(pair); }
__device__ __forceinline__ float squares(uint4 v) { return (squares(v.x) + squares(v.y)) + (squares(v.z) + squares(v.w)); }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
cluster_linear(const bf16* x, const bf16* __restrict__ w, const bf16* __restrict__ norm, const bf16* __restrict__ bias,
               void* out, const bf16* ahead, int ahead_bytes, int rows, int stride_x, int stride_out, float eps) {
    extern __shared__ __align__(1024) unsigned char shared[];
    float* const partial = (float*)shared;                 // in place of the staged operands, once they are used
    float* const row_squares = (float*)(shared + (STAGED > SUMMED ? STAGED : SUMMED));
    uint4* const scales = (uint4*)(row_squares + ROWS);
    const unsigned w_tiles = shared_address(shared), x_tiles = w_tiles + W_STAGES * W_BYTES;

    const int thread = threadIdx.x, rank = blockIdx.x % SPLIT, first_output = blockIdx.x / SPLIT * OUTPUTS;
    // This thread copies a piece of rows top, top + STRIDE, ...; STRIDE is a multiple of 8, so all are swizzled alike.
    const int piece = thread % PIECES, top = thread / PIECES, k = rank * SLICE + piece * 8;
    const unsigned place = top * 128 + ((piece ^ top % 8) << 4);

    auto copy_weights = [&](int step) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int part = GATED ? i / 2 : 0, output = top + (GATED ? i % 2 : i) * STRIDE;
            copy_async(w_tiles + step % W_STAGES * W_BYTES + place + i * STRIDE * 128,
                       w + (size_t)(part * N + first_output + output) * K + k + step * STEP);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    #pragma unroll
    for (int step = 0; step < W_STAGES; step++) copy_weights(step);
    if (AHEAD && thread == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"((const char*)ahead + (size_t)blockIdx.x * ahead_bytes), "r"(ahead_bytes) : "memory");
    if (NORM) {
        #pragma unroll 1
        for (int i = thread; i < SLICE / 8; i += THREADS) scales[i] = *(const uint4*)(norm + rank * SLICE + i * 8);
        __syncthreads();
    }
    float sums[ROWS / 2] = {}, square[COPIES] = {};
    uint4 held[DEPTH][COPIES];

    let_next_start();
    wait_for_previous();

    // Rows of padding repeat the last row; their sums are dropped.
    int row_offset[COPIES];
    #pragma unroll
    for (int i = 0; i < COPIES; i++) row_offset[i] = min(top + i * STRIDE, rows - 1) * stride_x + k;
    auto load_x = [&](int step) {
        #pragma unroll
        for (int i = 0; i < COPIES; i++) {
            held[step % DEPTH][i] = load_piece(x + row_offset[i] + step * STEP);
        }
    };
    #pragma unroll
    for (int step = 0; step < DEPTH && step < STEPS; step++) load_x(step);
    __syncwarp();   // or the compiler delays some of the loads

    int copied = W_STAGES;
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const unsigned x_tile = x_tiles + step % X_STAGES * X_BYTES;
        #pragma unroll
        for (int i = 0; i < COPIES; i++) {
            uint4 v = held[step % DEPTH][i];
            if (NORM) v = product(v, scales[step * PIECES + piece]);
            if (ROWS % STRIDE == 0 || top + i * STRIDE < ROWS)
                *(uint4*)(shared + (x_tile - w_tiles) + place + i * STRIDE * 128) = v;
        }
        wait_for_copies(copied - 1 - step);
        wait_for_products<LAG - 1>(sums);
        if (WGMMA) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        // All warps have finished step - LAG.
        if (step >= LAG && step - LAG + W_STAGES < STEPS) copy_weights(step - LAG + W_STAGES), copied++;
        multiply_step(sums, w_tiles + step % W_STAGES * W_BYTES + thread / 128 * 64 * 128, x_tile);
        #pragma unroll
        for (int i = 0; i < COPIES; i++)
            if (NORM) square[i] += squares(held[step % DEPTH][i]);
        if (step + DEPTH < STEPS) load_x(step + DEPTH);
    }
    wait_for_products<0>(sums);
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(sums[i]) :: "memory");
    __syncthreads();

    const int lane = thread % LANES, warp = thread / LANES;
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, output = warp * 16 + i / 2 % 2 * 8 + lane / 4;
        partial[row * PITCH + output] = sums[i];
    }
    if (NORM) {
        #pragma unroll
        for (int i = 0; i < COPIES; i++) {
            float total = square[i];
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            total += __shfl_xor_sync(ALL, total, 4);
            if (piece == 0 && (ROWS % STRIDE == 0 || top + i * STRIDE < ROWS)) row_squares[top + i * STRIDE] = total;
        }
    }
    publish_in_cluster();

    // This block completes rows rank * SHARE to rank * SHARE + SHARE - 1, four outputs of a row at a time.
    auto row_of = [&](int i) { return rank * SHARE + (i * THREADS + thread) / (OUTPUTS / 4); };
    auto is_mine = [&](int i) { return (i * THREADS + thread) < SHARE * OUTPUTS / 4 && row_of(i) < rows; };
    auto column_of = [&](int i) { return (i * THREADS + thread) % (OUTPUTS / 4) * 4; };
    auto place_of = [&](int i) { return (size_t)row_of(i) * stride_out + first_output + column_of(i); };
    uint2 residual[ITEMS];
    if (RESIDUAL)
        #pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (is_mine(i)) residual[i] = *(const uint2*)((bf16*)out + place_of(i));
    wait_for_cluster();

    #pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (!is_mine(i)) continue;
        const unsigned from = shared_address(partial + row_of(i) * PITCH + column_of(i));
        float value[4] = {}, up[4] = {}, total = 0.0f;
        #pragma unroll
        for (int other = 0; other < SPLIT; other++) {
            const float4 v = read_remote4(in_block(from, other));
            value[0] += v.x, value[1] += v.y, value[2] += v.z, value[3] += v.w;
            if (GATED) {
                const float4 u = read_remote4(in_block(from + OUTPUTS * 4, other));
                up[0] += u.x, up[1] += u.y, up[2] += u.z, up[3] += u.w;
            }
            if (NORM) total += read_remote(in_block(shared_address(row_squares + row_of(i)), other));
        }
        const float inverse = NORM ? rsqrtf(total / K + eps) : 1.0f;
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            value[j] *= inverse;
            if (BIAS) value[j] += widen(bias[first_output + column_of(i) + j]);
            if (GATED) {
                const float gate = rounded(value[j]);
                value[j] = rounded(gate / (1.0f + __expf(-gate))) * rounded(up[j] * inverse);
            }
        }
        if (FLOAT_OUT) {
            *(float4*)((float*)out + place_of(i)) = make_float4(value[0], value[1], value[2], value[3]);
        } else {
            if (RESIDUAL) {
                value[0] = rounded(value[0]) + low(residual[i].x), value[1] = rounded(value[1]) + high(residual[i].x);
                value[2] = rounded(value[2]) + low(residual[i].y), value[3] = rounded(value[3]) + high(residual[i].y);
            }
            *(uint2*)((bf16*)out + place_of(i)) = make_uint2(pack(value[0], value[1]), pack(value[2], value[3]));
        }
    }
    // Others of the cluster may still read this block's sums.
    __syncwarp();
    arrive_in_cluster();
    wait_for_cluster();
}
