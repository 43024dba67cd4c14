#include "common/prefix_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "common/check.h"
#include "common/open_to_read.h"
#include "common/status.h"

namespace baton {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

PrefixHash FromXxh(XXH128_hash_t h) { return {h.low64, h.high64}; }

// Length-prefixed, so that no two (tag, value) lists have the same bytes.
void AppendField(std::string& out, std::string_view tag, std::string_view value) {
  for (std::string_view part : {tag, value}) {
    const uint64_t n = part.size();
    out.append(reinterpret_cast<const char*>(&n), sizeof n);
    out.append(part);
  }
}

}  // namespace

absl::StatusOr<HashKey> HashKey::Random() {
  HashKey key;
  std::ifstream in("/dev/urandom", std::ios::binary);
  in.read(reinterpret_cast<char*>(key.bytes.data()), static_cast<std::streamsize>(key.bytes.size()));
  if (!in) return absl::UnavailableError("cannot read 32 bytes from /dev/urandom for the hash key");
  return key;
}

absl::StatusOr<HashKey> HashKey::FromFile(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::ifstream in, OpenToRead(path, "hash key file"));
  char text[256];
  in.read(text, sizeof text);
  std::string hex(text, static_cast<size_t>(in.gcount()));
  absl::StripAsciiWhitespace(&hex);
  absl::StatusOr<HashKey> key = FromHex(hex);
  if (!key.ok()) return absl::InvalidArgumentError(absl::StrCat("hash key file ", path, ": ", key.status().message()));
  return key;
}

absl::StatusOr<HashKey> HashKey::FromHex(std::string_view hex) {
  HashKey key;
  if (hex.size() != 2 * key.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a hash key is 64 hex digits, got ", hex.size(), " characters"));
  }
  for (size_t i = 0; i < hex.size(); ++i) {
    const size_t digit = kHexDigits.find(absl::ascii_tolower(static_cast<unsigned char>(hex[i])));
    if (digit == std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("a hash key is 64 hex digits, character ", i, " is not one"));
    }
    key.bytes[i / 2] = static_cast<uint8_t>((key.bytes[i / 2] << 4) | digit);
  }
  return key;
}

std::string HashKey::Hex() const {
  std::string out;
  for (uint8_t b : bytes) {
    out.push_back(kHexDigits[b >> 4]);
    out.push_back(kHexDigits[b & 15]);
  }
  return out;
}

PrefixHasher::PrefixHasher(const HashKey& key) {
  // Counter mode over the key; XXH3 wants a secret of ≥ 136 bytes of high entropy.
  std::array<uint8_t, 40> seed_block{};
  std::memcpy(seed_block.data(), key.bytes.data(), key.bytes.size());
  for (uint64_t i = 0; i < secret_.size() / 16; ++i) {
    std::memcpy(seed_block.data() + 32, &i, sizeof i);
    const XXH128_hash_t h = XXH3_128bits_withSeed(seed_block.data(), seed_block.size(), 0x9E3779B97F4A7C15ull + i);
    std::memcpy(secret_.data() + 16 * i, &h.low64, 8);
    std::memcpy(secret_.data() + 16 * i + 8, &h.high64, 8);
  }
}

PrefixHash PrefixHasher::Root(const PrefixScope& scope) const {
  std::string bytes;
  AppendField(bytes, "baton.prefix.model", scope.model_digest);
  AppendField(bytes, "baton.prefix.salt", scope.salt);
  AppendField(bytes, "baton.prefix.lora", scope.lora_digest);
  return FromXxh(XXH3_128bits_withSecret(bytes.data(), bytes.size(), secret_.data(), secret_.size()));
}

PrefixHash PrefixHasher::Next(const PrefixHash& parent, std::span<const int32_t> unit) const {
  BATON_DCHECK(unit.size() == kUnitTokens, unit.size(), " tokens");
  struct {
    uint64_t lo, hi;
    int32_t tokens[kUnitTokens];
  } input;
  static_assert(sizeof input == 16 + 4 * kUnitTokens);
  input.lo = parent.lo;
  input.hi = parent.hi;
  std::memcpy(input.tokens, unit.data(), sizeof input.tokens);
  return FromXxh(XXH3_128bits_withSecret(&input, sizeof input, secret_.data(), secret_.size()));
}

std::vector<PrefixHash> PrefixHasher::Chain(const PrefixHash& root, std::span<const int32_t> tokens) const {
  std::vector<PrefixHash> out;
  out.reserve(tokens.size() / kUnitTokens);
  Walk(root, tokens, [&out](const PrefixHash& hash) { out.push_back(hash); });
  return out;
}

}  // namespace baton
