// A residual unit of the codec: convolution of TAPS taps, SnakeBeta, pointwise product, residual, SnakeBeta (ops.Ops.unit).
// For few channels: a block of its own on each multiprocessor holds all weights in shared memory and its warpgroups take
// tiles of 64 rows in turn, so that the tensor cores multiply for one while the others compute sines, load and store.
//
// Compiled once for each dilation, with these macros:
//   CHANNELS        a multiple of 32, up to 96
//   TAPS, DILATION  of the convolution
//   GROUPS          warpgroups per block: 2 or 3
//
// `positions` must be a multiple of 64; `tiles` = entries * positions / 64. `out` may be null, or `residual` itself.
//
// Weights are in columns, in memory as in shared memory (streamed_product.cu): a piece of 16 bytes of every row, then the next
// piece of every row. All taps multiply one tile of x, each from its own row. The sums of the convolution become the left
// operand of the pointwise product in the thread that has them.

#define COLUMNS CHANNELS
#include "half.cuh"
#include "memory.cuh"
#include "fragments.cuh"

constexpr int THREADS = GROUP * GROUPS;
constexpr int ROWS = 64;                            // per tile
constexpr int PIECES = CHANNELS / 8;
constexpr int STEPS = CHANNELS / 16;
constexpr int X_ROWS = ROWS + (TAPS - 1) * DILATION;
constexpr int X_PITCH = (X_ROWS + 15) / 16 * 16;
constexpr int WIDE = CHANNELS / 64 * 64;            // channels in rows of 128 bytes; the other 32 are in rows of 64, behind them
constexpr int NARROW = X_PITCH * WIDE * 2;          // offset
constexpr int W_PITCH = CHANNELS;

constexpr int WEIGHTS = PIECES * W_PITCH * 16;      // per tap, and of the second product
constexpr int X_TILE = X_PITCH * CHANNELS * 2;
constexpr int X_TILES = (TAPS + 1) * WEIGHTS;       // offset
constexpr int VECTORS = X_TILES + GROUPS * X_TILE;  // offset
constexpr int VECTOR = CHANNELS * 4;
constexpr int ARRIVALS = VECTORS + 6 * VECTOR;      // offset of barriers: of each tap, and of the rest

// Barriers of the hardware; 0 is not used.
constexpr int OWN = 1, TURN = OWN + GROUPS;
static_assert(CHANNELS % 32 == 0 && CHANNELS <= 96, "registers must suffice");

