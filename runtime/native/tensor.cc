#include "tensor.h"

#include "error.h"

namespace gg {
namespace {

constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6;  // of DLPack
constexpr DType kTypes[] = {
    {"f32", "F32", "<f4", 4, kFloat},   {"f64", "F64", "<f8", 8, kFloat}, {"f16", "F16", "<f2", 2, kFloat},
    {"bf16", "BF16", "", 2, kBfloat},   {"i8", "I8", "|i1", 1, kInt},     {"i32", "I32", "<i4", 4, kInt},
    {"i64", "I64", "<i8", 8, kInt},     {"u8", "U8", "|u1", 1, kUInt},    {"u32", "U32", "<u4", 4, kUInt},
    {"u64", "U64", "<u8", 8, kUInt},    {"bool", "BOOL", "|b1", 1, kBool},
};

const DType* find(std::string_view DType::*column, std::string_view name) {
  for (const DType& row : kTypes) {
    if (row.*column == name && !name.empty()) return &row;
  }
  return nullptr;
}

}  // namespace

const DType& dtype_of(std::string_view name) {
  const DType* found = find(&DType::name, name);
  if (found == nullptr) fail("there are no elements of type '", name, "'");
  return *found;
}

const DType* dtype_in_tensorfile(std::string_view name) { return find(&DType::in_tensorfile, name); }

const DType* dtype_in_npy(std::string_view name) { return find(&DType::in_npy, name); }

size_t elements_of(const Shape& shape) {
  constexpr int64_t kMost = int64_t{1} << 44;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count) || count > kMost) {
      fail("a shape with the extent ", extent, " is absurd");
    }
  }
  return static_cast<size_t>(count);
}

std::string written(const DType& dtype, const Shape& shape) {
  std::string text = std::string(dtype.name) + "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace gg
