// The collectives of ranks, with the bits of runtime/communicator/mpi_reductions.py and reduce16.py.
#include <algorithm>
#include <cstring>

#include "error.h"
#include "half.h"
#include "ranks.h"

namespace gg {
namespace {

constexpr size_t kMost = size_t{1} << 30;  // bytes that one call of MPI is given: its counts are ints

// Adds a row of elements to another one.
using Add = void (*)(void* total, const void* row, size_t count);

template <class T>
void add(void* total, const void* row, size_t count) {
  auto* sums = static_cast<T*>(total);
  const auto* more = static_cast<const T*>(row);
  for (size_t i = 0; i < count; ++i) sums[i] = static_cast<T>(sums[i] + more[i]);
}

// Of signed integers as well: they wrap around, as in numpy.
Add addition_of(const DType& dtype) {
  if (dtype.name == "f32") return add<float>;
  if (dtype.name == "f64") return add<double>;
  switch (dtype.bytes) {
    case 1: return add<uint8_t>;
    case 4: return add<uint32_t>;
    default: return add<uint64_t>;
  }
}

bool is_short(const DType& dtype) { return dtype.name == "f16" || dtype.name == "bf16"; }

// The sums of rows of 16-bit floats, in the order of rows, in float32 and rounded once.
void add_short(const std::byte* rows, size_t count, int size, const DType& dtype, void* target) {
  const bool brain = dtype.name == "bf16";
  const auto* from = reinterpret_cast<const uint16_t*>(rows);
  auto* to = static_cast<uint16_t*>(target);
  for (size_t i = 0; i < count; ++i) {
    float total = brain ? from_bfloat16(from[i]) : from_float16(from[i]);
    for (size_t row = 1; row < static_cast<size_t>(size); ++row) {
      const uint16_t other = from[row * count + i];
      total += brain ? from_bfloat16(other) : from_float16(other);
    }
    to[i] = brain ? bfloat16_of(total) : float16_of(total);
  }
}

}  // namespace

void add_elements(void* total, const void* more, size_t count, const DType& dtype) {
  if (!is_short(dtype)) return addition_of(dtype)(total, more, count);
  const bool brain = dtype.name == "bf16";
  auto* sums = static_cast<uint16_t*>(total);
  const auto* others = static_cast<const uint16_t*>(more);
  for (size_t i = 0; i < count; ++i) {
    const auto wide = [&](uint16_t half) { return brain ? from_bfloat16(half) : from_float16(half); };
    const float sum = wide(sums[i]) + wide(others[i]);
    sums[i] = brain ? bfloat16_of(sum) : float16_of(sum);
  }
}

// What each rank has of this rank's part, row by row. `parts` are what this rank has of everybody's: every two ranks
// exchange what they need of each other.
const std::byte* Ranks::rows_of(const std::vector<Part>& parts) {
  const auto at = [](int rank) { return static_cast<size_t>(rank); };
  const Part& own = parts[at(rank_)];
  if (received_.size() < at(size_) * own.bytes) received_ = Memory(at(size_) * own.bytes);
  std::memcpy(received_.data() + at(rank_) * own.bytes, own.data, own.bytes);
  for (int distance = 1; distance < size_; ++distance) {
    const int to = (rank_ + distance) % size_, sender = (rank_ - distance + size_) % size_;
    check_mpi(mpi_.sendrecv(parts[at(to)].data, static_cast<int>(parts[at(to)].bytes), mpi_.byte, to, 0,
                            received_.data() + at(sender) * own.bytes, static_cast<int>(own.bytes), mpi_.byte, sender, 0,
                            mpi_.world, mpi_.no_status),
              "MPI_Sendrecv");
  }
  return received_.data();
}

void Ranks::sum(void* elements, size_t count, const DType& dtype) {
  if (size_ == 1) return;
  const size_t most = kMost / dtype.bytes;  // how MPI sums may depend on the size: the pieces are those of Python
  for (size_t at = 0; at < count; at += most) {
    std::byte* from = static_cast<std::byte*>(elements) + at * dtype.bytes;
    const size_t part = std::min(most, count - at);
    if (is_short(dtype)) {
      sum_by_parts(from, part, dtype);
    } else {
      check_mpi(mpi_.allreduce(mpi_.in_place, from, static_cast<int>(part), mpi_.numbers.at(dtype.name), mpi_.sum,
                               mpi_.world),
                "MPI_Allreduce");
    }
  }
}

void Ranks::sum_along_tree(void* elements, size_t count, const DType& dtype) {
  if (size_ == 1) return;
  if (is_short(dtype)) {  // in float32, and rounded once
    std::vector<float> wide(count);
    auto* halves = static_cast<uint16_t*>(elements);
    const bool brain = dtype.name == "bf16";
    for (size_t i = 0; i < count; ++i) wide[i] = brain ? from_bfloat16(halves[i]) : from_float16(halves[i]);
    sum_along_tree(wide.data(), count, dtype_of("f32"));
    for (size_t i = 0; i < count; ++i) halves[i] = brain ? bfloat16_of(wide[i]) : float16_of(wide[i]);
    return;
  }
  const size_t most = kMost / dtype.bytes;
  for (size_t at = 0; at < count; at += most) {
    std::byte* own = static_cast<std::byte*>(elements) + at * dtype.bytes;
    const size_t part = std::min(most, count - at);
    const int bytes = static_cast<int>(part * dtype.bytes);
    Memory other(part * dtype.bytes);
    for (int distance = 1; distance < size_; distance *= 2) {
      const int partner = rank_ ^ distance;
      check_mpi(mpi_.sendrecv(own, bytes, mpi_.byte, partner, 0, other.data(), bytes, mpi_.byte, partner, 0, mpi_.world,
                              mpi_.no_status),
                "MPI_Sendrecv");
      addition_of(dtype)(own, other.data(), part);
    }
  }
}

// Each rank adds one part, and all ranks gather the sums.
void Ranks::sum_by_parts(std::byte* elements, size_t count, const DType& dtype) {
  const auto size = static_cast<size_t>(size_), own = static_cast<size_t>(rank_);
  std::vector<Part> parts;
  std::vector<int> bytes, starts;
  for (size_t part = 0; part < size; ++part) {
    const size_t start = count * part / size * dtype.bytes, end = count * (part + 1) / size * dtype.bytes;
    parts.push_back({elements + start, end - start});
    bytes.push_back(static_cast<int>(end - start));
    starts.push_back(static_cast<int>(start));
  }
  add_short(rows_of(parts), parts[own].bytes / dtype.bytes, size_, dtype, elements + starts[own]);
  check_mpi(mpi_.allgatherv(mpi_.in_place, 0, mpi_.byte, elements, bytes.data(), starts.data(), mpi_.byte, mpi_.world),
            "MPI_Allgatherv");
}

void Ranks::reduce_scatter(const void* source, void* target, size_t count, const DType& dtype) {
  const auto size = static_cast<size_t>(size_), own = static_cast<size_t>(rank_);
  const size_t most = std::max<size_t>(1, kMost / dtype.bytes / size);
  for (size_t at = 0; at < count; at += most) {
    const size_t part = std::min(most, count - at);
    std::vector<Part> parts;
    for (size_t rank = 0; rank < size; ++rank) {
      const auto* from = static_cast<const std::byte*>(source) + (rank * count + at) * dtype.bytes;
      parts.push_back({from, part * dtype.bytes});
    }
    const std::byte* rows = rows_of(parts);
    std::byte* to = static_cast<std::byte*>(target) + at * dtype.bytes;
    if (is_short(dtype)) {
      add_short(rows, part, size_, dtype, to);
      continue;
    }
    std::memcpy(to, rows + own * part * dtype.bytes, part * dtype.bytes);
    for (size_t distance = 1; distance < size; ++distance) {  // the order of Python's communicator
      addition_of(dtype)(to, rows + (own + size - distance) % size * part * dtype.bytes, part);
    }
  }
}

void Ranks::all_gather(const void* source, void* target, size_t bytes) {
  auto* whole = static_cast<std::byte*>(target);
  std::byte* own = whole + static_cast<size_t>(rank_) * bytes;
  if (own != source) std::memmove(own, source, bytes);
  if (bytes * static_cast<size_t>(size_) > kMost) {
    for (int rank = 0; rank < size_; ++rank) broadcast(whole + static_cast<size_t>(rank) * bytes, bytes, rank);
  } else if (size_ > 1) {
    std::vector<int> sizes, starts;
    for (int rank = 0; rank < size_; ++rank) {
      sizes.push_back(static_cast<int>(bytes));
      starts.push_back(rank * static_cast<int>(bytes));
    }
    check_mpi(mpi_.allgatherv(mpi_.in_place, 0, mpi_.byte, whole, sizes.data(), starts.data(), mpi_.byte, mpi_.world),
              "MPI_Allgatherv");
  }
}

void Ranks::broadcast(void* data, size_t bytes, int from) {
  if (size_ == 1) return;
  for (size_t at = 0; at < bytes; at += kMost) {
    const int part = static_cast<int>(std::min(kMost, bytes - at));
    check_mpi(mpi_.broadcast(static_cast<std::byte*>(data) + at, part, mpi_.byte, from, mpi_.world), "MPI_Bcast");
  }
}

std::vector<std::string> Ranks::exchange(const std::string& text) {
  std::vector<uint64_t> sizes(static_cast<size_t>(size_));
  const uint64_t own = text.size();
  all_gather(&own, sizes.data(), sizeof own);
  std::vector<std::string> texts;
  for (int rank = 0; rank < size_; ++rank) {
    texts.push_back(rank == rank_ ? text : std::string(sizes[static_cast<size_t>(rank)], 0));
    broadcast(texts.back().data(), texts.back().size(), rank);
  }
  return texts;
}

}  // namespace gg