#include "tensor_cores.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
unit(const half* x, const half* __restrict__ weight, const float* __restrict__ bias, const float* __restrict__ alpha,
     const float* __restrict__ inverse_beta, const half* __restrict__ weight2, const float* __restrict__ bias2,
     const float* __restrict__ alpha2, const float* __restrict__ inverse_beta2, const half* residual, half* out, half* active,
     int positions, int tiles, int x_stride, int active_stride) {
    DYNAMIC_SHARED(shared);
    const unsigned weights = shared_address(shared), weights2 = weights + TAPS * WEIGHTS, arrivals = weights + ARRIVALS;
    float* const vectors = (float*)(shared + VECTORS);

    const int thread = threadIdx.x % GROUP, lane = threadIdx.x % LANES;
    const int group = __shfl_sync(ALL, threadIdx.x / GROUP, 0);
    const int warp = thread / LANES, q = lane % 4;
    const unsigned x_tile = weights + X_TILES + group * X_TILE;
    const int rounds = (tiles + GROUPS * gridDim.x - 1) / (GROUPS * gridDim.x);
    const unsigned tiles_per_entry = (unsigned)positions / ROWS;
    // With few tiles, blocks have one each.
    auto tile_of = [&](int round) { return (round * GROUPS + group) * (int)gridDim.x + (int)blockIdx.x; };

    // Copies are fast where a row's bytes stay together in shared memory, hence rows of 128 and 64 bytes, not columns.
    auto copy_x = [&](int tile) {
        const int entry = (unsigned)tile / tiles_per_entry, position = (unsigned)tile % tiles_per_entry * ROWS;
        const half* const source = x + (size_t)entry * x_stride + (size_t)position * CHANNELS;
        const int row = thread / 8, piece = thread % 8;
        #pragma unroll
        for (int i = 0; i < X_ROWS; i += GROUP / 8)
            if (i + row < X_ROWS)
                copy_async(x_tile + (i + row) * 128 + (piece ^ row % 8) * 16, source + (i + row) * CHANNELS + piece * 8);
        const int row2 = thread / 4, piece2 = thread % 4;
        #pragma unroll
        for (int i = 0; i < X_ROWS; i += GROUP / 4)
            if (i + row2 < X_ROWS)
                copy_async(x_tile + NARROW + (i + row2) * 64 + (piece2 ^ row2 / 2 % 4) * 16, source + (i + row2) * CHANNELS + WIDE + piece2 * 8);
        end_group();
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i <= TAPS; i++) prepare(arrivals + 8 * i, 1);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int tap = 0; tap < TAPS; tap++) {
            arrive_expecting(arrivals + 8 * tap, WEIGHTS);
            copy_bulk(weights + tap * WEIGHTS, weight + tap * WEIGHTS / 2, WEIGHTS, arrivals + 8 * tap);
        }
        const float* const sources[] = {bias, alpha, inverse_beta, bias2, alpha2, inverse_beta2};
        arrive_expecting(arrivals + 8 * TAPS, WEIGHTS + 6 * VECTOR);
        copy_bulk(weights2, weight2, WEIGHTS, arrivals + 8 * TAPS);
        #pragma unroll
        for (int i = 0; i < 6; i++) copy_bulk(weights + VECTORS + i * VECTOR, sources[i], VECTOR, arrivals + 8 * TAPS);
    }
    wait_for_previous();
    if (tile_of(0) < tiles) copy_x(tile_of(0));
    else end_group();

    float sums[SUMS];
    const float* const own_vectors = vectors + 8 * q;
    for (int round = 0; round < rounds; round++) {
        // As in streamed_product.cu.
        if (round + 1 == rounds) let_next_start();
        const int tile = tile_of(round);
        auto await_turn = [&] { if (round || group) meet_at(TURN + group, 2 * GROUP); };
        auto end_turn = [&] {
            if (round + 1 < rounds || group + 1 < GROUPS) arrive_at(TURN + (group + 1) % GROUPS, 2 * GROUP);
        };
        if (tile >= tiles) {
            await_turn(), end_turn();
            break;
        }
        const size_t row = (size_t)tile * ROWS + warp * 16 + lane / 4;
        const size_t at = row * CHANNELS + 8 * q;
        uint4 before[PARTS][2];
        #pragma unroll
        for (int i = 0; i < 2 * PARTS; i++)
            before[i / 2][i % 2] = load_now(residual + at + i % 2 * 8 * CHANNELS + i / 2 * 32);
        if (!round) wait_for_copies(0), publish_copies(), await(arrivals + 8 * TAPS, 0);
        meet_at(OWN + group, GROUP);
        await_turn();
        #pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] = 0.0f;
        const unsigned w_low = fresh(low_half(weights, W_PITCH));
        const unsigned x_low = fresh(x_tile / 16);
        fence_products();
        #pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            if (!round) await(arrivals + 8 * tap, 0);
            #pragma unroll
            for (int step = 0; step < STEPS; step++)
                multiply(sums, step < WIDE / 16 ? swizzled_operand<128>(x_low + 2 * step + tap * DILATION * 8)
                                                : swizzled_operand<64>(x_low + NARROW / 16 + 2 * (step - WIDE / 16) + tap * DILATION * 4),
                         operand(w_low + (tap * STEPS + step) * 2 * W_PITCH));
        }
        end_products();
        end_turn();

        wait_for_products(0);
        #pragma unroll
        for (int i = 0; i < SUMS; i++) settle(sums[i]);
        meet_at(OWN + group, GROUP);
        if (tile_of(round + 1) < tiles) copy_x(tile_of(round + 1));

        unsigned inner[SUMS / 2];
        activate(inner, sums, vectors, q);
        begin_with(sums, before, vectors + 3 * CHANNELS, q);
        const unsigned w2_low = fresh(low_half(weights2, W_PITCH));
        fence_products();
        #pragma unroll
        for (int step = 0; step < STEPS; step++) multiply(sums, inner + 4 * step, operand(w2_low + step * 2 * W_PITCH));
        end_products();

        const int entry = (unsigned)tile / tiles_per_entry;
        half* const target = active + (size_t)entry * active_stride + (row - (size_t)entry * positions) * CHANNELS + 8 * q;
        wait_for_products(0);
        #pragma unroll
        for (int i = 0; i < SUMS; i++) settle(sums[i]);
        // Before the stores: it would wait for them too.
        wait_for_copies(0);
        publish_copies();
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float a[8], b[8];
            read(a, own_vectors + 4 * CHANNELS + 32 * part);
            read(b, own_vectors + 5 * CHANNELS + 32 * part);
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                unsigned sum[4], activated[4];
                #pragma unroll
                for (int i = 0; i < 8; i += 2) {
                    const int j = sum_of(part, side, i);
                    sum[i / 2] = pack(sums[j], sums[j + 1]);
                    activated[i / 2] = pack(snake(sums[j], a[i], b[i]), snake(sums[j + 1], a[i + 1], b[i + 1]));
                }
                const int offset = side * 8 * CHANNELS + part * 32;
                if (out) store(out + at + offset, sum);
                store(target + offset, activated);
            }
        }
    }
}
