#include "worker/process/router_sessions.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/status.h"

namespace baton::worker {
namespace {

constexpr size_t kNonceBytes = sizeof(trust::Nonce);

std::string NonceText(const trust::Nonce& nonce) { return {reinterpret_cast<const char*>(nonce.data()), nonce.size()}; }

}  // namespace

absl::Status RouterSessions::Refuse(absl::Status why, std::string_view host) {
  ++refused_;
  if (lines_.May(host)) LogWarning("worker: {} is refused: {}", host, View(why.message()));
  return why;
}

absl::StatusOr<std::string> RouterSessions::Greet(std::string_view words, std::string_view host,
                                                  std::string_view router) {
  if (secret_ == nullptr) return std::string();
  std::lock_guard lock(mutex_);
  DropOld();
  absl::StatusOr<std::string> answer;
  if (words.empty()) {
    answer = absl::PermissionDeniedError("the router does not greet: it is started without --cluster-secret-file");
  } else if (words.size() == kNonceBytes + trust::kProofBytes) {
    const absl::Status finished = Finish(words, router);
    answer = finished.ok() ? absl::StatusOr<std::string>(std::string()) : finished;
  } else {
    answer = Answer(words, host);
  }
  if (!answer.ok()) return Refuse(answer.status(), host);
  return answer;
}

absl::StatusOr<std::string> RouterSessions::Answer(std::string_view call, std::string_view host) {
  trust::Greeting greeting(secret_, trust::Greeting::Role::kCallee, trust::Purpose::kRpc, trust::NewNonce());
  std::string answer;
  greeting.Begin(answer);
  BATON_RETURN_IF_ERROR(greeting.Take(call, answer));
  if (!greeting.answered() || !call.empty())
    return absl::InvalidArgumentError("a handshake's greeting is neither a call nor a proof");
  if (begun_.size() >= kMostGreetings) {  // the oldest has had its turn
    const auto oldest = std::ranges::min_element(begun_, {}, [](const auto& begun) { return begun.second.since; });
    Refuse(absl::ResourceExhaustedError(StrCat("more than ", kMostGreetings, " greetings are under way")),
           oldest->second.host)
        .IgnoreError();
    begun_.erase(oldest);
  }
  std::string nonce = NonceText(greeting.nonce());
  begun_.emplace(std::move(nonce), Begun{std::move(greeting), std::string(host), clock_.Now()});
  return answer;
}

absl::Status RouterSessions::Finish(std::string_view words, std::string_view router) {
  auto node = begun_.extract(std::string(words.substr(0, kNonceBytes)));
  if (node.empty()) return absl::UnauthenticatedError("a proof of no greeting that is under way");
  std::string_view proof = words.substr(kNonceBytes);
  std::string none;
  trust::Greeting& greeting = node.mapped().greeting;
  BATON_RETURN_IF_ERROR(greeting.Take(proof, none));
  Remember(greeting.SessionToken(), router);
  return absl::OkStatus();
}

/// Where there are too many, the router that has the most gives up the one that it has used least recently.
void RouterSessions::Remember(const std::string& token, std::string_view router) {
  if (sessions_.size() >= kMostSessions) {
    std::map<std::string_view, int64_t> of_router;
    for (const auto& [known, session] : sessions_) ++of_router[session.router];
    sessions_.erase(std::ranges::min_element(sessions_, {}, [&of_router](const auto& session) {
      return std::pair(-of_router.at(session.second.router), session.second.used);
    }));
  }
  sessions_[token] = {++calls_, router.empty() ? token : std::string(router)};
}

absl::StatusOr<std::string> RouterSessions::Check(std::string_view token, std::string_view host) {
  if (secret_ == nullptr) return std::string();
  std::lock_guard lock(mutex_);
  if (const auto session = sessions_.find(token); session != sessions_.end()) {
    session->second.used = ++calls_;
    return session->second.router;
  }
  return Refuse(absl::UnauthenticatedError("a call of no session: the router has not greeted this worker "
                                           "(--cluster-secret-file), or has greeted another one "
                                           "behind the same address"),
                host);
}

void RouterSessions::Tick() {
  if (secret_ == nullptr) return;
  std::lock_guard lock(mutex_);
  DropOld();
}

void RouterSessions::DropOld() {
  const TimePoint before = clock_.Now() - kGreetingTime;
  for (auto begun = begun_.begin(); begun != begun_.end();) {
    if (begun->second.since > before) {
      ++begun;
      continue;
    }
    Refuse(
        absl::DeadlineExceededError("it has seen our proof and shown none: it left, or it has another cluster secret"),
        begun->second.host)
        .IgnoreError();
    begun = begun_.erase(begun);
  }
}

int64_t RouterSessions::refused() const {
  std::lock_guard lock(mutex_);
  return refused_;
}

}  // namespace baton::worker
