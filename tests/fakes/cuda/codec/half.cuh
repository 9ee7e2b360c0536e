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
