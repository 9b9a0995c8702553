#include "arrays.h"

#include <algorithm>
#include <cstring>

#include "checkpoint_ranks.h"
#include "error.h"
#include "half.h"
#include "ranks.h"

namespace gg {
namespace {

const char* const kGroups[] = {"params", "optim", "extra"};
constexpr std::string_view kWindow = "window:";

// "params/0.weight" -> {"params", "0.weight"}; of what is in no checkpoint an empty group.
std::pair<std::string, std::string> place_of(const std::string& name) {
  const size_t slash = name.find('/');
  for (const char* group : kGroups) {
    if (slash != std::string::npos && name.substr(0, slash) == group) return {group, name.substr(slash + 1)};
  }
  return {};
}

// Is it a sum of gradients, which is part of a checkpoint within a window alone, and begins as zeros?
bool is_sum(const std::string& key) { return key.rfind(kWindow, 0) == 0; }

}  // namespace

Arrays::Held& Arrays::hold(const std::string& name, const Tensor& type) {
  Held& made = held_[name];
  if (made.tensor.dtype != nullptr) {
    if (made.tensor.bytes() != type.bytes()) fail("the state of ", name, " has another size");
    return made;
  }
  made.memory = Memory(type.bytes());
  made.data = made.memory.data(), made.room = type.bytes();
  made.tensor = {type.dtype, type.shape, made.data};
  if (type.data != nullptr) std::memcpy(made.data, type.data, type.bytes());
  return made;
}

// Memory of parameters that are divided among ranks, and of this rank's part of their states.
void Arrays::hold_divided(const Artefact& artefact) {
  for (const Bucket& bucket : artefact.buckets) {
    if (ranks_ == nullptr) fail(bucket.name, " is divided among ranks");
    const auto rank = static_cast<size_t>(ranks_->rank()), count = static_cast<size_t>(ranks_->size());
    Divided& made = divided_[bucket.name];
    const DType& dtype = *artefact.parameters[bucket.parameters[0]].type.dtype;
    const size_t part = bucket.elements * dtype.bytes;
    made.of = &bucket;
    made.flat = Memory(part * count);
    std::byte* own = made.flat.data() + rank * part;
    Held& shard = shards_[bucket.name];
    shard.tensor = {&dtype, {static_cast<int64_t>(bucket.elements)}, own};
    shard.data = own, shard.room = part;
    size_t start = 0;
    for (const size_t place : bucket.parameters) {
      const Parameter& parameter = artefact.parameters[place];
      const std::string name = "params/" + parameter.key;
      pieces_[name] = {parameter.type, own, start / dtype.bytes, bucket.elements};
      Held& held = held_[name];
      held.data = made.flat.data() + start, held.room = start == 0 ? made.flat.size() : parameter.type.bytes();
      held.tensor = {parameter.type.dtype, parameter.type.shape, held.data};
      for (const auto& [state, type] : parameter.states) {
        Held& kept = made.states[state];
        if (type.shape != parameter.type.shape) fail(state, " of ", parameter.key, " cannot be divided among ranks");
        if (kept.tensor.dtype == nullptr) {
          kept.memory = Memory(bucket.elements * type.dtype->bytes);
          kept.data = kept.memory.data(), kept.room = kept.memory.size();
          kept.tensor = {type.dtype, shard.tensor.shape, kept.data};
        }
        if (kept.tensor.dtype != type.dtype) fail(state, " of ", bucket.name, " is of several types");
        pieces_["optim/" + parameter.key + "/" + state] = {type, kept.data, start / dtype.bytes, bucket.elements};
      }
      start += aligned(parameter.type.bytes());
    }
  }
}

// This rank's part of parameters, or of one of their states.
Arrays::Held& Arrays::shard(const State& state) {
  const std::string& name = state.value.at("shard").text();
  const auto bucket = divided_.find(name);
  if (bucket == divided_.end()) fail("the state ", state.name, " is a part of ", name, ", which does not exist");
  const Json* of = state.value.find("state");
  if (of == nullptr) return shards_.at(name);
  const auto found = bucket->second.states.find(of->text());
  if (found == bucket->second.states.end()) fail("there is no state ", of->text(), " of ", name);
  return found->second;
}

void Arrays::hold_states(const Artefact& artefact) {
  std::vector<std::pair<std::string, std::string>> casts;  // copy, what it is of
  for (const State& state : artefact.states) {
    if (const Json* tensor = state.value.find("tensor")) {
      if (held_.count(tensor->text()) == 0 && state.value.find("else") == nullptr) fail("there is no ", tensor->text());
      states_[state.name] = &hold(tensor->text(), state.type);
    } else if (const Json* of = state.value.find("cast")) {
      states_[state.name] = &hold("cast/" + state.name, state.type);
      casts.emplace_back(state.name, of->text());
    } else if (state.value.find("shard") != nullptr) {
      states_[state.name] = &shard(state);
    } else {
      const uint64_t which = state.value.at("loss_scale").unsigned_integer();
      if (which > 1 || state.type.bytes() != 4) fail("the state ", state.name, " is no part of the scale of the loss");
      scale_[which] = states_[state.name] = &hold("loss_scale/" + state.name, state.type);
    }
  }
  for (const auto& [copy, of] : casts) {
    const auto found = states_.find(of);
    if (found == states_.end()) fail("the state ", copy, " is a copy of ", of, ", which does not exist");
    const Tensor &from = found->second->tensor, &to = states_[copy]->tensor;
    if (from.dtype->name != "f32" || to.dtype->bytes != 2 || from.bytes() != 2 * to.bytes()) {
      fail("the state ", copy, " is no copy of ", of);
    }
    copies_.push_back({&from, &to});
  }
}

Arrays::Arrays(const Artefact& artefact, Ranks* ranks) : ranks_(ranks), gathers_(artefact.gathers) {
  Checkpoint begun;
  begun.about = artefact.about;
  for (const char* group : kGroups) begun.groups[group];
  for (const auto& [name, tensor] : artefact.tensors) {
    if (const auto [group, key] = place_of(name); !group.empty()) begun.groups[group][key] = tensor;
  }
  if (artefact.about.find("ranks") != nullptr) {  // it holds what each rank had for itself
    take_part(begun, ranks == nullptr ? 0 : ranks->rank(), ranks == nullptr ? 1 : ranks->size());
  }
  hold_divided(artefact);
  for (const auto& [group, arrays] : begun.groups) {
    for (const auto& [key, tensor] : arrays) {
      const std::string name = group + "/" + key;
      if (pieces_.count(name) == 0) hold(name, tensor);
    }
  }
  for (const auto& [name, tensor] : artefact.tensors) {
    if (name.rfind("capture/", 0) == 0) hold(name, tensor);
  }
  hold_states(artefact);
  fill(begun.groups);
  set_loss_scale(artefact.about.at("parts").at("progress").at("loss_scale"));
  refresh();
}

std::byte* Arrays::state(const std::string& name, size_t bytes) const {
  const auto found = states_.find(name);
  if (found == states_.end()) fail("there is no state ", name);
  if (found->second->tensor.bytes() != bytes) fail("the state ", name, " has another size");
  return found->second->data;
}

const Tensor& Arrays::state(const std::string& name) const {
  const auto found = states_.find(name);
  if (found == states_.end()) fail("there is no state ", name);
  return found->second->tensor;
}

size_t Arrays::room(const std::string& name) const { return states_.at(name)->room; }

const Tensor& Arrays::parameter(const std::string& key) const { return held_.at("params/" + key).tensor; }

Groups Arrays::saved(const std::vector<std::string>& window, std::vector<Memory>& memory) const {
  Groups groups;
  for (const char* group : kGroups) groups[group];
  for (const auto& [name, held] : held_) {
    const auto [group, key] = place_of(name);
    if (!group.empty() && !is_sum(key)) groups[group][key] = held.tensor;
  }
  for (const std::string& key : window) {
    const auto found = held_.find("extra/" + std::string(kWindow) + key);
    if (found != held_.end()) groups["extra"][std::string(kWindow) + key] = found->second.tensor;
  }
  std::map<const std::byte*, const std::byte*> whole;  // of a part
  for (const auto& [name, piece] : pieces_) {
    const auto [group, key] = place_of(name);
    if (group == "params" && !gathers_) continue;  // each update has put them together
    if (whole.count(piece.part) == 0) {
      const size_t bytes = piece.elements * piece.type.dtype->bytes;
      memory.emplace_back(bytes * static_cast<size_t>(ranks_->size()));
      ranks_->all_gather(piece.part, memory.back().data(), bytes);
      whole[piece.part] = memory.back().data();
    }
    groups[group][key] = {piece.type.dtype, piece.type.shape, whole[piece.part] + piece.start * piece.type.dtype->bytes};
  }
  return groups;
}

void Arrays::read(const Groups& groups, const Json& loss_scale) {
  check(groups);
  fill(groups);
  set_loss_scale(loss_scale);
  refresh();
}

// Throws an Error where a checkpoint holds other arrays than these.
void Arrays::check(const Groups& groups) const {
  for (const auto& [group, arrays] : groups) {
    for (const auto& [key, tensor] : arrays) {
      const auto held = held_.find(group + "/" + key);
      const auto piece = pieces_.find(group + "/" + key);
      if (held == held_.end() && piece == pieces_.end()) fail("it holds ", group, "/", key, ", and the artefact has none");
      const Tensor& mine = held != held_.end() ? held->second.tensor : piece->second.type;
      if (mine.dtype != tensor.dtype || mine.shape != tensor.shape) {
        fail("its ", group, "/", key, " is ", tensor.type(), ", that of the artefact ", mine.type());
      }
    }
  }
  const auto need = [&](const std::string& name) {
    const auto [group, key] = place_of(name);
    if (group.empty() || is_sum(key)) return;
    const auto arrays = groups.find(group);
    if (arrays != groups.end() && arrays->second.count(key) > 0) return;
    fail("it does not hold ", name, group == "optim" ? ": it was saved before the first update of that parameter" : "");
  };
  for (const auto& [name, held] : held_) need(name);
  for (const auto& [name, piece] : pieces_) need(name);
}

// Writes what a checkpoint holds into these arrays; zeros into sums of gradients that it does not hold.
void Arrays::fill(const Groups& groups) {
  const auto find = [&](const std::string& name) -> const Tensor* {
    const auto [group, key] = place_of(name);
    const auto arrays = groups.find(group);
    if (arrays == groups.end()) return nullptr;
    const auto found = arrays->second.find(key);
    return found == arrays->second.end() ? nullptr : &found->second;
  };
  for (auto& [name, held] : held_) {
    if (place_of(name).first.empty() || (gathers_ && pieces_.count(name) > 0)) continue;
    const size_t bytes = held.tensor.bytes();
    if (const Tensor* given = find(name)) std::memcpy(held.data, given->data, bytes);
    else std::memset(held.data, 0, bytes);
  }
  for (const auto& [name, piece] : pieces_) {
    const Tensor* given = find(name);
    if (given == nullptr) fail("it does not hold ", name);
    put(piece, *given);
  }
}

// Writes this rank's part of a whole array.
void Arrays::put(const Piece& piece, const Tensor& whole) const {
  const size_t size = piece.type.dtype->bytes, from = static_cast<size_t>(ranks_->rank()) * piece.elements;
  const size_t start = std::max(piece.start, from);
  const size_t end = std::min(piece.start + elements_of(piece.type.shape), from + piece.elements);
  if (start >= end) return;
  std::memcpy(piece.part + (start - from) * size, whole.data + (start - piece.start) * size, (end - start) * size);
}

Json Arrays::loss_scale() const {
  if (scale_[0] == nullptr || scale_[1] == nullptr) return Json();
  float scale;
  int32_t good;
  std::memcpy(&scale, scale_[0]->data, sizeof scale);
  std::memcpy(&good, scale_[1]->data, sizeof good);
  return Json::array({Json::number(static_cast<double>(scale)), Json::integer(good)});
}

void Arrays::set_loss_scale(const Json& told) {
  const auto scale = static_cast<float>(told.at(size_t{0}).number());
  const auto good = static_cast<int32_t>(told.at(1).integer());
  if (scale_[0] != nullptr) std::memcpy(scale_[0]->data, &scale, sizeof scale);
  if (scale_[1] != nullptr) std::memcpy(scale_[1]->data, &good, sizeof good);
}

void Arrays::refresh() {
  for (const auto& [from, to] : copies_) {
    const auto round = to->dtype->name == "bf16" ? bfloat16_of : float16_of;
    const auto* source = reinterpret_cast<const float*>(from->data);
    auto* target = reinterpret_cast<uint16_t*>(const_cast<std::byte*>(to->data));
    for (size_t i = 0; i < elements_of(to->shape); ++i) target[i] = round(source[i]);
  }
}

}  // namespace gg
