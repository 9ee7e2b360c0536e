// Runs scripts/benchmarks/products/tile_linear.cu in the emulator; compiled with its macros.
#include "tile_linear.cu"

// `x` [rows, K], `w` [.., K], `bias` [N] and `out` [rows, N] are bfloat16, or `out` is float. Returns 0, or prints what is
// wrong.
extern "C" int run(const bf16* x, const bf16* w, const bf16* bias, void* out, int rows, float eps, int blocks, int shared_bytes, int seed) {
    const TensorMap x_map{x, K, rows, K, X_SLICE}, w_map{w, K, N * (1 + GATED), K, W_SLICE};
    auto kernel = [&] { tile_linear(x_map, w_map, bias, out, rows, N, eps); };
    return emulator::run_grid(blocks, CLUSTER, CONSUMERS + LANES, shared_bytes, seed, kernel);
}
