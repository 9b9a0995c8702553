#include "artefact.h"

#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>

#include "error.h"
#include "keys.h"
#include "sha256.h"
#include "tensorfile.h"

#if !defined(GG_TVM) || !defined(GG_TVM_FFI)
#error "say which versions of the wheels this is built with: -DGG_TVM='\"0.27.0\"' -DGG_TVM_FFI='\"0.1.14\"'"
#endif

namespace gg {
namespace {

constexpr const char* kFormat = "gluongraph-artefact";
constexpr int64_t kVersions[] = {1, 2, 3};  // 2: with sums over ranks; 3: with other collectives, or micro-batches
constexpr const char* kDescriptor = "artefact.json";

std::string_view text_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.bytes()};
}

std::vector<int64_t> integers_of(const Json& told) {
  std::vector<int64_t> made;
  for (const Json& each : told.items()) made.push_back(each.integer());
  return made;
}

Tensor type_of(const Json& dtype, const Json& shape) {
  Tensor made{&dtype_of(dtype.text()), integers_of(shape), nullptr};
  elements_of(made.shape);  // throws where it is absurd
  return made;
}

bool alike(const Tensor& a, const Tensor& b) { return a.dtype == b.dtype && a.shape == b.shape; }

Space space_of(const std::string& name) {
  static const std::map<std::string, Space> kSpaces = {
      {"scratch", Space::scratch}, {"state", Space::state},   {"scalar", Space::scalar},
      {"input", Space::input},     {"output", Space::output}, {"const", Space::constant}};
  const auto found = kSpaces.find(name);
  if (found == kSpaces.end()) fail("there is no space '", name, "'");
  return found->second;
}

// The flags of this machine's processor, as Linux names them.
std::set<std::string> processor_flags() {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  return flags;
}

size_t number_of_input(const std::string& name, size_t count) {
  constexpr std::string_view kPrefix = "data";
  size_t number = count;
  const char* end = name.data() + name.size();
  if (name.rfind(kPrefix, 0) == 0) std::from_chars(name.data() + kPrefix.size(), end, number);
  if (number >= count) fail("the input ", name, " is no array of the batch");
  return number;
}

std::vector<size_t> positions_of(const Json& told, const Entry& entry) {
  std::vector<size_t> made;
  for (const Json& each : told.items()) {
    const int64_t position = each.integer();
    if (position < 0 || static_cast<size_t>(position) >= entry.arguments.size()) {
      fail(entry.id, " has a collective of no argument");
    }
    made.push_back(static_cast<size_t>(position));
  }
  if (made.empty()) fail(entry.id, " has a collective of nothing");
  return made;
}

Collective::Op operation_of(const std::string& name, const Entry& entry) {
  if (name == "all_reduce") return Collective::Op::all_reduce;
  if (name == "reduce_scatter") return Collective::Op::reduce_scatter;
  if (name == "all_gather") return Collective::Op::all_gather;
  fail(entry.id, " has a collective ", name, ", which does not exist");
}

// The arguments of a collective lie one after another in one memory: scratch, where offsets tell, or the state, where it
// is checked when they are bound.
void check_flat(const Collective& collective, const Entry& entry) {
  size_t end = entry.arguments[collective.flat[0]].offset;
  for (const size_t position : collective.flat) {
    const Argument& argument = entry.arguments[position];
    const bool in_state = argument.space == Space::state && collective.op != Collective::Op::all_reduce;
    const bool follows = in_state || (argument.space == Space::scratch && argument.offset == end);
    const bool alike = argument.type.dtype == collective.dtype &&
                       argument.space == entry.arguments[collective.flat[0]].space;
    if (!follows || !alike) fail(entry.id, " has a collective of memory with gaps: ", argument.name);
    end += aligned(argument.type.bytes());
  }
}

Collective collective_of(const Json& told, const Entry& entry) {
  Collective made{operation_of(told.at(size_t{0}).text(), entry), nullptr, {}};
  const std::vector<size_t> reads = positions_of(told.at(1), entry), writes = positions_of(told.at(2), entry);
  made.flat = made.op == Collective::Op::all_gather ? writes : reads;
  made.dtype = entry.arguments[made.flat[0]].type.dtype;
  made.elements = told.at(3).unsigned_integer();
  check_flat(made, entry);
  if (made.op != Collective::Op::all_gather && made.dtype->name == "bool") fail(entry.id, " sums truth values over ranks");
  if (made.op == Collective::Op::all_reduce) {
    if (reads != writes) fail(entry.id, " sums over ranks what it does not write");
    if (made.elements != 0) fail(entry.id, " sums over ranks in parts");
    return made;
  }
  const std::vector<size_t>& parts = made.op == Collective::Op::all_gather ? reads : writes;
  made.part = parts[0];
  const Tensor& part = entry.arguments[made.part].type;
  const Space space = entry.arguments[made.part].space;
  const bool fits = part.dtype == made.dtype && elements_of(part.shape) == made.elements && made.elements > 0;
  if (parts.size() != 1 || !fits || (space != Space::scratch && space != Space::state)) fail(entry.id, " has a collective of another part than ", made.elements, " elements");
  return made;
}

