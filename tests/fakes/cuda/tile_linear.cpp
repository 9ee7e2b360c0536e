// Runs the talker's tile_linear.cu in the emulator; compiled with its macros.
#include "tile_linear.cu"

// `x` [rows, K], `w` [.., K], `bias` [N] and `out` [rows, N] are bfloat16, or `out` is float; `squares` and `sums` are float,
// [2, rows] and [N / 64, rows]. Returns 0, or prints what is wrong.
extern "C" int run(const bf16* x, const bf16* w, const bf16* bias, const float* squares, float* sums, void* out, int rows, float eps,
                   int blocks, int shared_bytes, int seed) {
    const TensorMap x_map{x, rows, K, ROWS}, w_map{w, N * (1 + GATED), K, 64 * GROUPS / TWINS};
    return emulator::run_grid(blocks, CLUSTER, THREADS, shared_bytes, seed, [&] {
        tile_linear(x_map, w_map, bias, squares, sums, out, rows, N, 2, rows, 1, eps);
    });
}
