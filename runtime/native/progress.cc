#include "progress.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "error.h"

namespace gg {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr uint64_t kApart = 0x9E3779B97F4A7C15;  // between the seeds of devices

double number_or_unknown(const Json& value) {
  if (value.kind() == Json::Kind::boolean) return value.boolean() ? 1.0 : 0.0;
  return value.kind() == Json::Kind::number ? value.number() : kUnknown;
}

// An integer of any size, modulo 2^64.
uint64_t modulo_2_64(const Json& value) {
  const std::string digits = value.dump();
  uint64_t made = 0;
  for (const char digit : digits) {
    if (digit == '-') continue;
    if (digit < '0' || digit > '9') fail("the seed ", digits, " is no integer");
    made = made * 10 + static_cast<uint64_t>(digit - '0');
  }
  return digits[0] == '-' ? 0 - made : made;
}

}  // namespace

Progress::Progress(const Artefact& artefact) : artefact_(artefact) {
  const Json& optimizer = artefact.optimizer;
  for (const char* name : {"num_update", "before", "rescale", "optimizer.lr"}) cell(name) = kUnknown;
  for (const char* name : {"clip_norm", "ema"}) {
    const Json* given = artefact.options.find(name);
    cell(name) = given == nullptr ? kUnknown : number_or_unknown(*given);
  }
  for (const Parameter& parameter : artefact.parameters) {
    if (parameter.index < 0) continue;
    const std::string index = std::to_string(parameter.index);
    cell("t:" + index) = kUnknown;
    cell("lr_mult:" + index) = cell("wd_mult:" + index) = 1.0;
  }
  updates_ = &cell("num_update"), before_ = &cell("before"), rescale_ = &cell("rescale");
  begin_ = optimizer.at("begin_num_update").number();
  scale_ = optimizer.at("scale").number();
  const Json& schedule = optimizer.at("schedule");
  caller_sets_rate_ = !schedule.is_null() && schedule.at("by").text() == "caller";
  adopt(artefact.about);
  rate_ = Tape(optimizer.at("learning_rate"), variables_);
  if (!optimizer.at("count").is_null()) carry_ = Tape(optimizer.at("count"), variables_);
  for (size_t i = 0; i < carry_.size(); ++i) carried_.push_back(&cell(carry_.name(i)));
}

void Progress::read(const Json& about) {
  const Json &mine = artefact_.about.at("parts").at("progress"), &told = about.at("parts").at("progress");
  const std::string &optimizer = mine.at("optimizer").text(), &found = told.at("optimizer").text();
  if (found != optimizer) fail("it is a training with ", found, ", and the artefact has ", optimizer);
  const auto schedule = [](const Json& progress) {
    const Json& scheduler = progress.at("scheduler");
    return scheduler.is_null() ? std::string("none") : scheduler.at("class").text();
  };
  if (schedule(told) != schedule(mine)) {
    fail("its learning rate is scheduled by ", schedule(told), ", that of the artefact by ", schedule(mine));
  }
  for (const auto& [key, t] : told.at("counts").members()) {
    const auto has_key = [&, name = key](const Parameter& p) { return p.key == name && p.index >= 0; };
    if (std::none_of(artefact_.parameters.begin(), artefact_.parameters.end(), has_key)) {
      fail("it counts updates of ", key, ", which the artefact does not train");
    }
  }
  adopt(about);
}

void Progress::adopt(const Json& about) {
  const Json &parts = about.at("parts"), &told = parts.at("progress");
  *updates_ = told.at("num_update").number();
  for (const Parameter& parameter : artefact_.parameters) {
    if (parameter.index < 0) continue;
    const std::string index = std::to_string(parameter.index);
    const Json* t = told.at("counts").find(parameter.key);
    cell("t:" + index) = t == nullptr ? kUnknown : t->number();
    if (const Json* multipliers = told.at("multipliers").find(parameter.key)) {
      cell("lr_mult:" + index) = multipliers->at(size_t{0}).number();
      cell("wd_mult:" + index) = multipliers->at(1).number();
    }
  }
  cell("optimizer.lr") = caller_sets_rate_ ? kUnknown : number_or_unknown(told.at("lr"));
  const auto settings = [&](const std::string& prefix, const Json* values) {
    if (values == nullptr || values->is_null()) return;
    for (const auto& [name, value] : values->members()) cell(prefix + name) = number_or_unknown(value);
  };
  settings("optimizer.", told.find("settings"));
  settings("carried.", told.find("carried"));
  if (!told.at("scheduler").is_null()) settings("schedule.", told.at("scheduler").find("settings"));
  if (const Json* averages = parts.find("averages"); averages != nullptr && !averages->is_null()) {
    cell("ema") = averages->at("decay").number();
  }
  const Json* left_out = told.find("skipped");
  skipped = left_out == nullptr ? 0 : left_out->integer();

  const Json& random = parts.at("random").at("gluongraph");
  first_seed_ = modulo_2_64(random.at("first"));
  for (auto& [device, generator] : generators_) generator = unused(device.second);  // calls know where they are
  for (const Json& row : random.at("devices").items()) {
    generators_[{row.at(size_t{0}).text(), row.at(1).integer()}] = {modulo_2_64(row.at(2)), modulo_2_64(row.at(3))};
  }

  window = Window();
  if (const Json* open = parts.find("window"); open != nullptr && !open->is_null()) {
    window.batches = open->at("batches").integer();
    window.samples = open->at("samples").number();
    for (const Json& key : open->at("names").items()) {
      for (const Parameter& p : artefact_.parameters) {
        if (p.key == key.text()) window.names.push_back(p.name);
      }
    }
  }
  const Json* given = about.find("extra");
  extra = given == nullptr ? Json::object() : *given;
  extra.members();  // throws where it is no object
  about_ = about;
}

