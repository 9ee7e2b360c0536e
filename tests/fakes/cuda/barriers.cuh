// The emulated part of the header of that name, and copies that its barriers count.
#pragma once
#include "emulator.h"

inline unsigned shared_address(const void* pointer) {
    return emulator::address(unsigned((const unsigned char*)pointer - emulator::now->block->shared.data()), emulator::now->block->rank);
}
inline void meet_at(int barrier, int threads) { emulator::meet("barrier", barrier, threads); }
inline void arrive_at(int barrier, int threads) { emulator::arrive("barrier", barrier, threads); }

inline void prepare(unsigned barrier, int count) { emulator::now->block->phases[emulator::own_place(barrier)] = {count}; }
inline void publish_barriers() {}

inline void arrive(unsigned barrier) {
    emulator::Phases& phases = emulator::phases_of(barrier);
    phases.arrived++;
    phases.check();
    emulator::progress++;
}

inline void arrive_expecting(unsigned barrier, int bytes) {
    emulator::now->block->phases.at(emulator::own_place(barrier)).bytes += bytes;
    arrive(barrier);
}

inline void await(unsigned barrier, int phase) {
    emulator::Phases& phases = emulator::now->block->phases.at(emulator::own_place(barrier));
    emulator::wait([&] { return phases.ended % 2 != phase; });
}

// Copies that count their bytes at a barrier: some are later than all others.
inline void copy_later(unsigned barrier, int bytes, std::function<void()> copy) {
    emulator::Phases& phases = emulator::phases_of(barrier);
    emulator::later([=, &phases] {
        copy();
        phases.bytes -= bytes;
        phases.check();
    }, 4, 4000);
}
