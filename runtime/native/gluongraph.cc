#include "gluongraph.h"

#include <cmath>
#include <exception>
#include <string>

#include "code.h"
#include "error.h"
#include "keys.h"
#include "training.h"

struct gg_training {
  explicit gg_training(const char* path, const std::vector<gg::PublicKey>& keys = {}) : training(path, keys) {}

  gg::Training training;
  std::string error, warning, answer;
};

namespace {

using gg::Batch;
using gg::Tensor;

thread_local std::string load_error;

// Runs some work; what it throws becomes the error of the training.
template <class Work>
int attempt(gg_training* training, Work work) {
  try {
    training->error.clear();
    work();
    return 0;
  } catch (const std::exception& error) {
    training->error = error.what();
    return 1;
  }
}

// What some work makes; where it throws, that becomes the error of this thread's last load.
template <class Work>
gg_training* made(Work work) {
  try {
    load_error.clear();
    return work();
  } catch (const std::exception& error) {
    load_error = error.what();
    return nullptr;
  }
}

Batch batch_of(const gg_array* arrays, int count) {
  Batch made;
  for (int i = 0; i < count; ++i) {
    const gg_array& given = arrays[i];
    if (given.dtype == nullptr || given.data == nullptr || given.rank < 0 || (given.rank > 0 && !given.shape)) {
      gg::fail("array ", i, " of the batch is not filled in");
    }
    made.push_back({&gg::dtype_of(given.dtype), {given.shape, given.shape + given.rank},
                    static_cast<const std::byte*>(given.data)});
  }
  return made;
}

gg_array array_of(const Tensor& tensor) {
  return {tensor.dtype->name.data(), static_cast<int>(tensor.shape.size()), tensor.shape.data(),
          const_cast<std::byte*>(tensor.data)};
}

}  // namespace

gg_training* gg_load(const char* path) {
  return made([&] { return new gg_training(path); });
}

gg_training* gg_load_signed(const char* path, const char* keys) {
  return made([&] { return new gg_training(path, gg::read_keys(keys)); });
}

void gg_free(gg_training* training) { delete training; }

const char* gg_error(const gg_training* training) {
  return training == nullptr ? load_error.c_str() : training->error.c_str();
}

void gg_set_threads(int count) { gg::set_threads(count); }

int gg_step(gg_training* training, const gg_array* batch, int arrays) {
  return attempt(training, [&] { training->training.step(batch_of(batch, arrays)); });
}

int gg_accumulate(gg_training* training, const gg_array* batch, int arrays) {
  return attempt(training, [&] { training->training.accumulate(batch_of(batch, arrays)); });
}

int gg_apply(gg_training* training) {
  return attempt(training, [&] { training->training.apply(); });
}

int gg_evaluate(gg_training* training, const gg_array* batch, int arrays) {
  return attempt(training, [&] { training->training.evaluate(batch_of(batch, arrays)); });
}

int gg_predict(gg_training* training, const gg_array* inputs, int arrays) {
  return attempt(training, [&] { training->training.predict(batch_of(inputs, arrays)); });
}

int gg_result(const gg_training* training, int index, gg_array* result) {
  const auto& results = training->training.results();
  if (index < 0 || static_cast<size_t>(index) >= results.size()) return 1;
  *result = array_of(results[static_cast<size_t>(index)]);
  return 0;
}

double gg_mean(const gg_training* training, int index) {
  return index < 0 ? NAN : training->training.mean(static_cast<size_t>(index));
}

const char* gg_save(gg_training* training, const char* run) {
  const int failed = attempt(training, [&] { training->answer = training->training.save(run); });
  return failed ? nullptr : training->answer.c_str();
}

int gg_restore(gg_training* training, const char* folder) {
  return attempt(training, [&] { training->warning = training->training.load(folder); });
}

const char* gg_warning(const gg_training* training) { return training->warning.c_str(); }

int gg_set_extra(gg_training* training, const char* json) {
  return attempt(training, [&] {
    gg::Json extra = gg::Json::parse(json, "extra");
    extra.members();  // throws where it is no object
    training->training.progress.extra = std::move(extra);
  });
}

const char* gg_extra(gg_training* training) {
  training->answer = training->training.progress.extra.dump();
  return training->answer.c_str();
}

double gg_learning_rate(gg_training* training) {
  double rate = NAN;
  attempt(training, [&] { rate = training->training.progress.learning_rate(); });
  return rate;
}

int gg_set_learning_rate(gg_training* training, double rate) {
  return attempt(training, [&] { training->training.progress.set_learning_rate(rate); });
}

int gg_agree(gg_training* training, const char* text) {
  return attempt(training, [&] { training->training.agree(text); });
}

int gg_mean_over_ranks(gg_training* training, double* value) {
  return attempt(training, [&] { *value = training->training.mean_over_ranks(*value); });
}

void gg_abort(void) { gg::Ranks::abort(); }

int gg_rank(const gg_training* training) { return training->training.rank(); }

int gg_rank_count(const gg_training* training) { return training->training.rank_count(); }

int64_t gg_updates(const gg_training* training) { return training->training.progress.updates(); }

int64_t gg_skipped(const gg_training* training) { return training->training.progress.skipped; }

double gg_grad_norm(const gg_training* training) { return training->training.grad_norm(); }

int gg_entry(const gg_training* training, int entry, const char** mode, int* arrays) {
  const auto& callables = training->training.callables();
  if (entry < 0 || static_cast<size_t>(entry) >= callables.size()) return 1;
  const auto& found = callables[static_cast<size_t>(entry)];
  *mode = found.mode.c_str();
  *arrays = static_cast<int>(found.batch.size());
  return 0;
}

int gg_is_collective(const gg_training* training, int entry) {
  const auto& callables = training->training.callables();
  return entry >= 0 && static_cast<size_t>(entry) < callables.size() && callables[static_cast<size_t>(entry)].is_collective;
}

int gg_batch(const gg_training* training, int entry, int array, gg_array* type) {
  const auto& callables = training->training.callables();
  if (entry < 0 || static_cast<size_t>(entry) >= callables.size()) return 1;
  const auto& batch = callables[static_cast<size_t>(entry)].batch;
  if (array < 0 || static_cast<size_t>(array) >= batch.size()) return 1;
  *type = array_of(batch[static_cast<size_t>(array)]);
  return 0;
}

int gg_parameter(const gg_training* training, int index, const char** name, gg_array* value) {
  const auto& parameters = training->training.artefact.parameters;
  if (index < 0 || static_cast<size_t>(index) >= parameters.size()) return 1;
  const gg::Parameter& found = parameters[static_cast<size_t>(index)];
  *name = found.key.c_str();
  *value = array_of(training->training.arrays.parameter(found.key));
  return 0;
}
