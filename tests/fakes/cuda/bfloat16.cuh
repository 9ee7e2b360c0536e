// The emulated part of the header of that name.
#pragma once
#include "emulator.h"

typedef unsigned short bf16;

constexpr int LANES = 32;
constexpr unsigned ALL = 0xffffffffu;

inline float from_bits(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline unsigned to_bits(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float low(unsigned pair) { return from_bits(pair << 16); }
inline float high(unsigned pair) { return from_bits(pair & 0xffff0000u); }
inline float widen(bf16 value) { return low(value); }

inline unsigned rounded_bits(float value) {
    const unsigned bits = to_bits(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline unsigned pack(float first, float second) { return rounded_bits(second) << 16 | rounded_bits(first); }
inline float rounded(float value) { return low(pack(value, 0.0f)); }
inline float squares(unsigned pair) { return low(pair) * low(pair) + high(pair) * high(pair); }
inline float squares(uint4 v) { return (squares(v.x) + squares(v.y)) + (squares(v.z) + squares(v.w)); }

inline void unpack(uint4 packed, float* out) {
    const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
    for (int i = 0; i < 4; i++) out[2 * i] = low(pairs[i]), out[2 * i + 1] = high(pairs[i]);
}

inline uint4 pack(const float* in) { return {pack(in[0], in[1]), pack(in[2], in[3]), pack(in[4], in[5]), pack(in[6], in[7])}; }

inline unsigned fused(unsigned a, unsigned b, unsigned c) {
    return pack(float((double)low(a) * low(b) + low(c)), float((double)high(a) * high(b) + high(c)));
}
inline unsigned times(unsigned a, unsigned b) { return fused(a, b, to_bits(-0.0f) | to_bits(-0.0f) >> 16); }
inline unsigned plus(unsigned a, unsigned b) { return fused(b, pack(1.0f, 1.0f), a); }
inline unsigned minus(unsigned a, unsigned b) { return fused(b, pack(-1.0f, -1.0f), a); }
inline uint4 times(uint4 a, uint4 b) { return {times(a.x, b.x), times(a.y, b.y), times(a.z, b.z), times(a.w, b.w)}; }
inline uint4 plus(uint4 a, uint4 b) { return {plus(a.x, b.x), plus(a.y, b.y), plus(a.z, b.z), plus(a.w, b.w)}; }
inline uint4 minus(uint4 a, uint4 b) { return {minus(a.x, b.x), minus(a.y, b.y), minus(a.z, b.z), minus(a.w, b.w)}; }

inline uint4 load_own(const bf16* address) { return *(const uint4*)address; }
inline void load_own_if(bool wanted, uint4& values, const bf16* address) {
    if (wanted) values = load_own(address);
}
inline uint4 load_weights(const bf16* address) { return *(const uint4*)address; }

#include "warp_products.cuh"

inline void let_next_start() {}
inline void wait_for_previous() {}
