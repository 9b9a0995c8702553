// Elements of arrays as float64, and back.
#pragma once

#include <cstddef>

#include "tensor.h"

namespace gg {

bool is_float(const DType& dtype);

// An element; NaN where it is neither a float nor i32.
double number_at(const Tensor& tensor, size_t i);

// Writes a number as element i of floats, as numpy rounds it.
void put_number(double value, const DType& dtype, std::byte* elements, size_t i);

}  // namespace gg
