// ApiKeys: the accepted bearer tokens, kept as SHA-256 digests only and looked up by them: from the time
// that takes nobody learns how near a guess was. And whose they are.
// Immutable but for the accounts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "router/admission/key_account.h"

namespace baton::router {

class ApiKeys {
 public:
  /// `file`: one key a line, '#' starts a comment line; "" = none. Behind a key may stand name=NAME,
  /// requests-per-minute=N, tokens-per-minute=N and priority=N. A key without a name is "key-N", the Nth one. A key
  /// that comes again is one key. NotFound: no such file. InvalidArgument: an empty key, one that comes again with
  /// another name or other limits, or a line (by number) with a field that is none.
  static absl::StatusOr<ApiKeys> Load(const std::vector<std::string>& keys, const std::string& file);

  /// No keys: everyone may.
  bool open() const { return keys_.empty(); }
  /// Whose they are is more than one.
  bool several() const { return accounts_.size() > 1; }
  /// `authorization`: the header's value, "Bearer KEY". Takes the same time whether and where a key matches, and
  /// however many there are.
  bool Allows(std::string_view authorization) const { return open() || Find(authorization) != nullptr; }
  /// Whose key it is; null: nobody's. Lives as long as this does. The same time, too.
  KeyAccount* AccountOf(std::string_view authorization) const;
  /// Every account, in the order of the keys.
  std::vector<const KeyAccount*> accounts() const;
  /// Salt of the prefix cache for a request with that key and the salt that the client gave: keys share no cache, so
  /// nobody learns from `cached_tokens` or from time what others have sent. Of the same keys, every router makes the
  /// same; of keys of one name it is one, so that a new key finds what its predecessor has cached. With fewer than two
  /// accounts there is nobody to keep apart: the client's.
  std::string SaltOf(std::string_view authorization, const std::string& client_salt) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Key {
    Digest digest;
    Digest salted_by;  ///< digest of the name, or of the key that has none
    std::shared_ptr<KeyAccount> account;
  };
  static Digest DigestOf(std::string_view key);
  const Key* Find(std::string_view authorization) const;
  absl::Status Add(std::string_view key, std::string name, const KeyAccount::Limits& limits);
  absl::Status AddLine(std::string_view line);

  std::vector<Key> keys_;
  absl::flat_hash_map<Digest, size_t> by_digest_;  ///< of keys_; nobody chooses digests, so their places tell nothing
  std::vector<std::shared_ptr<KeyAccount>> accounts_;       ///< each once, in the order of the keys
  absl::flat_hash_map<std::string, size_t> account_named_;  ///< of accounts_
};

}  // namespace baton::router
