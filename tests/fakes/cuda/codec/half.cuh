// The emulated part of the header of that name.
#pragma once
#include "../emulator.h"

typedef unsigned short half;

constexpr unsigned ALL = 0xffffffffu;

inline float widen(half bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return float(value);
}

inline half rounded_bits(float value) {
    const _Float16 rounded = _Float16(value);
    half bits;
    std::memcpy(&bits, &rounded, 2);
    return bits;
}

inline float low(unsigned pair) { return widen(half(pair)); }
inline float high(unsigned pair) { return widen(half(pair >> 16)); }
inline unsigned pack(float first, float second) { return unsigned(rounded_bits(second)) << 16 | rounded_bits(first); }
inline float hardware_sine(float angle) { return std::sin(angle); }

inline float snake(float x, float alpha, float inverse_beta) {
    const float sine = hardware_sine(x * alpha);
    return x + sine * sine * inverse_beta;
}

inline float squares(unsigned pair) { return low(pair) * low(pair) + high(pair) * high(pair); }
inline float squares(uint4 v) { return (squares(v.x) + squares(v.y)) + (squares(v.z) + squares(v.w)); }

#include "../warp_products.cuh"
