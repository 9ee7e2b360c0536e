// y = x @ w.T for tens to hundreds of rows of x, on the tensor cores of Hopper. One warp of a block copies tiles of x and w
// to shared memory, and warpgroups multiply them. Blocks of a cluster split K, or work on the same rows of x or the same
// weights: then each copies a part of the common tile to all of them, so that it is read from the cache once.
//
// Compiled once for each shape, with these macros:
//   N, K            outputs, inputs (a gated layer has 2 N rows of weights: N gates, then N ups)
//   ROWS            rows of x that a block computes: 32, 64, 96 or 128
//   GROUPS          warpgroups per block that multiply, each with 64 rows of weights
//   SPLIT           blocks that split K, each with K / SPLIT inputs, a multiple of 64
//   SHARED_X        blocks of a cluster with the same rows of x and different weights
//   SHARED_W        blocks of a cluster with the same weights and different rows of x
//   STAGES          steps of 64 inputs that shared memory holds
//   NORM            1: x is normalised first (RMSNorm, whose weights w includes)
//   GATED           1: y = silu(gate) * up
//   RESIDUAL        1: out += y
//   BIAS            1: y += bias
//   FLOAT_OUT       1: `out` is float, else bfloat16
//
// Weights are the left operand, as in cluster_linear.cu, and sums of a row are added in the order of the parts of K: equal
// inputs give equal bits. x_map has tiles of 64 inputs by X_SLICE rows, w_map by W_SLICE, both swizzled by 128 bytes.

#include "bfloat16.cuh"

constexpr int CONSUMERS = 128 * GROUPS;             // threads that multiply; the warp after them copies
constexpr int CLUSTER = SPLIT * SHARED_X * SHARED_W;
constexpr int STEP = 64;
constexpr int SLICE = K / SPLIT;
constexpr int STEPS = SLICE / STEP;
constexpr int HEIGHT = 64 * GROUPS;                 // rows of weights per block
constexpr int OUTPUTS = GATED ? HEIGHT / 2 : HEIGHT;
constexpr int W_SLICE = OUTPUTS / SHARED_W;         // rows of one copy; a gated layer needs two, of gates and of ups
constexpr int X_SLICE = ROWS / SHARED_X;
constexpr int W_BYTES = HEIGHT * STEP * 2;
constexpr int X_BYTES = ROWS * STEP * 2;
constexpr int PEERS = SHARED_X + SHARED_W - 1;      // blocks with a common tile, this one included
constexpr int SQUARES = ROWS * 8 / CONSUMERS;       // pieces of 16 bytes of a tile of x, for each thread
constexpr int PITCH = HEIGHT + 4;                   // avoids bank conflicts; the sum of squares is in column HEIGHT
constexpr int SHARE = ROWS / SPLIT;                 // rows that a block completes
constexpr int RECEIVED = (SPLIT - 1) * SHARE * PITCH * 4;
constexpr int ITEMS = (SHARE * OUTPUTS / 4 + CONSUMERS - 1) / CONSUMERS;
constexpr int EARLY_ITEMS = RESIDUAL && ITEMS <= 8 ? ITEMS : 0;   // whose residual is loaded while sums are on their way

static_assert(N % (OUTPUTS * SHARED_X) == 0 && K % (SPLIT * STEP) == 0, "the shape must divide");
static_assert(W_SLICE % 8 == 0 && X_SLICE % 8 == 0, "a copy is of whole swizzled tiles of 8 rows");
static_assert(ROWS * 8 % CONSUMERS == 0 && SHARE % 8 == 0, "threads and blocks have equal parts of the rows");
static_assert(STAGES <= STEPS && (STAGES > 1 || STEPS == 1), "a stage is refilled one step after its use");
static_assert(SHARE * PITCH * 4 <= STAGES * (W_BYTES + X_BYTES), "own sums replace the staged operands");
static_assert(CLUSTER <= 8, "of a portable size");

#include "epilogue.cuh"
#include "memory.cuh"
#include "pipeline.cuh"
#include "tensor_cores.cuh"

