// gg-run: trains an artefact on data from files. All that it knows of trainings is gluongraph.h.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "error.h"
#include "files.h"
#include "gluongraph.h"
#include "json.h"
#include "npy.h"
#include "options.h"
#include "ranks.h"
#include "tensorfile.h"
#include "walk.h"

namespace {

using gg::amount;
using gg::fail;
using gg::Json;
using gg::Tensor;
using gg::tensor_of;
using gg::Walk;
using Training = gg::Library;

constexpr const char* kPosition = "gg-run";  // where in a checkpoint's extra it stands how far the data has been read

void check(int failed, const Training& training) {
  if (failed) fail(gg_error(training.get()));
}

// Goes on in the data where a checkpoint says, if it is of this data.
void resume(Walk& walk, const Training& training) {
  const Json extra = Json::parse(gg_extra(training.get()), "extra");
  const Json* position = extra.find(kPosition);
  if (position == nullptr || position->at("samples").integer() != walk.samples()) return;
  const int64_t pass = position->at("pass").integer(), sample = position->at("sample").integer();
  if (pass < 0 || sample < 0) fail("the checkpoint says that sample ", sample, " of pass ", pass, " is next");
  walk.pass = pass;
  walk.sample = sample;
}

void note(const Walk& walk, const Training& training) {
  Json extra = Json::parse(gg_extra(training.get()), "extra");
  extra.set(kPosition, Json::object({{"pass", Json::integer(walk.pass)},
                                     {"sample", Json::integer(walk.sample)},
                                     {"samples", Json::integer(walk.samples())}}));
  check(gg_set_extra(training.get(), extra.dump().c_str()), training);
}

// What ranks must have in common to train together: how, and from which samples on.
std::string place_of(const gg::Options& options, const Walk& walk) {
  std::ostringstream text;
  text << "sample " << walk.sample << " of " << walk.samples() << ", pass " << walk.pass << ", --steps " << options.steps
       << " --passes " << options.passes << " --accumulate " << options.accumulate;
  if (options.shuffle) text << " --shuffle " << *options.shuffle;
  return text.str();
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
  std::printf("%s, %s, %s\n", amount(count, "parameter").c_str(), amount(weights, "element").c_str(),
              amount(gg_updates(training.get()), "update").c_str());
}

// Tells of a training: in lines for people, and in a file of a line of JSON for each update.
class Report {
 public:
  Report(const gg::Options& options, bool tells) : options_(options), tells_(tells) {}

  void updated(const Training& training, double loss, double seconds) {
    seconds_ += seconds;
    update_ = gg_updates(training.get()), loss_ = loss;
    ++steps;
    if (!options_.log.empty() && tells_) log();
    said_ = options_.every > 0 && steps % options_.every == 0;
    if (said_) say();
  }

  void end() {
    if (!said_) say();
    if (log_.is_open() && !log_.flush()) fail(options_.log, " cannot be written");
  }

  int64_t steps = 0;

 private:
  void say() const {
    if (!tells_) return;
    std::printf("update %lld  loss %.6g  %.1f steps/s\n", static_cast<long long>(update_), loss_,
                static_cast<double>(steps) / seconds_);
    std::fflush(stdout);
  }

  void log() {
    if (!log_.is_open()) log_.open(options_.log);  // not before the first update: what is refused writes nothing
    log_ << Json::object({{"update", Json::integer(update_)}, {"loss", Json::number(loss_)}}).dump() << '\n';
    if (!log_) fail(options_.log, " cannot be written");
  }

  const gg::Options& options_;
  const bool tells_;
  std::ofstream log_;
  int64_t update_ = 0;
  double loss_ = 0, seconds_ = 0;
  bool said_ = false;
};

// Updates by a batch each, or by so many as are accumulated; the last one by those that are left of the last pass.
void train(const gg::Options& options, const Training& training, Walk& walk) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const int64_t last_pass = options.passes > 0 ? walk.pass + options.passes : kNever;
  const auto learn = options.accumulate > 0 ? gg_accumulate : gg_step;
  const int64_t window = std::max<int64_t>(options.accumulate, 1);
  Report report(options, gg_rank(training.get()) == 0);  // what all ranks could tell, the first one does
  while ((options.passes > 0 || report.steps < options.steps) && walk.before(last_pass)) {
    double losses = 0, seconds = 0;
    const auto timed = [&](auto work) {
      const auto before = Clock::now();
      check(work(), training);
      seconds += std::chrono::duration<double>(Clock::now() - before).count();
    };
    int64_t batches = 0;
    for (; batches < window && walk.before(last_pass); ++batches) {
      const std::vector<gg_array> batch = walk.next();
      timed([&] { return learn(training.get(), batch.data(), static_cast<int>(batch.size())); });
      losses += gg_mean(training.get(), 0);
    }
    if (options.accumulate > 0) timed([&] { return gg_apply(training.get()); });
    double loss = losses / static_cast<double>(batches);
    check(gg_mean_over_ranks(training.get(), &loss), training);
    report.updated(training, loss, seconds);
  }
  report.end();
}

