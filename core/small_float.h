/* Conversion between fp32 and the 16- and 8-bit floats: exact one way, round to nearest even the other way. There are
 * no branches, so that compilers turn loops over these into vector code. A NaN becomes the one canonical quiet NaN. */
#ifndef COMM_CORE_SMALL_FLOAT_H
#define COMM_CORE_SMALL_FLOAT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A layout of sign, exponent and `mantissa` bits. `special` is the least magnitude, as bits, that is no finite number;
 * above `top`, in fp32 bits, a magnitude overflows to `special`. */
struct small_float {
    int32_t width, mantissa, bias;
    uint32_t special, nan;
    uint32_t top;
};

/* e4m3 "fn" has no infinity: its special is its NaN, and 480 would be the number in NaN's place. */
static const struct small_float f16_layout = { 16, 10, 15, 0x7c00, 0x7e00, 0x47800000 };
static const struct small_float f8e5m2_layout = { 8, 2, 15, 0x7c, 0x7e, 0x47800000 };
static const struct small_float f8e4m3_layout = { 8, 3, 7, 0x7f, 0x7f, 0x43f00000 };

static inline float small_widen(struct small_float s, uint32_t bits)
{
    uint32_t sign = bits >> (s.width - 1) << 31;
    uint32_t magnitude = bits & ((1u << (s.width - 1)) - 1);
    uint32_t normal = (magnitude << (23 - s.mantissa)) + ((uint32_t)(127 - s.bias) << 23);
    /* The unit of a subnormal is 2^(1 - bias - mantissa), a normal fp32; so this is right under flush-to-zero too. */
    float unit = f32_of_bits((uint32_t)(127 + 1 - s.bias - s.mantissa) << 23);
    uint32_t subnormal = bits_of_f32((float)(int32_t)magnitude * unit);
    uint32_t result = magnitude < (1u << s.mantissa) ? subnormal : normal;
    result = magnitude >= s.special ? 0x7f800000u : result;
    result = magnitude > s.special || magnitude == s.nan ? 0x7fc00000u : result;
    return f32_of_bits(sign | result);
}

static inline uint32_t small_narrow(struct small_float s, float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t sign = bits >> 31 << (s.width - 1);
    int32_t shift = 23 - s.mantissa;

    /* Rebase the exponent, then round: a carry out of the mantissa moves into the exponent, as it should. */
    uint32_t odd = (magnitude >> shift) & 1;
    uint32_t normal = (magnitude - ((uint32_t)(127 - s.bias) << 23) + (1u << (shift - 1)) - 1 + odd) >> shift;
    /* Adding a number whose last bit is the subnormal's unit lets the adder do the rounding. */
    uint32_t magic = (uint32_t)(127 - s.bias + shift + 1) << 23;
    uint32_t subnormal = bits_of_f32(f32_of_bits(magnitude) + f32_of_bits(magic)) - magic;

    uint32_t result = magnitude < (uint32_t)(127 + 1 - s.bias) << 23 ? subnormal : normal;
    result = magnitude >= s.top ? s.special : result;
    result |= sign;
    /* e4m3 may have overflowed just now: its NaN too has no sign. */
    return magnitude > 0x7f800000u || (result & ((1u << (s.width - 1)) - 1)) == s.nan ? s.nan : result;
}

static inline float widen_f16(uint16_t bits)
{
    return small_widen(f16_layout, bits);
}

static inline uint16_t narrow_f16(float value)
{
    return (uint16_t)small_narrow(f16_layout, value);
}

static inline float widen_f8e5m2(uint8_t bits)
{
    return small_widen(f8e5m2_layout, bits);
}

static inline uint8_t narrow_f8e5m2(float value)
{
    return (uint8_t)small_narrow(f8e5m2_layout, value);
}

static inline float widen_f8e4m3(uint8_t bits)
{
    return small_widen(f8e4m3_layout, bits);
}

static inline uint8_t narrow_f8e4m3(float value)
{
    return (uint8_t)small_narrow(f8e4m3_layout, value);
}

/* bf16 is the upper half of an fp32. */
static inline float widen_bf16(uint16_t bits)
{
    return f32_of_bits((uint32_t)bits << 16);
}

static inline uint16_t narrow_bf16(float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

#endif
