// Runs the talker's cluster_linear.cu in the emulator; compiled with its macros.
#include "cluster_linear.cu"

// `x` [rows, K], `w` [.., K], `bias` [N] and `out` [rows, N] are bfloat16, or `out` is float. Returns 0, or prints what is
// wrong.
extern "C" int run(const bf16* x, const bf16* w, const bf16* bias, void* out, int rows, float eps, int blocks, int shared_bytes, int seed) {
    return emulator::run_grid(blocks, SPLIT, THREADS, shared_bytes, seed, [&] { cluster_linear(x, w, bias, out, rows, K, N, eps); });
}
