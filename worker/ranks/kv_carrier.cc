#include "worker/ranks/kv_carrier.h"

#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "common/tls/kernel_tls.h"
#include "common/tls/peer_tls.h"
#include "kvtransfer/rank_codec.h"

namespace baton::worker {
namespace {

constexpr Duration kOrderlyEnd = std::chrono::seconds(1);

}  // namespace

void KvCarrier::Handle(const RankOrder& order) {
  if (const auto* slot = std::get_if<SlotOrder>(&order)) return Work(*slot, DecodeSlotWork(*slot, plans_));
  const auto& other = std::get<v1::RankOrder>(order);
  if (!other.has_plan()) return Obey(other);
  if (const absl::Status known = plans_.Add(other.plan()); !known.ok())
    LogError("ranks: a transfer plan cannot be made: {}", View(known.message()));
}

absl::StatusOr<std::unique_ptr<RankCarrier>> RankCarrier::Start(Facts facts, CarrierFactory make,
                                                                const KvInvitation& invitation, trust::PeerTrust trust,
                                                                KvLine::OnBroken on_broken) {
  std::unique_ptr<RankCarrier> out(new RankCarrier(std::move(facts), std::move(make), std::move(on_broken)));
  BATON_ASSIGN_OR_RETURN(out->line_, KvLine::Dial(
                                         invitation, out->facts_.rank, out->facts_.config.host, std::move(trust),
                                         [carrier = out.get()](const RankOrder& order) { carrier->Handle(order); },
                                         [carrier = out.get()](const absl::Status& why) { carrier->Break(why); }));
  out->thread_.Watch(&out->line_->transport());
  out->thread_.Start();
  return out;
}

RankCarrier::~RankCarrier() {
  thread_.Stop();
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (breaks_.joinable()) breaks_.join();
}

/// Rank 0's last step and the end of its line go different ways.
void RankCarrier::Break(const absl::Status& why) {
  breaks_ = std::thread([this, why] {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kOrderlyEnd, [this] { return ended_; })) on_broken_(why);
  });
}

void RankCarrier::Handle(const RankOrder& order) {
  if (const auto* other = std::get_if<v1::RankOrder>(&order); other != nullptr && other->has_begin())
    return thread_.Post([this, begin = *other] { BeginAnew(begin); });  // behind what its carrier posted
  if (carrier_ != nullptr) carrier_->Handle(order);
}

void RankCarrier::BeginAnew(const v1::RankOrder& order) {
  carrier_ = nullptr;
  v1::RankNews news;
  news.mutable_begun();
  if (const absl::Status begun = Begin(order); !begun.ok())
    *news.mutable_begun()->mutable_error() = EncodeRankError(begun);
  line_->Send(news);
}

absl::Status RankCarrier::Begin(const v1::RankOrder& order) {
  CarrierContext context{.config = facts_.config,
                         .rank = facts_.rank,
                         .pool = facts_.pool,
                         .side = facts_.side,
                         .model_digest = facts_.model_digest,
                         .incarnation = order.begin().incarnation(),
                         .numerics_id = order.begin().numerics_id(),
                         .clock = clock_,
                         .thread = thread_,
                         .tell = [this](const RankNews& news) { line_->Send(news); }};
  context.takes_kv = order.begin().takes_kv();
  if (!facts_.config.cluster_secret_file.empty()) {
    BATON_ASSIGN_OR_RETURN(context.kv_trust.secret, trust::ClusterSecret::Read(facts_.config.cluster_secret_file));
  }
  if (facts_.config.kv_tls) {
    const tls::KernelTlsChoice choice = tls::ChooseKernelTls(facts_.config.kv_kernel_tls);
    LogInfo("rank {}: KV in TLS: {}", facts_.rank, choice.text);
    BATON_ASSIGN_OR_RETURN(context.kv_trust.tls,
                           tls::PeerTls::Open(facts_.config.tls_files, facts_.config.tls_server_name, choice.kernel));
  }
  BATON_ASSIGN_OR_RETURN(carrier_, make_(context));
  return absl::OkStatus();
}

}  // namespace baton::worker
