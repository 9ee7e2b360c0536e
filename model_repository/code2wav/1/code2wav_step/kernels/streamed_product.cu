// A product over shifted rows (ops.Ops.product), or a residual unit (ops.Ops.unit), on Hopper's tensor cores. GROUPS
// warpgroups multiply 64 rows of a tile each and copy their own rows ahead; a thread of one more keeps a ring of weights
// filled, in bulk copies. A block takes tile after tile, so that copies for the next one run while results are written.
//
// Compiled with these macros:
//   COLUMNS   of a tile: 96 or 192; the outputs are a multiple of it
//   GROUPS    2 or 3
//   UNIT      1: a unit, whose channels are COLUMNS; 0: a product
//
// `channels` are a multiple of 64. Where `positions` are a multiple of 64, the rows that all taps of a tile read lie
// behind each other and are copied once for 64 channels (`taps_per_copy` = taps), otherwise once for each tap (1).
//
// Weights are in columns, in memory as in shared memory: [taps, channels / 8, outputs, 8], with outputs in the order of
// fragments.cuh, but for the first product of a unit, whose sums become the left operand of the second one in the thread that
// has them.

#include "half.cuh"
#include "memory.cuh"
#include "fragments.cuh"
#include "tensor_cores.cuh"

constexpr int ROWS = 64;                            // per warpgroup
constexpr int DEPTH = 64;                           // channels of a step
constexpr int PIECES = DEPTH / 8;
constexpr int STEPS = DEPTH / 16;
constexpr int THREADS = GROUP * (GROUPS + 1);
constexpr int COPY_REGISTERS = 24, MULTIPLY_REGISTERS = GROUPS == 3 ? 160 : 240;
constexpr int W_PIECE = COLUMNS * 16;               // bytes
constexpr int W_STAGE = PIECES * W_PIECE;
constexpr int MAX_STAGES = 8;
constexpr int VECTORS = UNIT ? 6 : 3;
constexpr int V_STAGE = VECTORS * COLUMNS * 4, V_STAGES = 2;
constexpr int V_RING = 4 * MAX_STAGES * 8;          // offset, behind the barriers
constexpr int W_RING = (V_RING + V_STAGES * V_STAGE + 1023) / 1024 * 1024;
constexpr int AHEAD = GROUPS * PARTS > 12 ? PARTS / 2 : PARTS;  // parts whose residual is loaded ahead
constexpr int X_ROW = DEPTH * 2;                    // bytes
constexpr int COPY_ROWS = GROUP / PIECES;           // at a time
constexpr int OWN = 1;                              // barrier of the first group

