// float32 rounded to 16 bits, to the nearest and of two as near to the even one; and back.
#pragma once

#include <cstdint>
#include <cstring>

namespace gg {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline uint16_t bfloat16_of(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7FC0);  // a NaN
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline uint16_t float16_of(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | (rest >> 13 & 0x3FF));  // a NaN keeps its digits
  if (rest >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);
  const uint32_t exponent = rest >> 23;
  // Bits that go: 13 of a normal number, more of one that is below 2^-14 in float16.
  const uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
  if (shift > 24) return static_cast<uint16_t>(sign);
  const uint32_t digits = exponent >= 113 ? rest - (112u << 23) : (rest & 0x7FFFFF) | 0x800000;
  const uint32_t half = 1u << (shift - 1), kept = digits >> shift, lost = digits & ((1u << shift) - 1);
  const uint32_t up = lost > half || (lost == half && (kept & 1)) ? 1 : 0;
  return static_cast<uint16_t>(sign | (kept + up));
}

inline float from_bfloat16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float from_float16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = half >> 10 & 0x1F, digits = half & 0x3FF;
  if (exponent == 0) {  // a multiple of the least number, 2^-24
    const float value = static_cast<float>(digits) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7F800000 : (exponent + 112) << 23) | digits << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace gg
