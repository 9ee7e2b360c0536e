// A product over shifted rows (ops.Ops.product) for few rows: each warp multiplies all rows by a slice of the width; partial sums
// meet in shared memory. What the previous kernel does not write, all weights first, is loaded before waiting for its end
// (programmatic dependent launch).
//
// Compiled with these macros:
//   OUTPUTS          a gated product has as many rows of weights for gates, then for ups
//   CHANNELS, TAPS   of a row of weights; channels are a multiple of 32
//   TILES            tiles of 8 outputs a block
//   OCTETS           groups of 8 rows of x a block: 1, 2 or 4
//   WARPS            warps a block, each with a slice that is a multiple of 32
//   NORM             1: x is divided by its root mean square
//   GATED, GELU      1: the activation
//
// `bias`, `alpha`, `residual`, `out` and `active` may be null; `out` may be `residual` itself.

#include "half.cuh"
#include "memory.cuh"

constexpr int LANES = 32;
constexpr int WIDTH = TAPS * CHANNELS, SLICE = WIDTH / WARPS;
constexpr int STEPS = SLICE / 32;
constexpr int UNITS = (GATED ? 2 : 1) * TILES;      // tiles of gates, then of ups
constexpr int PAIRS = (UNITS + 1) / 2;              // an instruction multiplies two tiles by 8 rows of x
constexpr int ROWS = 8 * OCTETS;
constexpr int COLUMNS = 8 * TILES;
constexpr int BLOCKS = OUTPUTS / COLUMNS;           // per tile of rows
constexpr int PITCH = 8 * UNITS + 4;                // per row of sums: keeps rows off the same banks
constexpr int THREADS = WARPS * LANES;
constexpr int ITEMS = (ROWS * COLUMNS + THREADS - 1) / THREADS;  // per thread
constexpr int AHEAD = STEPS < 8 / OCTETS ? STEPS : 8 / OCTETS;   // steps of x that are loaded at once
constexpr int PARTS = (STEPS + AHEAD - 1) / AHEAD;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
skinny_product(const half* x, const half* weight, const float* bias, const float* alpha, const float* inverse_beta,
               const half* residual, half* out, half* active, int rows, int positions, int dilation, int x_stride,
               int residual_stride, int out_stride, int active_stride, float eps) {
    DYNAMIC_SHARED(shared);
    auto sums = (float (*)[ROWS][PITCH])shared;
    auto row_squares = (float (*)[ROWS])(sums + WARPS);
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    // A lane's 16 bytes are contiguous. Any order of the width will do, since both operands use the same.
    const int group = lane / 4, quarter = lane % 4, k = warp * SLICE + quarter * 8;
    const int first_output = blockIdx.x % BLOCKS * COLUMNS, first_row = blockIdx.x / BLOCKS * ROWS;
    rows = min(rows - first_row, ROWS);

    uint4 weights[UNITS][STEPS];
    #pragma unroll
    for (int unit = 0; unit < UNITS; unit++)
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int output = unit / TILES * OUTPUTS + first_output + unit % TILES * 8 + group;
            weights[unit][step] = load_once(weight + (size_t)output * WIDTH + k + step * 32);
        }
    auto output_of = [&](int item) -> int { return first_output + (threadIdx.x + item * THREADS) % COLUMNS; };
    float vectors[ITEMS][3] = {};
    #pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int output = output_of(item);
        if (bias) vectors[item][0] = load_now(bias + output);
        if (active) vectors[item][1] = load_now(alpha + output), vectors[item][2] = load_now(inverse_beta + output);
    }
    let_next_start();
    wait_for_previous();

    const half* from[OCTETS];
    #pragma unroll
    for (int octet = 0; octet < OCTETS; octet++) {
        const int row = first_row + min(octet * 8 + group, rows - 1), entry = row / positions;
        from[octet] = x + (size_t)entry * x_stride + (row - entry * positions) * CHANNELS + quarter * 8;
    }
    uint4 inputs[2][OCTETS][AHEAD];
    auto load_part = [&](int part) {
        #pragma unroll
        for (int i = 0; i < AHEAD; i++)
            #pragma unroll
            for (int octet = 0; octet < OCTETS; octet++)
                if (part * AHEAD + i < STEPS) {
                    const int at = warp * SLICE + (part * AHEAD + i) * 32, tap = at / CHANNELS;
                    inputs[part % 2][octet][i] = load_now(from[octet] + at + tap * (dilation - 1) * CHANNELS);
                }
    };
    load_part(0);
    // Places of rows that exist; the others repeat the last one.
    auto place = [&](int item, int stride) {
        const int row = first_row + min((int)(threadIdx.x + item * THREADS) / COLUMNS, rows - 1), entry = row / positions;
        return (size_t)entry * stride + (row - entry * positions) * OUTPUTS + output_of(item);
    };
    float before[ITEMS] = {};
    #pragma unroll
    for (int item = 0; item < ITEMS; item++)
        if (residual) before[item] = load_value(residual + place(item, residual_stride));

    float products[OCTETS][PAIRS][4] = {};
    float partial[OCTETS] = {};
    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (part + 1 < PARTS) load_part(part + 1);
        #pragma unroll
        for (int i = 0; i < AHEAD; i++)
            #pragma unroll
            for (int octet = 0; octet < OCTETS; octet++) {
                const int step = part * AHEAD + i;
                if (step >= STEPS) continue;
                const uint4 v = inputs[part % 2][octet][i];
                if (NORM) partial[octet] += squares(v);
                #pragma unroll
                for (int pair = 0; pair < PAIRS; pair++) {
                    const uint4 first = weights[2 * pair][step];
                    const uint4 second = 2 * pair + 1 < UNITS ? weights[2 * pair + 1][step] : make_uint4(0, 0, 0, 0);
                    multiply(products[octet][pair], first.x, second.x, first.y, second.y, v.x, v.y);
                    multiply(products[octet][pair], first.z, second.z, first.w, second.w, v.z, v.w);
                }
            }
    }

    #pragma unroll
    for (int octet = 0; octet < OCTETS; octet++) {
        if (NORM) {
            float total = partial[octet];
            total += __shfl_xor_sync(ALL, total, 1);
            total += __shfl_xor_sync(ALL, total, 2);
            if (quarter == 0) row_squares[warp][octet * 8 + group] = total;
        }
        #pragma unroll
        for (int unit = 0; unit < UNITS; unit++)
            #pragma unroll
            for (int odd = 0; odd < 2; odd++)
                if (const int row = octet * 8 + quarter * 2 + odd; row < rows)
                    sums[warp][row][unit * 8 + group] = products[octet][unit / 2][unit % 2 * 2 + odd];
    }
    __syncthreads();

    #pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int i = threadIdx.x + item * THREADS, row = i / COLUMNS, column = i % COLUMNS;
        if (row >= rows) break;
        float value = 0.0f, up = 0.0f, square = 0.0f;
        #pragma unroll
        for (int other = 0; other < WARPS; other++) {
            value += sums[other][row][column];
            if (GATED) up += sums[other][row][COLUMNS + column];
            if (NORM) square += row_squares[other][row];
        }
        if (NORM) {
            const float scale = rsqrtf(square / WIDTH + eps);
            value *= scale, up *= scale;
        }
        value += vectors[item][0];
        if (GATED) value = value / (1.0f + __expf(-value)) * up;
        if (GELU) value = 0.5f * value * (1.0f + erff(value * 0.70710678f));
        value += before[item];
        if (out) store_value(out + place(item, out_stride), value);
        if (active) store_value(active + place(item, active_stride), snake(value, vectors[item][1], vectors[item][2]));
    }
}
