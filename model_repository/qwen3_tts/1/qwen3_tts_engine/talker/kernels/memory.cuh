// Copies of tiles to shared memory by the tensor memory accelerator of Hopper, and what blocks of a cluster send each other.

#pragma once

#include "barriers.cuh"
#include "bfloat16.cuh"

// A matrix in global memory, its tile and its swizzle: what cuTensorMapEncodeTiled makes (tensor_map.py).
struct alignas(128) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory"); }

// Copies the tile at (column, row) of a matrix, and counts its bytes at the barrier. Rows past the end are zero.
__device__ __forceinline__ void copy_tile(unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(target), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

#define COPY_WEIGHTS(dimensions, to, place) \
    "cp.async.bulk.tensor." dimensions ".shared::cluster.global.tile.mbarrier::complete_tx::bytes" to ".L2::cache_hint [%0], [%1, " place "], [%2], "

// The same of weights, to that place in the first BLOCKS of the cluster, and counted at the barrier of each.
template <int BLOCKS>
__device__ __forceinline__ void copy_weights(unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    if (BLOCKS == 1)
        asm volatile(COPY_WEIGHTS("2d", "", "{%4, %5}") "%3;"
                     :: "r"(target), "l"(&map), "r"(barrier), "l"(read_once()), "r"(column), "r"(row) : "memory");
    else
        asm volatile(COPY_WEIGHTS("2d", ".multicast::cluster", "{%4, %5}") "%6, %3;"
                     :: "r"(target), "l"(&map), "r"(barrier), "l"(read_once()), "r"(column), "r"(row), "h"((short)((1 << BLOCKS) - 1)) : "memory");
}

// Weights of a gated layer, whose map has rows of eights, the two parts and the eights as dimensions.
template <int BLOCKS>
__device__ __forceinline__ void copy_gated_weights(unsigned target, const TensorMap& map, int column, int eight, unsigned barrier) {
    if (BLOCKS == 1)
        asm volatile(COPY_WEIGHTS("4d", "", "{%4, %5, %5, %6}") "%3;"
                     :: "r"(target), "l"(&map), "r"(barrier), "l"(read_once()), "r"(column), "r"(0), "r"(eight) : "memory");
    else
        asm volatile(COPY_WEIGHTS("4d", ".multicast::cluster", "{%4, %5, %5, %6}") "%7, %3;"
                     :: "r"(target), "l"(&map), "r"(barrier), "l"(read_once()), "r"(column), "r"(0), "r"(eight), "h"((short)((1 << BLOCKS) - 1)) : "memory");
}

// Stores tiles of 8 by 8 values of a warp, two in each lane's register, with rows and columns exchanged: lane i gives the place
// of row i, of the second tile lane 8 + i.
__device__ __forceinline__ void store_transposed(unsigned place, unsigned tile) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" :: "r"(place), "r"(tile) : "memory");
}
__device__ __forceinline__ void store_transposed(unsigned place, unsigned first, unsigned second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" :: "r"(place), "r"(first), "r"(second) : "memory");
}

__device__ __forceinline__ unsigned in_block(unsigned address, int rank) {
    unsigned mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

// Arrives at a barrier of another block. With `release.cluster` it would wait for all memory of the GPU (MEMBAR.ALL.GPU).
__device__ __forceinline__ void arrive_in(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Writes 16 bytes to the shared memory of another block and counts them at its barrier. Unlike plain stores before a barrier
// of the cluster, it needs no fence, which would wait for all memory of this thread.
__device__ __forceinline__ void send(unsigned target, const float* v, unsigned barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(target), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
