// Barriers in shared memory, bulk copies that complete on them, and clusters of blocks.
#pragma once

#include "memory.cuh"

#ifndef SPINS
#define SPINS 0                                     // tries after which a wait fails; 0: never
#endif

__device__ __forceinline__ void create_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// Makes created barriers visible to bulk copies and to the cluster.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void count_spin(int& spins, int times = 1) {
    if (SPINS && ++spins > SPINS * times) asm volatile("trap;");
}

// Waits until the phase with this parity is complete.
__device__ __forceinline__ void await(unsigned barrier, unsigned parity) {
    unsigned done;
    int spins = 0;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
        count_spin(spins);
    } while (!done);
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier, int count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}

// The same in another block of the cluster.
__device__ __forceinline__ void arrive_in(unsigned block, unsigned barrier, int count) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there], %2; }"
                 :: "r"(barrier), "r"(block), "r"(count) : "memory");
}

__device__ __forceinline__ void expect_bytes(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_bytes(unsigned target, const void* source, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

// To the same place in all `blocks` (one bit each), and completes on the barrier of each.
__device__ __forceinline__ void copy_bytes_to(unsigned short blocks, unsigned target, const void* source, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 :: "r"(target), "l"(source), "r"(bytes), "r"(barrier), "h"(blocks) : "memory");
}

// To the second-level cache only.
__device__ __forceinline__ void fetch_bytes(const void* source, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ int read_shared(unsigned address) {
    int value;
    asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void write_shared(unsigned address, int value) {
    asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" :: "r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ unsigned block_of_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Moves registers between the warpgroups of a block.
template <int COUNT> __device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }
template <int COUNT> __device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }
