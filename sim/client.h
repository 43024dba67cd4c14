// What clients of the simulated cluster get: everything that a AnswerSink is told, as text that can be compared.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "router/request/request_driver.h"
#include "sim/timeline.h"

namespace baton::sim {

/// What a client got of one choice.
struct ChoiceView {
  std::string tokens;  ///< ids and logprob bits
  std::string text;
  std::string end;  ///< how it ended; empty: it has not
  int64_t count = 0;
};

/// What a client got.
struct ClientView {
  enum class End : uint8_t { kNone, kComplete, kFailed, kLeft };
  std::map<uint32_t, ChoiceView> choices;
  std::string prompt_scores;
  router::RequestUsage usage;
  bool mixed = false;
  End end = End::kNone;
  router::ApiError failure;
  TimePoint asked{}, ended{};
  bool reads = true;                           ///< else nothing that it is told leaves the router
  TimePoint unread_since{};                    ///< where it does not read
  Duration unread_for{};                       ///< when it failed; 0: it read
  uint64_t told = 0, taken = 0;                ///< bytes of text; `taken` counts where it does not read
  int key = 0;                                 ///< of ClusterScenario::keys
  std::shared_ptr<router::AnswerSink> sink{};  ///< who is told in its place, and says the end here; null: a ClientSink
};

/// A token and its logprobs' bits.
std::string TokenText(int32_t token, const std::vector<router::PositionLogprobs>& logprobs, size_t at);
std::string ScoresText(const std::vector<router::PositionLogprobs>& positions);
std::string EndText(const router::ChoiceFinish& finish);

/// Writes down what a client is told. Dies when something comes after the last call.
class ClientSink final : public router::AnswerSink {
 public:
  /// `clock` must outlive it.
  ClientSink(std::shared_ptr<ClientView> view, const Clock& clock) : view_(std::move(view)), clock_(clock) {}
  void OnAdmitted(const router::TokenizedRequest&, int64_t) override { CheckOpen(); }
  void OnPromptLogprobs(std::vector<router::PositionLogprobs> positions) override;
  void OnDelta(router::ChoiceDelta&& delta, const router::RequestUsage& so_far) override;
  void OnChoiceEnd(const router::ChoiceFinish& finish) override;
  void OnDone(const router::RequestSummary& summary) override;
  void OnFailed(const router::ApiError& error) override;
  size_t UnsentBytes() const override { return view_->reads ? 0 : size_t{1} << 40; }
  uint64_t TakenBytes() const override { return view_->reads ? view_->told : view_->taken; }

 private:
  void CheckOpen() const;
  bool left() const { return view_->end == ClientView::End::kLeft; }
  const std::shared_ptr<ClientView> view_;
  const Clock& clock_;
};

}  // namespace baton::sim
