// Safetensors files: 8 bytes that say how long the header is, the header in JSON, the elements.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "tensor.h"

namespace gg {

// The arrays of a file's bytes, in their memory.
struct TensorFile {
  std::map<std::string, Tensor> tensors;
  Json metadata;  // texts by name; null where there are none

  // Throws an Error that begins with `what` where the bytes are no such file, or arrays lie outside of it, over one
  // another, or do not have the size of their shape.
  static TensorFile parse(const std::byte* data, size_t size, const std::string& what);
};

// The bytes of a file with these arrays: a header, and then pieces of the arrays' own memory.
struct TensorPieces {
  std::string header;
  std::vector<std::string_view> pieces;  // the header is the first
};
TensorPieces tensor_pieces(const std::map<std::string, Tensor>& tensors);

}  // namespace gg
