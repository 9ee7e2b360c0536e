// The emulated part of the header of that name.
#pragma once
#include "emulator.h"

inline float element(emulator::Block& block, unsigned tile, int row, int k) {
    const unsigned at = tile + row * 128, swizzled = at + ((unsigned(k) / 8 ^ (at >> 7 & 7)) << 4) + k % 8 * 2;
    unsigned short bits;
    std::memcpy(&bits, block.shared.data() + swizzled, 2);
    return widen(bits);
}

inline void multiply_tiles(emulator::Block& block, const std::vector<float*>& sums, unsigned weights, unsigned x) {
    std::vector<float> w(64 * STEP);
    for (int row = 0; row < 64; row++)
        for (int k = 0; k < STEP; k++) w[row * STEP + k] = element(block, weights, row, k);
    for (int column = 0; column < ROWS; column++) {
        float values[STEP];
        for (int k = 0; k < STEP; k++) values[k] = element(block, x, column, k);
        for (int row = 0; row < 64; row++) {
            float total = 0.0f;
            for (int k = 0; k < STEP; k++) total += w[row * STEP + k] * values[k];
            // The thread and the register that hold a sum (PTX, wgmma.mma_async, matrix D).
            const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2, place = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
            sums[thread][place] += total;
        }
    }
}

inline void compute_issued() {
    auto& pending = emulator::now->block->products[emulator::warp() / 4];
    for (; !pending.empty(); pending.pop_front()) pending.front().compute(pending.front().sums);
}

inline void multiply_step(float (&sums)[ROWS / 2], unsigned weights, unsigned x) {
    emulator::Block& block = *emulator::now->block;
    const int group = emulator::warp() / 4, number = emulator::now->products++;
    auto& pending = block.products[group];
    // The first thread of the group to come issues the product, the others add their registers.
    if (pending.empty() || pending.back().number != number) {
        auto compute = [&block, weights, x](const std::vector<float*>& all) { multiply_tiles(block, all, weights, x); };
        pending.push_back({number, std::vector<float*>(128), compute});
    }
    pending.back().sums[emulator::now->index.x % 128] = sums;
    emulator::meet("issue", group, 128);
    if (emulator::now->index.x % 128 == 0 && emulator::random() % 2) compute_issued();
    emulator::meet("issued", group, 128);
}

inline void wait_for_products() {
    const int group = emulator::warp() / 4;
    emulator::meet("wait", group, 128);
    compute_issued();
    emulator::meet("waited", group, 128);
}

inline void settle(float& sum) {}