// What a call does: segments and collectives, each once and in order. Waits are checked and left out: here a collective
// is complete when it returns.
void read_steps(const Json& told, Entry& entry) {
  size_t segments = 0, started = 0;
  std::set<size_t> running;
  for (const Json& row : told.items()) {
    const std::string& what = row.at(size_t{0}).text();
    const size_t number = row.at(1).unsigned_integer();
    if (what == "wait") {
      if (running.erase(number) == 0) fail(entry.id, " waits for a collective that is not running");
      continue;
    }
    if (what != "run" && what != "start") fail(entry.id, " has a step '", what, "'");
    if (number != (what == "run" ? segments++ : started++)) fail(entry.id, " has steps in another order than numbers");
    if (what == "start") running.insert(number);
    entry.steps.push_back({what == "start", number});
  }
  if (started != entry.collectives.size() || !running.empty()) fail(entry.id, " does not run its collectives");
  if (segments == 0) fail(entry.id, " runs none of its code");
  for (size_t i = 1; i < segments; ++i) entry.segments.push_back(entry.symbol + "_segment" + std::to_string(i));
}

void read_collectives(const Json& told, Entry& entry) {
  const Json *collectives = told.find("collectives"), *steps = told.find("steps");
  if ((collectives == nullptr) != (steps == nullptr)) fail(entry.id, " has collectives without steps, or steps alone");
  if (collectives == nullptr) return;
  for (const Json& row : collectives->items()) entry.collectives.push_back(collective_of(row, entry));
  if (entry.collectives.empty()) fail(entry.id, " has steps, and no collectives");
  read_steps(*steps, entry);
}

}  // namespace

size_t aligned(size_t bytes) {
  constexpr size_t kAlignment = 64;
  return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

size_t Collective::bytes(const std::vector<Argument>& arguments, int64_t ranks) const {
  size_t sum = 0, parts = elements * dtype->bytes;
  for (const size_t position : flat) sum += aligned(arguments[position].type.bytes());
  if (__builtin_mul_overflow(parts, static_cast<size_t>(ranks), &parts)) fail("a collective of absurdly many parts");
  return std::max(sum, parts);
}

Artefact::Artefact(const std::string& path_, const std::vector<PublicKey>& keys)
    : path(path_), file_(read_file(path_)) {
  TensorFile file = TensorFile::parse(file_.data(), file_.size(), path);
  tensors = std::move(file.tensors);
  try {
    const Json* format = file.metadata.is_null() ? nullptr : file.metadata.find("format");
    if (format == nullptr || format->text() != kFormat) fail("it is a safetensors file, but no artefact");
    const std::string& version = file.metadata.at("format_version").text();
    const auto read_here = [&](int64_t each) { return version == std::to_string(each); };
    if (std::none_of(std::begin(kVersions), std::end(kVersions), read_here)) {
      fail("it has format ", version, ", and this program reads 1, 2 and 3");
    }
    const std::string_view text = text_of(tensor(kDescriptor));
    const std::string digest = sha256(text);
    if (digest != file.metadata.at("sha256").text()) fail("its ", kDescriptor, " has been changed");
    if (!keys.empty()) check_signature(file.metadata, digest, keys);
    const Json told = Json::parse(text, std::string("its ") + kDescriptor);
    if (told.at("format").text() != kFormat || !read_here(told.at("format_version").integer())) {
      fail("its ", kDescriptor, " is of another format");
    }
    check_tensors(told.at("tensors"));
    check_machine(told);
    read(told);
    check_ranks();
    const auto has = [&](auto wanted) {
      return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
        return std::any_of(entry.collectives.begin(), entry.collectives.end(), wanted);
      });
    };
    const bool communicates = has([](const Collective&) { return true; });
    const int64_t wanted = for_these_ranks || micro_batches > 0 ? 3 : communicates ? 2 : 1;
    if (!read_here(wanted)) {
      fail("it has format ", version, ", which is for artefacts with", wanted > 1 ? "out" : "", " collectives");
    }
  } catch (const Error& error) {
    fail(path, " cannot be loaded: ", error.what());
  }
}

