#include "fake_worker.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"
#include "proto/worker.grpc.pb.h"

namespace baton::router {
namespace {

struct Choice {
  uint64_t position = 0;  // of the next token
  uint32_t made = 0;      // by this leg
  uint32_t limit = 0;     // tokens of this leg
  uint32_t credit = 0;
  bool done = false;
};

struct Leg {
  v1::Attach attach;
  std::map<uint32_t, Choice> choices;
};

using RelayStream = grpc::ServerReaderWriter<v1::RelayDown, v1::RelayUp>;

}  // namespace

class FakeWorker::Service final : public v1::Worker::Service {
 public:
  explicit Service(FakeWorkerOptions o) : options(std::move(o)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(StrCat("127.0.0.1:", options.port), grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    state.mutable_state()->set_state(v1::WorkerState::STATE_READY);
    server = builder.BuildAndStart();
    BATON_CHECK(server != nullptr && port != 0);
    if (options.step_every > Duration{}) pace = std::thread([this] { Pace(); });
  }
  ~Service() override {
    if (pace.joinable()) pace.join();
  }

  grpc::Status Handshake(grpc::ServerContext*, const v1::HandshakeRequest* request,
                         v1::HandshakeReply* reply) override {
    std::lock_guard lock(mutex);
    reply->mutable_protocol()->set_min(options.protocol_min);
    reply->mutable_protocol()->set_max(options.protocol_max);
    if (options.loading) {
      reply->mutable_loading()->set_phase("weights");
      reply->mutable_loading()->set_progress(0.25);
      return grpc::Status::OK;
    }
    if (!request->hash_key().empty()) key = request->hash_key();
    reply->set_worker_id(StrCat("127.0.0.1:", port));
    reply->set_incarnation(options.incarnation);
    reply->set_role(options.role);
    reply->mutable_numerics()->set_id(options.numerics);
    reply->set_hash_key(key);
    reply->set_model_digest(options.model_digest);
    reply->set_kv_digest(options.kv_digest);
    reply->set_tokenizer_digest(options.tokenizer_digest);
    v1::KvGroup* group = reply->mutable_kv_layout()->add_groups();
    group->add_layers(0);
    group->set_tokens_per_block(16);
    reply->set_model_name("tiny-llama");
    reply->set_max_model_len(options.max_model_len);
    reply->set_vocab_size(options.vocab_size);
    reply->set_takes_short_ids(options.takes_short_ids);
    reply->add_eos_token_ids(2);
    reply->set_kv_blocks(1000);
    reply->set_max_num_seqs(16);
    reply->set_prefill_tokens_per_s(1000);
    reply->set_decode_step_ms(1);
    changed.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WorkerEvent>* writer) override {
    std::unique_lock lock(mutex);
    NoteMeant("Watch", *context);
    const int round = ++watches;
    uint64_t sequence = 0;
    changed.notify_all();
    v1::WorkerEvent snapshot;
    snapshot.mutable_snapshot()->set_last(true);
    for (uint64_t k : stored) AppendKey(*snapshot.mutable_snapshot()->mutable_hashes(), k);
    std::deque<v1::WorkerEvent> queue{snapshot, state};
    size_t seen = events.size();
    TimePoint report = std::chrono::steady_clock::now();
    while (!killed && !context->IsCancelled() && round == watches) {
      if (const TimePoint now = std::chrono::steady_clock::now(); queue.empty() && now >= report) {
        queue.push_back(LoadEvent());
        report = now + options.load_every;
      }
      for (; !queue.empty(); queue.pop_front()) {
        if (skip) ++sequence, skip = false;
        queue.front().set_sequence_number(++sequence);
        queue.front().set_incarnation(options.incarnation);
        lock.unlock();
        const bool sent = writer->Write(queue.front());
        lock.lock();
        if (!sent) return grpc::Status::OK;
      }
      changed.wait_for(lock, std::chrono::milliseconds(20));
      for (; seen < events.size(); ++seen) queue.push_back(events[seen]);
    }
    return grpc::Status::OK;
  }

  grpc::Status Relay(grpc::ServerContext* context, RelayStream* stream) override {
    {
      std::lock_guard lock(mutex);
      NoteMeant("Relay", *context);
    }
    v1::RelayUp up;
    while (stream->Read(&up)) {
      std::lock_guard lock(mutex);
      relay = stream;
      for (v1::Attach& attach : *up.mutable_attach()) OnAttach(std::move(attach));
      for (const v1::Credit& credit : up.credit()) {
        auto leg = legs.find(credit.request_id());
        if (leg != legs.end()) leg->second.choices[credit.index()].credit += credit.tokens();
      }
      for (v1::RelayCancel& cancel : *up.mutable_cancel()) {
        auto leg = legs.find(cancel.request_id());
        if (leg != legs.end() && !cancel.has_index())
          legs.erase(leg);
        else if (leg != legs.end())
          leg->second.choices[cancel.index()].done = true;
        cancels.push_back(std::move(cancel));
      }
      Run();
    }
    std::lock_guard lock(mutex);
    if (relay == stream) relay = nullptr;
    legs.clear();
    return grpc::Status::OK;
  }

  // ---- with `mutex` held
  void NoteMeant(const char* stream, const grpc::ServerContext& context) {
    const auto said = context.client_metadata().find("baton-incarnation");
    const bool says = said != context.client_metadata().end();
    meant_for.insert(StrCat(stream, says ? StrCat(" ", std::string(said->second.data(), said->second.size())) : ""));
  }
  void OnAttach(v1::Attach attach) {
    attaches.push_back(attach);
    const std::string id = attach.key().request_id();
    if (!options.refuse.ok()) {
      v1::RelayEntry entry = Entry(attach, attach.choices_size() ? attach.choices(0) : 0);
      entry.set_finish_reason(v1::FINISH_REASON_ERROR);
      entry.mutable_error()->set_code(static_cast<int>(options.refuse.code()));
      entry.mutable_error()->set_message(std::string(options.refuse.message()));
      entry.mutable_error()->set_retry_after_ms(2500);
      entry.mutable_error()->set_queue_ms(2500);
      return Send({entry});
    }
    Leg leg;
    std::vector<uint32_t> indices(attach.choices().begin(), attach.choices().end());
    for (int i = 0; attach.choices().empty() && i < attach.sampling().n(); ++i)
      indices.push_back(static_cast<uint32_t>(i));
    std::vector<v1::RelayEntry> entries;
    for (uint32_t index : indices) {
      leg.choices[index] = {attach.position(), 0,
                            static_cast<uint32_t>(attach.sampling().max_tokens()) - attach.output_len_so_far(),
                            attach.credit_tokens()};
      v1::RelayEntry entry = Entry(attach, index);
      entry.mutable_accepted()->set_cached_tokens(std::min(options.cached_tokens, attach.prompt_len() - 1));
      if (attach.sampling().has_prompt_logprobs() && index == indices[0]) {
        v1::PromptLogprobs all;
        for (uint32_t p = 1; p < attach.prompt_len(); ++p)
          *all.add_positions() = Logprobs(TokenAt(0, p), attach.sampling().prompt_logprobs());
        entry.set_prompt_logprobs(all.SerializeAsString());
        entry.set_prompt_logprobs_last(true);
      }
      entries.push_back(std::move(entry));
    }
    leg.attach = std::move(attach);
    legs[id] = std::move(leg);
    Send(std::move(entries));
  }

  // One step after the other until nothing may be sent.
  void Run() {
    while (options.step_every == Duration{} && StepAll()) {
    }
    changed.notify_all();
  }

  bool StepAll() {
    if (!relay || killed) return false;
    std::vector<v1::RelayEntry> entries;
    for (auto& [id, leg] : legs) {
      for (auto& [index, choice] : leg.choices) Step(leg.attach, index, choice, entries);
    }
    if (entries.empty()) return false;
    Send(std::move(entries));
    return true;
  }

  void Pace() {
    std::unique_lock lock(mutex);
    const Duration now = std::chrono::steady_clock::now().time_since_epoch();
    for (TimePoint at(now - now % options.step_every); !killed; at += options.step_every) {
      if (!changed.wait_until(lock, at, [this] { return killed; })) StepAll();
    }
  }

  void Step(const v1::Attach& attach, uint32_t index, Choice& choice, std::vector<v1::RelayEntry>& entries) {
    if (choice.done) return;
    v1::RelayEntry entry = Entry(attach, index);
    entry.set_position(choice.position);
    for (int i = 0; i < options.tokens_per_message && choice.made < choice.limit && choice.credit > 0 &&
                    choice.made < static_cast<uint32_t>(options.hold_after);
         ++i) {
      const int32_t token = TokenAt(index, choice.position);
      entry.add_token_ids(token);
      if (attach.sampling().has_logprobs()) *entry.add_logprobs() = Logprobs(token, attach.sampling().logprobs());
      ++choice.position;
      ++choice.made;
      --choice.credit;
      ++tokens_sent;
    }
    if (entry.token_ids().empty()) return;
    if (choice.made == choice.limit) {
      choice.done = true;
      entry.set_finish_reason(v1::FINISH_REASON_LENGTH);
      entry.mutable_timings()->set_prefill_ms(3);
      entry.mutable_timings()->set_decode_ms(5);
    }
    entries.push_back(std::move(entry));
  }

  static v1::PositionLogprobs Logprobs(int32_t token, int k) {
    v1::PositionLogprobs out;
    out.mutable_chosen()->set_token_id(token);
    out.mutable_chosen()->set_logprob(-0.5F);
    out.mutable_chosen()->set_rank(1);
    for (int i = 0; i < k; ++i) {
      v1::TokenLogprob* top = out.add_top();
      top->set_token_id(i == 0 ? token : 70 + i);
      top->set_logprob(-0.5F - static_cast<float>(i));
      top->set_rank(i + 1);
    }
    return out;
  }

  static v1::RelayEntry Entry(const v1::Attach& attach, uint32_t index) {
    v1::RelayEntry entry;
    entry.set_request_id(attach.key().request_id());
    entry.set_attach_gen(attach.attach_gen());
    entry.set_index(index);
    return entry;
  }

  void Send(std::vector<v1::RelayEntry> entries) {
    v1::RelayDown down;
    down.set_step(++steps);
    for (v1::RelayEntry& e : entries) *down.add_entries() = std::move(e);
    if (relay) relay->Write(down);
    changed.notify_all();
  }

  v1::WorkerEvent LoadEvent() const {
    v1::WorkerEvent event;
    event.mutable_load()->set_steps(steps);
    event.mutable_load()->set_kv_blocks_total(1000);
    event.mutable_load()->set_prefix_queries_tokens(40);
    event.mutable_load()->set_generation_tokens(tokens_sent);
    for (const auto& [incarnation, rate] : options.peers) {
      v1::HandoffLoad::PeerPath* peer = event.mutable_load()->mutable_handoff()->add_peers();
      peer->set_incarnation(incarnation);
      peer->set_gigabytes_per_second(rate);
    }
    return event;
  }

  static void AppendKey(std::string& out, uint64_t key) {
    out.append(reinterpret_cast<const char*>(&key), 8);
    out.append(8, '\0');
  }

  bool Starved() const {
    bool any = false;
    for (const auto& [id, leg] : legs) {
      for (const auto& [index, choice] : leg.choices) {
        if (choice.done) continue;
        any = true;
        if (choice.credit > 0) return false;
      }
    }
    return any;
  }

  FakeWorkerOptions options;
  int port = 0;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool killed = false;
  bool skip = false;
  std::string key;
  int watches = 0;
  std::set<std::string> meant_for;
  v1::WorkerEvent state;  // a new stream begins with the snapshot and this
  std::vector<v1::WorkerEvent> events;
  std::vector<uint64_t> stored;
  uint64_t digest = 0;
  RelayStream* relay = nullptr;
  std::map<std::string, Leg> legs;
  std::vector<v1::Attach> attaches;
  std::vector<v1::RelayCancel> cancels;
  int64_t tokens_sent = 0;
  uint64_t steps = 0;
  std::thread pace;
  std::unique_ptr<grpc::Server> server;  // last: its threads use the rest
};

FakeWorker::FakeWorker(FakeWorkerOptions options) : service_(std::make_unique<Service>(std::move(options))) {}
FakeWorker::~FakeWorker() { Kill(); }

std::string FakeWorker::address() const { return StrCat("127.0.0.1:", service_->port); }
int FakeWorker::port() const { return service_->port; }

void FakeWorker::Kill() {
  {
    std::lock_guard lock(service_->mutex);
    if (std::exchange(service_->killed, true)) return;
    service_->changed.notify_all();
  }
  service_->server->Shutdown(std::chrono::system_clock::now());
}

void FakeWorker::Release() { Hold(1 << 30); }

void FakeWorker::Hold(int after) {
  std::lock_guard lock(service_->mutex);
  service_->options.hold_after = after;
  service_->Run();
}

void FakeWorker::DoneLoading() {
  std::lock_guard lock(service_->mutex);
  service_->options.loading = false;
}

void FakeWorker::SetDraining() {
  std::lock_guard lock(service_->mutex);
  service_->state.mutable_state()->set_state(v1::WorkerState::STATE_DRAINING);
  service_->events.push_back(service_->state);
  service_->changed.notify_all();
}

void FakeWorker::Stored(const std::vector<uint64_t>& keys) {
  std::lock_guard lock(service_->mutex);
  v1::WorkerEvent event;
  for (uint64_t key : keys) {
    Service::AppendKey(*event.mutable_stored()->mutable_hashes(), key);
    service_->digest += key;
    service_->stored.push_back(key);
  }
  event.mutable_stored()->set_digest(service_->digest);
  service_->events.push_back(event);
  service_->changed.notify_all();
}

void FakeWorker::SkipSequenceNumber() {
  std::lock_guard lock(service_->mutex);
  service_->skip = true;
}

std::vector<v1::Attach> FakeWorker::attaches() const {
  std::lock_guard lock(service_->mutex);
  return service_->attaches;
}
std::vector<v1::RelayCancel> FakeWorker::cancels() const {
  std::lock_guard lock(service_->mutex);
  return service_->cancels;
}
std::string FakeWorker::hash_key() const {
  std::lock_guard lock(service_->mutex);
  return service_->key;
}
std::set<std::string> FakeWorker::meant_for() const {
  std::lock_guard lock(service_->mutex);
  return service_->meant_for;
}
int64_t FakeWorker::tokens_sent() const {
  std::lock_guard lock(service_->mutex);
  return service_->tokens_sent;
}
int FakeWorker::watches() const {
  std::lock_guard lock(service_->mutex);
  return service_->watches;
}

bool FakeWorker::Wait(const std::function<bool()>& condition) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    std::unique_lock lock(service_->mutex);
    if (std::chrono::steady_clock::now() > deadline) return false;
    service_->changed.wait_for(lock, std::chrono::milliseconds(5));
  }
  return true;
}

bool FakeWorker::WaitStarved(Duration quiet) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto since = std::chrono::steady_clock::now();
  std::unique_lock lock(service_->mutex);
  while (std::chrono::steady_clock::now() < deadline) {
    if (!service_->Starved()) since = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - since >= quiet) return true;
    service_->changed.wait_for(lock, std::chrono::milliseconds(5));
  }
  return false;
}

std::string FakeWorker::TextOf(uint32_t index, uint64_t position, size_t tokens) {
  std::string text;
  for (size_t i = 0; i < tokens; ++i) text.push_back(static_cast<char>('a' + (TokenAt(index, position + i) - 67)));
  return text;
}

}  // namespace baton::router
