// y = x @ w.T for tens of rows of x, on the tensor cores of Hopper: the blocks of a cluster split K. Each copies its slice
// of the weights to shared memory before the previous kernel ends, and sends its sums to the block that completes the row.
//
// Compiled once for each shape, with these macros:
//   N, K            outputs, inputs (a gated layer has 2 N rows of weights: N gates, then N ups)
//   ROWS            rows of x that a block computes: 32, 64, 96 or 128
//   GROUPS          warpgroups per block, each with 64 rows of weights
//   SPLIT           blocks per cluster, each with K / SPLIT inputs, a multiple of 64
//   STAGES          steps of 64 inputs that shared memory holds
//   RESIDENT        blocks per multiprocessor that registers must suffice for
//   NORM            1: x is normalised first (RMSNorm, whose weights w includes)
//   GATED           1: y = silu(gate) * up
//   RESIDUAL        1: out += y
//   BIAS            1: y += bias
//   FLOAT_OUT       1: `out` is float, else bfloat16
//
// Weights are the left operand of the tensor cores, so that outputs fill the 64 rows of an instruction and rows of x its
// columns. The norm's scale is one number per row, so it is applied to the sums. Sums of a row are added in the order of
// the blocks' ranks: equal inputs give equal bits.

#include "bfloat16.cuh"

constexpr int THREADS = 128 * GROUPS;
constexpr int STEP = 64;
constexpr int PIECES = STEP / 8;                    // of 16 bytes, in a tile's row of 128 bytes
constexpr int SLICE = K / SPLIT;
constexpr int STEPS = SLICE / STEP;
constexpr int HEIGHT = 64 * GROUPS;                 // rows of weights per block
constexpr int OUTPUTS = GATED ? HEIGHT / 2 : HEIGHT;
constexpr int W_BYTES = HEIGHT * STEP * 2;
constexpr int X_BYTES = ROWS * STEP * 2;
constexpr int STRIDE = THREADS / PIECES;            // rows of a tile that the block copies at once
constexpr int COPIES = ROWS / STRIDE;
constexpr int PITCH = HEIGHT + 4;                   // avoids bank conflicts; the sum of squares is in column HEIGHT
constexpr int SHARE = ROWS / SPLIT;                 // rows that a block of the cluster completes
constexpr int RECEIVED = (SPLIT - 1) * SHARE * PITCH * 4;
constexpr int ITEMS = (SHARE * OUTPUTS / 4 + THREADS - 1) / THREADS;

static_assert(N % OUTPUTS == 0 && K % (SPLIT * STEP) == 0 && SPLIT > 1, "the shape must divide");
static_assert(ROWS % STRIDE == 0 && SHARE % 8 == 0, "a block completes whole columns of the instruction's tiles");
static_assert(STAGES <= STEPS && (STAGES > 1 || STEPS == 1), "a stage is refilled one step after its use");
static_assert(SHARE * PITCH * 4 <= STAGES * (W_BYTES + X_BYTES), "own sums replace the staged operands");

#include "memory.cuh"
#include "tensor_cores.cuh"

// Writes four outputs of a row to `out` from `place` on. `value` are sums, of a gated layer the gates' beside `up`; `squares`
// is the sum of squares of the row of x, `bias` that of the first output, `residual` what `out` held.
__device__ __forceinline__ void finish(float (&value)[4], const float (&up)[4], float squares, const bf16* bias, uint2 residual,
                                       void* out, size_t place, float eps) {
    const float inverse = NORM ? rsqrtf(squares / K + eps) : 1.0f;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        value[j] *= inverse;
        if (BIAS) value[j] += widen(bias[j]);
        if (GATED) {
            const float gate = rounded(value[j]);
            value[j] = rounded(gate / (1.0f + __expf(-gate))) * rounded(up[j] * inverse);
        }
    }
    if (FLOAT_OUT) {
        *(float4*)((float*)out + place) = make_float4(value[0], value[1], value[2], value[3]);
        return;
    }
    if (RESIDUAL) {
        value[0] = rounded(value[0]) + low(residual.x), value[1] = rounded(value[1]) + high(residual.x);
        value[2] = rounded(value[2]) + low(residual.y), value[3] = rounded(value[3]) + high(residual.y);
    }
    *(uint2*)((bf16*)out + place) = make_uint2(pack(value[0], value[1]), pack(value[2], value[3]));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
