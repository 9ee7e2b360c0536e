// The emulated part of the header of that name.
#pragma once
#include <stdexcept>

#include "memory.cuh"

inline void arrive_at_phase(emulator::Block& block, unsigned barrier, int arrivals, int bytes) {
    emulator::Phases& phases = block.phases.at(barrier);
    phases.missing -= arrivals, phases.bytes += bytes;
    if (phases.missing < 0) throw std::runtime_error("more arrivals than a barrier has");
    if (phases.missing == 0 && phases.bytes == 0) phases.parity ^= 1, phases.missing = phases.arrivals;
    emulator::progress++;
}

inline void create_barrier(unsigned barrier, int arrivals) { emulator::now->block->phases[barrier] = {arrivals, arrivals}; }
inline void publish_barriers() {}
inline void count_spin(int& spins, int times = 1) {}

inline void await(unsigned barrier, unsigned parity) {
    emulator::Block& block = *emulator::now->block;
    emulator::wait([&] { return block.phases.at(barrier).parity != parity; });
}

inline void arrive(unsigned barrier, int count = 1) { arrive_at_phase(*emulator::now->block, barrier, count, 0); }
inline void arrive_in(unsigned block, unsigned barrier, int count) { arrive_at_phase(emulator::blocks[block], barrier, count, 0); }
inline void expect_bytes(unsigned barrier, int bytes) { arrive_at_phase(*emulator::now->block, barrier, 1, bytes); }

inline void copy_to(emulator::Block& block, unsigned target, const void* source, int bytes, unsigned barrier) {
    emulator::later([=, &block] {
        std::memcpy(block.shared.data() + target, source, bytes);
        arrive_at_phase(block, barrier, 0, -bytes);
    });
}

inline void copy_bytes(unsigned target, const void* source, int bytes, unsigned barrier) {
    copy_to(*emulator::now->block, target, source, bytes, barrier);
}

inline void copy_bytes_to(unsigned short blocks, unsigned target, const void* source, int bytes, unsigned barrier) {
    for (int rank = 0; rank < 16; rank++)
        if (blocks >> rank & 1) copy_to(emulator::blocks[rank], target, source, bytes, barrier);
}

inline void fetch_bytes(const void* source, int bytes) {}

inline int read_shared(unsigned address) {
    emulator::yield();
    int value;
    std::memcpy(&value, emulator::memory(address), 4);
    return value;
}

inline void write_shared(unsigned address, int value) {
    std::memcpy(emulator::memory(address), &value, 4);
    emulator::progress++;
}

inline unsigned block_of_cluster() { return emulator::now->block->rank; }
inline void meet_cluster() { arrive_in_cluster(), wait_for_cluster(); }
template <int COUNT> void give_registers() {}
template <int COUNT> void take_registers() {}
