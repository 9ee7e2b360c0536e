// Runs the candidate streamed_unit.cu in the emulator; compiled with its macros.
#include "streamed_unit.cu"

// As run of resident_unit.cpp, with `portions` for both weights.
extern "C" int run(const half* x, const half* portions, const float* vectors, const half* residual, half* out, half* active,
                   int positions, int tiles, int x_stride, int active_stride, int blocks, int shared_bytes, int seed) {
    const float* v[6];
    for (int i = 0; i < 6; i++) v[i] = vectors + i * CHANNELS;
    return emulator::run_grid(blocks, CLUSTER, THREADS, shared_bytes, seed, [&] {
        unit(x, portions, v[0], v[1], v[2], v[3], v[4], v[5], residual, out, active, positions, tiles, x_stride, active_stride);
    });
}
