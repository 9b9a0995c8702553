// SHA-512 (FIPS 180-4).
#pragma once

#include <array>
#include <string>

namespace gg {

std::array<unsigned char, 64> sha512(std::string data);

}  // namespace gg
