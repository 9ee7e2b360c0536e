// y = x @ w.T for tens to hundreds of rows of x, on the tensor cores of Hopper. One thread of a block copies tiles of the
// weights to shared memory before the previous kernel ends, and tiles of x after it; warpgroups multiply them. Blocks of a
// cluster split K, and each completes a part of the rows; or they share weights, of which each copies a part for all.
//
// Compiled once for each shape, with these macros:
//   N, K            outputs, inputs (a gated layer has 2 N rows of weights: N gates, then N ups)
//   ROWS            rows of x that a block multiplies: 16, 32, 64, 96, 128, 160, 192 or 256
//   GROUPS          warpgroups per block that multiply, each with 64 rows of weights
//   SPLIT           blocks per cluster, each with K / SPLIT inputs, a multiple of 64
//   TWINS           blocks per cluster with the same weights, if SPLIT is 1
//   STAGES          steps of 64 inputs that shared memory holds
//   RESIDENT        blocks per multiprocessor that registers must suffice for
//   NORM            1: x is normalised first (RMSNorm, whose weights w includes), by its sums of squares
//   GATED           1: y = silu(gate) * up
//   RESIDUAL        1: out += y, and the sums of squares of the result are written, a part for 64 outputs
//   BIAS            1: y += bias
//   FLOAT_OUT       1: `out` is float, else bfloat16
//
// Weights are the left operand of the tensor cores, so that outputs fill the 64 rows of an instruction and rows of x its
// columns. Of a gated layer, a tile has eight gates, then their ups, so that one thread has the sums of both. The norm's
// scale is one number per row, so it is applied to the sums. Sums of a row are added in the order of the blocks' ranks:
// equal inputs give equal bits.

#include "bfloat16.cuh"
#include "memory.cuh"

constexpr int GROUP = 128;
constexpr int MULTIPLIERS = GROUP * GROUPS;         // threads; one warp more copies
constexpr int THREADS = MULTIPLIERS + LANES;
constexpr int STEP = 64;
constexpr int STEPS = K / SPLIT / STEP;
constexpr int OWN = GATED ? 32 : 64;                // outputs of a warpgroup
constexpr int OUTPUTS = OWN * GROUPS;               // per block
constexpr int W_BYTES = 64 * GROUPS * STEP * 2;
constexpr int X_BYTES = ROWS * STEP * 2;
constexpr int STAGE = W_BYTES + X_BYTES;
constexpr int CLUSTER = SPLIT * TWINS;
// Blocks of the next kernel that wait keep the codec's out, and gain nothing beside blocks that fill a multiprocessor.
constexpr bool LATE = ROWS >= 64;
constexpr int SHARE = ROWS / SPLIT;                 // rows that a block completes
constexpr int EIGHTS = SHARE / 8;
constexpr int SENT = EIGHTS * MULTIPLIERS * 16;     // bytes of sums to another block
constexpr int INBOX = (SPLIT - 1) * SENT;
constexpr int PITCH = OWN * 2 + 16;                 // bytes of a result's row in shared memory; avoids bank conflicts
constexpr int SUM_OUTPUTS = 64;                     // per sum of squares
constexpr int PIECES = OWN / 8;                     // 16 bytes each
constexpr int AT_ONCE = GROUP / PIECES;             // rows that a warpgroup writes at once
constexpr int ITEMS = (SHARE + AT_ONCE - 1) / AT_ONCE;
constexpr int NORMED = NORM ? (SHARE + MULTIPLIERS - 1) / MULTIPLIERS : 0;  // rows whose norms a thread computes
constexpr int HELD = GROUPS == 3 && ROWS > 128 ? 1 : K / SUM_OUTPUTS + !NORM;  // squares of a row

static_assert(N % OUTPUTS == 0 && K % (SPLIT * STEP) == 0, "the shape must divide");
static_assert(SPLIT == 1 || TWINS == 1, "blocks share weights or split K");
static_assert(4 * GROUPS % TWINS == 0, "a part of the weights has whole tiles of eight gates and ups");
static_assert(SHARE % 8 == 0, "a block completes whole columns of the instruction's tiles");
static_assert(STAGES <= STEPS && (STAGES > 1 || STEPS == 1), "a stage is refilled one step after its use");
static_assert(GROUPS * SHARE * PITCH <= STAGES * STAGE, "results replace the staged operands");
static_assert(!NORM || K % SUM_OUTPUTS == 0, "a norm has parts");
static_assert(STAGES <= LANES, "a lane fills a stage");
static_assert(!(RESIDUAL && (GATED || BIAS || FLOAT_OUT)) && !(GATED && (BIAS || FLOAT_OUT)), "no layer has both");

