// One entry of an artefact, bound to its memory: a call changes where the batch lies, and scalars, and no more.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "artefact.h"
#include "code.h"
#include "files.h"
#include "progress.h"
#include "tape.h"

namespace gg {

class Call {
 public:
  // Loads the entry's code. `scratch` is memory for what lies between kernels, which all calls may share; `ranks` is how
  // many have exported it.
  Call(const Entry& entry, const Arrays& arrays, Progress& progress, const Memory& scratch, int64_t ranks);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Entry& entry;
  const std::vector<double*> counters;  // of the parameters that the call updates

  void write_scalars();                         // throws an Error where one of them cannot be
  // With random words drawn, which `undraw` takes back. Throws an Error where another rank cannot go on.
  void run(const std::vector<const void*>& batch);
  // The same of one of several micro-batches, which draw from streams of their own; then `advance` goes on in all.
  void run_micro_batch(const std::vector<const void*>& batch, uint64_t number);
  void advance();
  uint64_t program() const { return program_; }  // a digest of what all ranks must have in common
  bool refused() const;  // has the last run counted indices out of range, and changed nothing?
  void undraw();

  const std::vector<Tensor>& results() const { return results_; }  // of the last run: what the program gives back
  const Tensor* output(const std::string& name) const;

 private:
  struct Cell {
    std::byte* at;
    size_t bytes;  // of a float, or of a double where a float64 parameter reads it
    size_t value;  // of the tape
  };
  // A collective, and the memory that it is of.
  struct Exchange {
    const Collective* of;
    std::byte* flat;
    size_t bytes;                                     // of the flat memory
    std::vector<std::pair<std::byte*, size_t>> gaps;  // of it that belong to no argument
  };
  struct Draw {
    uint32_t* words;
    Generator* generator;
    uint64_t count;
    uint64_t apart;  // this is added to the seed
    bool shared;     // by all ranks

    void write(uint64_t stream) const;  // the words of the next draw
  };

  void bind(const std::vector<const void*>& batch);
  void run_with_collectives();
  void communicate(const Exchange& exchange) const;
  bool others_go_on();       // false where this rank does not; throws an Error where another one does not
  uint64_t numbers() const;  // a digest of the scalars that are the same on all ranks
  Exchange exchange_of(const Collective& collective, const Arrays& arrays, int64_t ranks) const;
  void* place_of(const Argument& argument, const Arrays& arrays, const Memory& scratch);

  Memory scalars_, own_;  // own_: of outputs and constants
  size_t used_ = 0;       // bytes of it
  std::vector<int64_t> sizes_;
  std::vector<DLTensor> table_;
  std::vector<std::pair<size_t, size_t>> inputs_;  // argument, array of the batch
  Tape tape_;
  std::vector<Cell> cells_;
  std::vector<Draw> draws_;
  std::vector<Exchange> exchanges_;
  uint64_t program_ = 0;  // a digest of what all ranks must have in common
  std::map<std::string, Tensor> outputs_;
  std::vector<Tensor> results_;
  std::unique_ptr<Code> code_;
};

}  // namespace gg
