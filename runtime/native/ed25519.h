// Ed25519 signatures (RFC 8032), verified only: nothing here is secret, so time may depend on any of it.
#pragma once

#include <array>
#include <string>

namespace gg {

using PublicKey = std::array<unsigned char, 32>;
using Signature = std::array<unsigned char, 64>;

// Has the owner of the key signed the message? As OpenSSL decides it, by [S]B = R + [k]A without the cofactor; besides,
// a key is refused that is not encoded as RFC 8032 has it.
bool ed25519_verifies(const PublicKey& key, const std::string& message, const Signature& signature);

}  // namespace gg
