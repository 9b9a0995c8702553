#include "sha256.h"

#include <algorithm>
#include <cstring>

namespace gg {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turned(uint32_t x, int by) { return x >> by | x << (32 - by); }

}  // namespace

void Sha256::block(const unsigned char* data) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{data[4 * i]} << 24 | uint32_t{data[4 * i + 1]} << 16 | uint32_t{data[4 * i + 2]} << 8 |
           uint32_t{data[4 * i + 3]};
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t b = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t one = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const uint32_t made[] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += made[i];
}

void Sha256::update(const void* data, size_t bytes) {
  auto from = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const size_t held = bytes_ % rest_.size();
    if (held == 0 && bytes >= rest_.size()) {
      block(from);
      bytes_ += rest_.size(), from += rest_.size(), bytes -= rest_.size();
      continue;
    }
    const size_t part = std::min(rest_.size() - held, bytes);
    std::memcpy(rest_.data() + held, from, part);
    bytes_ += part, from += part, bytes -= part;
    if (bytes_ % rest_.size() == 0) block(rest_.data());
  }
}

std::string Sha256::hex() {
  const uint64_t bits = bytes_ * 8;
  unsigned char end[72] = {0x80};
  const size_t zeros = (bytes_ % 64 < 56 ? 56 : 120) - bytes_ % 64;
  for (size_t i = 0; i < 8; ++i) end[zeros + i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
  update(end, zeros + 8);
  std::string made;
  for (const uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) made += "0123456789abcdef"[word >> shift & 0xF];
  }
  return made;
}

std::string sha256(std::string_view data) {
  Sha256 digest;
  digest.update(data.data(), data.size());
  return digest.hex();
}

}  // namespace gg
