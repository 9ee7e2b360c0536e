// Shared memory and its barriers. Addresses are 32-bit ones of shared memory.
#pragma once

#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

__device__ __forceinline__ unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// Barriers of the hardware for `threads` threads: to meet is to arrive and wait for the others.
__device__ __forceinline__ void meet_at(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_at(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

// Barriers in shared memory: a phase ends when `count` threads have arrived.
__device__ __forceinline__ void prepare(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives; the phase also waits for `bytes` of copies that count at the barrier.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of a phase, counted modulo two; the one before the first has ended.
__device__ __forceinline__ void await(unsigned barrier, int phase) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }"
                     : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
}
