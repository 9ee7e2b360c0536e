// float16 bits, two per unsigned, SnakeBeta, and products of a warp. NVRTC is installed without CUDA's own header.
#pragma once

typedef unsigned short half;

constexpr unsigned ALL = 0xffffffffu;

__device__ __forceinline__ float low(unsigned pair) {
    float value;
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a; }" : "=f"(value) : "r"(pair));
    return value;
}

__device__ __forceinline__ float high(unsigned pair) {
    float value;
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b; }" : "=f"(value) : "r"(pair));
    return value;
}

__device__ __forceinline__ unsigned pack(float first, float second) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Takes any argument: 4e-5 off at an angle of 300, far below FP16's precision of x.
__device__ __forceinline__ float hardware_sine(float angle) {
    float sine;
    asm("sin.approx.f32 %0, %1;" : "=f"(sine) : "f"(angle));
    return sine;
}

__device__ __forceinline__ float snake(float x, float alpha, float inverse_beta) {
    const float sine = hardware_sine(x * alpha);
    return fmaf(sine * sine, inverse_beta, x);
}

__device__ __forceinline__ float squares(unsigned pair) { return low(pair) * low(pair) + high(pair) * high(pair); }

__device__ __forceinline__ float squares(uint4 v) {
    return (squares(v.x) + squares(v.y)) + (squares(v.z) + squares(v.w));
}

// sums[16 rows, 8 columns] += a[16, 16] b[16, 8] of one warp, in the layout of the instruction.
__device__ __forceinline__ void multiply(float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