// A place in a ring of `stages`, and how often the ring has been passed, modulo two.
struct Ring {
    int stages, stage = 0, phase = 0;
    __device__ __forceinline__ Ring(int stages) : stages(stages) {}
    __device__ __forceinline__ void advance() {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
product(const half* x, const half* __restrict__ weight, const float* __restrict__ bias, const float* __restrict__ alpha,
        const float* __restrict__ inverse_beta, const half* __restrict__ weight2, const float* __restrict__ bias2,
        const float* __restrict__ alpha2, const float* __restrict__ inverse_beta2, const half* residual, half* out, half* active,
        int rows, int positions, int channels, int outputs, int taps, int dilation, int taps_per_copy, int x_stages, int w_stages,
        int x_stride, int residual_stride, int out_stride, int active_stride) {
    DYNAMIC_SHARED(shared);
    const unsigned full = shared_address(shared), empty = full + 8 * MAX_STAGES;
    const unsigned full_v = empty + 8 * MAX_STAGES, empty_v = full_v + 8 * MAX_STAGES;
    const unsigned v_ring = full + V_RING, w_ring = full + W_RING;
    const int x_rows = ROWS + (taps_per_copy - 1) * dilation, x_stage = (x_rows + 7) / 8 * 8 * X_ROW;

    const int thread = threadIdx.x % GROUP, lane = threadIdx.x % LANES, warp = thread / LANES;
    const int group = __shfl_sync(ALL, threadIdx.x / GROUP, 0);
    const unsigned x_ring = w_ring + w_stages * W_STAGE + group * x_stages * x_stage;
    const int tiles_n = outputs / COLUMNS, tiles = (rows + GROUPS * ROWS - 1) / (GROUPS * ROWS) * tiles_n;
    const int copies = taps / taps_per_copy, blocks_k = channels / DEPTH;

    if (threadIdx.x == 0) {
        for (int i = 0; i < w_stages; i++) prepare(full + 8 * i, 1), prepare(empty + 8 * i, WARPS * GROUPS);
        for (int i = 0; i < V_STAGES; i++) prepare(full_v + 8 * i, 1), prepare(empty_v + 8 * i, WARPS * GROUPS);
        publish_barriers();
    }
    __syncthreads();
    Ring ws(w_stages), vs(V_STAGES);

    if (group == GROUPS) {
        lower_registers<COPY_REGISTERS>();
        if (thread) return;
        auto copy_w = [&](const half* source, int row_count) {
            await(empty + 8 * ws.stage, ws.phase ^ 1);
            arrive_expecting(full + 8 * ws.stage, W_STAGE);
            for (int piece = 0; piece < PIECES; piece++)
                copy_bulk(w_ring + ws.stage * W_STAGE + piece * W_PIECE, source + (size_t)piece * row_count * 8, W_PIECE, full + 8 * ws.stage);
            ws.advance();
        };
        const float* const vectors[] = {bias, alpha, inverse_beta, bias2, alpha2, inverse_beta2};
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            await(empty_v + 8 * vs.stage, vs.phase ^ 1);
            arrive_expecting(full_v + 8 * vs.stage, alpha ? V_STAGE : COLUMNS * 4);
            #pragma unroll
            for (int i = 0; i < VECTORS; i++)
                if (vectors[i])
                    copy_bulk(v_ring + vs.stage * V_STAGE + i * COLUMNS * 4, vectors[i] + tile % tiles_n * COLUMNS, COLUMNS * 4, full_v + 8 * vs.stage);
            vs.advance();
            const half* const first = weight + tile % tiles_n * COLUMNS * 8;
            for (int k = 0; k < blocks_k; k++)
                for (int tap = 0; tap < taps; tap++) copy_w(first + (size_t)(tap * blocks_k + k) * DEPTH * outputs, outputs);
            if (UNIT) {
                for (int k = 0; k < COLUMNS / DEPTH; k++) copy_w(weight2 + k * DEPTH * COLUMNS, COLUMNS);
            }
        }
        return;
    }

    raise_registers<MULTIPLY_REGISTERS>();
    wait_for_previous();
    const int copy_row = thread / PIECES, piece = thread % PIECES;
    int copy_tile = blockIdx.x, copy_step = 0, copy_stage = 0, from[ROWS / COPY_ROWS];
    // Starts to copy what is multiplied next but x_stages - 1.
    auto copy_x = [&] {
        if (copy_tile < tiles) {
            if (!copy_step) {
                const int first_row = copy_tile / tiles_n * GROUPS * ROWS + group * ROWS;
                #pragma unroll
                for (int i = 0; i < ROWS; i += COPY_ROWS) {
                    // Rows past the end repeat the last ones.
                    const int r = taps_per_copy > 1 ? min(first_row, rows - ROWS) + i + copy_row : min(first_row + i + copy_row, rows - 1);
                    const int entry = r / positions;
                    from[i / COPY_ROWS] = entry * x_stride + (r - entry * positions) * channels + piece * 8;
                }
            }
            const int k = copy_step / copies;
            const half* const source = x + k * DEPTH + (copy_step - k * copies) * dilation * channels;
            const unsigned target = x_ring + copy_stage * x_stage + copy_row * X_ROW + (piece ^ copy_row % 8) * 16;
            #pragma unroll
            for (int i = 0; i < ROWS; i += COPY_ROWS) copy_async(target + i * X_ROW, source + from[i / COPY_ROWS]);
            for (int i = ROWS; i + copy_row < x_rows; i += COPY_ROWS) copy_async(target + i * X_ROW, source + from[0] + i * channels);
            if (++copy_step == blocks_k * copies) copy_step = 0, copy_tile += gridDim.x;
            if (++copy_stage == x_stages) copy_stage = 0;
        }
        end_group();
    };
    for (int i = 1; i < x_stages; i++) copy_x();

    const int q = lane % 4;
    auto release = [&](int stage) {
        if (lane == 0) arrive(empty + 8 * stage);
    };
    int stage = 0, published = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        // Not before: blocks of the next kernel that wait keep others off the multiprocessors.
        if (tile + gridDim.x >= tiles) let_next_start();
        float sums[SUMS];
        #pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] = 0.0f;
        int used = -1;
        for (int copy = 0; copy < blocks_k * copies; copy++) {
            wait_for_products(0);
            if (published) {
                published--;
            } else {
                wait_for_copies(x_stages - 2);
                publish_copies();
            }
            meet_at(OWN + group, GROUP);
            copy_x();
            unsigned x_low = (x_ring + stage * x_stage) / 16;
            for (int tap = 0; tap < taps_per_copy; tap++, x_low += dilation * X_ROW / 16) {
                await(full + 8 * ws.stage, ws.phase);
                const unsigned w_low = low_half(w_ring + ws.stage * W_STAGE, COLUMNS);
                fence_products();
                #pragma unroll
                for (int step = 0; step < STEPS; step++)
                    multiply(sums, swizzled_operand<X_ROW>(x_low + 2 * step), operand(w_low + 2 * step * COLUMNS));
                end_products();
                wait_for_products(1);
                if (used >= 0) release(used);
                used = ws.stage;
                ws.advance();
            }
            if (++stage == x_stages) stage = 0;
        }

        const int first = tile / tiles_n * GROUPS * ROWS + group * ROWS + warp * 16 + lane / 4;
        const int column = tile % tiles_n * COLUMNS + 8 * q;
        int entries[2], at[2];
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            const int row = min(first + 8 * side, rows - 1);
            entries[side] = row / positions;
            at[side] = (row - entries[side] * positions) * outputs + column;
        }
        auto load_residual = [&](int part, int side) {
            return residual ? load_now(residual + entries[side] * residual_stride + at[side] + 32 * part) : uint4{0, 0, 0, 0};
        };
        uint4 before[AHEAD][2];
        #pragma unroll
        for (int i = 0; i < 2 * AHEAD; i++) before[i / 2][i % 2] = load_residual(i / 2, i % 2);
        wait_for_products(0);
        #pragma unroll
        for (int i = 0; i < SUMS; i++) settle(sums[i]);
        release(used);
        // Before the stores: it would wait for them too.
        wait_for_copies(0);
        publish_copies();
        published = x_stages - 1;
        await(full_v + 8 * vs.stage, vs.phase);
        const float* const vectors = (const float*)(shared + V_RING + vs.stage * V_STAGE);

#if UNIT
        unsigned inner[SUMS / 2];
        activate(inner, sums, vectors, q);
        begin_with(sums, before, vectors + 3 * COLUMNS, q);
        #pragma unroll
        for (int k = 0; k < COLUMNS / DEPTH; k++) {
            await(full + 8 * ws.stage, ws.phase);
            const unsigned w_low = low_half(w_ring + ws.stage * W_STAGE, COLUMNS);
            fence_products();
            #pragma unroll
            for (int step = 0; step < STEPS; step++) multiply(sums, inner + 4 * (k * STEPS + step), operand(w_low + 2 * step * COLUMNS));
            end_products();
            wait_for_products(0);
            #pragma unroll
            for (int i = 0; i < SUMS; i++) settle(sums[i]);
            release(ws.stage);
            ws.advance();
        }
#endif
        const float* const last_vectors = vectors + (VECTORS - 3) * COLUMNS + 8 * q;
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
#if !UNIT
            float v[8];
            read(v, last_vectors + 32 * part);
            #pragma unroll
            for (int i = 0; i < 16; i += 2) {
                const uint4 r = before[part % AHEAD][i / 8];
                const unsigned pairs[4] = {r.x, r.y, r.z, r.w};
                const int j = sum_of(part, i / 8, i % 8);
                sums[j] += v[i % 8] + low(pairs[i % 8 / 2]), sums[j + 1] += v[i % 8 + 1] + high(pairs[i % 8 / 2]);
            }
            #pragma unroll
            for (int side = 0; side < 2; side++)
                if (part + AHEAD < PARTS) before[part % AHEAD][side] = load_residual(part + AHEAD, side);
#endif
            if (out) {
                #pragma unroll
                for (int side = 0; side < 2; side++) {
                    unsigned sum[4];
                    #pragma unroll
                    for (int i = 0; i < 8; i += 2) sum[i / 2] = pack(sums[sum_of(part, side, i)], sums[sum_of(part, side, i + 1)]);
                    if (first + 8 * side < rows) store(out + (size_t)entries[side] * out_stride + at[side] + 32 * part, sum);
                }
            }
            if (active) {
                float a[8], b[8];
                read(a, last_vectors + COLUMNS + 32 * part);
                read(b, last_vectors + 2 * COLUMNS + 32 * part);
                #pragma unroll
                for (int side = 0; side < 2; side++) {
                    unsigned activated[4];
                    #pragma unroll
                    for (int i = 0; i < 8; i += 2) {
                        const int j = sum_of(part, side, i);
                        activated[i / 2] = pack(snake(sums[j], a[i], b[i]), snake(sums[j + 1], a[i + 1], b[i + 1]));
                    }
                    if (first + 8 * side < rows) store(active + (size_t)entries[side] * active_stride + at[side] + 32 * part, activated);
                }
            }
        }
        __syncwarp();
        if (lane == 0) arrive(empty_v + 8 * vs.stage);
        vs.advance();
    }
}
