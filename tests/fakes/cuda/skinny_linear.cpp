// Runs the talker's skinny_linear.cu in the emulator; compiled with its macros.
#include "skinny_linear.cu"

// See tile_linear.cpp; `squares` and `sums` are unused.
extern "C" int run(const bf16* x, const bf16* w, const bf16* bias, const float* squares, float* sums, void* out, int rows, float eps,
                   int blocks, int shared_bytes, int seed) {
    const int lines = (rows + ROWS - 1) / ROWS;
    return emulator::run_grid(blocks * lines, 1, THREADS, shared_bytes, seed, [&] {
        skinny_linear(x, w, bias, out, rows, K, N, eps);
    }, lines);
}
