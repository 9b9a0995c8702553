// Element types, and arrays that lie in somebody else's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gg {

// One element type: its name, what safetensors and .npy files call it ("" where they do not), and DLPack's code.
struct DType {
  std::string_view name, in_tensorfile, in_npy;
  size_t bytes;
  uint8_t code;
};

const DType& dtype_of(std::string_view name);                     // throws an Error where there is none
const DType* dtype_in_tensorfile(std::string_view name);          // nullptr where there is none
const DType* dtype_in_npy(std::string_view name);

using Shape = std::vector<int64_t>;

size_t elements_of(const Shape& shape);  // throws an Error on negative extents, and where there are absurdly many
std::string written(const DType& dtype, const Shape& shape);  // "f32[32,64]"

// An array without gaps. `data` may lie at any address that suits its elements.
struct Tensor {
  const DType* dtype = nullptr;
  Shape shape;
  const std::byte* data = nullptr;

  size_t bytes() const { return elements_of(shape) * dtype->bytes; }
  std::string type() const { return written(*dtype, shape); }
};

}  // namespace gg
