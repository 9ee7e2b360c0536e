// The emulated part of the header of that name.
#pragma once
#include "../emulator.h"

inline unsigned low_half(unsigned address, int pitch) { return address / 16 | pitch << 16; }
inline unsigned long long operand(unsigned low_half) { return low_half; }
// Above the half, the bytes of a row.
template <int ROW> unsigned long long swizzled_operand(unsigned low_half) { return (unsigned long long)ROW << 32 | low_half; }

// Value k of a row of an operand in shared memory.
inline float element(emulator::Block& block, unsigned long long operand, int row, int k) {
    const unsigned pitch = unsigned(operand) >> 16, bytes = operand >> 32;
    unsigned at = (operand & 0xffff) * 16 + k % 8 * 2;
    if (bytes) at += row * bytes + k / 8 * 16, at ^= (at >> 7 & bytes / 16 - 1) << 4;
    else at += (k / 8 * pitch + row) * 16;
    half bits;
    std::memcpy(&bits, block.shared.data() + at, 2);
    return widen(bits);
}

template <class Left> void multiply_rows(emulator::Block& block, const emulator::Product& product, unsigned long long weights, int columns, Left left) {
    std::vector<float> w(columns * 16);
    for (int n = 0; n < columns; n++)
        for (int k = 0; k < 16; k++) w[n * 16 + k] = element(block, weights, n, k);
    for (int row = 0; row < 64; row++) {
        float values[16];
        for (int k = 0; k < 16; k++) values[k] = left(row, k);
        for (int n = 0; n < columns; n++) {
            float total = 0.0f;
            for (int k = 0; k < 16; k++) total += values[k] * w[n * 16 + k];
            // The thread and the register that hold a sum (PTX, wgmma.mma_async, matrix D).
            const int thread = row / 16 * 32 + row % 8 * 4 + n % 8 / 2, place = n / 8 * 4 + row % 16 / 8 * 2 + n % 2;
            product.sums[thread][place] += total;
        }
    }
}

template <int SIZE> void multiply(float (&sums)[SIZE], unsigned long long x, unsigned long long weights) {
    emulator::Block& block = *emulator::now->block;
    emulator::next_product(sums).compute = [&block, x, weights](const emulator::Product& product) {
        multiply_rows(block, product, weights, 2 * SIZE, [&](int row, int k) { return element(block, x, row, k); });
    };
    emulator::issued();
}

// The left operand in registers (PTX, wgmma.mma_async, matrix A).
template <int SIZE> void multiply(float (&sums)[SIZE], const unsigned* x, unsigned long long weights) {
    emulator::Block& block = *emulator::now->block;
    emulator::Product& product = emulator::next_product(sums);
    product.left.resize(128);
    product.left[emulator::now->index.x % 128].assign(x, x + 4);
    product.compute = [&block, weights](const emulator::Product& product) {
        multiply_rows(block, product, weights, 2 * SIZE, [&](int row, int k) {
            const unsigned pair = product.left[row / 16 * 32 + row % 8 * 4 + k % 8 / 2][row % 16 / 8 + k / 8 * 2];
            return k % 2 ? high(pair) : low(pair);
        });
    };
    emulator::issued();
}

inline unsigned fresh(unsigned half) { return half; }
inline void wait_for_products(int pending) { emulator::await_products(pending); }
inline void fence_products() {}
inline void end_products() { emulator::end_group_of_products(); }
inline void settle(float& sum) {}
