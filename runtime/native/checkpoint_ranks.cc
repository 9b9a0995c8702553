#include "checkpoint_ranks.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "elements.h"
#include "error.h"
#include "sha256.h"

namespace gg {
namespace {

constexpr const char *kRanks = "ranks", *kRest = "extra", *kWeights = "params";
constexpr const char* kOwnParts[] = {"gradients", "window", "residuals", "random"};  // that ranks may have otherwise

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

// What all ranks have kept back of compressed gradients becomes the first one's, as if all samples had been its own; others
// have kept back nothing.
void take_residuals(Checkpoint& checkpoint, const std::vector<Json>& ranks, int rank,
                    const std::map<std::string, Tensor>& apart) {
  for (auto& [key, array] : checkpoint.groups[kRest]) {
    if (!begins(key, "residual:")) continue;
    Memory sum(array.bytes());
    const std::string name = std::string(kRest) + "/" + key;
    for (size_t other = 0; other < ranks.size() && rank == 0; ++other) {
      const auto own = apart.find("rank" + std::to_string(other) + ":" + name);
      const Tensor& kept = own == apart.end() ? array : own->second;
      if (kept.dtype->name != "f32" || kept.shape != array.shape) fail(name, " is of several types");
      for (size_t i = 0; i < elements_of(array.shape); ++i) {
        reinterpret_cast<float*>(sum.data())[i] += reinterpret_cast<const float*>(kept.data)[i];
      }
    }
    array.data = sum.data();
    checkpoint.files.push_back(std::move(sum));
  }
  Json& parts = *checkpoint.about.find("parts");
  if (parts.find("residuals") != nullptr) parts.set("residuals", Json::object({{"rank", Json::integer(rank)}}));
}

// -- to be written

// The arrays that ranks may have otherwise, by "<group>/<name>": statistics, and all of the rest but averages.
std::map<std::string, Tensor> own_arrays(const Groups& groups, const std::vector<std::string>& statistics) {
  std::map<std::string, Tensor> found;
  for (const std::string& key : statistics) found[std::string(kWeights) + "/" + key] = groups.at(kWeights).at(key);
  for (const auto& [name, array] : groups.at(kRest)) {
    if (!begins(name, "average:")) found[std::string(kRest) + "/" + name] = array;
  }
  return found;
}

// What a rank tells the others of its arrays, which these compare, and of all else that it has for itself.
Json described(const std::map<std::string, Tensor>& own, const Json& about) {
  Json arrays = Json::object(), parts = Json::object();
  for (const auto& [name, array] : own) {
    Json shape = Json::array();
    for (const int64_t extent : array.shape) shape.append(Json::integer(extent));
    const std::string digest = sha256({reinterpret_cast<const char*>(array.data), array.bytes()});
    arrays.set(name, Json::array({Json::text(std::string(array.dtype->name)), std::move(shape), Json::text(digest)}));
  }
  for (const char* name : kOwnParts) {
    const Json* part = about.at("parts").find(name);
    parts.set(name, part == nullptr ? Json() : *part);
  }
  const Json* extra = about.find("extra");
  return Json::object({{"arrays", std::move(arrays)}, {"parts", std::move(parts)},
                       {"extra", extra == nullptr ? Json::object() : *extra}});
}

// The type in a row of `described`.
Tensor type_in(const Json& row) {
  Tensor made{&dtype_of(row.at(size_t{0}).text()), {}, nullptr};
  for (const Json& extent : row.at(1).items()) made.shape.push_back(extent.integer());
  return made;
}

// The names of arrays that the first rank has otherwise, or not at all.
std::set<std::string> different(const Json& rank, const Json& first) {
  std::set<std::string> names;
  for (const auto& [name, row] : rank.at("arrays").members()) {
    const Json* other = first.at("arrays").find(name);
    if (other == nullptr || other->dump() != row.dump()) names.insert(name);
  }
  return names;
}

// What a checkpoint tells of a rank: its arrays; parts and extra where they are not those of the first rank; and which
// arrays of that one it lacks.
Json otherwise(const Json& rank, const Json& first, Json arrays) {
  Json parts = Json::object(), without = Json::array();
  for (const auto& [name, part] : rank.at("parts").members()) {
    if (part.dump(true) != first.at("parts").at(name).dump(true)) parts.set(name, part);
  }
  for (const auto& [name, row] : first.at("arrays").members()) {
    if (rank.at("arrays").find(name) == nullptr) without.append(Json::text(name));
  }
  Json told = Json::object({{"arrays", std::move(arrays)}, {"parts", std::move(parts)}, {"without", std::move(without)}});
  if (rank.at("extra").dump(true) != first.at("extra").dump(true)) told.set("extra", rank.at("extra"));
  return told;
}

// The mean over ranks, added up in float64 and rounded once; of integers what this one has.
Memory mean_over_ranks(const Tensor& array, Ranks& ranks) {
  Memory made(array.bytes());
  if (!is_float(*array.dtype)) {
    std::memcpy(made.data(), array.data, array.bytes());
    return made;
  }
  std::vector<double> total(elements_of(array.shape));
  for (size_t i = 0; i < total.size(); ++i) total[i] = number_at(array, i);
  ranks.sum(total.data(), total.size(), dtype_of("f64"));
  for (size_t i = 0; i < total.size(); ++i) put_number(total[i] / ranks.size(), *array.dtype, made.data(), i);
  return made;
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
    take_residuals(checkpoint, ranks, rank, apart);
  }
  Json about = Json::object();
  for (const auto& [name, value] : checkpoint.about.members()) {
    if (name != kRanks) about.set(name, value);
  }
  checkpoint.about = std::move(about);
}

Gathered gather(Groups groups, Json about, const std::vector<std::string>& statistics, Ranks& ranks) {
  Gathered made{std::move(groups), std::move(about), {}};
  const std::map<std::string, Tensor> own = own_arrays(made.groups, statistics);
  std::vector<Json> told;
  for (const std::string& text : ranks.exchange(described(own, made.about).dump())) told.push_back(Json::parse(text, "a rank"));
  std::set<std::string> apart;  // statistics: all ranks have the same ones
  for (const Json& each : told) {
    for (const std::string& name : different(each, told[0])) {
      if (begins(name, kWeights)) apart.insert(name);
    }
  }
  for (const std::string& name : apart) {
    made.memory.push_back(mean_over_ranks(own.at(name), ranks));
    made.groups[kWeights][split(name).second].data = made.memory.back().data();
  }
  Json rows = Json::array();
  for (size_t rank = 0; rank < told.size(); ++rank) {
    std::set<std::string> names = different(told[rank], told[0]);
    names.insert(apart.begin(), apart.end());
    Json arrays = Json::array();
    for (const std::string& name : names) {
      const auto mine = own.find(name);
      Tensor sent = type_in(told[rank].at("arrays").at(name));
      made.memory.emplace_back(sent.bytes());
      if (static_cast<int>(rank) == ranks.rank()) std::memcpy(made.memory.back().data(), mine->second.data, sent.bytes());
      ranks.broadcast(made.memory.back().data(), sent.bytes(), static_cast<int>(rank));
      sent.data = made.memory.back().data();
      made.groups[kRest]["rank" + std::to_string(rank) + ":" + name] = sent;
      arrays.append(Json::text(name));
    }
    rows.append(otherwise(told[rank], told[0], std::move(arrays)));
  }
  made.about.set(kRanks, std::move(rows));
  return made;
}

}  // namespace gg
