// Checkpoints that several ranks have written, as gluongraph/checkpoint/ranks.py has them.
#pragma once

#include <vector>

#include "checkpoint.h"
#include "ranks.h"

namespace gg {

// What all ranks save together; the arrays that are none of the training's lie in `memory`.
struct Gathered {
  Groups groups;
  Json about;
  std::vector<Memory> memory;
};

// Adds to what one rank would save what others have otherwise. All ranks call it; the first one's result is what is
// to be saved. `statistics` are names of parameters that ranks may have otherwise: running statistics, of which the mean
// stands among the parameters.
Gathered gather(Groups groups, Json about, const std::vector<std::string>& statistics, Ranks& ranks);

// Makes of a checkpoint what one of `count` ranks goes on from. The same number of ranks as have written it goes on with
// what each had for itself; another number has the mean of running statistics, as it stands among the parameters. Throws
// an Error where there are sums of gradients that were not applied, and other ranks than those that have them.
void take_part(Checkpoint& checkpoint, int rank, int count);

}  // namespace gg
