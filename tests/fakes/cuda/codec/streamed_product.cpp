// Runs the codec's streamed_product.cu in the emulator; compiled with its macros.
#include "streamed_product.cu"

// Arguments as those of the kernel, vectors one after the other or absent; float16 as bits. Returns 0, or prints what is wrong.
extern "C" int run(const half* x, const half* weight, const half* weight2, const float* vectors, const half* residual, half* out,
                   half* active, int rows, int positions, int channels, int outputs, int taps, int dilation, int taps_per_copy,
                   int x_stages, int w_stages, int x_stride, int residual_stride, int out_stride, int active_stride, int blocks,
                   int shared_bytes, int seed) {
    const float* v[6];
    for (int i = 0; i < 6; i++) v[i] = i < VECTORS && (active || !i) ? vectors + i * outputs : nullptr;
    return emulator::run_grid(blocks, 1, THREADS, shared_bytes, seed, [&] {
        product(x, weight, v[0], v[1], v[2], weight2, v[3], v[4], v[5], residual, out, active, rows, positions, channels, outputs,
                taps, dilation, taps_per_copy, x_stages, w_stages, x_stride, residual_stride, out_stride, active_stride);
    });
}
