// ApiKeys: the accepted bearer tokens, kept as SHA-256 digests only and compared in constant time. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::router {

class ApiKeys {
 public:
  /// `file`: one key a line, '#' starts a comment line; "" = none. NotFound: no such file. InvalidArgument: an empty
  /// key.
  static absl::StatusOr<ApiKeys> Load(const std::vector<std::string>& keys, const std::string& file);

  /// No keys: everyone may.
  bool open() const { return digests_.empty(); }
  /// `authorization`: the header's value, "Bearer KEY". Takes the same time whether and where a key matches.
  bool Allows(std::string_view authorization) const;
  /// Salt of the prefix cache for a request with that key and the salt that the client gave: keys share no cache, so
  /// nobody learns from `cached_tokens` or from time what others have sent. Of the same keys, every router makes the
  /// same. With fewer than two keys there is nobody to keep apart: the client's.
  std::string SaltOf(std::string_view authorization, const std::string& client_salt) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest DigestOf(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace baton::router
