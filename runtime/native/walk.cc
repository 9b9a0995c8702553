#include "walk.h"

#include <algorithm>

#include "error.h"

namespace gg {
namespace {

// The types of the batches that a mode takes.
std::vector<std::vector<Tensor>> batches_of(const Library& training, const std::string& wanted) {
  std::vector<std::vector<Tensor>> made;
  const char* mode;
  int arrays;
  for (int e = 0; gg_entry(training.get(), e, &mode, &arrays) == 0; ++e) {
    if (mode != wanted) continue;
    made.emplace_back();
    gg_array type;
    for (int a = 0; gg_batch(training.get(), e, a, &type) == 0; ++a) made.back().push_back(tensor_of(type));
  }
  return made;
}

const std::vector<Tensor>& first_of(const std::vector<std::vector<Tensor>>& types, const std::string& mode) {
  if (types.empty()) fail("the artefact has no entry '", mode, "'");
  for (const std::vector<Tensor>& batch : types) {
    for (const Tensor& array : batch) {
      if (array.shape.empty()) fail(mode, " takes ", array.type(), ", which has no axis of samples");
    }
    if (batch.empty() || batch[0].shape[0] == 0) fail(mode, " takes no samples");
  }
  return types[0];
}

}  // namespace

Tensor tensor_of(const gg_array& array) {
  return {&dtype_of(array.dtype), {array.shape, array.shape + array.rank}, static_cast<const std::byte*>(array.data)};
}

Walk::Walk(const Library& training, const std::string& mode, const std::string& files, bool drop_last, int rank,
           int ranks)
    : types_(batches_of(training, mode)), data_(files, first_of(types_, mode)), rank_(rank), ranks_(ranks) {
  for (const auto& batch : types_) sizes_.push_back(ranks_ * batch[0].shape[0]);
  std::sort(sizes_.rbegin(), sizes_.rend());
  const int64_t last = data_.samples() % sizes_[0];
  const bool served = last == 0 || std::find(sizes_.begin(), sizes_.end(), last) != sizes_.end();
  if (data_.samples() == 0) fail(files, " has no samples");
  if (!served && !(drop_last && data_.samples() > last)) {
    const std::string found = amount(data_.samples(), "sample") + ": a batch of " + std::to_string(last);
    if (last % ranks_ != 0) fail(files, " has ", found, " is left, which ", ranks_, " ranks cannot share; say --drop-last");
    fail(files, " has ", found, " is left after those of ", sizes_[0], "; export with batch_sizes=[", sizes_[0] / ranks_,
         ", ", last / ranks_, "], or say --drop-last");
  }
  end_ = served ? data_.samples() : data_.samples() - last;
}

bool Walk::before(int64_t last_pass) {
  if (at_end()) ++pass, sample = 0;
  return pass < last_pass;
}

std::vector<gg_array> Walk::next() {
  if (seed_ && shuffled_ != pass) data_.shuffle(*seed_, static_cast<uint64_t>(shuffled_ = pass));
  const int64_t count = std::min(sizes_[0], end_ - sample);
  const int64_t own = count / ranks_;
  batch_ = data_.batch(sample + rank_ * own, own);
  sample += count;
  std::vector<gg_array> made;
  for (const Tensor& array : batch_) {
    made.push_back({array.dtype->name.data(), static_cast<int>(array.shape.size()), array.shape.data(),
                    const_cast<std::byte*>(array.data)});
  }
  return made;
}

}  // namespace gg
