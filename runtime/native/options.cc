#include "options.h"

#include <charconv>
#include <filesystem>
#include <functional>
#include <map>

#include "error.h"

namespace gg {

const char* const kHelp =
    "gg-run ARTEFACT: what it holds\n"
    "gg-run ARTEFACT --data FILES --steps N: train\n"
    "\n"
    "FILES are x.npy,y.npy, an array of a batch each, or one .safetensors file with the arrays x, y or data0, data1, ...\n"
    "Samples lie along the first axis.\n"
    "\n"
    "  --data FILES       what to train on, in the order of the files\n"
    "  --steps N          updates to make; --passes N: passes over the data\n"
    "  --accumulate N     an update for every N batches, by the sum of their gradients\n"
    "  --shuffle SEED     another order in each pass\n"
    "  --drop-last        leave out a last batch for which there is no entry\n"
    "  --lr RATE          the learning rate, where no schedule decides\n"
    "  --evaluate FILES   in the end, or without --data at once: the loss in prediction mode\n"
    "  --predict FILES    in the end, or without --data at once: what the net makes of these inputs, written to\n"
    "  --output FILE      a new file: .npy, or .safetensors with out0, out1, ...\n"
    "  --load DIR         go on from a checkpoint, or from the newest of a run's folder; in the data too\n"
    "  --save DIR         write a checkpoint in the end, from which Python goes on as well\n"
    "  --print N          say the loss every N steps\n"
    "  --log FILE         write the loss of each step, a line of JSON each\n"
    "  --threads N        of parallel kernels; 0: one for each physical core that this process may use. Without it\n"
    "                     GG_THREADS, TVM_NUM_THREADS or OMP_NUM_THREADS may say, else it is as with 0\n"
    "  --key FILE         refuse an artefact that none of the public keys in this file has signed\n"
    "\n"
    "mpiexec -n N gg-run ARTEFACT --data ... trains on N ranks, if ranks have exported it: each takes an equal part of a\n"
    "batch, which has N times as many samples. The first one evaluates, predicts, prints and writes.\n"
    "\n"
    "An artefact is a program, and digests do not tell who made it: with --key its signature is verified before any of\n"
    "its code is loaded. `gluongraph key show` prints the public key of who exports; without --key run what you trust.\n"
    "\n"
    "Exit codes: 0 fine, 2 refused, in one sentence; nothing has been written then.\n";

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

template <class Number>
Number number_of(const std::string& name, const std::string& text, Number least) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || value < least) fail(name, " takes a number, not '", text, "'");
  return value;
}

}  // namespace

bool Options::writes_npy() const { return ends_with(output, ".npy"); }

Options options_of(int count, char** words) {
  Options made;
  using Set = std::function<void(const std::string& name, const std::string& text)>;
  const auto into = [](std::string& text) { return [&text](const std::string&, const std::string& t) { text = t; }; };
  const auto number = [](int64_t& value) {
    return [&value](const std::string& name, const std::string& t) { value = number_of<int64_t>(name, t, 1); };
  };
  const std::map<std::string, Set> with_value = {
      {"--data", into(made.data)},     {"--evaluate", into(made.evaluate)}, {"--load", into(made.load)},
      {"--save", into(made.save)},     {"--log", into(made.log)},           {"--predict", into(made.predict)},
      {"--output", into(made.output)}, {"--steps", number(made.steps)},     {"--passes", number(made.passes)},
      {"--print", number(made.every)}, {"--accumulate", number(made.accumulate)},
      {"--shuffle", [&](const auto& name, const auto& t) { made.shuffle = number_of<uint64_t>(name, t, 0); }},
      {"--threads", [&](const auto& name, const auto& t) { made.threads = number_of<int>(name, t, 0); }},
      {"--key", [&](const auto&, const auto& t) { made.key = t; }},
      {"--lr", [&](const auto& name, const auto& t) { made.rate = number_of<double>(name, t, 0.0); }}};
  const std::map<std::string, bool*> flags = {
      {"--drop-last", &made.drop_last}, {"--help", &made.help}, {"-h", &made.help}};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (const auto flag = flags.find(word); flag != flags.end()) {
      *flag->second = true;
    } else if (const auto found = with_value.find(word); found != with_value.end()) {
      if (++i == count) fail(word, " wants a value behind it");
      found->second(word, words[i]);
    } else if (word.rfind("-", 0) == 0) {
      fail("there is no ", word, "; gg-run --help lists what there is");
    } else if (!made.artefact.empty()) {
      fail("one artefact at a time, not ", made.artefact, " and ", word);
    } else {
      made.artefact = word;
    }
  }
  if (made.help) return made;
  if (made.artefact.empty()) fail("which artefact? gg-run --help says more");
  if (made.data.empty() != (made.steps == 0 && made.passes == 0)) fail("training wants --data, and --steps or --passes");
  if (made.predict.empty() != made.output.empty()) fail("--predict wants an --output, and the other way round");
  if (made.output.empty()) return made;
  if (!made.writes_npy() && !ends_with(made.output, ".safetensors")) {
    fail(made.output, ": --output takes a file that ends in .npy or .safetensors");
  }
  if (std::filesystem::exists(made.output)) fail(made.output, " is there already");
  return made;
}

}  // namespace gg
