// A training's batches from the files of a dataset, in the sizes that its artefact has entries for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataset.h"
#include "gluongraph.h"
#include "tensor.h"

namespace gg {

using Library = std::unique_ptr<gg_training, decltype(&gg_free)>;

Tensor tensor_of(const gg_array& array);

// Walks over a dataset pass after pass; where there is a seed to shuffle by, each has an order of its own.
class Walk {
 public:
  // Throws an Error where the files are not what the entries of `mode` take, or leave a batch that none of them takes.
  // A batch is that of all ranks together, of so many samples for each; the rank with this number takes its part.
  Walk(const Library& training, const std::string& mode, const std::string& files, bool drop_last, int rank, int ranks);

  void shuffle(uint64_t seed) { seed_ = seed; }
  bool at_end() const { return sample >= end_; }  // of a pass
  bool before(int64_t last_pass);                 // is there a batch left? Begins the next pass at the end of one
  std::vector<gg_array> next();                   // its arrays are there until the next one

  int64_t samples() const { return data_.samples(); }
  int64_t sample = 0, pass = 0;

 private:
  std::vector<std::vector<Tensor>> types_;  // of batches, by entry
  Dataset data_;
  std::vector<int64_t> sizes_;
  std::vector<Tensor> batch_;
  std::optional<uint64_t> seed_;
  int64_t end_ = 0, shuffled_ = -1, rank_, ranks_;
};

}  // namespace gg
