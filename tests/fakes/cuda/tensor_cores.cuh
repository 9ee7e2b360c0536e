// The emulated part of the header of that name.
#pragma once
#include "emulator.h"

inline float element(emulator::Block& block, unsigned tile, int row, int k) {
    const unsigned at = (tile & emulator::PLACE) + row * 128, swizzled = at + ((unsigned(k) / 8 ^ (at >> 7 & 7)) << 4) + k % 8 * 2;
    unsigned short bits;
    std::memcpy(&bits, block.shared.data() + swizzled, 2);
    return widen(bits);
}

inline void multiply_tiles(emulator::Block& block, const emulator::Product& product, unsigned weights, unsigned x) {
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
            product.sums[thread][place] += total;
        }
    }
}

inline void multiply_step(float (&sums)[ROWS / 2], unsigned weights, unsigned x) {
    emulator::Block& block = *emulator::now->block;
    emulator::next_product(sums).compute = [&block, weights, x](const emulator::Product& p) { multiply_tiles(block, p, weights, x); };
    emulator::issued();
    emulator::end_group_of_products();
}

inline void wait_for_products(int pending) { emulator::await_products(pending); }
inline void settle(float& sum) {}
