// Two processes prove to each other that they know the cluster's secret, before either keeps anything for the other:
// three messages of fixed size, without I/O or clock. One object an end and a connection; not thread-safe.
//
//   caller -> callee   Call      magic, version, port kind, nonce of the caller
//   callee -> caller   Answer    magic, version, nonce of the callee, proof of the callee over both nonces
//   caller -> callee   Proof     proof of the caller over both nonces
//
// Proofs name the role, so that nobody's proof sent back is one, and the kind of port, so that a proof for one port is
// none for another. A nonce is drawn for each greeting: nothing that was heard serves again. Version 1 has no other
// cipher to be talked down to. The secret proves who is there; bytes that follow are neither encrypted nor signed by
// it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/trust/cluster_secret.h"

namespace baton::trust {

using Nonce = std::array<uint8_t, 32>;

/// Random.
Nonce NewNonce();

/// What is greeted for.
enum class Purpose : uint8_t { kLanding = 1, kRanks = 2, kRpc = 3 };

inline constexpr size_t kCallBytes = 8 + 1 + 1 + 32, kAnswerBytes = 8 + 1 + 32 + 32, kProofBytes = 32;
/// No greeting is longer, in either direction.
inline constexpr size_t kMostGreetingBytes = 256;

/// One end of a greeting. Bytes that come are given to Take, bytes that go stand in `out`.
class Greeting {
 public:
  enum class Role : uint8_t { kCaller, kCallee };
  enum class State : uint8_t { kNew, kWaiting, kDone, kFailed };

  /// `nonce` of this end, never used before.
  Greeting(std::shared_ptr<const ClusterSecret> secret, Role role, Purpose purpose, const Nonce& nonce);

  /// The first message of a caller, to `out`; a callee has none. Once.
  void Begin(std::string& out);
  /// Takes from the front of `in` what belongs to the greeting, in any pieces; appends what is to be sent to `out`.
  /// Bytes behind the greeting stay in `in`. PermissionDenied: the other end does not know the secret; InvalidArgument:
  /// it speaks no greeting, of another version or for another port. Nothing more is taken after an error or the end.
  absl::Status Take(std::string_view& in, std::string& out);

  State state() const { return state_; }
  bool done() const { return state_ == State::kDone; }
  /// Bytes of the other end's next message that have not come: who reads no more leaves what follows the greeting.
  size_t missing() const { return done() ? 0 : Wanted() - held_.size(); }
  /// What both ends can name a session by after the greeting, and nobody who only listened to it: 128 bits in hex.
  std::string SessionToken() const;
  const Nonce& other_nonce() const { return other_nonce_; }
  const Nonce& nonce() const { return nonce_; }
  /// A callee: it has proved itself, and the caller has not.
  bool answered() const { return answered_; }

 private:
  absl::Status CheckVersion() const;
  absl::Status TakeCall(std::string& out);
  absl::Status TakeAnswer(std::string& out);
  absl::Status TakeProof();
  size_t Wanted() const;                      ///< bytes of the message that comes next
  Proof Prove(std::string_view label) const;  ///< over the kind of port and both nonces
  Proof ProofOf(Role role) const;
  absl::Status Fail(absl::Status why);

  const std::shared_ptr<const ClusterSecret> secret_;
  const Role role_;
  const Purpose purpose_;
  const Nonce nonce_;
  Nonce other_nonce_{};
  State state_ = State::kNew;
  bool answered_ = false;  ///< a callee: its answer went out
  std::string held_;       ///< of the message that comes, at most Wanted() bytes
};

}  // namespace baton::trust
