#include "common/trust/greeting.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/check.h"
#include "common/errno_text.h"
#include "common/status.h"

namespace baton::trust {
namespace {

constexpr std::string_view kMagic = "BATONHI\n";
constexpr uint8_t kVersion = 1;
static_assert(kMagic.size() + 2 + sizeof(Nonce) == kCallBytes && kCallBytes + kProofBytes <= kMostGreetingBytes);
static_assert(kMagic.size() + 1 + sizeof(Nonce) + sizeof(Proof) == kAnswerBytes);

std::string_view Bytes(const Nonce& nonce) { return {reinterpret_cast<const char*>(nonce.data()), nonce.size()}; }

template <size_t N>
void CopyTo(std::array<uint8_t, N>& to, std::string_view from) {
  BATON_CHECK(from.size() >= N);
  std::memcpy(to.data(), from.data(), N);
}

}  // namespace

Nonce NewNonce() {
  Nonce nonce;
  BATON_CHECK(getentropy(nonce.data(), nonce.size()) == 0, "no random numbers: ", ErrnoText());
  return nonce;
}

Greeting::Greeting(std::shared_ptr<const ClusterSecret> secret, Role role, Purpose purpose, const Nonce& nonce)
    : secret_(std::move(secret)), role_(role), purpose_(purpose), nonce_(nonce) {}

Proof Greeting::Prove(std::string_view label) const {
  const Nonce& caller = role_ == Role::kCaller ? nonce_ : other_nonce_;
  const Nonce& callee = role_ == Role::kCaller ? other_nonce_ : nonce_;
  const char purpose = static_cast<char>(purpose_);
  return secret_->Prove(label, {std::string_view(&purpose, 1), Bytes(caller), Bytes(callee)});
}

Proof Greeting::ProofOf(Role role) const {
  return Prove(role == Role::kCaller ? "greeting of a caller" : "greeting of a callee");
}

std::string Greeting::SessionToken() const {
  BATON_CHECK(done(), "a session begins with the end of its greeting");
  const Proof proof = Prove("session token");
  return absl::BytesToHexString({reinterpret_cast<const char*>(proof.data()), 16});
}

absl::Status Greeting::Fail(absl::Status why) {
  state_ = State::kFailed;
  held_.clear();
  return why;
}

void Greeting::Begin(std::string& out) {
  BATON_CHECK(state_ == State::kNew, "a greeting begins once");
  state_ = State::kWaiting;
  if (role_ == Role::kCallee) return;
  out += kMagic;
  out += static_cast<char>(kVersion);
  out += static_cast<char>(purpose_);
  out += Bytes(nonce_);
}

size_t Greeting::Wanted() const {
  if (role_ == Role::kCaller) return kAnswerBytes;
  return answered_ ? kProofBytes : kCallBytes;
}

absl::Status Greeting::Take(std::string_view& in, std::string& out) {
  BATON_CHECK(state_ != State::kNew, "Begin comes first");
  while (state_ == State::kWaiting && !in.empty()) {
    const size_t piece = std::min(in.size(), Wanted() - held_.size());
    held_ += in.substr(0, piece);
    in.remove_prefix(piece);
    // Who speaks something else is told at once: it may wait for an answer to less than a greeting.
    const size_t shown = std::min(held_.size(), kMagic.size());
    if (!answered_ && held_.substr(0, shown) != kMagic.substr(0, shown))
      return Fail(absl::InvalidArgumentError("the peer does not greet: it is started without --cluster-secret-file"));
    if (held_.size() < Wanted()) return absl::OkStatus();
    const absl::Status taken = role_ == Role::kCaller ? TakeAnswer(out) : answered_ ? TakeProof() : TakeCall(out);
    if (!taken.ok()) return Fail(taken);
    held_.clear();
  }
  return absl::OkStatus();
}

absl::Status Greeting::CheckVersion() const {
  const auto version = static_cast<uint8_t>(held_[kMagic.size()]);
  if (version == kVersion) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("a greeting of version ", int{version}, ", here ", int{kVersion}));
}

absl::Status Greeting::TakeCall(std::string& out) {
  BATON_RETURN_IF_ERROR(CheckVersion());
  const auto purpose = static_cast<uint8_t>(held_[kMagic.size() + 1]);
  if (purpose != static_cast<uint8_t>(purpose_)) {
    return absl::InvalidArgumentError(
        StrCat("a greeting for a port of kind ", int{purpose}, ", this one is of kind ", static_cast<int>(purpose_)));
  }
  CopyTo(other_nonce_, std::string_view(held_).substr(kMagic.size() + 2));
  out += kMagic;
  out += static_cast<char>(kVersion);
  out += Bytes(nonce_);
  out += Bytes(ProofOf(Role::kCallee));
  answered_ = true;
  return absl::OkStatus();
}

absl::Status Greeting::TakeAnswer(std::string& out) {
  BATON_RETURN_IF_ERROR(CheckVersion());
  const std::string_view answer = std::string_view(held_).substr(kMagic.size() + 1);
  CopyTo(other_nonce_, answer);
  Proof shown;
  CopyTo(shown, answer.substr(sizeof(Nonce)));
  if (!Same(shown, ProofOf(Role::kCallee))) return absl::PermissionDeniedError("the peer has another cluster secret");
  out += Bytes(ProofOf(Role::kCaller));
  state_ = State::kDone;
  return absl::OkStatus();
}

absl::Status Greeting::TakeProof() {
  Proof shown;
  CopyTo(shown, held_);
  if (!Same(shown, ProofOf(Role::kCaller))) return absl::PermissionDeniedError("the peer has another cluster secret");
  state_ = State::kDone;
  return absl::OkStatus();
}

}  // namespace baton::trust
