// clang-format off: <utility> before Asio, whose awaitable.hpp uses std::exchange without it (Boost 1.81).
#include <utility>
// clang-format on

#include "cli/tools/bench_grpc.h"

#include <grpcpp/grpcpp.h>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "common/foreign_text.h"
#include "common/json.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/tls/grpc_credentials.h"
#include "proto/generation.grpc.pb.h"
#include "proto/stage_codec.h"

namespace baton::cli {
namespace {

namespace asio = boost::asio;
using load::Answer;
using load::BenchOptions;
using load::Failure;
using load::Outcome;

/// What every request of a run has, and who is asked.
struct Target {
  std::string address;
  SteadyClock clock;
  tls::Refusals refusals{clock};
  std::unique_ptr<tls::LiveIdentity> identity;  // null: no TLS
  std::unique_ptr<tls::GrpcTls> tls;            // of identity
  std::unique_ptr<v1::Generation::Stub> stub;
  std::vector<std::pair<std::string, std::string>> metadata;
  v1::GenerateRequest request;  // model and sampling
  bool chat = false;
  uint64_t seed = 0;
  Duration timeout{};

  void Prepare(grpc::ClientContext& context, Duration limit) const {
    for (const auto& [name, value] : metadata) context.AddMetadata(name, value);
    context.set_deadline(std::chrono::system_clock::now() + limit);
  }
};

/// Takes one chunk's news. True: it had text, or ended an answer without any.
bool Apply(const v1::GenerateChunk& chunk, Answer& answer) {
  if (chunk.has_usage()) {
    answer.counted = true;
    answer.prompt_tokens = chunk.usage().prompt_tokens();
    answer.completion_tokens = chunk.usage().completion_tokens();
    answer.cached_tokens = chunk.usage().cached_tokens();
  }
  if (chunk.has_timings()) answer.stages = DecodeStages<load::Stages>(chunk.timings());
  if (chunk.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) answer.finished = true;
  const bool ends_without_text = answer.finished && answer.text.empty();
  answer.text += chunk.text();
  return !chunk.text().empty() || ends_without_text;
}

// False: a message of it is not text.
bool AddPrompt(const load::Prompt& prompt, bool chat, v1::GenerateRequest& request) {
  if (!chat) {
    if (prompt.ids.empty()) {
      request.set_text_bytes(prompt.text);
    } else {
      request.mutable_tokens()->mutable_ids()->Add(prompt.ids.begin(), prompt.ids.end());
    }
    return true;
  }
  v1::ChatMessages& chats = *request.mutable_chat();
  if (prompt.messages.empty()) {
    v1::ChatMessage& only = *chats.add_messages();
    only.set_role("user");
    only.set_content(prompt.text);
    return true;
  }
  const nlohmann::json messages = nlohmann::json::parse(prompt.messages, nullptr, /*allow_exceptions=*/false);
  if (!messages.is_array()) return false;
  for (const nlohmann::json& one : messages) {
    if (!one.is_object() || !one.contains("role") || !one["role"].is_string() || !one.contains("content") ||
        !one["content"].is_string())
      return false;
    v1::ChatMessage& message = *chats.add_messages();
    message.set_role(one["role"].get<std::string>());
    message.set_content(one["content"].get<std::string>());
  }
  return true;
}

/// The calls under way. Thread-safe.
class Calls {
 public:
  using Context = std::shared_ptr<grpc::ClientContext>;

