// The emulated part of the header of that name.
#pragma once
#include "barriers.cuh"

// A map of 16-bit values [height, width] in tiles of 64 columns by `rows`; a gated layer has `outputs` gates, then ups.
struct TensorMap {
    const unsigned short* data;
    long height, width;
    int rows;
};

inline void prefetch(const TensorMap& map) {}

// `row_of` gives the matrix's row of a tile's row.
inline void copy_rows(unsigned target, const TensorMap& map, int column, unsigned barrier, std::function<long(int)> row_of) {
    unsigned char* const memory = emulator::memory(target);
    copy_later(barrier, map.rows * 128, [=] {
        for (int r = 0; r < map.rows; r++)
            for (int piece = 0; piece < 8; piece++) {
                unsigned char* const place = memory + r * 128 + ((piece ^ ((target >> 7) + r) % 8) << 4);
                if (row_of(r) < map.height) std::memcpy(place, map.data + row_of(r) * map.width + column + piece * 8, 16);
                else std::memset(place, 0, 16);
            }
    });
}

inline void copy_tile(unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    copy_rows(target, map, column, barrier, [=](int r) { return row + r; });
}

inline unsigned in_block(unsigned address, int rank) {
    if (!emulator::now->has_met_cluster) emulator::error = "the shared memory of a block that may not have started";
    return emulator::address(address & emulator::PLACE, rank);
}

inline void arrive_in(unsigned barrier) { arrive(barrier); }

template <int BLOCKS>
void copy_to_blocks(unsigned target, const TensorMap& map, int column, unsigned barrier, std::function<long(int)> row_of) {
    if (BLOCKS == 1) return copy_rows(target, map, column, barrier, row_of);
    for (int block = 0; block < BLOCKS; block++) copy_rows(in_block(target, block), map, column, in_block(barrier, block), row_of);
}

template <int BLOCKS>
void copy_weights(unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    copy_to_blocks<BLOCKS>(target, map, column, barrier, [=](int r) { return row + r; });
}

template <int BLOCKS>
void copy_gated_weights(unsigned target, const TensorMap& map, int column, int eight, unsigned barrier) {
    const long outputs = map.height / 2;
    copy_to_blocks<BLOCKS>(target, map, column, barrier, [=](int r) { return r / 8 % 2 * outputs + (eight + r / 16) * 8 + r % 8; });
}

inline void send(unsigned target, const float* values, unsigned barrier) {
    unsigned char* const memory = emulator::memory(target);
    const std::vector<float> sent(values, values + 4);
    copy_later(barrier, 16, [=] { std::memcpy(memory, sent.data(), 16); });
}

inline void arrive_in_cluster() {
    emulator::Meeting& meeting = emulator::cluster_meeting;
    emulator::now->cluster_round = meeting.round;
    if (++meeting.arrived == emulator::num_threads) meeting.arrived = 0, meeting.round++;
}

inline void wait_for_cluster() {
    const int round = emulator::now->cluster_round;
    emulator::wait([&] { return emulator::cluster_meeting.round > round; });
    emulator::now->has_met_cluster = true;
}

// Each lane has two values of a row of each tile; with rows and columns exchanged they are in a column.
inline void store_transposed_tiles(unsigned place, const std::vector<unsigned>& tiles) {
    auto& block = *emulator::now->block;
    const int lane = emulator::now->index.x % 32, first = emulator::now->index.x - lane;
    block.sent[emulator::now->index.x] = place;
    emulator::meet_warp();
    for (size_t tile = 0; tile < tiles.size(); tile++)
        for (int i = 0; i < 2; i++) {
            const unsigned short value = tiles[tile] >> 16 * i;
            std::memcpy(emulator::memory(block.sent[first + 8 * tile + lane % 4 * 2 + i] + lane / 4 * 2), &value, 2);
        }
    emulator::meet_warp();
}

inline void store_transposed(unsigned place, unsigned tile) { store_transposed_tiles(place, {tile}); }
inline void store_transposed(unsigned place, unsigned first, unsigned second) { store_transposed_tiles(place, {first, second}); }
