// What is refused, said in one sentence; numbers of things in words.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace gg {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error whose text is the parts one after the other.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(text.str());
}

// So many things, as gluongraph.errors.amount says it: "1 file", "2 files".
template <class Number>
std::string amount(Number number, const char* thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

}  // namespace gg
