// Copies of tiles to shared memory by the tensor memory accelerator of Hopper, and the barriers between a warp that issues
// them and the warps that use the tiles. Addresses are 32-bit ones of shared memory.

#pragma once

// A matrix in global memory, its tile and its swizzle: what cuTensorMapEncodeTiled makes.
struct alignas(128) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory"); }

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the cluster, with a barrier of the cluster after it.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives at a barrier of this block, whose phase also waits for `bytes` of copies.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Arrives at a barrier of any block of the cluster; `barrier` is an address as in_block gives it.
__device__ __forceinline__ void arrive_at(unsigned barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
}

__device__ __forceinline__ void wait_for_phase(unsigned barrier, int parity) {
    unsigned done;
    do {
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// Copies the tile at (column, row) of a matrix, and counts its bytes at the barrier. Rows past the end are zero.
__device__ __forceinline__ void copy_tile(unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(target), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// The same to the blocks in `mask`, a bit for each rank: to equal places of their memories, and at their barriers.
__device__ __forceinline__ void copy_tile_to(unsigned short mask, unsigned target, const TensorMap& map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(target), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(mask) : "memory");
}

// Waits for all products of this warpgroup but the last.
__device__ __forceinline__ void wait_for_products_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

// A barrier of the first `threads` threads of the block.
__device__ __forceinline__ void sync_first(int threads) { asm volatile("bar.sync 1, %0;" :: "r"(threads) : "memory"); }
