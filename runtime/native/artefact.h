// An exported training: what `step.export` wrote, read and checked before any of it is used.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ed25519.h"
#include "files.h"
#include "json.h"
#include "tensor.h"

namespace gg {

enum class Space { scratch, state, scalar, input, output, constant };

struct Argument {
  std::string name;
  Tensor type;  // its data is that of a constant, and nullptr otherwise
  Space space;
  size_t offset = 0;  // in the block of its space: of scratch and scalars
  size_t input = 0;   // which array of a batch an input is
};

// A collective between ranks, on arguments that lie one after another: their sums over ranks, in place; this rank's part
// of the sums; or what the parts of all ranks make.
struct Collective {
  enum class Op { all_reduce, reduce_scatter, all_gather } op;
  const DType* dtype;
  std::vector<size_t> flat;  // the arguments that lie one after another
  size_t part = 0;           // the argument that is this rank's part; not of all_reduce
  size_t elements = 0;       // of a part; 0 of all_reduce

  // The bytes of the flat memory, of which each of so many ranks has a part.
  size_t bytes(const std::vector<Argument>& arguments, int64_t ranks) const;
};

size_t aligned(size_t bytes);  // as buffers are that lie one after another

// What a call does next: run a segment of its code, or a collective.
struct Step {
  bool is_collective;
  size_t number;
};

// One callable of the artefact: a mode of the step for one set of batch types.
struct Entry {
  std::string id, mode, symbol;
  Tensor code;
  std::vector<Tensor> batch;  // types
  std::vector<Argument> arguments;
  size_t scratch_bytes = 0, scalar_bytes = 0;
  std::map<std::string, size_t> outputs;  // name of an output -> its argument
  std::vector<std::string> names;         // parameters that there are gradients of
  std::vector<std::string> updates;       // states that it writes
  std::vector<int64_t> counts;            // parameters that count as updated
  double samples = 1;
  bool masked = false;   // does the output "amp:finite" say whether anything has changed?
  bool ranked = false;   // do ranks train with the artefact?
  bool guarded = false;  // must the output "anomaly:sound" be true?
  std::string checks;    // which indices the output "check:index" counts that are out of range
  std::vector<std::vector<int64_t>> groups;  // parameters whose counts and multipliers are one
  std::vector<Collective> collectives;
  std::vector<Step> steps;                   // empty: the code is one segment
  std::vector<std::string> segments;         // their symbols, the first is `symbol`
  Json scalars, draws;                       // a tape or null; argument -> [device type, device number, draws]
};

struct Parameter {
  std::string name, key;  // in graphs, and in checkpoints
  Tensor type;
  std::map<std::string, Tensor> states = {};  // types of the optimizer's
  bool trained = true;  // has it gradients? Otherwise it is a running statistic, or frozen
  int64_t index = -1;  // what counts and multipliers go by; -1: the trainer does not hold it
};

// Parameters that lie one after another in memory, of which each rank has a part: it updates that one.
struct Bucket {
  std::string name;               // in graphs: of this rank's part
  std::vector<size_t> parameters;  // their places among those of the artefact
  size_t elements = 0;            // of a rank's part
};

struct State {
  std::string name;  // in graphs
  Tensor type;
  Json value;  // what it begins as
};

class Artefact {
 public:
  // Throws an Error where anything is not as it was exported, is of other versions of TVM than this program, or needs
  // another processor; or where none of the keys has signed it, if there are keys. Nothing of it has been executed then.
  explicit Artefact(const std::string& path, const std::vector<PublicKey>& keys = {});

  std::string path;
  std::map<std::string, Tensor> tensors;
  std::vector<Parameter> parameters;
  std::vector<State> states;
  std::vector<Entry> entries;
  std::vector<Bucket> buckets;
  bool gathers = false;  // are parameters gathered where they are read, and otherwise kept in parts alone?
  int64_t ranks = 0;  // that trained the step together when it was exported; 0: it is for one process
  int64_t micro_batches = 0;  // of all ranks together, in which a step is computed; 0: each rank's batch as a whole
  bool for_these_ranks = false;  // does it train on as many ranks alone?
  Json about;  // what a checkpoint of the moment of the export says
  Json optimizer, options, writer;

 private:
  void check_tensors(const Json& told) const;
  void check_machine(const Json& told) const;
  void read(const Json& told);
  Entry entry_of(const Json& told) const;
  Bucket bucket_of(const std::string& name, const Json& told) const;
  void check_ranks();
  const Tensor& tensor(const std::string& name) const;

  Memory file_;
};

}  // namespace gg
