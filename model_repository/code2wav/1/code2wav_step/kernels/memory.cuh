// Asynchronous copies to shared memory, and programmatic dependent launch.
#pragma once

#include "barriers.cuh"

__device__ __forceinline__ void copy_async(unsigned target, const half* source) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's groups of copies are incomplete; a constant after unrolling.
__device__ __forceinline__ void wait_for_copies(int pending) {
    switch (pending) {
        case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
        case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
        case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
        case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
        case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
        case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
        case 6: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
        default: asm volatile("cp.async.wait_group 7;" ::: "memory"); break;
    }
}

// Makes this thread's completed copies and stores visible to products.
__device__ __forceinline__ void publish_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A load that the compiler neither moves nor splits.
__device__ __forceinline__ uint4 load_now(const half* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ float load_now(const float* from) {
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ float load_value(const half* from) {
    half bits;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(from) : "memory");
    return low(bits);
}

// Streaming load.
__device__ __forceinline__ uint4 load_once(const half* from) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_value(half* to, float value) { *to = (half)pack(value, 0.0f); }

__device__ __forceinline__ void store(half* to, const unsigned (&v)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

__device__ __forceinline__ void copy_bulk(unsigned target, const void* source, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

// Registers of each thread, by all threads of a warpgroup.
template <int COUNT> __device__ __forceinline__ void lower_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }
template <int COUNT> __device__ __forceinline__ void raise_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }

__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
