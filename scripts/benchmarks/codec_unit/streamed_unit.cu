// A residual unit of the codec: convolution of TAPS taps, SnakeBeta, pointwise product, residual, SnakeBeta (ops.Ops.unit).
// For 192 channels: all weights do not fit into shared memory. A block of its own on each multiprocessor streams them, in
// portions of 12 KB, past two warpgroups that each have tiles of their own; the blocks of a cluster share what they read.
//
// Compiled once for each dilation, with these macros:
//   CHANNELS        192
//   TAPS, DILATION  of the convolution
//   ROWS            of a tile: 64 or 128
//   CLUSTER         blocks of a cluster: 1, 2 or 4
//   SLOTS           portions of weights in shared memory, 7 or more
// and to be tried: SHARED, FIRST_SOLO, SECOND_SOLO and IN_USE, below
//
// `positions` must be a multiple of ROWS; `tiles` = entries * positions / ROWS; the grid is a multiple of CLUSTER. `out` may be
// null, or `residual` itself.
//
// The order of the portions is the same in every cluster. A convolution may begin with any of them, since they go round: while
// one group computes sines, loads and stores, the other multiplies alone (SOLO portions), and for SHARED portions before and
// after that both do, one at the end of its tile and one at the start:
//
//   group 0   shared | 1st solo          2nd solo          3rd solo | shared | sines             sines and stores  sines ..
//   group 1          |                                              | shared | 1st solo [0: 96 columns] 2nd solo [0: 96 more] 3rd ..
//
// The portions of the pointwise product are between, for the group that needs them then.
//
// Operands are in columns: a piece of 16 bytes of every row, then the next piece of every row. Tensor cores read this layout
// from any row on, so that all taps multiply one tile, each from its own row.
//
// An instruction leaves columns 8 j + 2 q and 8 j + 2 q + 1 to thread q of four. The rows of weights are in such an order
// that a thread's 8 columns of j = 4 g to 4 g + 3 are consecutive channels: it loads and stores 16 bytes. The sums of the
// convolution become the left operand of the pointwise product in the thread that has them.
//
// `portions` holds, with channel(n) = n / 32 * 32 + n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2, as [..][8] float16:
//   weight   [TAPS][CHANNELS / 32][4 pieces][CHANNELS n]: output channel(n), input 32 block + 8 piece ..
//   weight2  [2 halves][CHANNELS / 64][8 pieces][CHANNELS / 2 n]: output channel(96 half + n), input channel(64 block + 8 piece ..)

#include "half.cuh"
#include "barriers.cuh"
#include "wide_products.cuh"

constexpr int LANES = 32;
constexpr int WARPS = 4;                            // of a group
constexpr int GROUP = WARPS * LANES;
constexpr int GROUPS = 2;                           // that multiply
constexpr int THREADS = GROUP * (GROUPS + 1);       // the last group copies
constexpr int COPIERS = (WARPS - 1) * LANES;        // of x; one warp copies weights
constexpr int TIMES = ROWS / 64;                    // products of 64 rows
constexpr int PIECES = CHANNELS / 8;
constexpr int SUMS = CHANNELS / 2;                  // of a thread, for 64 rows
constexpr int X_ROWS = ROWS + (TAPS - 1) * DILATION;
constexpr int X_PITCH = (X_ROWS + 7) / 8 * 8;

// Portions: 32 inputs of all outputs of the convolution, or 64 of half of those of the pointwise product.
constexpr int PORTION = CHANNELS * 32 * 2;
constexpr int BLOCKS = CHANNELS / 32;               // portions of a tap
constexpr int CONV = TAPS * BLOCKS;
constexpr int POINTWISE = CHANNELS / 64;            // of one half of the columns
#ifndef SHARED
#define SHARED 8
#endif
#ifndef FIRST_SOLO
#define FIRST_SOLO 9
#endif
#ifndef SECOND_SOLO
#define SECOND_SOLO 9
#endif
#ifndef IN_USE
#define IN_USE 1                                   // portions that are multiplied while the next one is awaited
#endif
constexpr int THIRD_SOLO = CONV - 2 * SHARED - FIRST_SOLO - SECOND_SOLO;
static_assert(CHANNELS == 192 && THIRD_SOLO >= 0, "");

