#include "json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "error.h"

namespace gg {
namespace {

constexpr int kDeepest = 64;

// The code point that begins at `at`, which moves behind it; -1 where the bytes are no UTF-8.
int32_t code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(at);
  if (first < 0x80) {
    at += 1;
    return static_cast<int32_t>(first);
  }
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4) return -1;
  uint32_t code = first & (0x3Fu >> more);
  for (int i = 1; i <= more; ++i) {
    if ((byte(at + static_cast<size_t>(i)) & 0xC0) != 0x80) return -1;
    code = code << 6 | (byte(at + static_cast<size_t>(i)) & 0x3F);
  }
  const uint32_t least = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
  if (code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return -1;
  at += static_cast<size_t>(more) + 1;
  return static_cast<int32_t>(code);
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code >= 0x10000 ? 3 : code >= 0x800 ? 2 : 1;
  static constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[more] | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3F));
}

// A number as Python's repr has it: the fewest digits that read back as the same, with an exponent below 1e-4 and from
// 1e16 on.
std::string digits_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string made(buffer, end);
  const size_t e = made.find('e');
  const int exponent = std::stoi(made.substr(e + 1));
  if (value != 0 && (exponent < -4 || exponent >= 16)) return made;
  const bool negative = made[0] == '-';
  std::string digits = made.substr(negative, e - negative);
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  if (exponent < 0) {
    digits = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else {
    const size_t before = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= before) digits.append(before + 1 - digits.size(), '0');
    digits.insert(before, ".");
  }
  return (negative ? "-" : "") + digits;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  Json whole() {
    Json value = any(0);
    space();
    if (at_ != text_.size()) wrong("something follows its end");
    return value;
  }

 private:
  [[noreturn]] void wrong(const char* why) const { fail(what_, " is no JSON: ", why, " (at byte ", at_, ")"); }

  void space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json any(int depth) {
    if (depth > kDeepest) wrong("it is nested too deeply");
    space();
    if (at_ == text_.size()) wrong("it ends too early");
    switch (text_[at_]) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': return Json::text(text());
      default: break;
    }
    if (take("null")) return Json();
    if (take("true")) return Json::boolean(true);
    if (take("false")) return Json::boolean(false);
    if (take("NaN")) return Json::number(std::numeric_limits<double>::quiet_NaN());
    if (take("Infinity")) return Json::number(std::numeric_limits<double>::infinity());
    if (take("-Infinity")) return Json::number(-std::numeric_limits<double>::infinity());
    return number();
  }

  Json object(int depth) {
    std::vector<Json::Member> members;
    std::set<std::string> seen;
    ++at_;
    space();
    while (!take("}")) {
      if (!members.empty() && !take(",")) wrong("a comma is missing");
      space();
      if (at_ == text_.size() || text_[at_] != '"') wrong("a name is missing");
      std::string name = text();
      if (!seen.insert(name).second) wrong("a name is there twice");
      space();
      if (!take(":")) wrong("a colon is missing");
      members.emplace_back(std::move(name), any(depth + 1));
      space();
    }
    return Json::object(std::move(members));
  }

  Json array(int depth) {
    std::vector<Json> items;
    ++at_;
    space();
    while (!take("]")) {
      if (!items.empty() && !take(",")) wrong("a comma is missing");
      items.push_back(any(depth + 1));
      space();
    }
    return Json::array(std::move(items));
  }

  std::string text() {
    std::string made;
    ++at_;
    while (!take("\"")) {
      if (at_ >= text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20) wrong("a text does not end");
      if (text_[at_] == '\\') {
        ++at_;
        escape(made);
      } else {
        const size_t start = at_;
        if (code_point(text_, at_) < 0) wrong("a text is no UTF-8");
        made.append(text_.substr(start, at_ - start));
      }
    }
    return made;
  }

  void escape(std::string& made) {
    static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const size_t which = at_ < text_.size() ? kLetters.find(text_[at_]) : std::string_view::npos;
    if (which != std::string_view::npos) {
      made += kMeanings[which];
      ++at_;
      return;
    }
    uint32_t code = unit();
    if (code >= 0xD800 && code < 0xDC00) {
      if (!take("\\")) wrong("half a surrogate pair");
      const uint32_t low = unit();
      if (low < 0xDC00 || low >= 0xE000) wrong("half a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      wrong("half a surrogate pair");
    }
    append_utf8(made, code);
  }

  uint32_t unit() {
    uint32_t code = 0;
    if (!take("u") || text_.size() - at_ < 4) wrong("an escape that does not exist");
    const char* begin = text_.data() + at_;
    if (std::from_chars(begin, begin + 4, code, 16).ptr != begin + 4) wrong("an escape that does not exist");
    at_ += 4;
    return code;
  }

  Json number() {
    const size_t start = at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      if (at_ == first) wrong("a value is missing");
    };
    take("-");
    if (!take("0")) digits();
    if (take(".")) digits();
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      digits();
    }
    return Json::numeral(std::string(text_.substr(start, at_ - start)));
  }

  std::string_view text_;
  const std::string& what_;
  size_t at_ = 0;
};

