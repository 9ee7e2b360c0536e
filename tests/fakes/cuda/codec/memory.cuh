// The emulated part of the header of that name.
#pragma once
#include "../barriers.cuh"

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

inline uint4 load_now(const half* from) { return *(const uint4*)from; }
inline uint4 load_once(const half* from) { return *(const uint4*)from; }
inline float load_now(const float* from) { return *from; }
inline float load_value(const half* from) { return low(*from); }
inline void store_value(half* to, float value) { *to = half(pack(value, 0.0f)); }
inline void store(half* to, const unsigned (&v)[4]) { std::memcpy(to, v, 16); }
inline void let_next_start() {}
inline void wait_for_previous() {}

inline void copy_bulk(unsigned target, const void* source, int bytes, unsigned barrier) {
    unsigned char* const memory = emulator::memory(target);
    copy_later(barrier, bytes, [=] { std::memcpy(memory, source, bytes); });
}

template <int COUNT> void lower_registers() {}
template <int COUNT> void raise_registers() {}
