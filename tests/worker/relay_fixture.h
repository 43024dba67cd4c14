// A relay book over a real scheduler and the fake model, driven step by step, and sinks that keep what they are sent.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "sim/stepped_engine.h"
#include "worker/relay/relay_book.h"

namespace baton::worker {

class KeepingSink final : public RelayWriter {
 public:
  using RelayWriter::RelayWriter;
  void Send(v1::RelayDown message) override { messages.push_back(std::move(message)); }
  /// Entries of one choice, in order.
  std::vector<v1::RelayEntry> Of(const std::string& request_id, uint32_t index = 0) const {
    std::vector<v1::RelayEntry> out;
    for (const v1::RelayDown& m : messages) {
      for (const v1::RelayEntry& e : m.entries()) {
        if (e.request_id() == request_id && e.index() == index) out.push_back(e);
      }
    }
    return out;
  }
  size_t TokensOf(const std::string& request_id, uint32_t index = 0) const {
    size_t n = 0;
    for (const v1::RelayEntry& e : Of(request_id, index)) n += static_cast<size_t>(e.token_ids_size());
    return n;
  }
  v1::RelayEntry LastOf(const std::string& request_id, uint32_t index = 0) const {
    const std::vector<v1::RelayEntry> all = Of(request_id, index);
    return all.empty() ? v1::RelayEntry() : all.back();
  }
  std::vector<v1::RelayDown> messages;
};

inline std::string TokenBytes(const std::vector<int32_t>& tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
}

/// A greedy request of `prompt_len` tokens for `max_tokens`.
inline v1::Attach MakeAttach(const std::string& id, uint64_t gen, int32_t prompt_len, int32_t max_tokens) {
  v1::Attach a;
  a.mutable_key()->set_request_id(id);
  a.set_attach_gen(gen);
  a.set_prompt_token_ids(TokenBytes(engine::RandomTokens(static_cast<uint64_t>(prompt_len), prompt_len)));
  a.set_prompt_len(static_cast<uint32_t>(prompt_len));
  a.mutable_sampling()->set_temperature(0);
  a.mutable_sampling()->set_max_tokens(max_tokens);
  a.mutable_sampling()->set_ignore_eos(true);
  a.set_credit_tokens(1000);
  return a;
}

inline engine::SteppedEngineOptions RelayOptions() {
  engine::SteppedEngineOptions o;
  o.scheduler.max_model_len = 300;
  o.scheduler.max_step_ms = 0;
  return o;
}

class RelayWorld {
 public:
  explicit RelayWorld(engine::SteppedEngineOptions options = RelayOptions()) : h(std::move(options)) {}

  void Attach(const std::shared_ptr<KeepingSink>& sink, v1::Attach attach) {
    v1::RelayUp up;
    *up.add_attach() = std::move(attach);
    Say(sink, up);
  }
  void Credit(const std::shared_ptr<KeepingSink>& sink, const std::string& id, uint64_t gen, uint32_t index,
              uint32_t tokens) {
    v1::RelayUp up;
    v1::Credit& c = *up.add_credit();
    c.set_request_id(id);
    c.set_attach_gen(gen);
    c.set_index(index);
    c.set_tokens(tokens);
    Say(sink, up);
  }
  void Cancel(const std::shared_ptr<KeepingSink>& sink, const std::string& id, uint64_t gen, int index = -1) {
    v1::RelayUp up;
    v1::RelayCancel& c = *up.add_cancel();
    c.set_request_id(id);
    c.set_attach_gen(gen);
    if (index >= 0) c.set_index(static_cast<uint32_t>(index));
    Say(sink, up);
  }
  void Say(const std::shared_ptr<KeepingSink>& sink, const v1::RelayUp& up) {
    book.OnMessage(sink, up, h.scheduler(), h.now);
    Flush();
  }
  void End(const std::shared_ptr<KeepingSink>& sink) {
    book.OnStreamEnd(sink.get(), h.scheduler(), h.now);
    Flush();
  }
  /// False: there was nothing to do.
  bool Step() {
    engine::StepPlan plan = h.scheduler().PlanStep(h.now);
    Flush();
    if (plan.empty()) return false;
    const absl::StatusOr<engine::StepResult> result = h.executor().Execute(plan);
    BATON_CHECK(result.ok());
    step = plan.step;
    h.now += std::chrono::milliseconds(3);
    book.OnOutputs(h.scheduler().Commit(plan, *result, h.now), step);
    h.scheduler().CheckInvariants();
    return true;
  }
  void RunAll() {
    while (Step()) {
    }
  }

  engine::SteppedEngine h;
  RelayBook book{{.vocab_size = engine::kFakeVocab}};
  uint64_t step = 0;

 private:
  void Flush() { book.OnOutputs(h.scheduler().TakeOutputs(), step); }
};

}  // namespace baton::worker
