// .npy files: a header that is a Python dictionary, and the elements.
#pragma once

#include <string>

#include "tensor.h"

namespace gg {

// The array of a file's bytes, in their memory. Throws an Error that begins with `what` where they are no such file.
Tensor parse_npy(const std::byte* data, size_t size, const std::string& what);

// What comes before the elements in such a file. Throws an Error where it has no such elements.
std::string npy_header(const Tensor& array);

}  // namespace gg
