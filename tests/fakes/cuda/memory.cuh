// The emulated part of the header of that name.
#pragma once
#include "emulator.h"

inline unsigned shared_address(const void* pointer) { return unsigned((const unsigned char*)pointer - emulator::now->block->shared.data()); }
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
inline unsigned in_block(unsigned address, int rank) { return address | unsigned(rank + 1) << emulator::BLOCK_BITS; }

inline void expect(unsigned barrier, int bytes) { emulator::now->block->barriers[barrier] = bytes; }

inline void send(unsigned target, float value, unsigned barrier) {
    emulator::Block& block = emulator::block_of(target);
    emulator::later([=, &block] {
        std::memcpy(block.shared.data() + (target & emulator::PLACE), &value, 4);
        block.barriers.at(barrier & emulator::PLACE) -= 4;
    });
}

inline void wait_for_all(unsigned barrier) {
    emulator::wait([&] { return emulator::now->block->barriers.at(barrier) == 0; });
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