cluster_linear(const bf16* x, const bf16* __restrict__ w, const bf16* __restrict__ bias, void* out, int rows, int stride_x,
               int stride_out, float eps) {
    DYNAMIC_SHARED(shared);
    float* const own = (float*)shared;              // sums of this block, in place of the staged operands
    float* const received = (float*)(shared + STAGES * (W_BYTES + X_BYTES));   // those of the others, by rank
    const unsigned w_tiles = shared_address(shared), x_tiles = w_tiles + STAGES * W_BYTES;
    const unsigned inbox = shared_address(received), barrier = inbox + RECEIVED;

    const int thread = threadIdx.x, lane = thread % LANES, warp = thread / LANES;
    const int rank = blockIdx.x % SPLIT, first_output = blockIdx.x / SPLIT * OUTPUTS;
    // This thread copies a piece of rows top, top + STRIDE, ...; STRIDE is a multiple of 8, so all are swizzled alike.
    const int piece = thread % PIECES, top = thread / PIECES, k = rank * SLICE + piece * 8;
    const unsigned place = top * 128 + ((piece ^ top % 8) << 4);

    auto copy_weights = [&](int step) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int part = GATED ? i / 2 : 0, output = top + (GATED ? i % 2 : i) * STRIDE;
            copy_async(w_tiles + step % STAGES * W_BYTES + place + i * STRIDE * 128,
                       w + (size_t)(part * N + first_output + output) * K + k + step * STEP);
        }
    };
    #pragma unroll
    for (int step = 0; step < STAGES; step++) copy_weights(step), end_group();
    if (thread == 0) expect(barrier, (SPLIT - 1) * SHARE * (HEIGHT + NORM) * 4);
    __syncwarp();
    arrive_in_cluster();

    let_next_start();
    wait_for_previous();

    // Rows of padding repeat the last row; their sums are dropped.
    int row_offset[COPIES];
    #pragma unroll
    for (int i = 0; i < COPIES; i++) row_offset[i] = min(top + i * STRIDE, rows - 1) * stride_x + k;
    auto copy_x = [&](int step) {
        #pragma unroll
        for (int i = 0; i < COPIES; i++)
            copy_async(x_tiles + step % STAGES * X_BYTES + place + i * STRIDE * 128, x + row_offset[i] + step * STEP);
    };
    #pragma unroll
    for (int step = 0; step < STAGES; step++) copy_x(step), end_group();

    float sums[ROWS / 2] = {}, square[COPIES] = {};
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        // One group a step from here on, which refills the stage of the previous step.
        wait_for_copies(step < STAGES ? STAGES - 1 : STAGES - 2);
        wait_for_products();
        publish_copies();
        __syncthreads();
        if (step >= 1 && step - 1 + STAGES < STEPS) copy_weights(step - 1 + STAGES), copy_x(step - 1 + STAGES);
        end_group();
        multiply_step(sums, w_tiles + step % STAGES * W_BYTES + thread / 128 * 64 * 128, x_tiles + step % STAGES * X_BYTES);
        if (NORM) {
            #pragma unroll
            for (int i = 0; i < COPIES; i++)
                square[i] += squares(*(const uint4*)(shared + STAGES * W_BYTES + step % STAGES * X_BYTES + place + i * STRIDE * 128));
        }
    }
    wait_for_products();
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++) settle(sums[i]);
    wait_for_cluster();
    __syncthreads();

    // Rows owner * SHARE to owner * SHARE + SHARE - 1 are completed by the block with this rank.
    auto deliver = [&](int owner, int row, int column, float value) {
        const int at = row % SHARE * PITCH + column;
        if (owner == rank) own[at] = value;
        else send(in_block(inbox + ((rank - (rank > owner)) * SHARE * PITCH + at) * 4, owner), value, in_block(barrier, owner));
    };
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int tile = i / 4 * 8, row = tile + lane % 4 * 2 + i % 2;
        deliver(tile / SHARE, row, warp * 16 + i / 2 % 2 * 8 + lane / 4, sums[i]);
    }
    if (NORM) {
        #pragma unroll
        for (int i = 0; i < COPIES; i++) {
            float total = square[i];
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            total += __shfl_xor_sync(ALL, total, 4);
            const int row = top + i * STRIDE;
            if (piece == 0) deliver(row / SHARE, row, HEIGHT, total);
        }
    }

    // Four outputs of a row at a time.
    auto row_of = [&](int i) { return (i * THREADS + thread) / (OUTPUTS / 4); };
    auto is_mine = [&](int i) { return row_of(i) < SHARE && rank * SHARE + row_of(i) < rows; };
    auto column_of = [&](int i) { return (i * THREADS + thread) % (OUTPUTS / 4) * 4; };
    auto place_of = [&](int i) { return (size_t)(rank * SHARE + row_of(i)) * stride_out + first_output + column_of(i); };
    uint2 residual[ITEMS];
    if (RESIDUAL)
        #pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (is_mine(i)) residual[i] = *(const uint2*)((bf16*)out + place_of(i));
    __syncthreads();
    wait_for_all(barrier);

    #pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (!is_mine(i)) continue;
        float value[4] = {}, up[4] = {}, total = 0.0f;
        #pragma unroll
        for (int other = 0; other < SPLIT; other++) {
            const float* from = other == rank ? own : received + (other - (other > rank)) * SHARE * PITCH;
            from += row_of(i) * PITCH;
            const float4 v = *(const float4*)(from + column_of(i));
            value[0] += v.x, value[1] += v.y, value[2] += v.z, value[3] += v.w;
            if (GATED) {
                const float4 u = *(const float4*)(from + OUTPUTS + column_of(i));
                up[0] += u.x, up[1] += u.y, up[2] += u.z, up[3] += u.w;
            }
            if (NORM) total += from[HEIGHT];
        }
        finish(value, up, total, BIAS ? bias + first_output + column_of(i) : nullptr,
               RESIDUAL ? residual[i] : make_uint2(0, 0), out, place_of(i), eps);
    }
}
