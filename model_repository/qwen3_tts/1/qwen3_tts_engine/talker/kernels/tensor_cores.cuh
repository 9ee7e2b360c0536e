// sums[64 weights, ROWS] += a step's weights times its rows of x, by one warpgroup, from swizzled tiles in shared memory.

#pragma once

#define TEXT_4(a, b, c, d) "%" #a ", %" #b ", %" #c ", %" #d
#define TEXT_8 TEXT_4(0, 1, 2, 3) ", " TEXT_4(4, 5, 6, 7)
#define TEXT_16 TEXT_8 ", " TEXT_4(8, 9, 10, 11) ", " TEXT_4(12, 13, 14, 15)
#define TEXT_32 TEXT_16 ", " TEXT_4(16, 17, 18, 19) ", " TEXT_4(20, 21, 22, 23) ", " TEXT_4(24, 25, 26, 27) ", " TEXT_4(28, 29, 30, 31)
#define TEXT_48 TEXT_32 ", " TEXT_4(32, 33, 34, 35) ", " TEXT_4(36, 37, 38, 39) ", " TEXT_4(40, 41, 42, 43) ", " TEXT_4(44, 45, 46, 47)
#define TEXT_64 TEXT_48 ", " TEXT_4(48, 49, 50, 51) ", " TEXT_4(52, 53, 54, 55) ", " TEXT_4(56, 57, 58, 59) ", " TEXT_4(60, 61, 62, 63)
#define TEXT_80 TEXT_64 ", " TEXT_4(64, 65, 66, 67) ", " TEXT_4(68, 69, 70, 71) ", " TEXT_4(72, 73, 74, 75) ", " TEXT_4(76, 77, 78, 79)
#define TEXT_96 TEXT_80 ", " TEXT_4(80, 81, 82, 83) ", " TEXT_4(84, 85, 86, 87) ", " TEXT_4(88, 89, 90, 91) ", " TEXT_4(92, 93, 94, 95)
#define TEXT_112 TEXT_96 ", " TEXT_4(96, 97, 98, 99) ", " TEXT_4(100, 101, 102, 103) ", " TEXT_4(104, 105, 106, 107) ", " TEXT_4(108, 109, 110, 111)
#define TEXT_128 TEXT_112 ", " TEXT_4(112, 113, 114, 115) ", " TEXT_4(116, 117, 118, 119) ", " TEXT_4(120, 121, 122, 123) ", " TEXT_4(124, 125, 126, 127)
#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#if ROWS == 16
#define SHAPE "m64n16k16", TEXT_8, "%8, %9"
#define SUMS SUMS_4(0), SUMS_4(4)
#elif ROWS == 32
#define SHAPE "m64n32k16", TEXT_16, "%16, %17"
#define SUMS SUMS_16(0)
#elif ROWS == 64
#define SHAPE "m64n64k16", TEXT_32, "%32, %33"
#define SUMS SUMS_16(0), SUMS_16(16)
#elif ROWS == 96
#define SHAPE "m64n96k16", TEXT_48, "%48, %49"
#define SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32)
#elif ROWS == 128
#define SHAPE "m64n128k16", TEXT_64, "%64, %65"
#define SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48)
#elif ROWS == 160
#define SHAPE "m64n160k16", TEXT_80, "%80, %81"
#define SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48), SUMS_16(64)
#elif ROWS == 192
#define SHAPE "m64n192k16", TEXT_96, "%96, %97"
#define SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48), SUMS_16(64), SUMS_16(80)
#elif ROWS == 256
#define SHAPE "m64n256k16", TEXT_128, "%128, %129"
#define SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48), SUMS_16(64), SUMS_16(80), SUMS_16(96), SUMS_16(112)
#endif
#define INSTRUCTION(shape, sums, operands) "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, " operands ", 1, 1, 1, 0, 0;"
#define EXPANDED(...) INSTRUCTION(__VA_ARGS__)

// A tile in shared memory with rows of 128 bytes, whose pieces of 16 bytes are swizzled by the row's number modulo 8.
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    return (unsigned long long)1 << 62 | (unsigned long long)(1024 >> 4) << 32 | 1 << 16 | (address & 0x3ffff) >> 4;
}

// sums += a step's weights of one warpgroup times the step's rows of x; completes asynchronously.
__device__ __forceinline__ void multiply_step(float (&sums)[ROWS / 2], unsigned weights, unsigned x) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < STEP / 16; k++)
        asm volatile(EXPANDED(SHAPE) : SUMS : "l"(descriptor(weights) + 2 * k), "l"(descriptor(x) + 2 * k) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `pending` steps are incomplete: 0 or 1, a constant.
__device__ __forceinline__ void wait_for_products(int pending) {
    if (pending) asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    else asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Keeps the compiler from using a sum before the products are complete.
__device__ __forceinline__ void settle(float& sum) { asm volatile("" : "+f"(sum) :: "memory"); }
