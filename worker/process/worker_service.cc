#include "worker/process/worker_service.h"

#include <algorithm>
#include <cstring>

#include "common/kv_digest.h"
#include "common/log.h"
#include "common/protocol_versions.h"
#include "common/str_cat.h"
#include "kvtransfer/layout_codec.h"
#include "proto/order_limits.h"
#include "proto/protocol_codec.h"
#include "worker/process/numerics_id.h"
#include "worker/process/whose_leg.h"
#include "worker/relay/codec.h"
#include "worker/relay/grpc_status.h"
#include "worker/relay/relay_stream.h"

namespace baton::worker {
namespace {

// A stream that is refused from the start.
template <class Base>
class Refused final : public Base {
 public:
  explicit Refused(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

grpc::Status StillLoading(const StartUpProgress::View& view) {
  return {grpc::StatusCode::UNAVAILABLE,
          StrCat("loading: ", view.phase, " ", static_cast<int>(100 * view.fraction), " %")};
}

// "10.0.0.7" of "ipv4:10.0.0.7:4000".
std::string_view HostOf(std::string_view peer) {
  const std::string_view place = peer.substr(std::min(peer.size(), peer.find(':') + 1));
  return place.substr(0, place.rfind(':'));
}

std::string MetadataOf(const grpc::CallbackServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end() ? "" : std::string(found->second.data(), found->second.size());
}

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

HashKey WorkerState::AdoptKey(const HashKey& offered) {
  std::lock_guard lock(mutex_);
  if (!key_) key_ = offered;
  key_changed_.notify_all();
  return *key_;
}

bool WorkerState::WaitForKey(Duration timeout) {
  std::unique_lock lock(mutex_);
  key_changed_.wait_for(lock, timeout, [&] { return key_ || key_given_up_; });
  return key_.has_value();
}

void WorkerState::GiveUpOnKey() {
  std::lock_guard lock(mutex_);
  key_given_up_ = true;
  key_changed_.notify_all();
}

std::optional<HashKey> WorkerState::key() const {
  std::lock_guard lock(mutex_);
  return key_;
}

void WorkerState::SetEngine(std::shared_ptr<EngineShell> engine) {
  std::lock_guard lock(mutex_);
  engine_ = std::move(engine);
}

void WorkerState::SetIncarnation(std::string incarnation) {
  std::lock_guard lock(mutex_);
  incarnation_ = std::move(incarnation);
}

std::string WorkerState::incarnation() const {
  std::lock_guard lock(mutex_);
  return incarnation_;
}

std::shared_ptr<EngineShell> WorkerState::engine() const {
  std::lock_guard lock(mutex_);
  return engine_;
}

void WorkerState::SetWorkerId(std::string id) {
  std::lock_guard lock(mutex_);
  worker_id_ = std::move(id);
}

v1::HandshakeReply WorkerState::Introduce() const {
  std::lock_guard lock(mutex_);
  v1::HandshakeReply reply;
  EncodeVersions(WorkerProtocol(), *reply.mutable_protocol());
  EncodeVersions(KvProtocol(), *reply.mutable_kv_protocol());
  reply.set_worker_id(worker_id_);
  reply.set_worker_version(version_);
  return reply;
}

v1::HandshakeReply WorkerState::Describe() const {
  v1::HandshakeReply reply = Introduce();
  std::lock_guard lock(mutex_);
  reply.set_incarnation(incarnation_);
  if (key_) reply.set_hash_key(key_->bytes.data(), key_->bytes.size());
  if (!engine_) {
    const StartUpProgress::View view = progress_.Get();
    reply.mutable_loading()->set_phase(view.phase);
    reply.mutable_loading()->set_progress(view.fraction);
    return reply;
  }
  reply.set_role(engine_->wire_role());
  const LoadedModel& loaded = engine_->loaded();
  const engine::ModelConfig& model = loaded.model->config();
  reply.set_model_digest(model.digest);
  reply.set_kv_digest(kKvDigestName);
  *reply.mutable_kv_layout() = EncodeLayout(loaded.model->kv_layout());
  const NumericsFacts facts = NumericsIdOf(model.digest, loaded.ops->traits(), loaded.place);
  v1::NumericsId& numerics = *reply.mutable_numerics();
  numerics.set_id(facts.id);
  numerics.set_compute_dtype(facts.compute_dtype);
  numerics.set_kv_dtype(facts.kv_dtype);
  numerics.set_isa(facts.isa);
  numerics.set_kernel_version(facts.kernel_version);
  numerics.set_reduction_width(facts.reduction_width);
  numerics.set_tensor_parallel_size(facts.tensor_parallel_size);
  numerics.set_deterministic(facts.deterministic);
  reply.set_model_name(loaded.name);
  reply.set_max_model_len(loaded.max_model_len);
  reply.set_vocab_size(model.vocab_size);
  reply.set_takes_short_ids(true);
  for (int32_t id : model.eos_token_ids) reply.add_eos_token_ids(id);
  reply.set_kv_blocks(loaded.blocks.num_blocks.empty() ? 0 : loaded.blocks.num_blocks[0]);
  reply.set_max_num_seqs(config_.max_num_seqs);
  reply.set_tensor_parallel_size(static_cast<uint32_t>(loaded.place.tensor_size));
  reply.set_pipeline_parallel_size(static_cast<uint32_t>(loaded.place.stages));
  if (loaded.grammars) reply.set_tokenizer_digest(loaded.grammars->digest());
  reply.set_landing_address(engine_->LandingAddress());
  return reply;
}

/// The check of every method but Handshake, before anything else. `router`: whose call it is, where it may be made.
grpc::Status WorkerService::MayCall(const grpc::CallbackServerContext& context, std::string* router) {
  if (sessions_.open()) {
    greeted_(context.peer(), /*proven=*/false);
    return grpc::Status::OK;
  }
  const auto token = context.client_metadata().find("baton-token");
  const bool shown = token != context.client_metadata().end();
  const std::string peer = context.peer();
  absl::StatusOr<std::string> whose =
      sessions_.Check(shown ? std::string_view(token->second.data(), token->second.size()) : "", HostOf(peer));
  if (!whose.ok()) return ToGrpc(whose.status());
  greeted_(peer, /*proven=*/true);
  if (router != nullptr) *router = *std::move(whose);
  return grpc::Status::OK;
}

/// The check of what begins work here.
grpc::Status WorkerService::MayBegin(const grpc::CallbackServerContext& context, std::string& router) {
  if (const grpc::Status may = MayCall(context, &router); !may.ok()) return may;
  return ToGrpc(WhyNotOurs(MetadataOf(context, "baton-incarnation"), state_.incarnation()));
}

/// Of one that has no role, or whose role was taken away since its state was looked at.
grpc::Status WorkerService::NoRole(bool loaded) const {
  if (!loaded) return StillLoading(state_.progress().Get());
  if (change_role_) return {grpc::StatusCode::UNAVAILABLE, "this worker changes its role"};
  return {grpc::StatusCode::UNIMPLEMENTED, "this worker takes no legs of a handoff: its role is `both`"};
}

grpc::ServerUnaryReactor* WorkerService::Handshake(grpc::CallbackServerContext* context,
                                                   const v1::HandshakeRequest* request, v1::HandshakeReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const absl::Status may = CheckAtMost("the length of router_id", request->router_id().size(), kMostIdBytes);
      !may.ok()) {
    reactor->Finish(ToGrpc(may));
    return reactor;
  }
  const auto answer = sessions_.Greet(request->greeting(), HostOf(context->peer()), request->router_id());
  if (!answer.ok()) {
    reactor->Finish(ToGrpc(answer.status()));
    return reactor;
  }
  if (answer->empty()) greeted_(context->peer(), /*proven=*/!sessions_.open());
  if (!answer->empty()) {
    reply->set_greeting(*answer);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  const std::string met = met_.LineOf(request->router_id(), request->router_version(), HostOf(context->peer()));
  if (!met.empty()) LogInfo("{}", met);
  if (!DecodeVersions<ProtocolVersions>(request->protocol()).Shares(WorkerProtocol())) {
    *reply = state_.Introduce();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  if (!request->hash_key().empty()) {
    HashKey offered;
    if (request->hash_key().size() != offered.bytes.size()) {
      reactor->Finish({grpc::StatusCode::INVALID_ARGUMENT,
                       StrCat("hash_key has ", request->hash_key().size(), " bytes, not ", offered.bytes.size())});
      return reactor;
    }
    std::memcpy(offered.bytes.data(), request->hash_key().data(), offered.bytes.size());
    state_.AdoptKey(offered);
  }
  *reply = state_.Describe();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::WorkerEvent>* WorkerService::Watch(grpc::CallbackServerContext* context,
                                                                const v1::WatchRequest* request) {
  if (const grpc::Status may = MayCall(*context); !may.ok())
    return new Refused<grpc::ServerWriteReactor<v1::WorkerEvent>>(may);
  std::shared_ptr<EngineShell> engine = state_.engine();
  if (!engine) return new Refused<grpc::ServerWriteReactor<v1::WorkerEvent>>(StillLoading(state_.progress().Get()));
  return NewWatchReactor(
      {*context, streams_},
      [engine, terms = LoadTermsOf(*request)](std::shared_ptr<WatchSink> sink) {
        engine->AddWatcher(std::move(sink), terms);
        engine->ReportLoad();
      },
      [engine](std::shared_ptr<WatchSink> sink) { engine->RemoveWatcher(std::move(sink)); });
}

grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>* WorkerService::Relay(grpc::CallbackServerContext* context) {
  std::string router;
  if (const grpc::Status may = MayBegin(*context, router); !may.ok())
    return new Refused<grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>>(may);
  std::shared_ptr<EngineShell> engine = state_.engine();
  if (!engine)
    return new Refused<grpc::ServerBidiReactor<v1::RelayUp, v1::RelayDown>>(StillLoading(state_.progress().Get()));
  const std::string session = MetadataOf(*context, "baton-session");
  return NewRelayReactor({*context, streams_},
                         {.router = router,
                          .on_message =
                              [engine](std::shared_ptr<RelayWriter> sink, std::shared_ptr<const v1::RelayUp> message,
                                       std::function<void()> next) {
                                engine->OnRelay(std::move(sink), std::move(message), std::move(next));
                              },
                          .on_end =
                              [engine, session, router](std::shared_ptr<RelayWriter> sink) {
                                engine->OnRelayEnd(std::move(sink));
                                engine->WithRole([&](Role& role) { role.RouterLeft(session, router); });
                              }});
}

grpc::ServerUnaryReactor* WorkerService::Reserve(grpc::CallbackServerContext* context,
                                                 const v1::ReserveRequest* request, v1::ReserveReply* reply) {
  std::string router;
  if (const grpc::Status may = MayBegin(*context, router); !may.ok()) return Finished(context, may);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::shared_ptr<EngineShell> engine = state_.engine();
  const bool asked = engine && engine->WithRole([&](Role& role) {
    role.Reserve(*request, router, [reactor, reply](v1::ReserveReply answer) {
      *reply = std::move(answer);
      reactor->Finish(grpc::Status::OK);
    });
  });
  if (!asked) reactor->Finish(NoRole(engine != nullptr));
  return reactor;
}

grpc::ServerWriteReactor<v1::PrefillReply>* WorkerService::Prefill(grpc::CallbackServerContext* context,
                                                                   const v1::PrefillRequest* request) {
  std::string router;
  if (const grpc::Status may = MayBegin(*context, router); !may.ok())
    return new Refused<grpc::ServerWriteReactor<v1::PrefillReply>>(may);
  std::shared_ptr<EngineShell> engine = state_.engine();
  if (!engine || engine->wire_role() == v1::WORKER_ROLE_BOTH)
    return new Refused<grpc::ServerWriteReactor<v1::PrefillReply>>(NoRole(engine != nullptr));
  return NewPrefillReactor(
      {*context, streams_},
      [&](std::shared_ptr<PrefillSink> sink) {
        if (!engine->WithRole([&](Role& role) { role.Prefill(*request, router, sink); }))
          sink->Finish(absl::UnavailableError("this worker changes its role"));
      },
      [engine, key = request->key(), router] {
        engine->WithRole([&](Role& role) { role.PrefillStreamEnded(key, router); });
      });
}

grpc::ServerUnaryReactor* WorkerService::Cancel(grpc::CallbackServerContext* context, const v1::CancelRequest* request,
                                                v1::CancelReply* reply) {
  std::string router;
  if (const grpc::Status may = MayCall(*context, &router); !may.ok()) return Finished(context, may);
  if (const absl::Status may = CheckNames(request->key(), ""); !may.ok()) return Finished(context, ToGrpc(may));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::shared_ptr<EngineShell> engine = state_.engine();
  const bool asked = engine && engine->WithRole([&](Role& role) {
    role.Cancel(*request, router, [reactor, reply](v1::CancelReply answer) {
      *reply = std::move(answer);
      reactor->Finish(grpc::Status::OK);
    });
  });
  if (!asked) reactor->Finish(grpc::Status::OK);  // nothing of it is here
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                               v1::DrainReply*) {
  if (const grpc::Status may = MayCall(*context); !may.ok()) return Finished(context, may);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::shared_ptr<EngineShell> engine = state_.engine();
  if (engine) {
    engine->Drain([reactor] { reactor->Finish(grpc::Status::OK); });
  } else {
    reactor->Finish(StillLoading(state_.progress().Get()));
  }
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Flip(grpc::CallbackServerContext* context, const v1::FlipRequest* request,
                                              v1::FlipReply* reply) {
  if (const grpc::Status may = MayCall(*context); !may.ok()) return Finished(context, may);
  if (!change_role_)
    return Finished(context, {grpc::StatusCode::FAILED_PRECONDITION, "this worker's role is `both`: it has no other"});
  if (const absl::Status may = CheckAtMost("deadline_ms", request->deadline_ms(), kMostDeadlineMs); !may.ok())
    return Finished(context, ToGrpc(may));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  change_role_(request->role(), std::chrono::milliseconds(request->deadline_ms()),
               [reactor, reply](const absl::StatusOr<RoleChange>& change) {
                 if (!change.ok()) return reactor->Finish(ToGrpc(change.status()));
                 reply->set_incarnation(change->incarnation);
                 reply->set_drain_ms(Milliseconds(change->drained));
                 reply->set_change_ms(Milliseconds(change->changed));
                 reactor->Finish(grpc::Status::OK);
               });
  return reactor;
}

}  // namespace baton::worker
