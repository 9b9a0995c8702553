// Says of each line, a public key, a message and a signature in hex, whether runtime/native/ed25519.cc verifies it; of a
// line with one word what its SHA-512 is.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include "ed25519.h"
#include "sha512.h"

namespace {

std::string bytes_of(const std::string& hex) {
  std::string made;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) made.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return made;
}

template <class Array>
Array array_of(const std::string& hex) {
  Array made{};
  const std::string bytes = bytes_of(hex);
  for (size_t i = 0; i < made.size() && i < bytes.size(); ++i) made[i] = static_cast<unsigned char>(bytes[i]);
  return made;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string key, message, signature;
    words >> key >> message >> signature;  // a message of no bytes is written as -
    if (signature.empty()) {
      for (const unsigned char byte : gg::sha512(bytes_of(key == "-" ? "" : key))) std::printf("%02x", byte);
      std::printf("\n");
      continue;
    }
    std::printf("%d\n", gg::ed25519_verifies(array_of<gg::PublicKey>(key), bytes_of(message == "-" ? "" : message),
                                             array_of<gg::Signature>(signature)));
  }
}
