// The processes that train together: ranks of MPI, whose library is loaded when a training needs it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor.h"

namespace gg {

// How many ranks the launcher has started, by the environment: 1 where there is none, 0 where only MPI can tell.
int launched_ranks();

// All ranks of this process's job. One thread uses them at a time.
class Ranks {
 public:
  // The first call connects them: all ranks make it. Throws an Error where MPI's library cannot be loaded, or is not that
  // of the launcher.
  static Ranks& get();

  // For a process that is about to end by an error: ends the others, which would wait for it. Does nothing where there
  // are no others, or where all have got an error by `agree`.
  static void abort();

  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Replaces elements of float32 or float64 by their sums over all ranks: the same bits on each.
  void sum(void* elements, size_t count, const DType& dtype);

  // Can all ranks go on? False if this one cannot, having `failed`; it raises the error itself. Throws an Error where
  // another one has failed, or does not have the same digests of what it runs (`program`) and of `numbers`.
  bool agree(uint64_t program, uint64_t numbers, bool failed);

 private:
  Ranks();
  ~Ranks();

  int rank_ = 0, size_ = 1;
  bool owned_ = false;     // has this object initialized MPI?
  bool together_ = false;  // have all ranks got an error by the last `agree`?
};

}  // namespace gg
