#include "elements.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "half.h"

namespace gg {
namespace {

template <class T>
void put(T value, std::byte* elements, size_t i) {
  std::memcpy(elements + sizeof value * i, &value, sizeof value);
}

// A float whose last digit says that something is lost, where something is: rounding it again is rounding once.
float rounded_to_odd(double value) {
  auto nearest = static_cast<float>(value);
  uint32_t bits = bits_of(nearest);
  if (static_cast<double>(nearest) == value || std::isnan(value) || std::isinf(nearest) || bits & 1) return nearest;
  bits += std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? ~uint32_t{0} : 1;
  std::memcpy(&nearest, &bits, sizeof nearest);
  return nearest;
}

}  // namespace

bool is_float(const DType& dtype) {
  return dtype.name == "f32" || dtype.name == "f64" || dtype.name == "f16" || dtype.name == "bf16";
}

double number_at(const Tensor& tensor, size_t i) {
  const std::byte* from = tensor.data + tensor.dtype->bytes * i;
  const auto read = [&](auto value) {
    std::memcpy(&value, from, sizeof value);
    return value;
  };
  const std::string_view name = tensor.dtype->name;
  if (name == "f64") return read(double{});
  if (name == "f32") return static_cast<double>(read(float{}));
  if (name == "i32") return static_cast<double>(read(int32_t{}));
  if (name == "bf16") return static_cast<double>(from_bfloat16(read(uint16_t{})));
  if (name == "f16") return static_cast<double>(from_float16(read(uint16_t{})));
  return std::numeric_limits<double>::quiet_NaN();
}

void put_number(double value, const DType& dtype, std::byte* elements, size_t i) {
  if (dtype.name == "f64") put(value, elements, i);
  else if (dtype.name == "f32") put(static_cast<float>(value), elements, i);
  else if (dtype.name == "bf16") put(bfloat16_of(static_cast<float>(value)), elements, i);
  else put(float16_of(rounded_to_odd(value)), elements, i);
}

}  // namespace gg
