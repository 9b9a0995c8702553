#include "ed25519.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "sha512.h"

namespace gg {
namespace {

using Bytes = std::array<unsigned char, 32>;  // little endian
__extension__ typedef unsigned __int128 Wide;

uint64_t word_of(const unsigned char* bytes) {
  uint64_t made = 0;
  for (size_t i = 8; i-- > 0;) made = made << 8 | bytes[i];
  return made;
}

// -- integers modulo p = 2^255 - 19

// Five limbs of 51 bits. Between operations a limb may be up to 2^51 + 2^13; only `bytes` makes the number the least.
class Field {
 public:
  Field(uint64_t number = 0) : limbs_{number & kMask, number >> kBits} {}

  // The number of the low 255 bits, which may be p or more.
  static Field of(const Bytes& bytes) {
    Field made;
    for (size_t i = 0; i < 5; ++i) {
      const size_t at = kBits * i, word = std::min<size_t>(at / 8, 24);  // 8 bytes from there on hold all of the limb
      made.limbs_[i] = word_of(bytes.data() + word) >> (at - 8 * word) & kMask;
    }
    return made;
  }

  // The least number, from 0 to p - 1.
  Bytes bytes() const {
    Field made = *this;
    made.carry();
    made.carry();
    uint64_t over = 19;  // is there a carry out of the number + 19? Then it is p or more.
    for (const uint64_t limb : made.limbs_) over = (limb + over) >> kBits;
    made.limbs_[0] += 19 * over;
    for (size_t i = 0; i < 4; ++i) made.limbs_[i + 1] += made.limbs_[i] >> kBits, made.limbs_[i] &= kMask;
    made.limbs_[4] &= kMask;
    Bytes result{};
    for (size_t bit = 0; bit < 5 * kBits; ++bit) {
      const uint64_t set = made.limbs_[bit / kBits] >> bit % kBits & 1;
      result[bit / 8] = static_cast<unsigned char>(result[bit / 8] | set << bit % 8);
    }
    return result;
  }

  friend Field operator+(const Field& a, const Field& b) {
    Field made;
    for (size_t i = 0; i < 5; ++i) made.limbs_[i] = a.limbs_[i] + b.limbs_[i];
    made.carry();
    return made;
  }

  friend Field operator-(const Field& a, const Field& b) {
    Field made;  // a + 4p - b, so that no limb is below 0
    for (size_t i = 0; i < 5; ++i) made.limbs_[i] = a.limbs_[i] + 4 * (i == 0 ? kMask - 18 : kMask) - b.limbs_[i];
    made.carry();
    return made;
  }

  friend Field operator*(const Field& a, const Field& b) {
    Wide sums[5] = {};
    for (size_t i = 0; i < 5; ++i) {
      for (size_t j = 0; j < 5; ++j) {  // 2^255 is 19
        sums[(i + j) % 5] += static_cast<Wide>(a.limbs_[i]) * (b.limbs_[j] * (i + j < 5 ? 1 : 19));
      }
    }
    Field made;
    Wide over = 0;
    for (size_t i = 0; i < 5; ++i) {
      over += sums[i];
      made.limbs_[i] = static_cast<uint64_t>(over) & kMask;
      over >>= kBits;
    }
    over = over * 19 + made.limbs_[0];
    made.limbs_[0] = static_cast<uint64_t>(over) & kMask;
    made.limbs_[1] += static_cast<uint64_t>(over >> kBits);
    made.carry();
    return made;
  }

  // This number to the power 2^bits - less, with less below 2^64.
  Field power(size_t bits, uint64_t less) const {
    Field made(1);
    for (size_t bit = bits; bit-- > 0;) {
      made = made * made;
      if (bit >= 64 || (0 - less) >> bit & 1) made = made * *this;
    }
    return made;
  }

  Field inverse() const { return power(255, 21); }  // by Fermat: to the power p - 2

  friend bool operator==(const Field& a, const Field& b) { return a.bytes() == b.bytes(); }

 private:
  static constexpr size_t kBits = 51;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;

  void carry() {
    for (size_t i = 0; i < 4; ++i) limbs_[i + 1] += limbs_[i] >> kBits, limbs_[i] &= kMask;
    limbs_[0] += 19 * (limbs_[4] >> kBits);
    limbs_[4] &= kMask;
  }

