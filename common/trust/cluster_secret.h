// The secret that the processes of one cluster share, and what it proves. Immutable; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::trust {

/// HMAC-SHA256.
using Proof = std::array<uint8_t, 32>;

/// Compared in constant time.
bool Same(const Proof& a, const Proof& b);

class ClusterSecret {
 public:
  /// --cluster-secret-file: 32 to 4,096 bytes, white space at the end not counted. NotFound: it cannot be read.
  /// FailedPrecondition: others than its owner and group may read it. InvalidArgument: another length, with both
  /// numbers.
  static absl::StatusOr<std::shared_ptr<const ClusterSecret>> Read(const std::string& file);
  /// InvalidArgument as Read.
  static absl::StatusOr<std::shared_ptr<const ClusterSecret>> Of(std::string text);
  /// Of 256 random bits, in hex: what a file may hold.
  static std::string NewText();

  ~ClusterSecret();
  ClusterSecret(const ClusterSecret&) = delete;
  ClusterSecret& operator=(const ClusterSecret&) = delete;

  /// Proves `label` and `parts` together: no other split of the same bytes has this proof.
  Proof Prove(std::string_view label, std::initializer_list<std::string_view> parts) const;

 private:
  explicit ClusterSecret(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace baton::trust
