// Runs the talker's frame_attention in the emulator; compiled with its macros.
#include "attention.cu"

// The arguments are those of the kernel. Returns 0, or prints what is wrong.
extern "C" int run(const bf16* x, const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const bf16* cos, const bf16* sin, bf16* keys,
                   bf16* values, bf16* out, int stride_x, int rows, int start, float eps, float scale, int seed) {
    return emulator::run_grid((rows * KV_HEADS + WARPS - 1) / WARPS, 1, WARPS * LANES, 0, seed, [&] {
        frame_attention(x, qkv, q_norm, k_norm, cos, sin, keys, values, out, stride_x, rows, start, eps, scale);
    });
}
