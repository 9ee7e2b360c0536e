// The emulated part of the header of that name.
#pragma once
#include "../memory.cuh"

inline uint4 load_now(const half* from) { return *(const uint4*)from; }
inline void store(half* to, const unsigned (&v)[4]) { std::memcpy(to, v, 16); }
inline void arrive_at(int barrier, int threads) { emulator::arrive("barrier", barrier, threads); }
inline void let_next_start() {}
inline void wait_for_previous() {}

inline void copy_bulk(unsigned target, const void* source, int bytes, unsigned barrier) {
    unsigned char* const memory = emulator::memory(target);
    copy_later(barrier, bytes, [=] { std::memcpy(memory, source, bytes); });
}

template <int COUNT> void lower_registers() {}
template <int COUNT> void raise_registers() {}