  Context Begin() {
    const std::lock_guard lock(mutex_);
    return *calls_.insert(std::make_shared<grpc::ClientContext>()).first;
  }
  void End(const Context& call) {
    const std::lock_guard lock(mutex_);
    calls_.erase(call);
    gone_.notify_all();
  }
  /// Returns when each has ended.
  void CancelAll() {
    std::unique_lock lock(mutex_);
    const std::set<Context> running = calls_;
    lock.unlock();  // a call may end on this thread
    for (const Context& call : running) call->TryCancel();
    lock.lock();
    gone_.wait(lock, [this] { return calls_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable gone_;
  std::set<Context> calls_;
};

/// One call. gRPC's threads fill `outcome`; `done` is cancelled on the io thread when nothing more will come.
class Call final : public grpc::ClientReadReactor<v1::GenerateChunk> {
 public:
  Call(const Target& target, TimePoint start, Outcome& outcome, asio::steady_timer& done, std::shared_ptr<Calls> calls)
      : target_(target), start_(start), outcome_(outcome), done_(done), calls_(std::move(calls)) {}

  void Start(v1::GenerateRequest request, const std::string& request_id, Duration limit) {
    request_ = std::move(request);
    context_->AddMetadata("x-request-id", request_id);
    target_.Prepare(*context_, limit);
    target_.stub->async()->Generate(context_.get(), &request_, this);
    StartRead(&chunk_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (Apply(chunk_, outcome_.answer)) outcome_.arrivals.push_back(target_.clock.Now() - start_);
    StartRead(&chunk_);
  }

  void OnDone(const grpc::Status& status) override {
    outcome_.end = target_.clock.Now() - start_;
    if (!status.ok()) {
      outcome_.unavailable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
      load::Fail(outcome_, KindOf(status),
                 StrCat("gRPC ", static_cast<int>(status.error_code()), ": ",
                        Printable(tls::ExplainGrpc(status.error_message(), target_.tls != nullptr), 300)));
    } else if (!outcome_.answer.finished) {
      load::Fail(outcome_, Failure::kBroken, "the stream ended without an end of the answer");
    } else if (outcome_.arrivals.empty()) {
      load::Fail(outcome_, Failure::kMalformed, "an answer without a token");
    }
    const std::shared_ptr<Calls> calls = calls_;
    const Calls::Context context = context_;
    asio::post(done_.get_executor(), [this] { done_.cancel(); });
    calls->End(context);  // this may be gone by now, and the asker with it
  }

 private:
  Failure KindOf(const grpc::Status& status) const {
    switch (status.error_code()) {
      case grpc::StatusCode::DEADLINE_EXCEEDED: return Failure::kTimeout;
      case grpc::StatusCode::UNAVAILABLE:
        // Servers of gRPC send their first metadata before the first message, and with a refusal.
        return !outcome_.arrivals.empty()                      ? Failure::kBroken
               : context_->GetServerTrailingMetadata().empty() ? Failure::kConnect
                                                               : Failure::kRefused;
      default: return outcome_.arrivals.empty() ? Failure::kRefused : Failure::kError;
    }
  }

  const Target& target_;
  const TimePoint start_;
  Outcome& outcome_;
  asio::steady_timer& done_;
  const std::shared_ptr<Calls> calls_;
  const Calls::Context context_ = calls_->Begin();
  v1::GenerateRequest request_;
  v1::GenerateChunk chunk_;
};

class GrpcAsker final : public load::Asker {
 public:
  GrpcAsker(std::shared_ptr<const Target> target, std::string model, const Clock& clock)
      : target_(std::move(target)), model_(std::move(model)), clock_(clock) {}

  ~GrpcAsker() override { calls_->CancelAll(); }  // whose threads may still post to ours

  void Begin(TimePoint start, TimePoint until) override { start_ = start, until_ = until; }
  void Abandon() override { calls_->CancelAll(); }
  int64_t connections() const override { return 1; }  // many streams of one channel

  asio::awaitable<void> Ask(const load::Prompt& prompt, size_t index, std::string request_id,
                            Outcome& outcome) override {
    v1::GenerateRequest request = target_->request;
    request.set_model(model_);
    request.mutable_sampling()->set_seed((target_->seed + index) & 0x7fffffff);
    request.mutable_sampling()->set_max_tokens(static_cast<int32_t>(prompt.output_tokens));
    const bool fits = AddPrompt(prompt, target_->chat, request);
    outcome.sent = clock_.Now() - start_;
    if (!fits) {
      load::Fail(outcome, Failure::kMalformed, "over gRPC a message is a role and a text");
      outcome.end = outcome.sent;
      co_return;
    }
    asio::steady_timer done(co_await asio::this_coro::executor, asio::steady_timer::time_point::max());
    Call call(*target_, start_, outcome, done, calls_);
    call.Start(std::move(request), request_id, std::min(target_->timeout, until_ - clock_.Now()));
    boost::system::error_code cancelled;
    co_await done.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }

 private:
  const std::shared_ptr<const Target> target_;
  const std::string model_;
  const Clock& clock_;
  TimePoint start_{}, until_ = TimePoint::max();
  const std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
};

class OpenGrpc final : public BenchGrpc {
 public:
  explicit OpenGrpc(std::shared_ptr<const Target> target) : target_(std::move(target)) {}

  absl::StatusOr<std::string> FindModel(Duration within) override {
    grpc::ClientContext context;
    target_->Prepare(context, within);
    v1::ModelCard card;
    const grpc::Status status = target_->stub->GetModel(&context, {}, &card);
    if (status.ok()) return card.name();
    return absl::UnavailableError(
        StrCat("gRPC ", target_->address, ": ", tls::ExplainGrpc(status.error_message(), target_->tls != nullptr)));
  }

  load::MakeAsker Asker(const std::string& model) override {
    return [target = target_, model](const Clock& clock) { return std::make_unique<GrpcAsker>(target, model, clock); };
  }

 private:
  const std::shared_ptr<const Target> target_;
};

absl::Status SetSampling(const BenchOptions& o, v1::SamplingParams& out) {
  if (!o.extra_body.empty())
    return absl::InvalidArgumentError("--extra-body: gRPC has no body; leave it out, or use --backend openai");
  if (load::IgnoresEos(o)) out.set_ignore_eos(true);
  const auto number = [](std::string_view flag, const std::string& text, auto set) -> absl::Status {
    double value = 0;
    if (text.empty()) return absl::OkStatus();
    if (!absl::SimpleAtod(text, &value))
      return absl::InvalidArgumentError(StrCat("--", flag, ": \"", text, "\" is not a number"));
    set(static_cast<float>(value));
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(number("temperature", o.temperature, [&](float v) { out.set_temperature(v); }));
  BATON_RETURN_IF_ERROR(number("top-p", o.top_p, [&](float v) { out.set_top_p(v); }));
  BATON_RETURN_IF_ERROR(number("top-k", o.top_k, [&](float v) { out.set_top_k(static_cast<int32_t>(v)); }));
  BATON_RETURN_IF_ERROR(number("min-p", o.min_p, [&](float v) { out.set_min_p(v); }));
  BATON_RETURN_IF_ERROR(
      number("frequency-penalty", o.frequency_penalty, [&](float v) { out.set_frequency_penalty(v); }));
  BATON_RETURN_IF_ERROR(number("presence-penalty", o.presence_penalty, [&](float v) { out.set_presence_penalty(v); }));
  return number("repetition-penalty", o.repetition_penalty, [&](float v) { out.set_repetition_penalty(v); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchGrpc>> BenchGrpc::Open(
    const std::string& url, const std::vector<std::pair<std::string, std::string>>& headers, const BenchOptions& o) {
  constexpr std::string_view kPlain = "grpc://", kTls = "grpcs://";
  const bool with_tls = url.starts_with(kTls);
  if (!with_tls && !url.starts_with(kPlain))
    return absl::InvalidArgumentError(StrCat("\"", url, "\" is not grpc://HOST:PORT or grpcs://HOST:PORT"));
  auto target = std::make_shared<Target>();
  target->address = url.substr(with_tls ? kTls.size() : kPlain.size());
  BATON_ASSIGN_OR_RETURN(const auto where, net::ParseHostPort(target->address));
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (with_tls) {
    if (o.insecure)
      return absl::InvalidArgumentError("--insecure: gRPC checks whom it talks to; --tls-ca names its authority");
    tls::TlsFiles files{o.tls_cert, o.tls_key, o.tls_ca.empty() ? tls::SystemAuthorities() : o.tls_ca};
    BATON_ASSIGN_OR_RETURN(target->identity, tls::LiveIdentity::Open(std::move(files)));
    BATON_ASSIGN_OR_RETURN(target->tls, tls::GrpcTls::Make(*target->identity, target->refusals));
    credentials = target->tls->ForClient({where.host});
  }
  target->stub = v1::Generation::NewStub(grpc::CreateChannel(target->address, credentials));
  for (const auto& [name, value] : headers)
    target->metadata.emplace_back(absl::AsciiStrToLower(name), value);  // as HTTP/2 has them
  target->chat = load::IsChat(o);
  target->seed = o.seed;
  target->timeout = std::chrono::milliseconds(o.request_timeout_ms);
  BATON_RETURN_IF_ERROR(SetSampling(o, *target->request.mutable_sampling()));
  return std::make_unique<OpenGrpc>(std::move(target));
}

}  // namespace baton::cli
