// Runs the codec's skinny_product.cu in the emulator; compiled with its macros.
#include "skinny_product.cu"

// Arguments as those of the kernel, vectors one after the other or absent; float16 as bits. Returns 0, or prints what is wrong.
extern "C" int run(const half* x, const half* weight, const float* vectors, const half* residual, half* out, half* active, int rows,
                   int positions, int dilation, int x_stride, int stride, float eps, int blocks, int shared_bytes, int seed) {
    const float *bias = vectors, *alpha = bias ? bias + OUTPUTS : nullptr, *inverse_beta = alpha ? alpha + OUTPUTS : nullptr;
    return emulator::run_grid(blocks, 1, THREADS, shared_bytes, seed, [&] {
        skinny_product(x, weight, bias, alpha, inverse_beta, residual, out, active, rows, positions, dilation, x_stride, stride,
                       stride, stride, eps);
    });
}
