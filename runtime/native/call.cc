#include "call.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "ranks.h"
#include "sha256.h"

namespace gg {
namespace {

int64_t kStride = 1;  // of every argument: all are flat

// The bytes of all outputs and constants, each on a boundary of its own.
size_t bytes_of_own(const Entry& entry) {
  size_t sum = 0;
  for (const Argument& argument : entry.arguments) {
    if (argument.space == Space::output || argument.space == Space::constant) sum += aligned(argument.type.bytes());
  }
  return sum;
}

const Argument& scalar_of(const Entry& entry, const std::string& name, std::string_view dtype, size_t count,
                          std::string_view or_dtype = "") {
  for (const Argument& argument : entry.arguments) {
    if (argument.name != name) continue;
    const std::string_view found = argument.type.dtype->name;
    const bool fits = (found == dtype || found == or_dtype) && elements_of(argument.type.shape) == count;
    if (argument.space == Space::scalar && fits) return argument;
  }
  fail("there is no scalar ", name, " of ", count, " ", dtype);
}

constexpr int64_t kShared = 1 << 16;  // number of the device whose generator all ranks share

// What is added to the seed, so that ranks draw numbers of their own in training, as gluongraph/random.py has it.
uint64_t apart(const Entry& entry, int64_t device) {
  constexpr uint64_t kApart = 0x9E3779B97F4A7C15;
  // Micro-batches have numbers instead.
  const bool alike = entry.mode == "evaluate" || entry.mode == "predict" || entry.mode == "backward";
  if (alike || device == kShared) return 0;
  return entry.ranked ? kApart * (static_cast<uint64_t>(Ranks::get().rank()) << 20) : 0;
}

// What all ranks must have in common: which entry it is, and its code.
uint64_t digest_of(const Entry& entry) {
  Sha256 digest;
  digest.update(entry.id.data(), entry.id.size());
  digest.update(entry.code.data, entry.code.bytes());
  return std::stoull(digest.hex().substr(0, 16), nullptr, 16);
}

// FNV-1a, of further bytes.
void mix(uint64_t& digest, const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    digest = (digest ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  }
}

}  // namespace

Call::Call(const Entry& entry_, const Arrays& arrays, Progress& progress, const Memory& scratch, int64_t ranks)
    : entry(entry_),
      counters(progress.counters(entry.counts)),
      scalars_(entry.scalar_bytes),
      own_(bytes_of_own(entry)),
      sizes_(entry.arguments.size()),
      table_(entry.arguments.size()),
      tape_(entry.scalars.is_null() ? Tape() : Tape(entry.scalars, progress.variables())) {
  for (size_t i = 0; i < table_.size(); ++i) {
    const Argument& argument = entry.arguments[i];
    const auto bits = static_cast<uint8_t>(8 * argument.type.dtype->bytes);
    sizes_[i] = static_cast<int64_t>(elements_of(argument.type.shape));
    table_[i] = {place_of(argument, arrays, scratch), {kDLCPU, 0}, 1,
                 {argument.type.dtype->code, bits, 1}, &sizes_[i], &kStride, 0};
    if (argument.space == Space::input) inputs_.emplace_back(i, argument.input);
  }
  for (const auto& [name, argument] : entry.outputs) {
    const Tensor& type = entry.arguments[argument].type;
    outputs_[name] = {type.dtype, type.shape, static_cast<const std::byte*>(table_[argument].data)};
  }
  for (size_t i = 0; i < tape_.size(); ++i) {
    const Argument& scalar = scalar_of(entry, tape_.name(i), "f32", 1, "f64");
    cells_.push_back({scalars_.data() + scalar.offset, scalar.type.bytes(), i});
  }
  for (const auto& [name, told] : entry.draws.members()) {
    const Argument& words = scalar_of(entry, name, "u32", 4);
    const int64_t device = told.at(1).integer();
    draws_.push_back({reinterpret_cast<uint32_t*>(scalars_.data() + words.offset),
                      &progress.generator(told.at(size_t{0}).text(), device), told.at(2).unsigned_integer(),
                      apart(entry, device), device == kShared});
  }
  for (size_t i = 0; const Tensor* result = output("out" + std::to_string(i)); ++i) results_.push_back(*result);
  for (const Collective& collective : entry.collectives) exchanges_.push_back(exchange_of(collective, arrays, ranks));
  if (!entry.collectives.empty() || entry.mode == "backward") program_ = digest_of(entry);
  code_ = std::make_unique<Code>(entry.code, entry.segments);  // the last: it runs code, and all else fits by now
}

void* Call::place_of(const Argument& argument, const Arrays& arrays, const Memory& scratch) {
  switch (argument.space) {
    case Space::scratch: return scratch.data() + argument.offset;
    case Space::scalar: return scalars_.data() + argument.offset;
    case Space::state: return arrays.state(argument.name, argument.type.bytes());
    case Space::input: return nullptr;
    case Space::output:
    case Space::constant: break;
  }
  std::byte* place = own_.data() + used_;
  used_ += aligned(argument.type.bytes());
  if (argument.type.data != nullptr) std::memcpy(place, argument.type.data, argument.type.bytes());
  return place;
}

Call::Exchange Call::exchange_of(const Collective& collective, const Arrays& arrays, int64_t ranks) const {
  const auto at = [&](size_t position) { return static_cast<std::byte*>(table_[position].data); };
  Exchange made{&collective, at(collective.flat[0]), collective.bytes(entry.arguments, ranks), {}};
  const Argument& first = entry.arguments[collective.flat[0]];
  if (first.space == Space::state && made.bytes > arrays.room(first.name)) {
    fail(entry.id, " has a collective of what lies outside of ", first.name);
  }
  std::byte* end = made.flat;
  for (const size_t position : collective.flat) {
    if (at(position) != end) fail(entry.id, " has a collective of memory with gaps: ", entry.arguments[position].name);
    const size_t bytes = entry.arguments[position].type.bytes();
    made.gaps.emplace_back(end + bytes, aligned(bytes) - bytes);
    end += aligned(bytes);
  }
  made.gaps.emplace_back(end, static_cast<size_t>(made.flat + made.bytes - end));
  return made;
}

const Tensor* Call::output(const std::string& name) const {
  const auto found = outputs_.find(name);
  return found == outputs_.end() ? nullptr : &found->second;
}

void Call::write_scalars() {
  tape_.run();
  for (const Cell& cell : cells_) {
    const double wide = tape_.value(cell.value);
    const auto narrow = static_cast<float>(wide);
    std::memcpy(cell.at, cell.bytes == sizeof wide ? static_cast<const void*>(&wide) : &narrow, cell.bytes);
  }
}

void Call::bind(const std::vector<const void*>& batch) {
  for (const auto& [argument, array] : inputs_) table_[argument].data = const_cast<void*>(batch[array]);
}

void Call::run(const std::vector<const void*>& batch) {
  bind(batch);
  for (const Draw& draw : draws_) draw.write(0);
  advance();
  if (entry.collectives.empty()) (*code_)(table_.data());
  else run_with_collectives();
}

void Call::run_micro_batch(const std::vector<const void*>& batch, uint64_t number) {
  constexpr int kStream = 20;  // bits of the high word of a draw's number; those above tell micro-batches apart
  bind(batch);
  for (const Draw& draw : draws_) draw.write(number << (32 + kStream));
  (*code_)(table_.data());
}

void Call::advance() {
  for (const Draw& draw : draws_) draw.generator->offset += draw.count;
}

void Call::Draw::write(uint64_t stream) const {
  const uint64_t seed = generator->seed + apart, offset = generator->offset + stream;
  const uint64_t all[] = {seed, seed >> 32, offset, offset >> 32};
  std::transform(all, all + 4, words, [](uint64_t word) { return static_cast<uint32_t>(word); });
}

void Call::run_with_collectives() {
  bool compared = false;
  for (const Step& step : entry.steps) {
    if (!step.is_collective) {
      (*code_)(table_.data(), step.number);
      continue;
    }
    if (!compared && !others_go_on()) return;
    compared = true;
    communicate(exchanges_[step.number]);
  }
}

void Call::communicate(const Exchange& exchange) const {
  Ranks& ranks = Ranks::get();
  const Collective& collective = *exchange.of;
  const DType& dtype = *collective.dtype;
  void* part = table_[collective.part].data;
  switch (collective.op) {
    case Collective::Op::all_reduce:
      ranks.sum(exchange.flat, exchange.bytes / dtype.bytes, dtype);
      break;
    case Collective::Op::reduce_scatter:  // what lies between the arguments is part of a shard
      for (const auto& [gap, bytes] : exchange.gaps) std::memset(gap, 0, bytes);
      ranks.reduce_scatter(exchange.flat, part, collective.elements, dtype);
      break;
    case Collective::Op::all_gather:
      ranks.all_gather(part, exchange.flat, collective.elements * dtype.bytes);
  }
}

bool Call::others_go_on() {
  try {
    return Ranks::get().agree(program_, numbers(), refused());
  } catch (...) {
    undraw();
    throw;
  }
}

uint64_t Call::numbers() const {
  uint64_t digest = 0xcbf29ce484222325;
  for (const Cell& cell : cells_) mix(digest, cell.at, cell.bytes);
  for (const Draw& draw : draws_) {
    if (draw.shared) mix(digest, draw.words, 4 * sizeof *draw.words);
  }
  return digest;
}

bool Call::refused() const {
  const Tensor* wrong = output("check:index");
  int32_t count = 0;
  if (wrong != nullptr) std::memcpy(&count, wrong->data, sizeof count);
  return count != 0;
}

void Call::undraw() {
  for (const Draw& draw : draws_) draw.generator->offset -= draw.count;
}

}  // namespace gg