constexpr int X_TILE = PIECES * X_PITCH * 16;
constexpr int X_TILES = SLOTS * PORTION;            // offsets
constexpr int VECTORS = X_TILES + GROUPS * X_TILE;
constexpr int BARRIERS = VECTORS + 6 * CHANNELS * 4;

// Registers of a thread: 504 for one of each group.
constexpr int COPY_REGISTERS = 24, PRODUCT_REGISTERS = 240;

// x + sin^2(alpha x) / beta. The square of the sine as a polynomial of the square of the angle, at most 6e-7 off: the hardware's
// sine takes as long as all of this, and the compiler lets one wait for the other. The angle is in half turns, the period of the
// square, so that its whole part is subtracted exactly.
__device__ __forceinline__ float snake(float x, float half_turns, float inverse_beta) {
    constexpr float ROUNDS = 12582912.0f;           // adding 1.5 * 2^23 rounds to a whole number
    const float whole = fmaf(x, half_turns, ROUNDS) - ROUNDS;
    const float angle = fmaf(x, half_turns, -whole), square = angle * angle;
    float ratio = fmaf(10.581298828125f, square, -29.426273345947266f);
    ratio = fmaf(ratio, square, 42.64342498779297f);
    ratio = fmaf(ratio, square, -32.46514129638672f);
    ratio = fmaf(ratio, square, 9.869524955749512f);
    return fmaf(ratio, square * inverse_beta, x);
}

