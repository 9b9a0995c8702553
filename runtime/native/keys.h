// Whose artefacts are run: public keys in a file, and the signatures that artefacts carry (docs/artefact.md).
#pragma once

#include <string>
#include <vector>

#include "ed25519.h"
#include "json.h"

namespace gg {

// The keys in a file as `gluongraph key show` prints them, ed25519: and 64 hex digits in a line each; a name may follow.
// Empty lines, and comments after #, are left out. Throws an Error where there is none, or a line is something else.
std::vector<PublicKey> read_keys(const std::string& path);

// Throws an Error unless one of the keys has signed an artefact with this metadata, whose descriptor has this digest.
void check_signature(const Json& metadata, const std::string& digest, const std::vector<PublicKey>& keys);

}  // namespace gg
