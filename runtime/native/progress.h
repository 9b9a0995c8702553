// How far a training is: counts of updates, rates and settings, generators of random numbers, an open window.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "artefact.h"
#include "json.h"
#include "tape.h"

namespace gg {

// Seed and number of the next draw of a device.
struct Generator {
  uint64_t seed = 0, offset = 0;
};

// What `accumulate` has added up since the last `apply`: the sums themselves are arrays.
struct Window {
  int64_t batches = 0;
  double samples = 0;
  std::vector<std::string> names;  // parameters that take part, in the order in which they first did
};

class Progress {
 public:
  explicit Progress(const Artefact& artefact);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Takes over what a checkpoint says. Throws an Error where that is of another training, or is no such thing.
  void read(const Json& about);
  // The same for a checkpoint; `loss_scale` is [scale, good steps], or null where the loss is not scaled.
  Json told(const Json& loss_scale) const;

  const Variables& variables() const { return variables_; }
  int64_t updates() const { return static_cast<int64_t>(variables_.at("num_update")); }
  double rescale() const { return *rescale_; }
  double learning_rate();
  void set_learning_rate(double rate);

  // Counts one update of the parameters with these counters, for so many samples; `take_back` makes it undone.
  void count(const std::vector<double*>& counters, double samples);
  void take_back();
  std::vector<double*> counters(const std::vector<int64_t>& indices);

  // Throws an Error where parameters of a group have other counts or multipliers: an entry computes one rate for all.
  void check_groups(const Entry& entry) const;

  Generator& generator(const std::string& type, int64_t number);

  Window window;
  int64_t skipped = 0;
  Json extra = Json::object();  // the user's

 private:
  void adopt(const Json& about);
  void change(double& cell, double value);
  Generator unused(int64_t device) const;
  double& cell(const std::string& name) { return variables_[name]; }

  const Artefact& artefact_;
  Json about_;
  Variables variables_;
  double *updates_, *before_, *rescale_;
  double begin_ = 0, scale_ = 1;
  bool caller_sets_rate_ = false;
  Tape rate_, carry_;
  std::vector<double*> carried_;  // where the values of `carry_` go
  std::map<std::pair<std::string, int64_t>, Generator> generators_;
  uint64_t first_seed_ = 0;
  std::vector<std::pair<double*, double>> before_change_;
};

}  // namespace gg
