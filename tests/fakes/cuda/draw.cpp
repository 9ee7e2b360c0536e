// Runs the talker's draw.cu in the emulator; compiled with its macros.
#include "draw.cu"

// The arguments are those of the kernel. Returns 0, or prints what is wrong.
extern "C" int run(const float* logits, const long long* slots, const long long* seeds, const long long* frames, const double* options,
                   unsigned char* seen, long long* codes, const bf16* inputs, bf16* out, int codebook, int stride_fields, int stride_out,
                   int eos, int rows, int seed) {
    return emulator::run_grid(rows, 1, THREADS, 0, seed, [&] {
        draw(logits, slots, seeds, frames, options, seen, codes, inputs, out, codebook, stride_fields, stride_out, eos);
    });
}
