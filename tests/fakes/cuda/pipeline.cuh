// The emulated part of the header of that name.
#pragma once
#include "emulator.h"

// Rows of `width` elements of 2 bytes, of which a tile has 64 inputs by `rows`.
struct TensorMap {
    const unsigned short* data;
    long width, height, stride, rows;
};

inline void prefetch(const TensorMap& map) {}
inline void init_barrier(unsigned barrier, int arrivals) { emulator::now->block->barriers[barrier] = {arrivals, arrivals}; }
inline void publish_barriers() {}
inline void arrive_expecting(unsigned barrier, int bytes) { emulator::arrive(barrier, bytes); }
inline void arrive_at(unsigned barrier) { emulator::arrive(barrier); }
inline void wait_for_phase(unsigned barrier, int parity) { emulator::wait_for_parity(barrier, parity); }

inline void copy_into(emulator::Block& block, unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    emulator::later([=, &block] {
        for (long r = 0; r < map.rows; r++)
            for (unsigned piece = 0; piece < 8; piece++) {
                const unsigned at = target + r * 128, swizzled = at + ((piece ^ (at >> 7 & 7)) << 4);
                if (row + r >= map.height) std::memset(block.shared.data() + swizzled, 0, 16);
                else std::memcpy(block.shared.data() + swizzled, map.data + (row + r) * map.stride + column + piece * 8, 16);
            }
        emulator::Barrier& found = block.barriers.at(barrier);
        found.bytes -= map.rows * 128;
        found.check();
    });
}

inline void copy_tile(unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    copy_into(*emulator::now->block, target, map, column, row, barrier);
}

inline void copy_tile_to(unsigned short mask, unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    for (size_t rank = 0; rank < emulator::blocks.size(); rank++)
        if (mask >> rank & 1) copy_into(emulator::blocks[rank], target, map, column, row, barrier);
}

inline void sync_first(int threads) { emulator::meet("first", 0, threads); }
