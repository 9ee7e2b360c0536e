// The emulated part of the header of that name.
#pragma once
#include "../memory.cuh"

inline uint4 load_now(const half* from) { return *(const uint4*)from; }
inline void store(half* to, const unsigned (&v)[4]) { std::memcpy(to, v, 16); }
inline void meet_at(int barrier, int threads) { emulator::meet("barrier", barrier, threads); }
inline void arrive_at(int barrier, int threads) { emulator::arrive("barrier", barrier, threads); }
inline void let_next_start() {}
inline void wait_for_previous() {}

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

inline void copy_bulk(unsigned target, const void* source, int bytes, unsigned barrier) {
    unsigned char* const memory = emulator::memory(target);
    emulator::Phases& phases = emulator::now->block->phases.at(barrier);
    // There are few of them: some must be later than all others.
    emulator::later([=, &phases] {
        std::memcpy(memory, source, bytes);
        phases.bytes -= bytes;
        phases.check();
    }, 4, 4000);
}

template <int COUNT> void lower_registers() {}
template <int COUNT> void raise_registers() {}
