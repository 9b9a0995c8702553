// gg-run: trains an artefact on data from files. All that it knows of trainings is gluongraph.h.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "dataset.h"
#include "error.h"
#include "gluongraph.h"
#include "json.h"
#include "options.h"

namespace {

using gg::Dataset;
using gg::fail;
using gg::Json;
using gg::Tensor;
using Training = std::unique_ptr<gg_training, decltype(&gg_free)>;

constexpr const char* kPosition = "gg-run";  // where in a checkpoint's extra it stands how far the data has been read

void check(int failed, const Training& training) {
  if (failed) fail(gg_error(training.get()));
}

Tensor tensor_of(const gg_array& array) {
  return {&gg::dtype_of(array.dtype), {array.shape, array.shape + array.rank},
          static_cast<const std::byte*>(array.data)};
}

// The types of the batches that a mode takes.
std::vector<std::vector<Tensor>> batches_of(const Training& training, const std::string& wanted) {
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

// Walks over a dataset in batches of the sizes that there are entries for, pass after pass.
class Walk {
 public:
  Walk(const Training& training, const std::string& mode, const std::string& files, bool drop_last)
      : types_(batches_of(training, mode)), data(files, first_of(types_, mode)) {
    for (const auto& batch : types_) sizes_.push_back(batch.at(0).shape.at(0));
    std::sort(sizes_.rbegin(), sizes_.rend());
    const int64_t last = data.samples() % sizes_[0];
    const bool served = last == 0 || std::find(sizes_.begin(), sizes_.end(), last) != sizes_.end();
    if (!served && !(drop_last && data.samples() > last)) {
      fail(files, " has ", data.samples(), " samples, which leave a batch of ", last, " after those of ", sizes_[0],
           "; export with batch_sizes=[", sizes_[0], ", ", last, "], or say --drop-last");
    }
    end_ = served ? data.samples() : data.samples() - last;
  }

  bool at_end() const { return sample >= end_; }

  // The next batch of this pass.
  std::vector<gg_array> next() {
    const int64_t count = std::min(sizes_[0], end_ - sample);
    batch_ = data.batch(sample, count);
    sample += count;
    std::vector<gg_array> made;
    for (const Tensor& array : batch_) {
      made.push_back({array.dtype->name.data(), static_cast<int>(array.shape.size()), array.shape.data(),
                      const_cast<std::byte*>(array.data)});
    }
    return made;
  }

 private:
  static const std::vector<Tensor>& first_of(const std::vector<std::vector<Tensor>>& types, const std::string& mode) {
    if (types.empty()) fail("the artefact has no entry '", mode, "'");
    for (const Tensor& array : types[0]) {
      if (array.shape.empty()) fail(mode, " takes ", array.type(), ", which has no axis of samples");
    }
    return types[0];
  }

  std::vector<std::vector<Tensor>> types_;
  std::vector<int64_t> sizes_;
  std::vector<Tensor> batch_;
  int64_t end_ = 0;

 public:
  Dataset data;
  int64_t sample = 0, pass = 0;
};

// Goes on in the data where a checkpoint says, if it is of this data.
void resume(Walk& walk, const Training& training) {
  const Json extra = Json::parse(gg_extra(training.get()), "extra");
  const Json* position = extra.find(kPosition);
  if (position == nullptr || position->at("samples").integer() != walk.data.samples()) return;
  walk.pass = position->at("pass").integer();
  walk.sample = position->at("sample").integer();
}

void note(const Walk& walk, const Training& training) {
  Json extra = Json::parse(gg_extra(training.get()), "extra");
  extra.set(kPosition, Json::object({{"pass", Json::integer(walk.pass)},
                                     {"sample", Json::integer(walk.sample)},
                                     {"samples", Json::integer(walk.data.samples())}}));
  check(gg_set_extra(training.get(), extra.dump().c_str()), training);
}

void describe(const Training& training) {
  const char* mode;
  int arrays;
  for (int e = 0; gg_entry(training.get(), e, &mode, &arrays) == 0; ++e) {
    std::printf("%-12s", mode);
    gg_array type;
    for (int a = 0; gg_batch(training.get(), e, a, &type) == 0; ++a) std::printf("  %s", tensor_of(type).type().c_str());
    std::printf("\n");
  }
  const char* name;
  gg_array value;
  size_t count = 0, weights = 0;
  for (int p = 0; gg_parameter(training.get(), p, &name, &value) == 0; ++p) {
    ++count;
    weights += gg::elements_of(tensor_of(value).shape);
  }
  std::printf("%zu parameters, %zu elements, %lld updates\n", count, weights,
              static_cast<long long>(gg_updates(training.get())));
}

void train(const gg::Options& options, const Training& training, Walk& walk) {
  using Clock = std::chrono::steady_clock;
  std::ofstream log;
  if (!options.log.empty()) {
    log.open(options.log);
    if (!log) fail(options.log, " cannot be written");
  }
  const int64_t last_pass = walk.pass + options.passes;
  int64_t steps = 0;
  Clock::duration inside{};
  const auto say = [&] {
    std::printf("update %lld  loss %.6g  %.1f steps/s\n", static_cast<long long>(gg_updates(training.get())),
                gg_mean(training.get(), 0), static_cast<double>(steps) / std::chrono::duration<double>(inside).count());
    std::fflush(stdout);
  };
  bool said = true;
  for (bool begun = false; options.passes > 0 || steps < options.steps;) {
    if (walk.at_end()) ++walk.pass, walk.sample = 0, begun = false;
    if (options.passes > 0 && walk.pass >= last_pass) break;
    if (!begun && options.shuffle) walk.data.shuffle(*options.shuffle, static_cast<uint64_t>(walk.pass));
    begun = true;
    const std::vector<gg_array> batch = walk.next();
    const auto before = Clock::now();
    check(gg_step(training.get(), batch.data(), static_cast<int>(batch.size())), training);
    inside += Clock::now() - before;
    ++steps;
    if (log.is_open()) {
      log << Json::object({{"update", Json::integer(gg_updates(training.get()))},
                           {"loss", Json::number(gg_mean(training.get(), 0))}})
                 .dump()
          << '\n';
    }
    said = options.every > 0 && steps % options.every == 0;
    if (said) say();
  }
  if (!said || options.every == 0) say();
  if (log.is_open() && !log.flush()) fail(options.log, " cannot be written");
}

void evaluate(const Training& training, Walk& walk) {
  std::vector<double> sums;
  while (!walk.at_end()) {
    const int64_t before = walk.sample;
    const std::vector<gg_array> batch = walk.next();
    check(gg_evaluate(training.get(), batch.data(), static_cast<int>(batch.size())), training);
    gg_array result;
    for (int i = 0; gg_result(training.get(), i, &result) == 0; ++i) {
      sums.resize(std::max(sums.size(), static_cast<size_t>(i) + 1));
      sums[static_cast<size_t>(i)] += gg_mean(training.get(), i) * static_cast<double>(walk.sample - before);
    }
  }
  std::printf("evaluated on %lld samples: loss", static_cast<long long>(walk.sample));
  for (const double sum : sums) std::printf(" %.6g", sum / static_cast<double>(walk.sample));
  std::printf("\n");
}

int run(const gg::Options& options) {
  if (options.threads) gg_set_threads(*options.threads);  // else TVM_NUM_THREADS may say
  const Training training(gg_load(options.artefact.c_str()), gg_free);
  if (training == nullptr) fail(gg_error(nullptr));
  std::unique_ptr<Walk> walk, test;
  if (!options.data.empty()) walk = std::make_unique<Walk>(training, "step", options.data, options.drop_last);
  if (!options.evaluate.empty()) {
    test = std::make_unique<Walk>(training, "evaluate", options.evaluate, options.drop_last);
  }
  if (!options.load.empty()) {
    check(gg_restore(training.get(), options.load.c_str()), training);
    if (*gg_warning(training.get())) std::fprintf(stderr, "gg-run: %s\n", gg_warning(training.get()));
    if (walk) resume(*walk, training);
  }
  if (options.rate) check(gg_set_learning_rate(training.get(), *options.rate), training);
  if (!walk && !test && options.save.empty()) describe(training);
  if (walk) train(options, training, *walk);
  if (test) evaluate(training, *test);
  if (!options.save.empty()) {
    if (walk) note(*walk, training);
    const char* place = gg_save(training.get(), options.save.c_str());
    check(place == nullptr, training);
    std::printf("saved in %s\n", place);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    const gg::Options options = gg::options_of(count, words);
    if (options.help) {
      std::fputs(gg::kHelp, stdout);
      return 0;
    }
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gg-run: %s\n", error.what());
    return 2;
  }
}