const Tensor& Artefact::tensor(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) fail("it has no tensor ", name);
  return found->second;
}

void Artefact::check_tensors(const Json& told) const {
  for (const auto& [name, found] : tensors) {
    if (name != kDescriptor && told.find(name) == nullptr) fail(name, " does not belong to it");
  }
  for (const auto& [name, row] : told.members()) {
    const Tensor& found = tensor(name);
    const Tensor type = type_of(row.at(0), row.at(1));
    if (!alike(found, type)) fail(name, " is ", found.type(), " instead of ", type.type());
    if (sha256(text_of(found)) != row.at(2).text()) fail("the content of ", name, " has changed");
  }
}

void Artefact::check_machine(const Json& told) const {
  const Json& target = told.at("target");
  const std::string& name = target.at("name").text();
  if (target.at("kind").text() != "llvm") fail("it is compiled for ", name, ", and this program runs on CPUs alone");
  utsname system{};
  uname(&system);
  if (target.at("machine").text() != system.machine) {
    fail("it is compiled for ", target.at("machine").text(), ", and this machine is ", system.machine);
  }
  const std::set<std::string> flags = processor_flags();
  std::string missing;
  for (const Json& flag : target.at("needs").items()) {
    if (flags.count(flag.text()) == 0) missing += " " + flag.text();
  }
  if (!missing.empty()) {
    fail("it is compiled for ", name, ", and this processor lacks", missing, "; export for another target");
  }
  const std::pair<const char*, const char*> wanted[] = {{"tvm", GG_TVM}, {"tvm-ffi", GG_TVM_FFI}};
  for (const auto& [library, version] : wanted) {
    const std::string& found = told.at("writer").at(library).text();
    if (found != version) fail("it is compiled with ", library, " ", found, ", and this program runs with ", version);
  }
}

void Artefact::read(const Json& told) {
  for (const Json& row : told.at("parameters").items()) {
    Parameter made{row.at("name").text(), row.at("key").text(), type_of(row.at("dtype"), row.at("shape"))};
    made.trained = row.at("grad_req").text() != "null";
    if (const Json* states_of = row.find("states")) {
      for (const auto& [name, type] : states_of->members()) made.states[name] = type_of(type.at(size_t{0}), type.at(1));
    }
    if (!row.at("index").is_null()) made.index = row.at("index").integer();
    if (!alike(tensor("params/" + made.key), made.type)) fail("params/", made.key, " is no ", made.type.type());
    parameters.push_back(std::move(made));
  }
  for (const auto& [name, row] : told.at("states").members()) {
    states.push_back({name, type_of(row.at("dtype"), row.at("shape")), row.at("value")});
  }
  for (const Json& row : told.at("entries").items()) entries.push_back(entry_of(row));
  if (const Json* exported_by = told.find("ranks")) {
    if ((ranks = exported_by->integer()) < 1) fail("it was exported by ", ranks, " ranks");
  }
  for (Entry& entry : entries) entry.ranked = ranks > 0;
  const Json* exchange = told.find("exchange");
  if (const Json* of = exchange == nullptr ? nullptr : exchange->find("buckets")) {
    for (const auto& [name, row] : of->members()) buckets.push_back(bucket_of(name, row));
    gathers = exchange->at("strategy").text() == "fsdp";
  }
  about = told.at("about");
  optimizer = told.at("optimizer");
  options = told.at("options");
  if (const Json* number = options.find("micro_batches")) micro_batches = number->integer();
  if (micro_batches < 0 || micro_batches > 1 << 20 || (micro_batches & (micro_batches - 1)) != 0) {
    fail("it computes in ", micro_batches, " micro-batches");
  }
  writer = told.at("writer");
}

Bucket Artefact::bucket_of(const std::string& name, const Json& told) const {
  Bucket made{name, {}, static_cast<size_t>(told.at("elements").unsigned_integer())};
  size_t bytes = 0;
  for (const Json& key : told.at("parameters").items()) {
    const auto has_key = [&](const Parameter& parameter) { return parameter.key == key.text(); };
    const auto found = std::find_if(parameters.begin(), parameters.end(), has_key);
    if (found == parameters.end()) fail(name, " has the parameter ", key.text(), ", which does not exist");
    const auto place = static_cast<size_t>(found - parameters.begin());
    const auto has_place = [&](const Bucket& bucket) {
      return std::count(bucket.parameters.begin(), bucket.parameters.end(), place) > 0;
    };
    if (has_place(made) || std::any_of(buckets.begin(), buckets.end(), has_place)) fail(key.text(), " is divided twice");
    made.parameters.push_back(place);
    if (found->type.dtype != parameters[made.parameters[0]].type.dtype) fail(name, " has parameters of several types");
    bytes += aligned(found->type.bytes());
  }
  if (made.parameters.empty() || ranks < 1) fail(name, " has no parameters or no ranks");
  const size_t parts = static_cast<size_t>(ranks), size = parameters[made.parameters[0]].type.dtype->bytes;
  if (made.elements != aligned((bytes + parts - 1) / parts) / size) fail(name, " has a part of ", made.elements, " elements");
  return made;
}

