#include "cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

namespace gg {
namespace {

constexpr const char* kThreads[] = {"GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"};
constexpr int kMostCores = 1 << 16;

std::optional<long long> number(std::string_view text) {
  long long value = 0;
  const char* end = text.data() + text.size();
  const auto [at, wrong] = std::from_chars(text.data(), end, value);
  if (wrong != std::errc() || at != end) return std::nullopt;
  return value;
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  return parts;
}

std::vector<std::string> words(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> found;
  for (std::string word; file >> word;) found.push_back(word);
  return found;
}

// The logical cores of a core's physical one, or none where nothing is told: "0,4" or "0-1".
std::vector<int> siblings(int core, const std::string& root) {
  const auto text = words(root + "sys/devices/system/cpu/cpu" + std::to_string(core) + "/topology/thread_siblings_list");
  std::vector<int> found;
  if (text.empty()) return found;
  for (const std::string& part : split(text.front(), ',')) {
    const std::vector<std::string> ends = split(part, '-');
    const auto first = ends.empty() ? std::nullopt : number(ends.front());
    const auto last = ends.empty() ? std::nullopt : number(ends.back());
    if (!first || !last || *first < 0 || *last > kMostCores) return found;
    for (long long one = *first; one <= *last; ++one) found.push_back(static_cast<int>(one));
  }
  return found;
}

// Of one control group, version 2 or 1.
std::optional<double> limit(const std::string& folder) {
  const auto both = words(folder + "/cpu.max");
  if (both.size() == 2) {
    const auto time = number(both[0]), period = number(both[1]);
    if (!time || !period || *period <= 0) return std::nullopt;
    return static_cast<double>(*time) / static_cast<double>(*period);
  }
  const auto time = words(folder + "/cpu.cfs_quota_us"), period = words(folder + "/cpu.cfs_period_us");
  if (time.size() != 1 || period.size() != 1) return std::nullopt;
  const auto share = number(time[0]), whole = number(period[0]);
  if (!share || !whole || *share <= 0 || *whole <= 0) return std::nullopt;
  return static_cast<double>(*share) / static_cast<double>(*whole);
}

}  // namespace

std::vector<int> affinity() {
  // The kernel refuses a mask that is smaller than its own.
  for (int most = 1024; most <= kMostCores; most *= 2) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<size_t>(most));
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    std::vector<int> found;
    const bool told = sched_getaffinity(0, bytes, mask) == 0;
    for (int core = 0; told && core < most; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), bytes, mask)) found.push_back(core);
    }
    CPU_FREE(mask);
    if (told) return found;
    if (errno != EINVAL) break;
  }
  return {0};
}

std::vector<int> cores(const std::vector<int>& mine, const std::string& root) {
  std::vector<int> found, sorted = mine;
  std::sort(sorted.begin(), sorted.end());
  std::set<int> met;
  for (const int core : sorted) {
    if (met.count(core)) continue;
    found.push_back(core);
    for (const int other : siblings(core, root)) met.insert(other);
  }
  return found;
}

std::optional<double> quota(const std::string& root) {
  std::optional<double> least;
  std::ifstream groups(root + "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:kinds:path, of version 2 without kinds
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kinds = line.substr(first + 1, second - first - 1);
    const std::vector<std::string> listed = split(kinds, ',');
    if (!kinds.empty() && std::find(listed.begin(), listed.end(), "cpu") == listed.end()) continue;
    std::string folder = root + "sys/fs/cgroup" + (kinds.empty() ? "" : "/cpu");
    std::vector<std::string> parts = split(line.substr(second + 1), '/');
    parts.insert(parts.begin(), "");  // the outermost group
    for (const std::string& part : parts) {
      if (!part.empty()) folder += "/" + part;
      if (const auto one = limit(folder)) least = std::min(least.value_or(*one), *one);
    }
  }
  return least;
}

int within(const std::vector<int>& cores, std::optional<double> quota) {
  const int most = static_cast<int>(cores.size());
  return quota && *quota < most ? std::max(1, static_cast<int>(*quota)) : most;
}

int threads(const std::vector<int>& cores, std::optional<double> quota) {
  for (const char* name : kThreads) {
    const char* text = std::getenv(name);
    const auto told = text == nullptr ? std::nullopt : number(text);
    if (told && *told > 0 && *told <= kMostCores) return static_cast<int>(*told);
  }
  return within(cores, quota);
}

}  // namespace gg
