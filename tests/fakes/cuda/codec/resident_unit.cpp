// Runs the codec's resident_unit.cu in the emulator; compiled with its macros.
#include "resident_unit.cu"

// Arguments as those of the kernel; float16 as bits. Returns 0, or prints what is wrong.
extern "C" int run(const half* x, const half* weight, const float* vectors, const half* weight2, const half* residual, half* out,
                   half* active, int positions, int tiles, int x_stride, int active_stride, int blocks, int shared_bytes, int seed) {
    const float* v[6];
    for (int i = 0; i < 6; i++) v[i] = vectors + i * CHANNELS;
    return emulator::run_grid(blocks, 1, THREADS, shared_bytes, seed, [&] {
        unit(x, weight, v[0], v[1], v[2], weight2, v[3], v[4], v[5], residual, out, active, positions, tiles, x_stride, active_stride);
    });
}
