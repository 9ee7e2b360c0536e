// Runs the talker's paged_attention in the emulator; compiled with its macros.
#include "attention.cu"

// The arguments are those of the kernel, in a grid of so many `lines`. Returns 0, or prints what is wrong.
extern "C" int run(const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const bf16* cos, const bf16* sin, bf16* keys, bf16* values,
                   const long long* page_table, const long long* slots, const long long* positions, bf16* out, int frames, int rows,
                   int stride_page_table, float eps, float scale, int lines, int seed) {
    return emulator::run_grid(KV_HEADS * lines, 1, WARPS * LANES, 0, seed, [&] {
        paged_attention(qkv, q_norm, k_norm, cos, sin, keys, values, page_table, slots, positions, out, frames, rows, stride_page_table,
                        eps, scale);
    }, lines);
}
