#include "dataset.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "error.h"
#include "npy.h"
#include "tensorfile.h"

namespace gg {
namespace {

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A generator whose numbers are the same everywhere (Steele, Lea, Flood: Fast splittable generators, 2014).
uint64_t next(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

}  // namespace

Dataset::Dataset(const std::string& files, const std::vector<Tensor>& batch) {
  const std::vector<std::string> paths = parts_of(files);
  if (paths.size() == 1 && ends_with(paths[0], ".safetensors")) {
    files_.push_back(std::make_unique<Mapping>(paths[0]));
    const TensorFile file = TensorFile::parse(files_[0]->data(), files_[0]->size(), paths[0]);
    const std::vector<std::string> letters = {"x", "y"};
    for (size_t i = 0; i < batch.size(); ++i) {
      auto found = file.tensors.find("data" + std::to_string(i));
      if (found == file.tensors.end() && i < letters.size()) found = file.tensors.find(letters[i]);
      if (found == file.tensors.end()) fail(paths[0], " has no array data", i, i < 2 ? " or " + letters[i] : "");
      add(found->second, batch[i], paths[0] + ": " + found->first);
    }
  } else {
    if (paths.size() != batch.size()) {
      fail(files, ": ", amount(paths.size(), "file"), " for ", amount(batch.size(), "array"), " of a batch");
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      files_.push_back(std::make_unique<Mapping>(paths[i]));
      add(parse_npy(files_[i]->data(), files_[i]->size(), paths[i]), batch[i], paths[i]);
    }
  }
}

void Dataset::add(const Tensor& given, const Tensor& type, const std::string& name) {
  Tensor array = given;
  const bool narrows = array.dtype->name == "f64" && type.dtype->name == "f32";
  const Shape rest(type.shape.begin() + (type.shape.empty() ? 0 : 1), type.shape.end());
  if (type.shape.empty() || array.shape.empty() || !std::equal(rest.begin(), rest.end(), array.shape.begin() + 1,
                                                               array.shape.end())) {
    fail(name, " is ", array.type(), "; the artefact takes batches ", type.type(), " of it, samples along the first axis");
  }
  if (array.dtype != type.dtype && !narrows) {
    fail(name, " has elements of type ", array.dtype->name, ", and the artefact takes ", type.dtype->name);
  }
  if (!arrays_.empty() && array.shape[0] != samples_) fail(name, " has ", amount(array.shape[0], "sample"), ", not ", samples_);
  samples_ = array.shape[0];
  const bool aligned = reinterpret_cast<uintptr_t>(array.data) % array.dtype->bytes == 0;
  if (narrows || !aligned) {
    const size_t count = elements_of(array.shape);
    Memory made(count * type.dtype->bytes);
    for (size_t i = 0; narrows && i < count; ++i) {
      double wide;
      std::memcpy(&wide, array.data + i * sizeof wide, sizeof wide);
      reinterpret_cast<float*>(made.data())[i] = static_cast<float>(wide);
    }
    if (!narrows) std::memcpy(made.data(), array.data, made.size());
    array = {type.dtype, array.shape, made.data()};
    converted_.push_back(std::move(made));
  }
  row_bytes_.push_back(elements_of(rest) * array.dtype->bytes);
  gathered_.emplace_back();
  arrays_.push_back(std::move(array));
}

std::vector<Tensor> Dataset::batch(int64_t first, int64_t count) {
  std::vector<Tensor> made;
  for (size_t a = 0; a < arrays_.size(); ++a) {
    const size_t row = row_bytes_[a];
    Tensor part = arrays_[a];
    part.shape[0] = count;
    if (order_.empty()) {
      part.data += static_cast<size_t>(first) * row;
    } else {
      Memory& gathered = gathered_[a];
      if (gathered.size() < static_cast<size_t>(count) * row) gathered = Memory(static_cast<size_t>(count) * row);
      for (int64_t i = 0; i < count; ++i) {
        const auto from = static_cast<size_t>(order_[static_cast<size_t>(first + i)]);
        std::memcpy(gathered.data() + static_cast<size_t>(i) * row, arrays_[a].data + from * row, row);
      }
      part.data = gathered.data();
    }
    made.push_back(std::move(part));
  }
  return made;
}

void Dataset::shuffle(uint64_t seed, uint64_t pass) {
  order_.resize(static_cast<size_t>(samples_));
  std::iota(order_.begin(), order_.end(), 0);
  uint64_t state = seed;
  state = next(state) + pass;
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[next(state) % i]);
}

}  // namespace gg
