#include "checkpoint_ranks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "error.h"

namespace gg {
namespace {

constexpr const char *kRanks = "ranks", *kRest = "extra";

bool begins(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

// "extra/window:0.weight" -> "extra", "window:0.weight".
std::pair<std::string, std::string> split(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) fail("its ranks have an array ", name);
  return {name.substr(0, slash), name.substr(slash + 1)};
}

// The arrays that ranks have for themselves, by "rank<number>:<group>/<name>", taken out of the others.
std::map<std::string, Tensor> taken_out(Groups& groups, const std::vector<Json>& ranks) {
  std::map<std::string, Tensor> found;
  auto& rest = groups[kRest];
  for (size_t number = 0; number < ranks.size(); ++number) {
    for (const Json& name : ranks[number].at("arrays").items()) {
      const std::string key = "rank" + std::to_string(number) + ":" + name.text();
      const auto at = rest.find(key);
      if (at == rest.end()) fail("it does not hold ", key);
      found.insert(rest.extract(at));
    }
  }
  return found;
}

// Replaces what rank 0 had by what this rank had.
void take_own(Checkpoint& checkpoint, const Json& own, int rank, const std::map<std::string, Tensor>& apart) {
  for (const Json& name : own.at("without").items()) {
    const auto [group, key] = split(name.text());
    checkpoint.groups[group].erase(key);
  }
  for (const Json& name : own.at("arrays").items()) {
    const auto [group, key] = split(name.text());
    checkpoint.groups[group][key] = apart.at("rank" + std::to_string(rank) + ":" + name.text());
  }
  Json& parts = *checkpoint.about.find("parts");
  for (const auto& [name, part] : own.at("parts").members()) parts.set(name, part);
  if (const Json* extra = own.find("extra")) checkpoint.about.set("extra", *extra);
}

void refuse_sums(const Checkpoint& checkpoint, const std::vector<Json>& ranks, int count) {
  const auto is_open = [](const Json& parts) {
    const Json* window = parts.find("window");
    return window != nullptr && !window->is_null();
  };
  const auto has_sums = [&](const Json& rank) {
    const auto& names = rank.at("arrays").items();
    const auto is_sum = [](const Json& name) { return begins(name.text(), "extra/grad:"); };
    return is_open(rank.at("parts")) || std::any_of(names.begin(), names.end(), is_sum);
  };
  if (is_open(checkpoint.about.at("parts")) || std::any_of(ranks.begin(), ranks.end(), has_sums)) {
    fail("each of ", ranks.size(), " ranks has added up gradients, and there are ", count, " now");
  }
}

}  // namespace

void take_part(Checkpoint& checkpoint, int rank, int count) {
  std::vector<Json> ranks;
  if (const Json* told = checkpoint.about.find(kRanks)) ranks = told->items();
  else ranks = {Json::object({{"arrays", Json::array()}, {"without", Json::array()}, {"parts", Json::object()}})};
  if (checkpoint.about.find("parts") == nullptr) fail("it has no parts");
  const std::map<std::string, Tensor> apart = taken_out(checkpoint.groups, ranks);
  if (ranks.size() == static_cast<size_t>(count)) {
    take_own(checkpoint, ranks[static_cast<size_t>(rank)], rank, apart);
  } else {
    refuse_sums(checkpoint, ranks, count);
  }
  Json about = Json::object();
  for (const auto& [name, value] : checkpoint.about.members()) {
    if (name != kRanks) about.set(name, value);
  }
  checkpoint.about = std::move(about);
}

}  // namespace gg
