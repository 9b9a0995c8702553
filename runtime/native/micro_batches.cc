// Steps whose bits do not depend on the number of ranks, as gluongraph/step/micro_batches.py has them.
#include <cstring>
#include <string>
#include <utility>

#include "elements.h"
#include "error.h"
#include "training.h"

namespace gg {
namespace {

constexpr const char *kGradient = "grad:", *kWindow = "window:";

// The types of so many micro-batches one after another.
std::vector<Tensor> longer(std::vector<Tensor> batch, int64_t times) {
  for (Tensor& array : batch) {
    if (!array.shape.empty()) array.shape[0] *= times;
  }
  return batch;
}

// A batch in so many equal parts.
std::vector<Batch> parts_of(const Batch& batch, int64_t count) {
  std::vector<Batch> parts(static_cast<size_t>(count), batch);
  for (size_t a = 0; a < batch.size(); ++a) {
    if (batch[a].shape.empty()) continue;
    if (batch[a].shape[0] % count != 0) {
      fail("array ", a, " has ", amount(batch[a].shape[0], "sample"), ", which are not ", count,
           " equal micro-batches of this rank");
    }
    const size_t bytes = batch[a].bytes() / parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i][a].shape[0] /= count;
      parts[i][a].data += bytes * i;
    }
  }
  return parts;
}

std::byte* writable(const Tensor& tensor) { return const_cast<std::byte*>(tensor.data); }

Memory copy_of(const Tensor& tensor) {
  Memory made(tensor.bytes());
  std::memcpy(made.data(), tensor.data, tensor.bytes());
  return made;
}

}  // namespace

// Sums of lists of arrays along a balanced binary tree, ((0+1)+(2+3))+...
class Training::Tree {
 public:
  explicit Tree(const std::vector<Tensor>& types) : types_(types) {}

  void add(std::vector<Memory> part) {
    size_t level = 0;
    for (; !stack_.empty() && stack_.back().first == level; ++level) {
      std::vector<Memory> left = std::move(stack_.back().second);
      stack_.pop_back();
      for (size_t i = 0; i < types_.size(); ++i) {
        add_elements(left[i].data(), part[i].data(), elements_of(types_[i].shape), *types_[i].dtype);
      }
      part = std::move(left);
    }
    stack_.emplace_back(level, std::move(part));
  }

  std::vector<Memory> total() { return std::move(stack_.back().second); }

 private:
  const std::vector<Tensor>& types_;
  std::vector<std::pair<size_t, std::vector<Memory>>> stack_;
};

// What a micro-batch makes that is added up: gradients, then states that it writes; and their sums.
struct Training::MicroSums {
  MicroSums(const Call& call, const Arrays& arrays) : gradients(call.entry.names.size()) {
    for (const std::string& name : call.entry.names) {
      const Tensor* gradient = call.output(kGradient + name);
      if (gradient == nullptr) fail(call.entry.id, " has no gradient of ", name);
      types.push_back(*gradient);
    }
    for (const std::string& name : call.entry.updates) types.push_back(arrays.state(name));
    for (size_t i = gradients; i < types.size(); ++i) before.push_back(copy_of(types[i]));
  }

  // Makes states what they were before the step.
  void put_back() const {
    for (size_t i = gradients; i < types.size(); ++i) {
      std::memcpy(writable(types[i]), before[i - gradients].data(), types[i].bytes());
    }
  }

  size_t gradients;
  std::vector<Tensor> types;
  std::vector<Memory> before, sums;
};

void Training::list_callables() {
  const bool parts = artefact.micro_batches > 0;
  for (const Entry& entry : artefact.entries) {
    if (parts && entry.mode == "apply") continue;
    const bool is_part = parts && entry.mode == "backward";
    callables_.push_back({is_part ? "step" : entry.mode, longer(entry.batch, is_part ? own_micro_batches() : 1),
                          is_part || !entry.collectives.empty()});
  }
}

