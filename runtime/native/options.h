// The command line of gg-run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gg {

struct Options {
  std::string artefact, data, evaluate, predict, output, load, save, log;
  int64_t steps = 0, passes = 0, accumulate = 0, every = 0;
  std::optional<uint64_t> shuffle;
  std::optional<double> rate;
  std::optional<int> threads;
  std::optional<std::string> key;
  bool drop_last = false, help = false;

  bool writes_npy() const;  // is `output` a .npy file?
};

extern const char* const kHelp;

Options options_of(int count, char** words);  // throws an Error that says what is wrong with them

}  // namespace gg
