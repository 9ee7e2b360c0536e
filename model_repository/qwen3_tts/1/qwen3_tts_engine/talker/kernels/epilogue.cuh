// What follows the sums of a product, by its macros NORM, BIAS, GATED, RESIDUAL and FLOAT_OUT.

#pragma once

// Writes four outputs of a row to `out` from `place` on. `value` are sums, of a gated layer the gates' beside `up`; `squares`
// is the sum of squares of the row of x, `bias` that of the first output, `residual` what `out` held.
__device__ __forceinline__ void finish(float (&value)[4], const float (&up)[4], float squares, const bf16* bias, uint2 residual,
                                       void* out, size_t place, float eps) {
    const float inverse = NORM ? rsqrtf(squares / K + eps) : 1.0f;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        value[j] *= inverse;
        if (BIAS) value[j] += widen(bias[j]);
        if (GATED) {
            const float gate = rounded(value[j]);
            value[j] = rounded(gate / (1.0f + __expf(-gate))) * rounded(up[j] * inverse);
        }
    }
    if (FLOAT_OUT) {
        *(float4*)((float*)out + place) = make_float4(value[0], value[1], value[2], value[3]);
        return;
    }
    if (RESIDUAL) {
        value[0] = rounded(value[0]) + low(residual.x), value[1] = rounded(value[1]) + high(residual.x);
        value[2] = rounded(value[2]) + low(residual.y), value[3] = rounded(value[3]) + high(residual.y);
    }
    *(uint2*)((bf16*)out + place) = make_uint2(pack(value[0], value[1]), pack(value[2], value[3]));
}
