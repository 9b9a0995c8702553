// The processes that train together: ranks of MPI, whose library is loaded when a training needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "files.h"
#include "mpi_library.h"
#include "tensor.h"

namespace gg {

// How many ranks the launcher has started, by the environment: 1 where there is none, 0 where only MPI can tell.
int launched_ranks();

// Adds elements to others of one process, as numpy does: each sum of 16-bit floats is rounded.
void add_elements(void* total, const void* more, size_t count, const DType& dtype);

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

  // Collectives, which all ranks call in the same order, with the bits of runtime/communicator: numbers of all types but
  // truth values are added; 16-bit floats in float32, in the order of ranks, and rounded once.

  // Replaces elements by their sums over all ranks: the same bits on each.
  void sum(void* elements, size_t count, const DType& dtype);
  // The same along a balanced binary tree, ((0+1)+(2+3))+..., of a power of two of ranks.
  void sum_along_tree(void* elements, size_t count, const DType& dtype);
  // Writes part number rank() of the sums to `target`; there are size() parts of `count` elements.
  void reduce_scatter(const void* source, void* target, size_t count, const DType& dtype);
  // Writes what all ranks have, so many bytes each, one after the other. `source` may be this rank's part of `target`.
  void all_gather(const void* source, void* target, size_t bytes);
  // Replaces bytes by those of one rank.
  void broadcast(void* data, size_t bytes, int from);
  // The texts of all ranks.
  std::vector<std::string> exchange(const std::string& text);

  // Can all ranks go on? False if this one cannot, having `failed`; it raises the error itself. Throws an Error where
  // another one has failed, or does not have the same digests of what it runs (`program`) and of `numbers`.
  bool agree(uint64_t program, uint64_t numbers, bool failed);
  // For an error that all ranks have got together: then none of them has to end the others.
  void note_common_error() { together_ = true; }

 private:
  struct Part {
    const std::byte* data;
    size_t bytes;
  };

  Ranks();
  ~Ranks();
  const std::byte* rows_of(const std::vector<Part>& parts);
  void sum_by_parts(std::byte* elements, size_t count, const DType& dtype);

  Mpi mpi_{};
  Memory received_;  // kept: new pages would take as long as the copy into them
  int rank_ = 0, size_ = 1;
  bool owned_ = false;     // has this object initialized MPI?
  bool together_ = false;  // have all ranks got an error by the last `agree`?
};

}  // namespace gg