__device__ __forceinline__ void read(float (&v)[8], const float* vector) {
    const float4 a = *(const float4*)vector, b = *(const float4*)(vector + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// The sum of channel 8 q + i of a part of 32, in row lane / 4 + 8 side of the warp's 16.
__device__ __forceinline__ constexpr int sum_of(int part, int side, int i) { return 4 * (4 * part + i / 2) + 2 * side + i % 2; }

// The number of the first portion for tile `t` of a block alone.
__device__ __forceinline__ int first_solo_of(int t) { return SHARED + (CONV - SHARED) * t + (t > 1 ? 2 * POINTWISE * (t - 1) : 0); }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
unit(const half* x, const half* __restrict__ portions, const float* __restrict__ bias, const float* __restrict__ alpha,
     const float* __restrict__ inverse_beta, const float* __restrict__ bias2, const float* __restrict__ alpha2,
     const float* __restrict__ inverse_beta2, const half* residual, half* out, half* active,
     int positions, int tiles, int x_stride, int active_stride) {
    DYNAMIC_SHARED(shared);
    float* const vectors = (float*)(shared + VECTORS);
    const unsigned slots = shared_address(shared), barriers = slots + BARRIERS;
    // Of a slot: full, empty. Of a group's tile of x: full, empty. The number of portions whose copy has begun.
    auto full = [&](int slot) { return barriers + slot * 8; };
    auto empty = [&](int slot) { return barriers + (SLOTS + slot) * 8; };
    auto x_full = [&](int group) { return barriers + (2 * SLOTS + group) * 8; };
    auto x_empty = [&](int group) { return barriers + (2 * SLOTS + GROUPS + group) * 8; };
    const unsigned begun = barriers + (2 * SLOTS + 2 * GROUPS) * 8;

    const int thread = threadIdx.x % GROUP, lane = threadIdx.x % LANES;
    const int group = __shfl_sync(ALL, threadIdx.x / GROUP, 0), warp = __shfl_sync(ALL, thread / LANES, 0);
    const int rank = CLUSTER > 1 ? block_of_cluster() : 0;
    // Of this block, the same in all blocks of its cluster: the last tile of one can be beyond the end.
    const int rounds = (tiles - ((int)blockIdx.x - rank) + (int)gridDim.x - 1) / (int)gridDim.x;
    const unsigned tiles_per_entry = (unsigned)positions / ROWS;
    auto tile_of = [&](int t) { return t * (int)gridDim.x + (int)blockIdx.x; };

    constexpr float HALF_TURN = 0.3183098861837907f;
    for (int i = threadIdx.x; i < CHANNELS; i += THREADS) {
        vectors[i] = bias[i], vectors[CHANNELS + i] = alpha[i] * HALF_TURN, vectors[2 * CHANNELS + i] = inverse_beta[i];
        vectors[3 * CHANNELS + i] = bias2[i], vectors[4 * CHANNELS + i] = alpha2[i] * HALF_TURN;
        vectors[5 * CHANNELS + i] = inverse_beta2[i];
    }
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; slot++) {
            create_barrier(full(slot), 1);
            create_barrier(empty(slot), CLUSTER * GROUPS * WARPS);
        }
        for (int i = 0; i < GROUPS; i++) {
            create_barrier(x_full(i), COPIERS);
            create_barrier(x_empty(i), WARPS);
        }
        write_shared(begun, 0);
        publish_barriers();
    }
    let_next_start();
    if (CLUSTER > 1) meet_cluster();
    else __syncthreads();

    if (group == GROUPS) {
        give_registers<COPY_REGISTERS>();
        if (warp == 0) {
            if (lane == 0) {
                int n = 0, block = 0;
                auto copy = [&](int portion) {
                    const int slot = n % SLOTS;
                    if (n >= SLOTS) await(empty(slot), n / SLOTS - 1 & 1);
                    expect_bytes(full(slot), PORTION);
                    constexpr int BYTES = PORTION / CLUSTER;
                    const int offset = rank * BYTES;
                    const unsigned char* const source = (const unsigned char*)portions + portion * PORTION + offset;
                    if (CLUSTER > 1) copy_bytes_to((1 << CLUSTER) - 1, slots + slot * PORTION + offset, source, BYTES, full(slot));
                    else copy_bytes(slots + slot * PORTION, source, BYTES, full(slot));
                    write_shared(begun, ++n);
                };
                auto copy_conv = [&](int count) {
                    #pragma unroll 1
                    for (int i = 0; i < count; i++) {
                        copy(block);
                        block = block + 1 < CONV ? block + 1 : 0;
                    }
                };
                auto copy_pointwise = [&](int columns) {
                    #pragma unroll 1
                    for (int i = 0; i < POINTWISE; i++) copy(CONV + columns * POINTWISE + i);
                };
                copy_conv(SHARED);
                #pragma unroll 1
                for (int t = 0; t < rounds; t++) {
                    copy_conv(FIRST_SOLO);
                    if (t) copy_pointwise(0);
                    copy_conv(SECOND_SOLO);
                    if (t) copy_pointwise(1);
                    copy_conv(THIRD_SOLO + SHARED);
                }
                copy_pointwise(0);
                copy_pointwise(1);
            }
        } else {
            // A warp copies 64 bytes of 8 rows at a time: whole sectors from global memory, and 8 pieces without bank conflicts.
            const int row = lane % 8 + (warp - 1) * 8, piece = lane / 8;
            wait_for_previous();
            #pragma unroll 1
            for (int t = 0; t < rounds; t++) {
                const int side = t % GROUPS;
                const int tile = min(tile_of(t), tiles - 1);
                const int entry = (unsigned)tile / tiles_per_entry, position = (unsigned)tile % tiles_per_entry * ROWS;
                const half* source = x + (size_t)entry * x_stride + (size_t)(position + row) * CHANNELS + piece * 8;
                unsigned target = slots + X_TILES + side * X_TILE + (piece * X_PITCH + row) * 16;
                if (t >= GROUPS) await(x_empty(side), t / GROUPS - 1 & 1);
                #pragma unroll 2
                for (int i = row; i < X_ROWS; i += 8 * (WARPS - 1)) {
                    #pragma unroll
                    for (int part = 0; part < PIECES / 4; part++) copy_async(target + part * 4 * X_PITCH * 16, source + part * 32);
                    source += 8 * (WARPS - 1) * CHANNELS, target += 8 * (WARPS - 1) * 16;
                }
                end_group();
                if (threadIdx.x == THREADS - 1) fetch_bytes(residual + (size_t)tile * ROWS * CHANNELS, ROWS * CHANNELS * 2);
                wait_for_copies(0);
                publish_copies();
                arrive(x_full(side));
            }
        }
    } else {
        take_registers<PRODUCT_REGISTERS>();
        const int q = lane % 4;
        const unsigned x_tile = low_half(slots + X_TILES + group * X_TILE, X_PITCH);
        const float* const own_vectors = vectors + 8 * q;
        // The parity of a slot's barrier tells a portion only from the one before it. A group does not await all portions,
        // so it awaits first that the copy of its next one has begun: then all before in this slot were multiplied.
        auto await_begin = [&](int n) {
            int spins = 0;
            while (read_shared(begun) <= n) count_spin(spins, 64);
        };
        // A portion's groups have two shares together.
        auto release = [&](int n, int shares) {
            const int slot = n % SLOTS;
            if (CLUSTER > 1) {
                if (lane < CLUSTER) arrive_in(lane, empty(slot), shares);
            } else if (lane == 0) arrive(empty(slot), shares);
        };
        wait_for_previous();
        #pragma unroll 1
        for (int t = group; t < rounds; t += GROUPS) {
            float sums[TIMES][SUMS];
            #pragma unroll
            for (int part = 0; part < CHANNELS / 32; part++) {
                float v[8];
                read(v, own_vectors + 32 * part);
                #pragma unroll
                for (int i = 0; i < 16 * TIMES; i++) sums[i / 16][sum_of(part, i % 16 / 8, i % 8)] = v[i % 8];
            }
            await(x_full(group), t / GROUPS & 1);
            int n = first_solo_of(t) - SHARED;
            int portion = (CONV - SHARED) * t % CONV;
            int tap = portion / BLOCKS, block = portion % BLOCKS;
            int used[IN_USE], shares[IN_USE];     // portions still in use
            #pragma unroll 1
            for (int i = 0; i < CONV; i++) {
                const bool skips = t && (i == SHARED + FIRST_SOLO || i == SHARED + FIRST_SOLO + SECOND_SOLO);
                if (skips) n += POINTWISE;
                await_begin(n);
                const int slot = n % SLOTS;
                await(full(slot), n / SLOTS & 1);
                const unsigned x_low = x_tile + block * 4 * X_PITCH + tap * DILATION;
                const unsigned w_low = low_half(slots + slot * PORTION, CHANNELS);
                fence_products();
                #pragma unroll
                for (int step = 0; step < 2; step++) {
                    #pragma unroll
                    for (int time = 0; time < TIMES; time++)
                        multiply(sums[time], operand(x_low + 2 * step * X_PITCH + 64 * time), operand(w_low + 2 * step * CHANNELS));
                }
                end_products();
                wait_for_products<IN_USE>();
                if (i >= IN_USE) release(used[0], shares[0]);
                #pragma unroll
                for (int j = 1; j < IN_USE; j++) used[j - 1] = used[j], shares[j - 1] = shares[j];
                used[IN_USE - 1] = n++;
                shares[IN_USE - 1] = (i < SHARED && t) || (i >= CONV - SHARED && t + 1 < rounds) ? 1 : 2;
                if (++block == BLOCKS) block = 0, tap = tap + 1 < TAPS ? tap + 1 : 0;
            }
            wait_for_products<0>();
            #pragma unroll
            for (int i = 0; i < SUMS * TIMES; i++) settle(sums[i / SUMS][i % SUMS]);
            #pragma unroll
            for (int j = 0; j < IN_USE; j++) release(used[j], shares[j]);
            if (lane == 0) arrive(x_empty(group));

            const bool inside = tile_of(t) < tiles, last = t + 1 == rounds;
            const int tile = min(tile_of(t), tiles - 1), entry = (unsigned)tile / tiles_per_entry;
            const size_t row = (size_t)tile * ROWS + warp * 16 + lane / 4;
            const size_t at = row * CHANNELS + 8 * q;
            half* const target = active + (size_t)entry * active_stride + (row - (size_t)entry * positions) * CHANNELS + 8 * q;
            // The pointwise product in two halves of the columns: sums of all and its left operand are too many registers.
            constexpr int PARTS = CHANNELS / 64;
            uint4 before[PARTS][2 * TIMES];
            auto offset_of = [](int columns, int part, int side) {
                return columns * CHANNELS / 2 + part * 32 + (side % 2 * 8 + side / 2 * 64) * CHANNELS;
            };
            auto load_residual = [&](int columns, int part) {
                #pragma unroll
                for (int side = 0; side < 2 * TIMES; side++)
                    before[part][side] = load_now(residual + at + offset_of(columns, part, side));
            };
            unsigned inner[TIMES][SUMS / 2];
            #pragma unroll
            for (int time = 0; time < TIMES; time++) {
                #pragma unroll
                for (int part = 0; part < CHANNELS / 32; part++) {
                    float a[8], b[8];
                    read(a, own_vectors + CHANNELS + 32 * part);
                    read(b, own_vectors + 2 * CHANNELS + 32 * part);
                    #pragma unroll
                    for (int i = 0; i < 16; i += 2) {
                        const int j = sum_of(part, i / 8, i % 8);
                        const float* const s = sums[time];
                        inner[time][j / 2] = pack(snake(s[j], a[i % 8], b[i % 8]), snake(s[j + 1], a[i % 8 + 1], b[i % 8 + 1]));
                    }
                }
                if (time == 0) {
                    await_begin(-1);                // a branch: the compiler would mix both halves and spill
                    #pragma unroll
                    for (int part = 0; part < PARTS; part++) load_residual(0, part);
                }
            }
            n = last ? first_solo_of(t) + CONV - SHARED + (t ? 2 * POINTWISE : 0) : first_solo_of(t + 1) + FIRST_SOLO;
            #pragma unroll
            for (int columns = 0; columns < 2; columns++) {
                float sums2[TIMES][SUMS / 2];
                const int channels = columns * CHANNELS / 2;
                #pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    float v[8];
                    read(v, own_vectors + 3 * CHANNELS + channels + 32 * part);
                    #pragma unroll
                    for (int i = 0; i < 16 * TIMES; i += 2) {
                        const uint4 r = before[part][i / 8];
                        const unsigned pairs[4] = {r.x, r.y, r.z, r.w};
                        const int j = sum_of(part, i % 16 / 8, i % 8);
                        sums2[i / 16][j] = v[i % 8] + low(pairs[i % 8 / 2]);
                        sums2[i / 16][j + 1] = v[i % 8 + 1] + high(pairs[i % 8 / 2]);
                    }
                }
                #pragma unroll
                for (int i = 0; i < POINTWISE; i++) {
                    await_begin(n + i);
                    const int slot = (n + i) % SLOTS;
                    await(full(slot), (n + i) / SLOTS & 1);
                    const unsigned w_low = low_half(slots + slot * PORTION, CHANNELS / 2);
                    fence_products();
                    #pragma unroll
                    for (int step = 0; step < 4; step++) {
                        #pragma unroll
                        for (int time = 0; time < TIMES; time++)
                            multiply(sums2[time], inner[time] + 4 * (4 * i + step), operand(w_low + step * CHANNELS));
                    }
                    end_products();
                }
                wait_for_products<0>();
                #pragma unroll
                for (int i = 0; i < SUMS / 2 * TIMES; i++) settle(sums2[i / (SUMS / 2)][i % (SUMS / 2)]);
                #pragma unroll
                for (int i = 0; i < POINTWISE; i++) release(n + i, 2);
                n += POINTWISE + (last ? 0 : SECOND_SOLO);
                #pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    float a[8], b[8];
                    read(a, own_vectors + 4 * CHANNELS + channels + 32 * part);
                    read(b, own_vectors + 5 * CHANNELS + channels + 32 * part);
                    #pragma unroll
                    for (int side = 0; side < 2 * TIMES; side++) {
                        const float* const s = sums2[side / 2];
                        unsigned sum[4], activated[4];
                        #pragma unroll
                        for (int i = 0; i < 8; i += 2) {
                            const int j = sum_of(part, side % 2, i);
                            sum[i / 2] = pack(s[j], s[j + 1]);
                            activated[i / 2] = pack(snake(s[j], a[i], b[i]), snake(s[j + 1], a[i + 1], b[i + 1]));
                        }
                        if (inside && out) store(out + at + offset_of(columns, part, side), sum);
                        if (inside) store(target + offset_of(columns, part, side), activated);
                    }
                    if (columns == 0) load_residual(1, part);
                }
            }
        }
    }
    // No block ends before the others have read and arrived.
    if (CLUSTER > 1) {
        __syncwarp();
        meet_cluster();
    }
}
