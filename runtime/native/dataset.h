// The samples of a training, from files: arrays whose first axis counts samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "files.h"
#include "tensor.h"

namespace gg {

class Dataset {
 public:
  // "x.npy,y.npy", an array a file; or "file.safetensors" with the arrays data0, data1, ... or x, y. Each becomes an
  // array of the batch with the type of the same place in `batch`; float64 is rounded to float32 where that is wanted.
  Dataset(const std::string& files, const std::vector<Tensor>& batch);

  int64_t samples() const { return samples_; }

  // Samples from `first` on, `count` of them, in the order of the files or in a shuffled one. The memory stays as it is
  // until the next call.
  std::vector<Tensor> batch(int64_t first, int64_t count);

  // From now on the order of a pass: a permutation that follows from the seed and the number of the pass alone.
  void shuffle(uint64_t seed, uint64_t pass);

 private:
  void add(const Tensor& array, const Tensor& type, const std::string& name);

  std::vector<std::unique_ptr<Mapping>> files_;
  std::vector<Tensor> arrays_;
  std::vector<size_t> row_bytes_;
  std::vector<Memory> converted_, gathered_;
  std::vector<int64_t> order_;  // empty: that of the files
  int64_t samples_ = 0;
};

}  // namespace gg
