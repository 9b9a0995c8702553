// The long-lived arrays of a training: parameters, states of the optimizer, averages, sums of gradients.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "artefact.h"
#include "files.h"
#include "json.h"
#include "tensor.h"

namespace gg {

class Ranks;

// Arrays of a checkpoint by group ("params", "optim", "extra") and name; each group is a file there.
using Groups = std::map<std::string, std::map<std::string, Tensor>>;

class Arrays {
 public:
  // As the artefact has them, for one of these ranks; nullptr: for one process.
  Arrays(const Artefact& artefact, Ranks* ranks);
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  // Where the state of that name in graphs lies. Throws an Error where there is none of so many bytes.
  std::byte* state(const std::string& name, size_t bytes) const;
  const Tensor& state(const std::string& name) const;
  size_t room(const std::string& name) const;  // the bytes from there on that are this training's
  const Tensor& parameter(const std::string& key) const;

  // What a checkpoint holds; sums of a window for the parameters of these keys alone. What is divided among ranks is
  // gathered, into `memory` where it has none: all ranks call this.
  Groups saved(const std::vector<std::string>& window, std::vector<Memory>& memory) const;
  Json loss_scale() const;  // [scale, good steps], or null where the loss is not scaled

  // Takes over what a checkpoint holds. Throws an Error where it does not fit; nothing is changed then.
  void read(const Groups& groups, const Json& loss_scale);

 private:
  struct Held {
    Memory memory;  // empty of a parameter that lies in that of a bucket
    Tensor tensor;
    std::byte* data = nullptr;
    size_t room = 0;
  };
  struct Copy {  // in 16 bits, of a float32 state
    const Tensor *from, *to;
  };
  // Parameters in flat memory. Of their states this rank has its part alone.
  struct Divided {
    const Bucket* of;
    Memory flat;
    std::map<std::string, Held> states;
  };
  // An array in a checkpoint of which this rank keeps a part.
  struct Piece {
    Tensor type;
    std::byte* part;
    size_t start, elements;  // where it begins in flat memory, and how many of that a part has
  };

  Held& hold(const std::string& name, const Tensor& type);
  void hold_divided(const Artefact& artefact);
  void hold_states(const Artefact& artefact);
  Held& shard(const State& state);
  void check(const Groups& groups) const;
  void fill(const Groups& groups);
  void put(const Piece& piece, const Tensor& whole) const;
  void set_loss_scale(const Json& told);
  void refresh();  // the copies

  Ranks* ranks_;
  bool gathers_;
  std::map<std::string, Held> held_;         // by the name of the tensor, as "params/0.weight"
  std::map<std::string, Divided> divided_;   // by the name of this rank's part in graphs
  std::map<std::string, Held> shards_;       // the parts of parameters, by the same
  std::map<std::string, Piece> pieces_;      // by the name of the tensor
  std::map<std::string, Held*> states_;      // by the name in graphs
  std::vector<Copy> copies_;
  Held* scale_[2] = {};  // of the loss, and the good steps since it changed
};

}  // namespace gg
