// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gg {

class Sha256 {
 public:
  void update(const void* data, size_t bytes);
  std::string hex();  // of all that has been given, in small letters; nothing can be added afterwards

 private:
  void block(const unsigned char* data);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> rest_{};  // what does not fill a block yet
  uint64_t bytes_ = 0;
};

std::string sha256(std::string_view data);

}  // namespace gg