template <class Number>
Number converted(const std::string& digits, const char* what) {
  Number value{};
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) fail(digits, " is no ", what);
  return value;
}

void append_text(std::string& out, const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  const auto unit = [&](uint32_t code) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kHex[code >> shift & 0xF];
  };
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const int32_t decoded = code_point(text, at);
    if (decoded < 0) fail("a text is no UTF-8");
    const auto code = static_cast<uint32_t>(decoded);
    static constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    const size_t which = code < 0x80 ? kShort.find(static_cast<char>(code)) : std::string_view::npos;
    if (which != std::string_view::npos) {
      out += '\\';
      out += kLetters[which];
    } else if (code >= 0x20 && code < 0x7F) {
      out += static_cast<char>(code);
    } else if (code < 0x10000) {
      unit(code);
    } else {
      unit(0xD800 + ((code - 0x10000) >> 10));
      unit(0xDC00 + ((code - 0x10000) & 0x3FF));
    }
  }
  out += '"';
}

}  // namespace

Json Json::boolean(bool value) {
  Json made;
  made.kind_ = Kind::boolean;
  made.truth_ = value;
  return made;
}

Json Json::numeral(std::string digits) {
  Json made;
  made.kind_ = Kind::number;
  made.text_ = std::move(digits);
  return made;
}

Json Json::integer(int64_t value) { return numeral(std::to_string(value)); }

Json Json::unsigned_integer(uint64_t value) { return numeral(std::to_string(value)); }

Json Json::number(double value) { return numeral(digits_of(value)); }

Json Json::text(std::string value) {
  Json made;
  made.kind_ = Kind::text;
  made.text_ = std::move(value);
  return made;
}

Json Json::array(std::vector<Json> items) {
  Json made;
  made.kind_ = Kind::array;
  made.items_ = std::move(items);
  return made;
}

Json Json::object(std::vector<Member> members) {
  Json made;
  made.kind_ = Kind::object;
  made.members_ = std::move(members);
  return made;
}

Json Json::parse(std::string_view text, const std::string& what) { return Reader(text, what).whole(); }

const Json& Json::expect(Kind kind, const char* what) const {
  if (kind_ != kind) fail("a value is not ", what);
  return *this;
}

bool Json::boolean() const { return expect(Kind::boolean, "true or false").truth_; }

int64_t Json::integer() const { return converted<int64_t>(expect(Kind::number, "a number").text_, "integer"); }

uint64_t Json::unsigned_integer() const {
  return converted<uint64_t>(expect(Kind::number, "a number").text_, "integer from 0 on");
}

double Json::number() const {
  const std::string& digits = expect(Kind::number, "a number").text_;
  if (digits == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (digits == "Infinity") return std::numeric_limits<double>::infinity();
  if (digits == "-Infinity") return -std::numeric_limits<double>::infinity();
  return converted<double>(digits, "number");
}

const std::string& Json::text() const { return expect(Kind::text, "a text").text_; }

const std::vector<Json>& Json::items() const { return expect(Kind::array, "a list").items_; }

const std::vector<Json::Member>& Json::members() const { return expect(Kind::object, "an object").members_; }

const Json* Json::find(std::string_view name) const {
  for (const Member& member : members()) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

Json* Json::find(std::string_view name) { return const_cast<Json*>(std::as_const(*this).find(name)); }

const Json& Json::at(size_t index) const {
  if (index >= items().size()) fail("a list has ", items_.size(), " items, of which number ", index, " is wanted");
  return items_[index];
}

const Json& Json::at(std::string_view name) const {
  const Json* found = find(name);
  if (found == nullptr) fail("'", name, "' is missing");
  return *found;
}

void Json::set(std::string_view name, Json value) {
  if (Json* found = find(name)) {
    *found = std::move(value);
  } else {
    members_.emplace_back(name, std::move(value));
  }
}

void Json::append(Json value) {
  expect(Kind::array, "a list");
  items_.push_back(std::move(value));
}

std::string Json::dump(bool sorted) const {
  std::string out;
  write(out, sorted);
  return out;
}

void Json::write(std::string& out, bool sorted) const {
  const char* between = "";
  switch (kind_) {
    case Kind::null: out += "null"; return;
    case Kind::boolean: out += truth_ ? "true" : "false"; return;
    case Kind::number: out += text_; return;
    case Kind::text: append_text(out, text_); return;
    case Kind::array:
      out += '[';
      for (const Json& item : items_) {
        out += between;
        item.write(out, sorted);
        between = ", ";
      }
      out += ']';
      return;
    case Kind::object: break;
  }
  std::vector<const Member*> order;
  for (const Member& member : members_) order.push_back(&member);
  if (sorted) std::sort(order.begin(), order.end(), [](auto a, auto b) { return a->first < b->first; });
  out += '{';
  for (const Member* member : order) {
    out += between;
    append_text(out, member->first);
    out += ": ";
    member->second.write(out, sorted);
    between = ", ";
  }
  out += '}';
}

}  // namespace gg
