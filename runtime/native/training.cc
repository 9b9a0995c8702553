#include "training.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint.h"
#include "checkpoint_ranks.h"
#include "elements.h"
#include "error.h"
#include "sha256.h"

namespace gg {
namespace {

std::string types_of(const Batch& batch) {
  std::string text;
  for (const Tensor& array : batch) text += (text.empty() ? "" : ", ") + array.type();
  return text.empty() ? "nothing" : text;
}

bool fits(const Entry& entry, const std::string& mode, const Batch& batch) {
  return entry.mode == mode && entry.batch.size() == batch.size() &&
         std::equal(batch.begin(), batch.end(), entry.batch.begin(),
                    [](const Tensor& a, const Tensor& b) { return a.dtype == b.dtype && a.shape == b.shape; });
}

// Connects this process to the others; nullptr where the artefact is for one.
Ranks* ranks_of(const Artefact& artefact) {
  if (artefact.ranks == 0) return nullptr;
  Ranks& ranks = Ranks::get();
  if (artefact.for_these_ranks && ranks.size() != artefact.ranks) {
    fail(artefact.path, " is compiled for ", artefact.ranks, " ranks, and there are ", ranks.size(), ": start ",
         artefact.ranks, ", or export the step on ", ranks.size());
  }
  const auto sums = [](const Entry& entry) { return entry.mode == "step" || entry.mode == "apply"; };
  const auto& entries = artefact.entries;
  if (artefact.micro_batches > 0) {
    if ((ranks.size() & (ranks.size() - 1)) != 0 || artefact.micro_batches % ranks.size() != 0) {
      fail(artefact.path, " computes in ", artefact.micro_batches, " micro-batches, which ", ranks.size(),
           " ranks cannot share: start 1, 2, 4, ... up to ", artefact.micro_batches);
    }
  } else if (artefact.ranks == 1 && ranks.size() > 1 && std::any_of(entries.begin(), entries.end(), sums)) {
    fail(artefact.path, " was exported by one rank, and its code has no sum over ", ranks.size(),
         ": what two or more ranks export runs on any number");
  }
  return &ranks;
}

constexpr const char *kFinite = "amp:finite", *kSound = "anomaly:sound", *kNorm = "grad_norm";

}  // namespace

Training::Training(const std::string& path, const std::vector<PublicKey>& keys)
    : artefact(path, keys), ranks_(ranks_of(artefact)) {
  size_t scratch = 0;
  for (const Entry& entry : artefact.entries) scratch = std::max(scratch, entry.scratch_bytes);
  scratch_ = Memory(scratch);
  list_callables();
}

Call& Training::call(const std::string& mode, const Batch& batch) {
  std::string known;
  for (const Entry& entry : artefact.entries) {
    if (fits(entry, mode, batch)) {
      std::unique_ptr<Call>& made = calls_[&entry];
      if (made == nullptr) made = std::make_unique<Call>(entry, arrays, progress, scratch_, artefact.ranks);
      return *made;
    }
    if (entry.mode == mode) known += (known.empty() ? "" : "; or ") + types_of(entry.batch);
  }
  if (known.empty()) fail(artefact.path, " has no entry '", mode, "'");
  fail(mode, " of ", types_of(batch), ": the artefact takes ", known);
}

// Runs a call; was the batch one to learn from? One with a gradient that is not finite changes the scale of the loss only.
bool Training::run(Call& call, const Batch& batch) {
  addresses_.clear();
  for (const Tensor& array : batch) addresses_.push_back(array.data);
  call.run(addresses_);
  results_ = &call.results();
  if (call.refused()) {
    call.undraw();
    fail("out of range, and nothing has changed: ", call.entry.checks);
  }
  const auto holds = [&](const char* flag) { return call.output(flag)->data[0] != std::byte{0}; };
  if (call.entry.guarded && !holds(kSound)) {
    call.undraw();
    fail("the step has made a NaN or an infinity, and has changed nothing");
  }
  if (!call.entry.masked || holds(kFinite)) return true;
  call.undraw();
  ++progress.skipped;
  return false;
}

void Training::update(Call& call, const Batch& batch, double samples) {
  progress.count(call.counters, samples);
  const double scale = progress.rescale();
  bool counts = false;
  try {
    call.write_scalars();
    counts = run(call, batch);
  } catch (...) {
    progress.take_back();
    throw;
  }
  if (const Tensor* norm = call.output(kNorm)) grad_norm_ = number_at(*norm, 0) * scale;
  if (!counts) progress.take_back();
}

void Training::step(const Batch& batch) {
  if (artefact.micro_batches > 0) return step_in_micro_batches(batch);
  Call& found = call("step", batch);
  update(found, batch, found.entry.samples * rank_count());
}

void Training::accumulate(const Batch& batch) {
  Call& found = call("accumulate", batch);
  Window& window = progress.window;
  const bool counts = run(found, batch);
  ++window.batches;
  if (!counts) return;
  window.samples += found.entry.samples * rank_count();
  for (const std::string& name : found.entry.names) {
    if (std::find(window.names.begin(), window.names.end(), name) == window.names.end()) window.names.push_back(name);
  }
}

void Training::apply() {
  Window& window = progress.window;
  if (window.batches == 0) fail("apply: nothing has been accumulated");
  if (!window.names.empty()) {
    Call& found = call("apply", {});
    if (found.entry.names != window.names) fail("apply: other parameters have been accumulated than the artefact updates");
    update(found, {}, window.samples);
  }
  window = Window();
}

void Training::agree(const std::string& text) const {
  if (ranks_ == nullptr || ranks_->size() == 1) return;
  const uint64_t digest = std::stoull(sha256(text).substr(0, 16), nullptr, 16);
  try {
    ranks_->agree(digest, 0, false);
  } catch (const Error&) {
    fail("not all ranks say the same: rank ", ranks_->rank(), " is at '", text, "'");
  }
}

double Training::mean_over_ranks(double value) const {
  if (rank_count() == 1) return value;
  ranks_->sum(&value, 1, dtype_of("f64"));
  return value / rank_count();
}

double Training::mean(size_t result) const {
  if (result >= results_->size()) return std::numeric_limits<double>::quiet_NaN();
  const Tensor& tensor = (*results_)[result];
  const size_t count = elements_of(tensor.shape);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += number_at(tensor, i);
  return sum / static_cast<double>(count);
}

std::string Training::save(const std::string& run) const {
  std::vector<std::string> window;
  for (const Parameter& parameter : artefact.parameters) {
    const std::vector<std::string>& names = progress.window.names;
    if (std::find(names.begin(), names.end(), parameter.name) != names.end()) window.push_back(parameter.key);
  }
  if (rank_count() > 1) return save_together(run, window);
  std::vector<Memory> memory;
  return save_checkpoint(run, progress.updates(), arrays.saved(window, memory), told(), artefact.writer);
}

// What a checkpoint tells beside its arrays.
Json Training::told() const {
  Json about = progress.told(arrays.loss_scale());
  Json* residuals = about.find("parts")->find("residuals");
  if (residuals != nullptr && rank_count() > 1) *residuals = Json::object({{"rank", Json::integer(rank())}});
  return about;
}

std::string Training::save_together(const std::string& run, const std::vector<std::string>& window) const {
  agree("saving after " + std::to_string(progress.updates()) + " updates");
  std::vector<std::string> statistics;
  for (const Parameter& parameter : artefact.parameters) {
    if (!parameter.trained) statistics.push_back(parameter.key);
  }
  std::vector<Memory> memory;
  const Gathered whole = gather(arrays.saved(window, memory), told(), statistics, *ranks_);
  std::string place, error;
  if (rank() == 0) {
    try {
      place = save_checkpoint(run, progress.updates(), whole.groups, whole.about, artefact.writer);
    } catch (const Error& wrong) {
      error = wrong.what();
    }
  }
  place = ranks_->exchange(place)[0];
  const std::string first = ranks_->exchange(error)[0];
  if (first.empty()) return place;
  ranks_->note_common_error();
  fail(rank() == 0 ? "" : "rank 0: ", first);
}

std::string Training::load(const std::string& folder) {
  std::vector<std::string> damaged;
  Checkpoint found = load_checkpoint(folder, damaged);
  try {
    take_part(found, rank(), rank_count());
    const Json& told = found.about.at("parts").at("progress");
    Progress trial(artefact);
    trial.read(found.about);  // so that nothing is changed where this does not fit
    for (const Entry& entry : artefact.entries) trial.check_groups(entry);
    arrays.read(found.groups, told.at("loss_scale"));
    progress.read(found.about);
  } catch (const Error& error) {
    fail(found.path, " does not fit: ", error.what());
  }
  std::string warning;
  for (const std::string& each : damaged) warning += (warning.empty() ? "" : "; ") + each;
  return warning.empty() ? warning : warning + "; " + found.path + " is loaded instead";
}

}  // namespace gg
