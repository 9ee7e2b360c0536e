// bfloat16 bits: two per unsigned, eight per uint4. NVRTC is installed without CUDA's own bfloat16 header.
#pragma once

typedef unsigned short bf16;

constexpr int LANES = 32;
constexpr unsigned ALL = 0xffffffffu;

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float widen(bf16 value) { return low(value); }

__device__ __forceinline__ unsigned pack(float first, float second) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

__device__ __forceinline__ float rounded(float value) { return low(pack(value, 0.0f)); }

__device__ __forceinline__ float squares(unsigned pair) { return low(pair) * low(pair) + high(pair) * high(pair); }

__device__ __forceinline__ float squares(uint4 v) {
    return (squares(v.x) + squares(v.y)) + (squares(v.z) + squares(v.w));
}

__device__ __forceinline__ void unpack(uint4 packed, float* out) {
    const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = low(pairs[i]);
        out[2 * i + 1] = high(pairs[i]);
    }
}

__device__ __forceinline__ uint4 pack(const float* in) {
    return make_uint4(pack(in[0], in[1]), pack(in[2], in[3]), pack(in[4], in[5]), pack(in[6], in[7]));
}

// a * b + c of pairs, rounded once.
__device__ __forceinline__ unsigned fused(unsigned a, unsigned b, unsigned c) {
    unsigned pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
    return pair;
}

// Pairs, by an instruction that GPUs before Hopper have, too. The product adds -0, which leaves the sign of a zero.
__device__ __forceinline__ unsigned times(unsigned a, unsigned b) { return fused(a, b, 0x80008000u); }
__device__ __forceinline__ unsigned plus(unsigned a, unsigned b) { return fused(b, 0x3f803f80u, a); }
__device__ __forceinline__ unsigned minus(unsigned a, unsigned b) { return fused(b, 0xbf80bf80u, a); }

__device__ __forceinline__ uint4 times(uint4 a, uint4 b) { return make_uint4(times(a.x, b.x), times(a.y, b.y), times(a.z, b.z), times(a.w, b.w)); }
__device__ __forceinline__ uint4 plus(uint4 a, uint4 b) { return make_uint4(plus(a.x, b.x), plus(a.y, b.y), plus(a.z, b.z), plus(a.w, b.w)); }
__device__ __forceinline__ uint4 minus(uint4 a, uint4 b) { return make_uint4(minus(a.x, b.x), minus(a.y, b.y), minus(a.z, b.z), minus(a.w, b.w)); }

// The cache policy of weights, which are not read again soon: they leave the second-level cache first.
__device__ __forceinline__ unsigned long long read_once() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// 8 weights. Not as constants (ld.global.nc), whose loads the compiler moves behind the wait.
__device__ __forceinline__ uint4 load_weights(const bf16* address) {
    uint4 weights;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(weights.x), "=r"(weights.y), "=r"(weights.z), "=r"(weights.w) : "l"(address), "l"(read_once()) : "memory");
    return weights;
}

// 8 values that no other thread of the multiprocessor reads.
__device__ __forceinline__ uint4 load_own(const bf16* address) {
    uint4 values;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values.x), "=r"(values.y), "=r"(values.z), "=r"(values.w) : "l"(address) : "memory");
    return values;
}

// The same in place, if wanted. Values from either of two branches may be copied right after a load, and the copy waits.
__device__ __forceinline__ void load_own_if(bool wanted, uint4& values, const bf16* address) {
    asm volatile("{ .reg .pred wanted; setp.ne.b32 wanted, %5, 0; @wanted ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(values.x), "+r"(values.y), "+r"(values.z), "+r"(values.w) : "l"(address), "r"((int)wanted) : "memory");
}

// sums[16 rows, 8 columns] += a[16, 16] b[16, 8] of one warp, in the layout of the instruction.
__device__ __forceinline__ void multiply(float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Programmatic dependent launch: the next kernel may start now; writes of the previous kernel are visible after the wait.
// Pointers to them must not be const __restrict__: the compiler assumes constant memory and may load it before the wait. Nor
// should those to what is loaded before the wait: it moves such loads behind it, to where their values are used.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
