// JSON, read within bounds and written as Python's json.dumps writes it: digests are of that very text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gg {

// One value. A number keeps the digits that it was read with, so that writing it again gives the same text.
class Json {
 public:
  enum class Kind { null, boolean, number, text, array, object };
  using Member = std::pair<std::string, Json>;

  Json() = default;
  static Json boolean(bool value);
  static Json integer(int64_t value);
  static Json unsigned_integer(uint64_t value);
  static Json number(double value);
  static Json numeral(std::string digits);
  static Json text(std::string value);
  static Json array(std::vector<Json> items = {});
  static Json object(std::vector<Member> members = {});

  // Reads a whole text. Throws an Error that begins with `what` where it is no JSON, nested deeper than 64, or has a
  // name twice in one object.
  static Json parse(std::string_view text, const std::string& what);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }

  // The value as what it is to be; throws an Error where it is something else, or does not fit.
  bool boolean() const;
  int64_t integer() const;
  uint64_t unsigned_integer() const;
  double number() const;
  const std::string& text() const;
  const std::vector<Json>& items() const;
  const std::vector<Member>& members() const;

  const Json& at(size_t index) const;           // throws an Error where a list is shorter
  const Json& at(std::string_view name) const;    // throws an Error where an object has no such member
  const Json* find(std::string_view name) const;  // nullptr where it has none
  Json* find(std::string_view name);
  void set(std::string_view name, Json value);  // in its place, or behind the others
  void append(Json value);

  std::string dump(bool sorted = false) const;

 private:
  void write(std::string& out, bool sorted) const;
  const Json& expect(Kind kind, const char* what) const;

  Kind kind_ = Kind::null;
  bool truth_ = false;
  std::string text_;  // a text's characters in UTF-8, or a number's digits
  std::vector<Json> items_;
  std::vector<Member> members_;
};

}  // namespace gg
