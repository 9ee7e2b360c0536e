// sums[64 rows, COLUMNS] += 64 rows of 16 values times the transpose of COLUMNS rows of 16, by one warpgroup.
#pragma once

#define TEXT_4(a, b, c, d) "%" #a ", %" #b ", %" #c ", %" #d
#define TEXT_16 TEXT_4(0, 1, 2, 3) ", " TEXT_4(4, 5, 6, 7) ", " TEXT_4(8, 9, 10, 11) ", " TEXT_4(12, 13, 14, 15)
#define TEXT_32 TEXT_16 ", " TEXT_4(16, 17, 18, 19) ", " TEXT_4(20, 21, 22, 23) ", " TEXT_4(24, 25, 26, 27) ", " TEXT_4(28, 29, 30, 31)
#define TEXT_48 TEXT_32 ", " TEXT_4(32, 33, 34, 35) ", " TEXT_4(36, 37, 38, 39) ", " TEXT_4(40, 41, 42, 43) ", " TEXT_4(44, 45, 46, 47)
#define TEXT_96 TEXT_48 ", " TEXT_4(48, 49, 50, 51) ", " TEXT_4(52, 53, 54, 55) ", " TEXT_4(56, 57, 58, 59) ", " TEXT_4(60, 61, 62, 63) \
    ", " TEXT_4(64, 65, 66, 67) ", " TEXT_4(68, 69, 70, 71) ", " TEXT_4(72, 73, 74, 75) ", " TEXT_4(76, 77, 78, 79) \
    ", " TEXT_4(80, 81, 82, 83) ", " TEXT_4(84, 85, 86, 87) ", " TEXT_4(88, 89, 90, 91) ", " TEXT_4(92, 93, 94, 95)
#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#if COLUMNS == 96
#define SHAPE "m64n96k16"
#define SUMS_TEXT TEXT_48
#define ALL_SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32)
#define SHARED_OPERANDS "%48, %49"
#define REGISTER_OPERANDS "{%48, %49, %50, %51}, %52"
#elif COLUMNS == 192
#define SHAPE "m64n192k16"
#define SUMS_TEXT TEXT_96
#define ALL_SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48), SUMS_16(64), SUMS_16(80)
#define SHARED_OPERANDS "%96, %97"
#define REGISTER_OPERANDS "{%96, %97, %98, %99}, %100"
#endif
#define PRODUCT "wgmma.mma_async.sync.aligned." SHAPE ".f32.f16.f16 {" SUMS_TEXT "}, "

// An operand in shared memory: pieces of 16 bytes of 8 rows and more, one after the other, and the same for the next 8 values of
// each row `pitch` pieces on. Adding n to the low half moves it by n pieces.
__device__ __forceinline__ unsigned low_half(unsigned address, int pitch) { return address / 16 | pitch << 16; }
__device__ __forceinline__ unsigned long long operand(unsigned low_half) {
    return (unsigned long long)(128 / 16) << 32 | low_half;
}

// An operand in rows of 128 or 64 bytes, whose pieces of 16 bytes are exchanged by their address: bits 4 to 6 of it by bits 7
// to 9, bits 4 and 5 by 7 and 8. Any row can be the first.
template <int ROW> __device__ __forceinline__ unsigned long long swizzled_operand(unsigned low_half) {
    return (ROW == 128 ? 1ull : 2ull) << 62 | (unsigned long long)(8 * ROW / 16) << 32 | low_half;
}

// Keeps the compiler from computing all operands ahead of a loop, which takes too many registers.
__device__ __forceinline__ unsigned fresh(unsigned half) {
    asm volatile("" : "+r"(half));
    return half;
}

__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` groups of products are incomplete: 0 or 1, a constant.
__device__ __forceinline__ void wait_for_products(int pending) {
    if (pending) asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    else asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ __forceinline__ void multiply(float (&sums)[SUMS], unsigned long long x, unsigned long long weights) {
    asm volatile(PRODUCT SHARED_OPERANDS ", 1, 1, 1, 0, 0;" : ALL_SUMS : "l"(x), "l"(weights) : "memory");
}

// The left operand in registers, as the instruction lays it out.
__device__ __forceinline__ void multiply(float (&sums)[SUMS], const unsigned* x, unsigned long long weights) {
    asm volatile(PRODUCT REGISTER_OPERANDS ", 1, 1, 1, 0;"
                 : ALL_SUMS : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(weights) : "memory");
}

// Keeps the compiler from using a sum before the products are complete.
__device__ __forceinline__ void settle(float& sum) { asm volatile("" : "+f"(sum) :: "memory"); }
