// Checkpoints that several ranks have written, as gluongraph/checkpoint/ranks.py has them.
#pragma once

#include "checkpoint.h"

namespace gg {

// Makes of a checkpoint what one of `count` ranks goes on from. The same number of ranks as have written it goes on with
// what each had for itself; another number has the mean of running statistics, as it stands among the parameters. Throws
// an Error where there are sums of gradients that were not applied, and other ranks than those that have them.
void take_part(Checkpoint& checkpoint, int rank, int count);

}  // namespace gg
