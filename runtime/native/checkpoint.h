// Checkpoints on disk, as runtime/checkpoint.py has them: folders that exist only when they are whole.
#pragma once

#include <string>
#include <vector>

#include "arrays.h"
#include "files.h"
#include "json.h"

namespace gg {

// Writes a checkpoint into a run's folder, which is made where there is none; its path there. An Error leaves what was
// there before as it was.
std::string save_checkpoint(const std::string& run, int64_t step, const Groups& groups, const Json& about,
                            const Json& writer);

// What a checkpoint holds. The arrays lie in `files`.
struct Checkpoint {
  std::string path;
  Groups groups;
  Json about;
  std::vector<Memory> files;
};

// A checkpoint by its own folder, or the newest of a run's that is whole. Throws an Error where there is none, or the
// newest is of a version of the format that this program does not read; `damaged` says which newer ones were passed over.
Checkpoint load_checkpoint(const std::string& folder, std::vector<std::string>& damaged);

}  // namespace gg