  std::array<uint64_t, 5> limbs_;
};

// -- points of the curve -x^2 + y^2 = 1 + d x^2 y^2

const Field& curve_d() {
  static const Field d = Field(0) - Field(121665) * Field(121666).inverse();
  return d;
}

// A point (x, y) as (X : Y : Z : T), x = X/Z, y = Y/Z, x y = T/Z.
struct Point {
  Field x, y, z, t;
};

const Point kZero{0, 1, 1, 0};

// RFC 8032, 5.1.4. It holds for all pairs of points, equal ones too.
Point operator+(const Point& p, const Point& q) {
  const Field a = (p.y - p.x) * (q.y - q.x), b = (p.y + p.x) * (q.y + q.x);
  const Field c = p.t * (curve_d() + curve_d()) * q.t, d = (p.z + p.z) * q.z;
  const Field e = b - a, f = d - c, g = d + c, h = b + a;
  return {e * f, g * h, f * g, e * h};
}

Point operator-(const Point& p) { return {Field(0) - p.x, p.y, p.z, Field(0) - p.t}; }

// The point that 32 bytes are the encoding of, if they are of one: RFC 8032, 5.1.3.
std::optional<Point> decoded(const Bytes& bytes) {
  const unsigned char sign = bytes[31] >> 7;
  Bytes low = bytes;
  low[31] &= 0x7F;
  const Field y = Field::of(low);
  if (y.bytes() != low) return std::nullopt;  // p or more
  const Field u = y * y - 1, v = curve_d() * y * y + 1;  // x^2 = u / v
  const Field v3 = v * v * v;
  Field x = u * v3 * (u * v3 * v3 * v).power(252, 3);  // the power (p - 5) / 8
  if (v * x * x == Field(0) - u) x = x * Field(2).power(253, 5);  // a root of -1: 2 to the power (p - 1) / 4
  if (!(v * x * x == u)) return std::nullopt;
  const Bytes root = x.bytes();
  if (root == Bytes{} && sign == 1) return std::nullopt;
  if ((root[0] & 1) != sign) x = Field(0) - x;
  return Point{x, y, 1, x * y};
}

Bytes encoded(const Point& p) {
  const Field scale = p.z.inverse();
  Bytes made = (p.y * scale).bytes();
  made[31] = static_cast<unsigned char>(made[31] | ((p.x * scale).bytes()[0] & 1) << 7);
  return made;
}

// The point that multiples are taken of: y = 4/5, and x even.
const Point& base() {
  static const Point made = *decoded((Field(4) * Field(5).inverse()).bytes());
  return made;
}

// -- integers modulo L, the order of the base point

using Scalar = std::array<uint64_t, 4>;  // the least word first

// L = 2^252 + 27742317777372353535851937790883648493
constexpr Scalar kOrder = {0x5812631a5cf5d3ed, 0x14def9dea2f79cd6, 0, 0x1000000000000000};

bool is_less(const Scalar& a, const Scalar& b) {
  return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
}

Scalar scalar_of(const unsigned char* bytes) {
  Scalar made;
  for (size_t i = 0; i < 4; ++i) made[i] = word_of(bytes + 8 * i);
  return made;
}

// The remainder of a number of 512 bits, a bit at a time.
Scalar reduced(const std::array<unsigned char, 64>& bytes) {
  Scalar rest{};
  for (size_t bit = 512; bit-- > 0;) {
    uint64_t carry = bytes[bit / 8] >> bit % 8 & 1;
    for (uint64_t& word : rest) {
      const uint64_t next = word >> 63;
      word = word << 1 | carry;
      carry = next;
    }
    if (is_less(rest, kOrder)) continue;
    uint64_t borrow = 0;
    for (size_t i = 0; i < 4; ++i) {
      const Wide difference = static_cast<Wide>(rest[i]) - kOrder[i] - borrow;
      rest[i] = static_cast<uint64_t>(difference);
      borrow = static_cast<uint64_t>(difference >> 64) & 1;
    }
  }
  return rest;
}

bool has_bit(const Scalar& number, size_t bit) { return number[bit / 64] >> bit % 64 & 1; }

// a P + b Q, with the doublings of both done at once.
Point combined(const Scalar& a, const Point& p, const Scalar& b, const Point& q) {
  Point made = kZero;
  for (size_t bit = 256; bit-- > 0;) {
    made = made + made;
    if (has_bit(a, bit)) made = made + p;
    if (has_bit(b, bit)) made = made + q;
  }
  return made;
}

}  // namespace

bool ed25519_verifies(const PublicKey& key, const std::string& message, const Signature& signature) {
  const std::optional<Point> owner = decoded(key);
  const Scalar s = scalar_of(signature.data() + 32);
  if (!owner || !is_less(s, kOrder)) return false;
  const std::string r(signature.begin(), signature.begin() + 32);
  const Scalar k = reduced(sha512(r + std::string(key.begin(), key.end()) + message));
  const Bytes made = encoded(combined(s, base(), k, -*owner));  // R, where S B = R + k A
  return std::equal(made.begin(), made.end(), signature.begin());
}

}  // namespace gg