// Do all ranks have to evaluate, or predict, together? None of them has whole parameters then.
bool is_collective(const Training& training, const std::string& mode) {
  const char* name;
  int arrays;
  for (int e = 0; gg_entry(training.get(), e, &name, &arrays) == 0; ++e) {
    if (name == mode && gg_is_collective(training.get(), e)) return true;
  }
  return false;
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
  if (gg_rank(training.get()) != 0) return;
  std::printf("evaluated on %s: loss", amount(walk.sample, "sample").c_str());
  for (const double sum : sums) std::printf(" %.6g", sum / static_cast<double>(walk.sample));
  std::printf("\n");
}

// What the net makes of every sample, as one .npy file, or where it ends in .safetensors as out0, out1, ... in one.
void predict(const gg::Options& options, const Training& training, Walk& walk) {
  std::vector<Tensor> made;
  std::vector<std::string> elements;
  while (!walk.at_end()) {
    const std::vector<gg_array> batch = walk.next();
    check(gg_predict(training.get(), batch.data(), static_cast<int>(batch.size())), training);
    gg_array result;
    for (size_t i = 0; gg_result(training.get(), static_cast<int>(i), &result) == 0; ++i) {
      Tensor part = tensor_of(result);
      if (part.shape.empty()) fail("output ", i, " of the net has no axis of samples");
      elements.resize(std::max(elements.size(), i + 1));
      elements[i].append(reinterpret_cast<const char*>(part.data), part.bytes());
      if (i < made.size()) part.shape[0] += made[i].shape[0], made[i] = part;
      else made.push_back(part);
    }
  }
  if (gg_rank(training.get()) != 0) return;
  std::map<std::string, Tensor> named;
  for (size_t i = 0; i < made.size(); ++i) {
    made[i].data = reinterpret_cast<const std::byte*>(elements[i].data());
    if (made[i].bytes() != elements[i].size()) fail("output ", i, " of the net has other rows in other batches");
    named["out" + std::to_string(i)] = made[i];
  }
  if (options.writes_npy()) {
    if (made.size() != 1) fail("the net has ", made.size(), " outputs: name a file that ends in .safetensors");
    gg::write_file(options.output, {gg::npy_header(made[0]), elements[0]});
  } else {
    const gg::TensorPieces pieces = gg::tensor_pieces(named);
    std::vector<std::string_view> all{pieces.header};
    all.insert(all.end(), pieces.pieces.begin(), pieces.pieces.end());
    gg::write_file(options.output, all);
  }
  std::printf("predicted %s: %s\n", amount(walk.sample, "sample").c_str(), options.output.c_str());
}

int run(const gg::Options& options) {
  if (options.threads) gg_set_threads(*options.threads);  // else the environment may say
  const char* path = options.artefact.c_str();
  const Training training(options.key ? gg_load_signed(path, options.key->c_str()) : gg_load(path), gg_free);
  if (training == nullptr) fail(gg_error(nullptr));
  std::unique_ptr<Walk> walk, test, questions;
  const int rank = gg_rank(training.get()), ranks = gg_rank_count(training.get());
  const bool tells = rank == 0;
  const auto walk_of = [&](const char* mode, const std::string& files, int part = 0, int parts = 1) {
    return files.empty() ? nullptr : std::make_unique<Walk>(training, mode, files, options.drop_last, part, parts);
  };
  if (ranks == 1 && gg::launched_ranks() > 1 && !options.data.empty()) {
    fail(path, " trains in one process; the step of a Trainer with kvstore=\"dist_sync\", exported by two ranks or more, ",
         "trains on ", gg::launched_ranks());
  }
  walk = walk_of(options.accumulate > 0 ? "accumulate" : "step", options.data, rank, ranks);
  if (walk && options.shuffle) walk->shuffle(*options.shuffle);
  if (tells || is_collective(training, "evaluate")) test = walk_of("evaluate", options.evaluate);
  if (tells || is_collective(training, "predict")) questions = walk_of("predict", options.predict);
  if (!options.load.empty()) {
    check(gg_restore(training.get(), options.load.c_str()), training);
    if (*gg_warning(training.get())) std::fprintf(stderr, "gg-run: %s\n", gg_warning(training.get()));
    if (walk) resume(*walk, training);
  }
  if (options.rate) check(gg_set_learning_rate(training.get(), *options.rate), training);
  if (tells && !walk && !test && !questions && options.save.empty()) describe(training);
  if (walk) check(gg_agree(training.get(), place_of(options, *walk).c_str()), training);
  if (walk) train(options, training, *walk);
  if (test) evaluate(training, *test);
  if (questions) predict(options, training, *questions);
  if (!options.save.empty()) {
    if (walk) note(*walk, training);
    const char* place = gg_save(training.get(), options.save.c_str());
    check(place == nullptr, training);
    if (tells) std::printf("saved in %s\n", place);
  }
  check(gg_agree(training.get(), "the end"), training);  // no rank ends while others train, or write
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
    gg_abort();
    return 2;
  }
}
