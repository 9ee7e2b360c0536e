// The emulated part of the header of that name, and what the codec's header has too.
#pragma once
#include "emulator.h"

// Of 16-bit values [height, width] with tiles of 64 columns by `rows`; a gated layer's has `outputs` gates, then ups.
struct TensorMap {
    const unsigned short* data;
    long height, width;
    int rows;
};

inline unsigned shared_address(const void* pointer) { return unsigned((const unsigned char*)pointer - emulator::now->block->shared.data()); }
inline void prefetch(const TensorMap& map) {}

inline void copy_async(unsigned target, const unsigned short* source) {
    auto done = std::make_shared<bool>(false);
    unsigned char* const memory = emulator::memory(target);
    emulator::now->copying.back().push_back(done);
    emulator::later([=] { std::memcpy(memory, source, 16), *done = true; });
}

inline void end_group() { emulator::now->copying.push_back({}); }

inline void wait_for_copies(int pending) {
    auto& groups = emulator::now->copying;
    for (size_t group = 0; group + 1 + pending < groups.size(); group++)
        emulator::wait([&] {
            for (auto& done : groups[group])
                if (!*done) return false;
            return true;
        });
}

inline void publish_copies() {}
inline void meet_at(int barrier, int threads) { emulator::meet("barrier", barrier, threads); }

inline void prepare(unsigned barrier, int count) { emulator::now->block->phases[barrier] = {count}; }
inline void publish_barriers() {}

inline void arrive(unsigned barrier) {
    emulator::Phases& phases = emulator::now->block->phases.at(barrier);
    phases.arrived++;
    phases.check();
    emulator::progress++;
}

inline void arrive_expecting(unsigned barrier, int bytes) {
    emulator::now->block->phases.at(barrier).bytes += bytes;
    arrive(barrier);
}

inline void await(unsigned barrier, int phase) {
    emulator::Phases& phases = emulator::now->block->phases.at(barrier);
    emulator::wait([&] { return phases.ended % 2 != phase; });
}

inline void await_cluster(unsigned barrier, int phase) { await(barrier, phase); }

// Copies that count their bytes at a barrier. There are few of them: some must be later than all others.
inline void copy_later(unsigned barrier, int bytes, std::function<void()> copy) {
    emulator::Phases& phases = emulator::block_of(barrier).phases.at(barrier & emulator::PLACE);
    emulator::later([=, &phases] {
        copy();
        phases.bytes -= bytes;
        phases.check();
    }, 4, 4000);
}

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

inline void copy_gated_tile(unsigned target, const TensorMap& map, int column, int eight, unsigned barrier) {
    const long outputs = map.height / 2;
    copy_rows(target, map, column, barrier, [=](int r) { return r / 8 % 2 * outputs + (eight + r / 16) * 8 + r % 8; });
}

inline unsigned in_block(unsigned address, int rank) { return address | unsigned(rank + 1) << emulator::BLOCK_BITS; }

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