#include "tensor_cores.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tile_linear(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const bf16* __restrict__ bias,
            const float* squares_in, float* squares_out, void* out, int rows, int stride_out, int parts, int stride_part,
            int stride_square, float eps) {
    DYNAMIC_SHARED(shared);
    const unsigned ring = shared_address(shared), inbox = ring + STAGES * STAGE;
    const unsigned full = inbox + INBOX, empty = full + 8 * STAGES, complete = empty + 8 * STAGES;
    const float* const received = (const float*)(shared + STAGES * STAGE);
    float* const scales = (float*)(shared + STAGES * STAGE + INBOX + 16 * STAGES + 16);

    const int thread = threadIdx.x, lane = thread % LANES, warp = thread / LANES;
    const int rank = blockIdx.x % SPLIT, twin = blockIdx.x % TWINS, tile = blockIdx.x / CLUSTER;
    const int first_output = tile % (N / OUTPUTS) * OUTPUTS, first_row = (tile / (N / OUTPUTS) * TWINS + twin) * ROWS;

    if (thread == MULTIPLIERS) {
        prefetch(x_map), prefetch(w_map);
        for (int stage = 0; stage < STAGES; stage++) prepare(full + 8 * stage, 1), prepare(empty + 8 * stage, 4 * GROUPS * TWINS);
        prepare(complete, 1);
        publish_barriers();
        arrive_expecting(complete, INBOX);
    }
    __syncthreads();
    if (CLUSTER > 1) arrive_in_cluster();
    if (!LATE) let_next_start();

    if (warp == 4 * GROUPS) {
        auto copy_w = [&](int step, int stage) {
            const int column = (rank * STEPS + step) * STEP;
            arrive_expecting(full + 8 * stage, STAGE);
            const unsigned target = ring + stage * STAGE + twin * (W_BYTES / TWINS);
            if (GATED) copy_gated_weights<TWINS>(target, w_map, column, first_output / 8 + twin * (4 * GROUPS / TWINS), full + 8 * stage);
            else copy_weights<TWINS>(target, w_map, column, first_output + twin * (64 * GROUPS / TWINS), full + 8 * stage);
        };
        auto copy_x = [&](int step, int stage) {
            copy_tile(ring + stage * STAGE + W_BYTES, x_map, (rank * STEPS + step) * STEP, first_row, full + 8 * stage);
        };
        // Waits until the other blocks' barriers are prepared; not later, since this wait drops the first-level cache.
        if (CLUSTER > 1) wait_for_cluster();
        // A lane for each of the first stages; one refills them.
        if (lane < STAGES) copy_w(lane, lane);
        wait_for_previous();
        if (lane < STAGES) copy_x(lane, lane);
        if (lane == 0)
            for (int step = STAGES; step < STEPS; step++) {
                const int stage = step % STAGES;
                await(empty + 8 * stage, (step / STAGES - 1) % 2);
                copy_w(step, stage), copy_x(step, stage);
            }
        __syncwarp();
        if (LATE) let_next_start();
        return;
    }

    const int group = __shfl_sync(ALL, warp / 4, 0);
    const int own_row = first_row + rank * SHARE;
    if (CLUSTER > 1) wait_for_cluster();
    wait_for_previous();
    // Loaded before the products, used after them: squares of the rows that this thread norms, which are also added then where
    // registers suffice, since adding waits for them; and what it adds to. It writes a piece of the rows top, top + AT_ONCE, ...
    float square[NORMED + 1][HELD] = {};
    #pragma unroll
    for (int i = 0; i < NORMED; i++) {
        if (thread + i * MULTIPLIERS >= SHARE) continue;
        const float* const squares = squares_in + min(own_row + thread + i * MULTIPLIERS, rows - 1) * stride_square;
        #pragma unroll
        for (int part = 0; part < K / SUM_OUTPUTS; part++) {
            const float loaded = part < parts ? squares[part * stride_part] : 0.0f;
            if (HELD == 1) square[i][0] += loaded;
            else square[i][part % HELD] = loaded;
        }
    }
    const int piece = thread % PIECES, top = thread % GROUP / PIECES;
    bf16* const target = (bf16*)out + (size_t)(own_row + top) * stride_out + first_output + group * OWN + piece * 8;
    auto is_mine = [&](int i) { return top + i * AT_ONCE < SHARE && own_row + top + i * AT_ONCE < rows; };
    uint4 before[ITEMS];
    if (RESIDUAL) {
        #pragma unroll
        for (int i = 0; i < ITEMS; i++) before[i] = is_mine(i) ? *(const uint4*)(target + (size_t)i * AT_ONCE * stride_out) : uint4{0, 0, 0, 0};
    }

    float sums[ROWS / 2] = {};
    int stage = 0, phase = 0, used = 0;
    #pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        await(full + 8 * stage, phase);
        multiply_step(sums, ring + stage * STAGE + group * 64 * 128, ring + stage * STAGE + W_BYTES);
        wait_for_products(1);
        // Only of stages that are refilled: a twin may have ended before others arrive.
        if (TWINS > 1 && step && step - 1 + STAGES < STEPS && lane < TWINS) arrive_in(in_block(empty + 8 * used, lane));
        if (TWINS == 1 && step && lane == 0) arrive(empty + 8 * used);
        used = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }

    if (LATE) let_next_start();
    wait_for_products(0);
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++) settle(sums[i]);
    #pragma unroll
    for (int i = 0; i < NORMED; i++) {
        float total = 0.0f;
        #pragma unroll
        for (int part = 0; part < HELD; part++) total += square[i][part];
        if (thread + i * MULTIPLIERS < SHARE) scales[thread + i * MULTIPLIERS] = rsqrtf(total / K + eps);
    }
    // The stages are no longer read.
    meet_at(1, MULTIPLIERS);

    float own[SHARE / 2];
    #pragma unroll
    for (int owner = 0; owner < SPLIT; owner++) {
        const float* const part = sums + owner * SHARE / 2;
        if (owner == rank) {
            #pragma unroll
            for (int i = 0; i < SHARE / 2; i++) own[i] = part[i];
        } else {
            const unsigned place = in_block(inbox, owner) + (rank - (rank > owner)) * SENT + thread * 16, barrier = in_block(complete, owner);
            #pragma unroll
            for (int i = 0; i < EIGHTS; i++) send(place + i * MULTIPLIERS * 16, part + 4 * i, barrier);
        }
    }
    if (SPLIT > 1) {
        // Shared memory is not cached: an acquire of the cluster would only drop the first-level cache, too.
        await(complete, 0);
        #pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            float total[4] = {};
            #pragma unroll
            for (int other = 0; other < SPLIT; other++) {
                const float* const from = received + ((other - (other > rank)) * SENT / 4 + (i * MULTIPLIERS + thread) * 4);
                #pragma unroll
                for (int j = 0; j < 4; j++) total[j] += other == rank ? own[4 * i + j] : from[j];
            }
            #pragma unroll
            for (int j = 0; j < 4; j++) own[4 * i + j] = total[j];
        }
    }

    // A thread has two of eight rows at a time: of output lane / 4 of its warp's 16, and eight on of another or the up.
    const int output = group * OWN + warp % 4 * (OWN / 4) + lane / 4;
    float added[2] = {};
    if (BIAS)
        #pragma unroll
        for (int half = 0; half < 2; half++) added[half] = widen(bias[first_output + output + 8 * half]);
    const unsigned results = ring + group * SHARE * PITCH;
    const unsigned place = results + lane % 8 * PITCH + warp % 4 * (OWN / 2) + (GATED ? 0 : lane / 8 % 2 * 16);
    #pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        float value[4];
        const int row = 8 * i + lane % 4 * 2;
        #pragma unroll
        for (int j = 0; j < 4; j++) value[j] = own[4 * i + j] * (NORM ? scales[row + j % 2] : 1.0f) + added[j / 2];
        if (FLOAT_OUT) {
            #pragma unroll
            for (int j = 0; j < 4; j++)
                if (own_row + row + j % 2 < rows)
                    ((float*)out)[(size_t)(own_row + row + j % 2) * stride_out + first_output + output + j / 2 * 8] = value[j];
        } else if (GATED) {
            float gated[2];
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                const float gate = rounded(value[j]);
                gated[j] = rounded(gate / (1.0f + __expf(-gate))) * rounded(value[j + 2]);
            }
            store_transposed(place + 8 * i * PITCH, pack(gated[0], gated[1]));
        } else {
            store_transposed(place + 8 * i * PITCH, pack(value[0], value[1]), pack(value[2], value[3]));
        }
    }
    if (FLOAT_OUT) return;
    meet_at(2 + group, GROUP);

    #pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        uint4 value = *(const uint4*)(shared + (results - ring) + (top + i * AT_ONCE) * PITCH + piece * 16);
        if (RESIDUAL) {
            float sum[8], old[8];
            unpack(value, sum), unpack(before[i], old);
            #pragma unroll
            for (int j = 0; j < 8; j++) sum[j] += old[j];
            value = pack(sum);
            float total = squares(value);
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            total += __shfl_xor_sync(ALL, total, 4);
            if (is_mine(i) && piece == 0) squares_out[(size_t)(first_output / SUM_OUTPUTS + group) * rows + own_row + top + i * AT_ONCE] = total;
        }
        if (is_mine(i)) *(uint4*)(target + (size_t)i * AT_ONCE * stride_out) = value;
    }
}
