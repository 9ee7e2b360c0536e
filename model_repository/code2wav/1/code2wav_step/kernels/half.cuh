// float16 bits: two per unsigned; and the sine. NVRTC is installed without CUDA's own header.
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

// For any argument: 4e-5 off at an angle of 300, far below FP16's precision of x.
__device__ __forceinline__ float hardware_sine(float angle) {
    float sine;
    asm("sin.approx.f32 %0, %1;" : "=f"(sine) : "f"(angle));
    return sine;
}
