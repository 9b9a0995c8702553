#include "keys.h"

#include <algorithm>
#include <string_view>

#include "error.h"
#include "files.h"

namespace gg {
namespace {

constexpr std::string_view kPrefix = "ed25519:";
constexpr const char* kSpaces = " \t\r";

// The bytes that so many small hex digits are, and no other text is.
template <size_t N>
bool read_hex(std::string_view text, std::array<unsigned char, N>& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != 2 * N || text.find_first_not_of(kDigits) != text.npos) return false;
  for (size_t i = 0; i < N; ++i) {
    bytes[i] = static_cast<unsigned char>(kDigits.find(text[2 * i]) << 4 | kDigits.find(text[2 * i + 1]));
  }
  return true;
}

}  // namespace

std::vector<PublicKey> read_keys(const std::string& path) {
  const Memory file = read_file(path);
  std::vector<PublicKey> made;
  std::string_view rest = file.text();
  for (int number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    line = line.substr(0, line.find('#'));
    line.remove_prefix(std::min(line.find_first_not_of(kSpaces), line.size()));
    const std::string_view word = line.substr(0, line.find_first_of(kSpaces));
    if (word.empty()) continue;
    PublicKey key;
    if (word.substr(0, kPrefix.size()) != kPrefix || !read_hex(word.substr(kPrefix.size()), key)) {
      fail("line ", number, " of ", path, " is no public key: `gluongraph key show` prints one");
    }
    made.push_back(key);
  }
  if (made.empty()) fail(path, " holds no public key: `gluongraph key show` prints one");
  return made;
}

void check_signature(const Json& metadata, const std::string& digest, const std::vector<PublicKey>& keys) {
  const Json* signed_by = metadata.find("ed25519");
  if (signed_by == nullptr) fail("nobody has signed it");
  const std::string_view text = signed_by->text();
  const size_t space = text.find(' ');
  PublicKey key;
  Signature signature;
  if (space == text.npos || !read_hex(text.substr(0, space), key) || !read_hex(text.substr(space + 1), signature)) {
    fail("its signature is damaged");
  }
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
    fail("it is signed by ", kPrefix, text.substr(0, space), ", a key that is not trusted here");
  }
  if (!ed25519_verifies(key, "gluongraph artefact signature 1\n" + digest, signature)) {
    fail("the signature by ", kPrefix, text.substr(0, space), " is not of this file");
  }
}

}  // namespace gg