// Collectives take ranks. The parts of others than sums are those of as many ranks as have exported them.
void Artefact::check_ranks() {
  for (const Entry& entry : entries) {
    if (ranks == 0 && !entry.collectives.empty()) fail(entry.id, " has collectives, and was exported by one process");
    for (const Collective& collective : entry.collectives) {
      for_these_ranks = for_these_ranks || collective.op != Collective::Op::all_reduce;
      const Argument& first = entry.arguments[collective.flat[0]];
      const size_t bytes = collective.bytes(entry.arguments, ranks);
      if (first.space == Space::scratch && bytes > entry.scratch_bytes - first.offset) {
        fail(entry.id, " has a collective of what lies outside of its memory");
      }
    }
  }
  if (!buckets.empty() && !for_these_ranks) fail("it divides parameters among any number of ranks");
}

Entry Artefact::entry_of(const Json& told) const {
  Entry made;
  made.id = told.at("id").text();
  made.mode = told.at("mode").text();
  made.symbol = told.at("symbol").text();
  made.code = tensor(told.at("code").text());
  made.scratch_bytes = told.at("scratch_bytes").unsigned_integer();
  made.scalar_bytes = told.at("scalar_bytes").unsigned_integer();
  made.samples = told.at("samples").number();
  made.masked = told.at("masked").boolean();
  made.guarded = told.at("guarded").boolean();
  if (const Json* checks = told.find("checks")) {  // files of before have none
    for (const Json& check : checks->items()) made.checks += (made.checks.empty() ? "" : "; or ") + check.text();
  }
  made.scalars = told.at("scalars");
  made.draws = told.at("draws");
  for (const Json& type : told.at("batch").items()) made.batch.push_back(type_of(type.at(0), type.at(1)));
  for (const Json& name : told.at("names").items()) made.names.push_back(name.text());
  for (const Json& name : told.at("updates").items()) made.updates.push_back(name.text());
  made.counts = integers_of(told.at("counts"));
  for (const Json& group : told.at("groups").items()) made.groups.push_back(integers_of(group));
  std::map<std::string, size_t> positions;
  for (const Json& row : told.at("args").items()) {
    Argument argument{row.at(0).text(), type_of(row.at(1), row.at(2)), space_of(row.at(3).text()),
                      row.at(4).unsigned_integer()};
    const size_t bytes = argument.type.bytes();
    const auto within = [&](size_t block) {
      if (bytes > block || argument.offset > block - bytes) fail(argument.name, " lies outside of its memory");
    };
    if (argument.space == Space::scratch) within(made.scratch_bytes);
    if (argument.space == Space::scalar) within(made.scalar_bytes);
    if (argument.space == Space::input) {
      argument.input = number_of_input(argument.name, made.batch.size());
      if (made.batch[argument.input].bytes() != bytes) fail(argument.name, " has another size than its array");
    }
    if (argument.space == Space::constant) {
      const Tensor& data = tensor(told.at("constants").at(argument.name).text());
      if (data.bytes() != bytes) fail("the constant ", argument.name, " has ", data.bytes(), " bytes");
      argument.type.data = data.data;
    }
    positions[argument.name] = made.arguments.size();
    made.arguments.push_back(std::move(argument));
  }
  made.segments = {made.symbol};
  read_collectives(told, made);
  for (const auto& [name, argument] : told.at("outputs").members()) {
    const auto found = positions.find(argument.text());
    if (found == positions.end() || made.arguments[found->second].space != Space::output) fail(name, " is no output");
    made.outputs[name] = found->second;
  }
  if (const auto found = made.outputs.find("check:index"); found != made.outputs.end()) {
    const Tensor& count = made.arguments[found->second].type;
    if (count.dtype->name != "i32" || elements_of(count.shape) != 1) fail(made.id, " counts indices as ", count.type());
  }
  for (const auto& [asked, flag] : {std::pair(made.masked, "amp:finite"), std::pair(made.guarded, "anomaly:sound")}) {
    if (asked && made.outputs.count(flag) == 0) fail(made.id, " has no output ", flag);
  }
  return made;
}

}  // namespace gg
