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

// Arrays of a checkpoint by group ("params", "optim", "extra") and name; each group is a file there.
using Groups = std::map<std::string, std::map<std::string, Tensor>>;

class Arrays {
 public:
  // As the artefact has them.
  explicit Arrays(const Artefact& artefact);
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  // Where the state of that name in graphs lies. Throws an Error where there is none of so many bytes.
  std::byte* state(const std::string& name, size_t bytes) const;
  size_t room(const std::string& name) const;  // the bytes from there on that are this training's
  const Tensor& parameter(const std::string& key) const;

  // What a checkpoint holds; sums of a window for the parameters of these keys alone.
  Groups saved(const std::vector<std::string>& window) const;
  Json loss_scale() const;  // [scale, good steps], or null where the loss is not scaled

  // Takes over what a checkpoint holds. Throws an Error where it does not fit; nothing is changed then.
  void read(const Groups& groups, const Json& loss_scale);

 private:
  struct Held {
    Memory memory;
    Tensor tensor;
  };
  struct Copy {  // in 16 bits, of a float32 state
    const Tensor *from, *to;
  };

  Held& hold(const std::string& name, const Tensor& type);
  void set_loss_scale(const Json& told);
  void refresh();  // the copies

  std::map<std::string, Held> held_;     // by the name of the tensor, as "params/0.weight"
  std::map<std::string, Held*> states_;  // by the name in graphs
  std::vector<Copy> copies_;
  Held* scale_[2] = {};  // of the loss, and the good steps since it changed
};

}  // namespace gg