Json Progress::told(const Json& loss_scale) const {
  Json about = about_;
  Json& parts = *about.find("parts");
  Json& progress = *parts.find("progress");
  const auto number = [&](const std::string& name) {
    const double value = variables_.at(name);
    return std::isnan(value) ? Json() : Json::number(value);
  };
  if (!caller_sets_rate_) progress.set("lr", number("optimizer.lr"));
  progress.set("num_update", Json::integer(updates()));
  Json counts = Json::object(), carried = Json::object();
  for (const Parameter& parameter : artefact_.parameters) {
    if (parameter.index < 0) continue;
    const double t = variables_.at("t:" + std::to_string(parameter.index));
    if (!std::isnan(t)) counts.set(parameter.key, Json::integer(static_cast<int64_t>(t)));
  }
  progress.set("counts", std::move(counts));
  for (const auto& [name, value] : progress.at("carried").members()) carried.set(name, number("carried." + name));
  progress.set("carried", std::move(carried));
  if (!loss_scale.is_null()) progress.set("loss_scale", loss_scale);
  progress.set("skipped", Json::integer(skipped));

  Json devices = Json::array();
  for (const auto& [device, generator] : generators_) {
    devices.append(Json::array({Json::text(device.first), Json::integer(device.second),
                                Json::unsigned_integer(generator.seed), Json::unsigned_integer(generator.offset)}));
  }
  parts.find("random")->find("gluongraph")->set("devices", std::move(devices));

  Json open;
  if (window.batches > 0) {
    Json names = Json::array();
    for (const std::string& name : window.names) {
      for (const Parameter& p : artefact_.parameters) {
        if (p.name == name) names.append(Json::text(p.key));
      }
    }
    open = Json::object({{"batches", Json::integer(window.batches)},
                         {"samples", Json::number(window.samples)},
                         {"names", std::move(names)}});
  }
  parts.set("window", std::move(open));
  about.set("extra", extra);
  return about;
}

double Progress::learning_rate() {
  rate_.run();
  return rate_.value(0);
}

void Progress::set_learning_rate(double rate) {
  const Json& schedule = artefact_.optimizer.at("schedule");
  if (!schedule.is_null() && !caller_sets_rate_) {
    fail("the learning rate is decided by ", schedule.at("class").text(), ", with which the step was exported");
  }
  if (!std::isfinite(rate)) fail("a learning rate is a finite number");
  cell("optimizer.lr") = rate;
}

void Progress::change(double& cell, double value) {
  before_change_.emplace_back(&cell, cell);
  cell = value;
}

std::vector<double*> Progress::counters(const std::vector<int64_t>& indices) {
  std::vector<double*> made;
  for (const int64_t index : indices) made.push_back(&cell("t:" + std::to_string(index)));
  return made;
}

void Progress::count(const std::vector<double*>& counters, double samples) {
  if (!(samples > 0) || !std::isfinite(samples)) fail("the batch size is a positive number, not ", samples);
  before_change_.clear();
  change(*rescale_, scale_ / samples);
  change(*before_, *updates_);
  double largest = *updates_;
  for (double* t : counters) {
    change(*t, (std::isnan(*t) ? begin_ : *t) + 1);
    largest = std::max(largest, *t);
  }
  change(*updates_, largest);
  if (carried_.empty()) return;
  try {
    carry_.run();
  } catch (...) {
    take_back();
    throw;
  }
  for (size_t i = 0; i < carried_.size(); ++i) change(*carried_[i], carry_.value(i));
}

void Progress::check_groups(const Entry& entry) const {
  for (const std::vector<int64_t>& group : entry.groups) {
    for (const char* kind : {"t:", "lr_mult:", "wd_mult:"}) {
      const auto value = [&](int64_t index) {
        const double found = variables_.at(kind + std::to_string(index));
        return std::isnan(found) ? begin_ : found;
      };
      for (const int64_t index : group) {
        if (value(index) != value(group[0])) {
          fail("parameters that the artefact updates alike have other counts or multipliers; export such a step");
        }
      }
    }
  }
}

void Progress::take_back() {
  for (auto change = before_change_.rbegin(); change != before_change_.rend(); ++change) *change->first = change->second;
  before_change_.clear();
}

Generator& Progress::generator(const std::string& type, int64_t number) {
  const auto found = generators_.find({type, number});
  if (found != generators_.end()) return found->second;
  return generators_[{type, number}] = unused(number);
}

Generator Progress::unused(int64_t device) const {
  return {first_seed_ + kApart * static_cast<uint64_t>(device), 0};
}

}  // namespace gg