extern "C" __global__ void __launch_bounds__(CONSUMERS + LANES, 1)
tile_linear(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const bf16* __restrict__ bias,
            void* out, int rows, int stride_out, float eps) {
    DYNAMIC_SHARED(shared);
    float* const own = (float*)shared;              // sums of this block, in place of the staged operands
    float* const received = (float*)(shared + STAGES * (W_BYTES + X_BYTES));   // those of the others, by part of K
    const unsigned w_tiles = shared_address(shared), x_tiles = w_tiles + STAGES * W_BYTES;
    const unsigned inbox = shared_address(received), full = inbox + RECEIVED, empty = full + 8 * STAGES, complete = empty + 8 * STAGES;

    const int thread = threadIdx.x, lane = thread % LANES, warp = thread / LANES;
    const int rank = blockIdx.x % CLUSTER, part = rank % SPLIT, x_index = rank / SPLIT % SHARED_X, w_index = rank / (SPLIT * SHARED_X);
    constexpr int TILES = N / (OUTPUTS * SHARED_X);
    const int cluster = blockIdx.x / CLUSTER;
    const int first_output = (cluster % TILES * SHARED_X + x_index) * OUTPUTS, first_row = (cluster / TILES * SHARED_W + w_index) * ROWS;
    auto rank_of = [&](int part, int x_index, int w_index) { return part + SPLIT * (x_index + SHARED_X * w_index); };

    if (thread == CONSUMERS) prefetch(x_map), prefetch(w_map);
    if (thread == 0) {
        for (int stage = 0; stage < STAGES; stage++) init_barrier(full + 8 * stage, 1), init_barrier(empty + 8 * stage, 4 * GROUPS * PEERS);
        publish_barriers();
        if (SPLIT > 1) expect(complete, (SPLIT - 1) * SHARE * (HEIGHT + NORM) * 4);
    }
    __syncwarp();
    arrive_in_cluster();
    wait_for_cluster();
    let_next_start();

    if (warp == 4 * GROUPS) {
        if (lane > 0) return;
        unsigned short x_mask = 0, w_mask = 0;
        for (int i = 0; i < SHARED_X; i++) x_mask |= 1 << rank_of(part, i, w_index);
        for (int i = 0; i < SHARED_W; i++) w_mask |= 1 << rank_of(part, x_index, i);
        auto copy_weights = [&](int step) {
            const int stage = step % STAGES;
            arrive_expecting(full + 8 * stage, W_BYTES + X_BYTES);
            for (int half = 0; half < 1 + GATED; half++) {
                const unsigned target = w_tiles + stage * W_BYTES + (half * OUTPUTS + w_index * W_SLICE) * 128;
                const int column = part * SLICE + step * STEP, row = half * N + first_output + w_index * W_SLICE;
                if (SHARED_W > 1) copy_tile_to(w_mask, target, w_map, column, row, full + 8 * stage);
                else copy_tile(target, w_map, column, row, full + 8 * stage);
            }
        };
        auto copy_x = [&](int step) {
            const int stage = step % STAGES, column = part * SLICE + step * STEP, row = first_row + x_index * X_SLICE;
            const unsigned target = x_tiles + stage * X_BYTES + x_index * X_SLICE * 128;
            if (SHARED_X > 1) copy_tile_to(x_mask, target, x_map, column, row, full + 8 * stage);
            else copy_tile(target, x_map, column, row, full + 8 * stage);
        };
        for (int step = 0; step < STAGES; step++) copy_weights(step);
        wait_for_previous();
        for (int step = 0; step < STAGES; step++) copy_x(step);
        for (int step = STAGES; step < STEPS; step++) {
            wait_for_phase(empty + 8 * (step % STAGES), (step / STAGES - 1) % 2);
            copy_weights(step);
            copy_x(step);
        }
        return;
    }

    wait_for_previous();
    // Tells all blocks that copied the stage's tiles that this warp has used them.
    auto release = [&](int step) {
        __syncwarp();
        const int other = lane - SHARED_X;
        if (lane < PEERS)
            arrive_at(in_block(empty + 8 * (step % STAGES), lane < SHARED_X ? rank_of(part, lane, w_index)
                                                                            : rank_of(part, x_index, other + (other >= w_index))));
    };
    float sums[ROWS / 2] = {}, square[SQUARES] = {};
    #pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        const int stage = step % STAGES;
        wait_for_phase(full + 8 * stage, step / STAGES % 2);
        multiply_step(sums, w_tiles + stage * W_BYTES + warp / 4 * 64 * 128, x_tiles + stage * X_BYTES);
        if (NORM) {
            #pragma unroll
            for (int i = 0; i < SQUARES; i++)
                square[i] += squares(*(const uint4*)(shared + STAGES * W_BYTES + stage * X_BYTES + (i * CONSUMERS + thread) * 16));
        }
        wait_for_products_but_one();
        if (step >= 1 && step - 1 + STAGES < STEPS) release(step - 1);
    }
    wait_for_products();
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++) settle(sums[i]);
    sync_first(CONSUMERS);
    // A block ends only when all have their tiles.
    arrive_in_cluster();

    // Rows owner * SHARE to owner * SHARE + SHARE - 1 of the tile are completed by the block with this part of K.
    auto deliver = [&](int owner, int row, int column, float value) {
        const int at = row % SHARE * PITCH + column, block = rank_of(owner, x_index, w_index);
        if (owner == part) own[at] = value;
        else send(in_block(inbox + ((part - (part > owner)) * SHARE * PITCH + at) * 4, block), value, in_block(complete, block));
    };
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int tile = i / 4 * 8, row = tile + lane % 4 * 2 + i % 2;
        deliver(tile / SHARE, row, warp * 16 + i / 2 % 2 * 8 + lane / 4, sums[i]);
    }
    if (NORM) {
        #pragma unroll
        for (int i = 0; i < SQUARES; i++) {
            float total = square[i];
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            total += __shfl_xor_sync(ALL, total, 4);
            const int row = (i * CONSUMERS + thread) / 8;
            if (thread % 8 == 0) deliver(row / SHARE, row, HEIGHT, total);
        }
    }

    // Four outputs of a row at a time.
    auto row_of = [&](int i) { return (i * CONSUMERS + thread) / (OUTPUTS / 4); };
    auto is_mine = [&](int i) { return row_of(i) < SHARE && first_row + part * SHARE + row_of(i) < rows; };
    auto column_of = [&](int i) { return (i * CONSUMERS + thread) % (OUTPUTS / 4) * 4; };
    auto place_of = [&](int i) { return (size_t)(first_row + part * SHARE + row_of(i)) * stride_out + first_output + column_of(i); };
    auto residual_of = [&](int i) { return is_mine(i) ? *(const uint2*)((const bf16*)out + place_of(i)) : make_uint2(0, 0); };
    uint2 early[EARLY_ITEMS + 1];
    #pragma unroll
    for (int i = 0; i < EARLY_ITEMS; i++) early[i] = residual_of(i);
    sync_first(CONSUMERS);
    if (SPLIT > 1) wait_for_all(complete);

    #pragma unroll (EARLY_ITEMS ? EARLY_ITEMS : 4)
    for (int i = 0; i < ITEMS; i++) {
        if (!is_mine(i)) continue;
        const uint2 residual = !RESIDUAL ? make_uint2(0, 0) : EARLY_ITEMS ? early[i] : residual_of(i);
        float value[4] = {}, up[4] = {}, total = 0.0f;
        #pragma unroll
        for (int other = 0; other < SPLIT; other++) {
            const float* from = other == part ? own : received + (other - (other > part)) * SHARE * PITCH;
            from += row_of(i) * PITCH;
            const float4 v = *(const float4*)(from + column_of(i));
            value[0] += v.x, value[1] += v.y, value[2] += v.z, value[3] += v.w;
            if (GATED) {
                const float4 u = *(const float4*)(from + OUTPUTS + column_of(i));
                up[0] += u.x, up[1] += u.y, up[2] += u.z, up[3] += u.w;
            }
            if (NORM) total += from[HEIGHT];
        }
        finish(value, up, total, BIAS ? bias + first_output + column_of(i) : nullptr, residual, out, place_of(i), eps);
    }
    __syncwarp();
    wait_for_cluster();
}