// Runs this rank's micro-batches: what they make is added up, and their results are joined. Empty, or why not.
std::string Training::run_micro_batches(Call& found, const std::vector<Batch>& parts, const MicroSums& made, Tree& tree) {
  joined_bytes_.assign(found.results().size(), "");
  for (size_t number = 0; number < parts.size(); ++number) {
    addresses_.clear();
    for (const Tensor& array : parts[number]) addresses_.push_back(array.data);
    made.put_back();
    found.run_micro_batch(addresses_, static_cast<size_t>(rank()) * parts.size() + number);
    if (found.refused()) return "out of range, and nothing has changed: " + found.entry.checks;
    if (found.entry.guarded && found.output("anomaly:sound")->data[0] == std::byte{0}) {
      return "the step has made a NaN or an infinity, and has changed nothing";
    }
    std::vector<Memory> part;
    for (const Tensor& type : made.types) part.push_back(copy_of(type));
    tree.add(std::move(part));
    for (size_t i = 0; i < joined_bytes_.size(); ++i) {
      const Tensor& result = found.results()[i];
      joined_bytes_[i].append(reinterpret_cast<const char*>(result.data), result.bytes());
    }
  }
  return "";
}

// The sums over all micro-batches of all ranks.
void Training::sum_micro_batches(Call& found, const std::vector<Batch>& parts, MicroSums& made) {
  Tree tree(made.types);
  const std::string wrong = run_micro_batches(found, parts, made, tree);
  if (ranks_ != nullptr) ranks_->agree(found.program(), 0, !wrong.empty());  // throws where another rank cannot go on
  if (!wrong.empty()) fail(wrong);
  made.sums = tree.total();
  for (size_t i = 0; i < made.types.size() && ranks_ != nullptr; ++i) {
    ranks_->sum_along_tree(made.sums[i].data(), elements_of(made.types[i].shape), *made.types[i].dtype);
  }
}

// Writes the sums of gradients where `apply` takes them from, and the means of states; of whole numbers those of the last
// micro-batch stay.
void Training::take_sums(const Entry& entry, const MicroSums& made) {
  for (size_t i = 0; i < made.types.size(); ++i) {
    const Tensor sum{made.types[i].dtype, made.types[i].shape, made.sums[i].data()};
    const bool is_gradient = i < made.gradients;
    const Tensor& target = is_gradient ? arrays.state(kWindow + entry.names[i]) : made.types[i];
    if (target.shape != sum.shape) fail("the sum of gradients of ", entry.names[i], " has another shape");
    if (!is_float(*target.dtype)) continue;
    const double by = is_gradient ? 1.0 : static_cast<double>(artefact.micro_batches);  // a power of two
    for (size_t n = 0; n < elements_of(sum.shape); ++n) put_number(number_at(sum, n) / by, *target.dtype, writable(target), n);
  }
}

void Training::step_in_micro_batches(const Batch& batch) {
  const std::vector<Batch> parts = parts_of(batch, own_micro_batches());
  Call &found = call("backward", parts[0]), &apply = call("apply", {});
  if (apply.entry.names != found.entry.names) fail("apply: other parameters than those that there are gradients of");
  MicroSums made(found, arrays);
  bool advanced = false;
  try {
    sum_micro_batches(found, parts, made);
    take_sums(found.entry, made);
    found.advance();
    advanced = true;
    update(apply, {}, found.entry.samples * static_cast<double>(artefact.micro_batches));
  } catch (...) {
    made.put_back();
    if (advanced) found.undraw();
    throw;
  }
  joined_.clear();
  for (size_t i = 0; i < joined_bytes_.size(); ++i) {
    const Tensor& result = found.results()[i];
    Shape shape = result.shape.empty() ? Shape{1} : result.shape;
    shape[0] *= static_cast<int64_t>(parts.size());
    joined_.push_back({result.dtype, shape, reinterpret_cast<const std::byte*>(joined_bytes_[i].data())});
  }
  results_ = &joined_;
}

}  // namespace gg
