#include "npy.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "error.h"

namespace gg {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// What follows "'name':" in the header.
std::string_view behind(std::string_view header, std::string_view name) {
  const std::string quoted = "'" + std::string(name) + "':";
  const size_t at = header.find(quoted);
  if (at == std::string_view::npos) fail("its header has no ", name);
  std::string_view rest = header.substr(at + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

Shape shape_of(std::string_view text) {
  Shape shape;
  if (text.empty() || text[0] != '(') fail("its shape is no tuple");
  for (text.remove_prefix(1); !text.empty() && text[0] != ')';) {
    if (text[0] == ' ' || text[0] == ',') {
      text.remove_prefix(1);
      continue;
    }
    int64_t extent = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), extent).ptr;
    if (end == text.data()) fail("its shape is no tuple of numbers");
    shape.push_back(extent);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
  return shape;
}

}  // namespace

Tensor parse_npy(const std::byte* data, size_t size, const std::string& what) {
  try {
    const std::string_view file(reinterpret_cast<const char*>(data), size);
    if (file.substr(0, kMagic.size()) != kMagic || size < 12) fail("it does not begin as one");
    const size_t width = file[6] == 1 ? 2 : 4, start = 8 + width;
    size_t length = 0;
    for (size_t i = width; i-- > 0;) length = length << 8 | std::to_integer<size_t>(data[8 + i]);
    if (length > size - start) fail("it is shorter than its header");
    const std::string_view header = file.substr(start, length), descr = behind(header, "descr");
    if (behind(header, "fortran_order").substr(0, 5) != "False") fail("its axes are in Fortran's order");
    Tensor made;
    if (descr.empty() || descr[0] != '\'') fail("its elements are not of one type");
    const std::string_view name = descr.substr(1, descr.find('\'', 1) - 1);
    made.dtype = dtype_in_npy(name);
    if (made.dtype == nullptr) fail("its elements are ", name);
    made.shape = shape_of(behind(header, "shape"));
    made.data = data + start + length;
    if (made.bytes() != size - start - length) fail(size - start - length, " bytes for ", made.type());
    return made;
  } catch (const Error& error) {
    fail(what, " is no .npy file that can be read: ", error.what());
  }
}

std::string npy_header(const Tensor& array) {
  constexpr size_t kAlignment = 64, kBegin = 10;  // magic, version, length
  if (array.dtype->in_npy.empty()) fail(".npy files have no ", array.dtype->name, ": name one that ends in .safetensors");
  std::string shape;
  for (const int64_t extent : array.shape) shape += std::to_string(extent) + ",";
  std::string text = "{'descr': '" + std::string(array.dtype->in_npy) + "', 'fortran_order': False, 'shape': (" + shape + ")}";
  text.append(kAlignment - (kBegin + text.size() + 1) % kAlignment, ' ');
  text += '\n';
  const char length[] = {static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return std::string(kMagic) + std::string("\1\0", 2) + std::string(length, 2) + text;
}

}  // namespace gg
