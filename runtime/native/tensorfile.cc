#include "tensorfile.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace gg {
namespace {

constexpr size_t kLength = 8;
constexpr size_t kLongest = size_t{100} << 20;  // of a header, as in other readers of this format

using Range = std::pair<size_t, size_t>;

Tensor tensor_of(const Json& row, const std::byte* elements, size_t size, Range& range) {
  Tensor made;
  made.dtype = dtype_in_tensorfile(row.at("dtype").text());
  if (made.dtype == nullptr) fail("elements of type ", row.at("dtype").text());
  for (const Json& extent : row.at("shape").items()) made.shape.push_back(extent.integer());
  const std::vector<Json>& place = row.at("data_offsets").items();
  if (place.size() != 2) fail("data_offsets are not two");
  range = {place[0].unsigned_integer(), place[1].unsigned_integer()};
  if (range.first > range.second || range.second > size) fail("elements outside of the file");
  if (range.second - range.first != made.bytes()) fail(range.second - range.first, " bytes for ", made.type());
  made.data = elements + range.first;
  return made;
}

}  // namespace

TensorFile TensorFile::parse(const std::byte* data, size_t size, const std::string& what) {
  TensorFile made;
  try {
    uint64_t length = 0;
    if (size < kLength) fail("it has ", size, " bytes");
    for (size_t i = kLength; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(data[i]);
    if (length > std::min(size - kLength, kLongest)) fail("its header is longer than it may be");
    const std::string_view text(reinterpret_cast<const char*>(data) + kLength, length);
    const Json header = Json::parse(text, "its header");
    const size_t start = kLength + length;
    std::vector<Range> ranges;
    for (const auto& [name, row] : header.members()) {
      if (name == "__metadata__") {
        made.metadata = row;
        continue;
      }
      ranges.emplace_back();
      made.tensors.emplace(name, tensor_of(row, data + start, size - start, ranges.back()));
    }
    std::sort(ranges.begin(), ranges.end());
    size_t end = 0;
    for (const auto& [first, last] : ranges) {
      if (first != end) fail(first < end ? "arrays lie over one another" : "there are bytes that belong to no array");
      end = last;
    }
    if (end != size - start) fail("it is longer than its arrays");
  } catch (const Error& error) {
    fail(what, " is not a safetensors file: ", error.what());
  }
  return made;
}

TensorPieces tensor_pieces(const std::map<std::string, Tensor>& tensors) {
  std::vector<std::pair<std::string, const Tensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(name, &tensor);
  // Those of wide elements come first, so that all elements lie aligned.
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second->dtype->bytes > b.second->dtype->bytes; });
  Json header = Json::object();
  uint64_t end = 0;
  for (const auto& [name, tensor] : order) {
    const uint64_t at = end;
    end += tensor->bytes();
    Json shape = Json::array();
    for (const int64_t extent : tensor->shape) shape.append(Json::integer(extent));
    Json place = Json::array({Json::unsigned_integer(at), Json::unsigned_integer(end)});
    header.set(name, Json::object({{"dtype", Json::text(std::string(tensor->dtype->in_tensorfile))},
                                   {"shape", std::move(shape)},
                                   {"data_offsets", std::move(place)}}));
  }
  std::string text = header.dump();
  text.append((kLength - text.size() % kLength) % kLength, ' ');
  std::string length(kLength, '\0');
  for (size_t i = 0; i < kLength; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  TensorPieces made;
  made.header = length + text;
  for (const auto& [name, tensor] : order) {
    made.pieces.emplace_back(reinterpret_cast<const char*>(tensor->data), tensor->bytes());
  }
  return made;
}

}  // namespace gg
