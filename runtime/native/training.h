// A training that goes on from an artefact: what gluongraph's TrainStep does, without Python.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "artefact.h"
#include "call.h"
#include "files.h"
#include "progress.h"
#include "ranks.h"

namespace gg {

using Batch = std::vector<Tensor>;

class Training {
 public:
  explicit Training(const std::string& path, const std::vector<PublicKey>& keys = {});

  const Artefact artefact;

 private:
  Ranks* const ranks_;

 public:
  Arrays arrays{artefact, ranks_};
  Progress progress{artefact};

  // What can be called: a mode, and the types of a batch. A step in micro-batches is one of as many as this rank has.
  struct Callable {
    std::string mode;
    std::vector<Tensor> batch;
    bool is_collective;  // do all ranks call it together?
  };
  const std::vector<Callable>& callables() const { return callables_; }

  // Forward, backward and update by a batch; results() then has the loss. An Error leaves everything as it was.
  void step(const Batch& batch);
  // The same in two: gradients of several batches are added up, and then are one update.
  void accumulate(const Batch& batch);
  void apply();
  // The loss, or the net's output, in prediction mode; nothing changes.
  void evaluate(const Batch& batch) { run(call("evaluate", batch), batch); }
  void predict(const Batch& batch) { run(call("predict", batch), batch); }

  // The processes that train together, as ranks of MPI; one of an artefact that is for one process.
  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int rank_count() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  void agree(const std::string& text) const;  // waits for all ranks; throws an Error where they give other texts
  double mean_over_ranks(double value) const;

  const std::vector<Tensor>& results() const { return *results_; }
  double mean(size_t result) const;  // NaN where there is no such result, or it is of no floats
  double grad_norm() const { return grad_norm_; }  // of the last update, before clipping; NaN where it is not computed

  // A checkpoint in a run's folder: its path. All ranks save together, and the first one writes; an Error is one of all.
  // And back: "", or a warning where newer ones were damaged.
  std::string save(const std::string& run) const;
  std::string load(const std::string& folder);

 private:
  Call& call(const std::string& mode, const Batch& batch);
  bool run(Call& call, const Batch& batch);
  void update(Call& call, const Batch& batch, double samples);
  void list_callables();
  void step_in_micro_batches(const Batch& batch);
  class Tree;
  struct MicroSums;
  std::string run_micro_batches(Call& found, const std::vector<Batch>& parts, const MicroSums& made, Tree& tree);
  void sum_micro_batches(Call& found, const std::vector<Batch>& parts, MicroSums& made);
  void take_sums(const Entry& entry, const MicroSums& made);
  int64_t own_micro_batches() const { return artefact.micro_batches / rank_count(); }
  Json told() const;
  std::string save_together(const std::string& run, const std::vector<std::string>& window) const;

  Memory scratch_;
  std::map<const Entry*, std::unique_ptr<Call>> calls_;
  const std::vector<Tensor> none_;
  const std::vector<Tensor>* results_ = &none_;
  double grad_norm_ = NAN;
  std::vector<Callable> callables_;
  std::vector<Tensor> joined_;  // the results of all micro-batches of a step, which lie in these texts
  std::vector<std::string> joined_bytes_;
  std::vector<const void*> addresses_;
};

}  // namespace gg
