// Emulated products of a warp. `low` and `high` are those of the numbers' type, in the header that includes this one.
#pragma once
#include "emulator.h"

// The instruction for a warp: of 16 rows by 16 and 16 by 8 columns a lane has pairs, of its group's row and column.
inline void multiply(float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    auto& operands = emulator::now->block->operands;
    const int first = emulator::first_of_warp(), lane = emulator::now->index.x % emulator::LANES;
    operands[emulator::now->index.x] = {a0, a1, a2, a3, b0, b1};
    emulator::meet_warp();
    for (int i = 0; i < 4; i++)
        for (int quarter = 0; quarter < 4; quarter++) {
            const auto &a = operands[first + lane / 4 * 4 + quarter], &b = operands[first + (lane % 4 * 2 + i % 2) * 4 + quarter];
            for (int half = 0; half < 2; half++) {
                const unsigned left = a[i / 2 + 2 * half], right = b[4 + half];
                sums[i] += low(left) * low(right) + high(left) * high(right);
            }
        }
    emulator::meet_warp();
}
