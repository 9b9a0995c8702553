#include "arrays.h"

#include <cmath>
#include <cstring>

#include "error.h"
#include "half.h"

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
  made.tensor = {type.dtype, type.shape, made.memory.data()};
  if (type.data != nullptr) std::memcpy(made.memory.data(), type.data, type.bytes());
  return made;
}

Arrays::Arrays(const Artefact& artefact) {
  for (const auto& [name, tensor] : artefact.tensors) {
    if (!place_of(name).first.empty() || name.rfind("capture/", 0) == 0) hold(name, tensor);
  }
  std::vector<std::pair<std::string, std::string>> casts;  // copy, what it is of
  for (const State& state : artefact.states) {
    if (const Json* tensor = state.value.find("tensor")) {
      if (held_.count(tensor->text()) == 0 && state.value.find("else") == nullptr) fail("there is no ", tensor->text());
      states_[state.name] = &hold(tensor->text(), state.type);
    } else if (const Json* of = state.value.find("cast")) {
      states_[state.name] = &hold("cast/" + state.name, state.type);
      casts.emplace_back(state.name, of->text());
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
  set_loss_scale(artefact.about.at("parts").at("progress").at("loss_scale"));
  refresh();
}

std::byte* Arrays::state(const std::string& name, size_t bytes) const {
  const auto found = states_.find(name);
  if (found == states_.end()) fail("there is no state ", name);
  if (found->second->tensor.bytes() != bytes) fail("the state ", name, " has another size");
  return found->second->memory.data();
}

size_t Arrays::room(const std::string& name) const { return states_.at(name)->memory.size(); }

const Tensor& Arrays::parameter(const std::string& key) const { return held_.at("params/" + key).tensor; }

Groups Arrays::saved(const std::vector<std::string>& window) const {
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
  return groups;
}

void Arrays::read(const Groups& groups, const Json& loss_scale) {
  const auto find = [&](const std::string& name) -> const Tensor* {
    const auto [group, key] = place_of(name);
    const auto arrays = groups.find(group);
    if (arrays == groups.end()) return nullptr;
    const auto found = arrays->second.find(key);
    return found == arrays->second.end() ? nullptr : &found->second;
  };
  for (const auto& [group, arrays] : groups) {
    for (const auto& [key, tensor] : arrays) {
      const auto held = held_.find(group + "/" + key);
      if (held == held_.end()) fail("it holds ", group, "/", key, ", and the artefact has none");
      const Tensor& mine = held->second.tensor;
      if (mine.dtype != tensor.dtype || mine.shape != tensor.shape) {
        fail("its ", group, "/", key, " is ", tensor.type(), ", that of the artefact ", mine.type());
      }
    }
  }
  for (const auto& [name, held] : held_) {
    const auto [group, key] = place_of(name);
    if (!group.empty() && !is_sum(key) && find(name) == nullptr) {
      fail("it does not hold ", name, group == "optim" ? ": it was saved before the first update of that parameter" : "");
    }
  }
  for (auto& [name, held] : held_) {
    if (place_of(name).first.empty()) continue;
    if (const Tensor* given = find(name)) {
      std::memcpy(held.memory.data(), given->data, held.memory.size());
    } else {
      std::memset(held.memory.data(), 0, held.memory.size());
    }
  }
  set_loss_scale(loss_scale);
  refresh();
}

Json Arrays::loss_scale() const {
  if (scale_[0] == nullptr || scale_[1] == nullptr) return Json();
  float scale;
  int32_t good;
  std::memcpy(&scale, scale_[0]->memory.data(), sizeof scale);
  std::memcpy(&good, scale_[1]->memory.data(), sizeof good);
  return Json::array({Json::number(static_cast<double>(scale)), Json::integer(good)});
}

void Arrays::set_loss_scale(const Json& told) {
  const auto scale = static_cast<float>(told.at(size_t{0}).number());
  const auto good = static_cast<int32_t>(told.at(1).integer());
  if (scale_[0] != nullptr) std::memcpy(scale_[0]->memory.data(), &scale, sizeof scale);
  if (scale_[1] != nullptr) std::memcpy(scale_[1]->memory.data(), &good, sizeof good);
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
