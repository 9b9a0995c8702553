// Which cores this process has for its threads, as gluongraph/host/cores.py and process.py say it for Python.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gg {

// The logical cores that this thread may run on.
std::vector<int> affinity();

// One logical core of each physical one among these: two of the same share its vector units.
std::vector<int> cores(const std::vector<int>& mine, const std::string& root = "/");

// How many cores' time the process may use, by the tightest of its control groups; none for no limit.
std::optional<double> quota(const std::string& root = "/");

// As many threads as physical cores, but no more than the quota has time for.
int within(const std::vector<int>& cores, std::optional<double> quota);

// Threads of a parallel kernel: GG_THREADS, TVM_NUM_THREADS, OMP_NUM_THREADS, else as many as that.
int threads(const std::vector<int>& cores, std::optional<double> quota);

}  // namespace gg
