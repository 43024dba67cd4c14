#include "worker/ranks/kv_lines.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/foreign_text.h"
#include "common/log.h"
#include "common/random_word.h"
#include "common/status.h"
#include "kvtransfer/rank_codec.h"
#include "kvtransfer/transports/transports.h"

namespace baton::worker {
namespace {

constexpr int kPollMs = 20;

std::string_view TextOf(const KvInvitation& invitation) {
  return {invitation.address.data(), strnlen(invitation.address.data(), invitation.address.size())};
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvLines>> KvLines::Open(const std::string& host, int ranks, trust::PeerTrust trust) {
  std::unique_ptr<KvLines> lines(new KvLines(ranks));
  BATON_ASSIGN_OR_RETURN(lines->transport_, MakeTransport("tcp", host, 0, {}, *lines, std::move(trust)));
  const std::string address = lines->transport_->address();
  if (address.size() >= lines->invitation_.address.size())
    return absl::InvalidArgumentError(StrCat("an address of ", address.size(), " characters: ", address));
  std::ranges::copy(address, lines->invitation_.address.begin());
  const std::array<uint64_t, 2> word = {RandomWord(), RandomWord()};
  std::memcpy(lines->invitation_.word.data(), word.data(), sizeof(word));
  return lines;
}

absl::Status KvLines::Await(const std::function<bool()>& done, Duration patience, std::string_view what) {
  const SteadyClock clock;
  const TimePoint until = clock.Now() + patience;
  while (!done()) {
    BATON_RETURN_IF_ERROR(lost_);
    if (clock.Now() >= until)
      return absl::DeadlineExceededError(StrCat("ranks: ", what, " took more than ", Milliseconds(patience), " ms"));
    if (transport_->Progress()) continue;
    pollfd ready{transport_->wait_fd(), POLLIN, 0};
    poll(&ready, 1, kPollMs);
  }
  return absl::OkStatus();
}

absl::Status KvLines::Begin(const std::string& incarnation, const std::string& numerics_id, bool takes_kv,
                            Duration patience) {
  const int others = ranks() - 1;
  begun_ = 0;
  not_begun_ = absl::OkStatus();
  BATON_RETURN_IF_ERROR(Await([&] { return seated() == others; }, patience, "connecting to rank 0 for KV"));
  v1::RankOrder order;
  order.mutable_begin()->set_incarnation(incarnation);
  order.mutable_begin()->set_numerics_id(numerics_id);
  order.mutable_begin()->set_takes_kv(takes_kv);
  for (int rank = 1; rank <= others; ++rank) Send(rank, order);
  BATON_RETURN_IF_ERROR(Await([&] { return begun_ == others; }, patience, "opening the ranks' transports for KV"));
  return not_begun_;
}

void KvLines::Send(int rank, const RankOrder& order) {
  const PeerNumber peer = peers_.at(static_cast<size_t>(rank));
  if (peer != 0) transport_->Send(peer, EncodeRankOrder(order), [](const absl::Status&) {});
}

void KvLines::OnMessage(PeerNumber peer, std::string_view message) {
  const absl::StatusOr<RankNews> news = DecodeRankNews(message);
  if (!news.ok()) return OnLost(peer, news.status());
  const auto seat = ranks_.find(peer);
  const auto* other = std::get_if<v1::RankNews>(&*news);  // than of a slot
  if (seat == ranks_.end()) {
    const absl::Status seated = Seat(peer, other == nullptr ? v1::RankNews() : *other);
    if (!seated.ok() && lines_.May("not a rank's"))
      LogWarning("ranks: a connection for KV is not a rank's: {}", View(seated.message()));
  } else if (other != nullptr && other->has_begun()) {
    OnBegun(seat->second, other->begun());
  } else if (on_news_) {
    on_news_(seat->second, *news);
  }
}

void KvLines::OnBegun(int rank, const v1::RankNews::Begun& begun) {
  ++begun_;
  if (!begun.has_error() || !not_begun_.ok()) return;
  const absl::Status why = DecodeRankError(begun.error());
  not_begun_ = absl::Status(why.code(), StrCat("rank ", rank, ": ", View(why.message())));
}

/// The connection of a stranger among those who know the secret stays, and is never heard or told anything.
absl::Status KvLines::Seat(PeerNumber peer, const v1::RankNews& news) {
  const v1::RankNews::Hello& hello = news.hello();
  const std::string word(reinterpret_cast<const char*>(invitation_.word.data()), invitation_.word.size());
  if (!news.has_hello() || hello.word() != word) return absl::PermissionDeniedError("it was not invited");
  if (hello.rank() == 0 || hello.rank() >= peers_.size() || peers_[hello.rank()] != 0)
    return absl::AlreadyExistsError(StrCat("rank ", hello.rank(), " of ", peers_.size(), " is taken, or none"));
  peers_[hello.rank()] = peer;
  ranks_[peer] = static_cast<int>(hello.rank());
  return absl::OkStatus();
}

void KvLines::OnLost(PeerNumber peer, const absl::Status& why) {
  const auto seat = ranks_.find(peer);
  if (seat == ranks_.end()) return;
  const int rank = seat->second;
  ranks_.erase(seat);
  peers_[static_cast<size_t>(rank)] = 0;
  lost_ = absl::UnavailableError(StrCat("rank ", rank, " is gone: ", View(why.message())));
  LogWarning("ranks: the line for KV to rank {} is gone: {}", rank, View(why.message()));
}

void KvLines::OnRefused(PeerNumber, std::string_view host, const absl::Status& why) {
  if (lines_.May(host)) LogWarning("ranks: {} is refused as a line for KV: {}", Printable(host), View(why.message()));
}

absl::StatusOr<std::unique_ptr<KvLine>> KvLine::Dial(const KvInvitation& invitation, int rank, const std::string& host,
                                                     trust::PeerTrust trust, OnOrder on_order, OnBroken on_broken) {
  std::unique_ptr<KvLine> line(new KvLine(std::move(on_order), std::move(on_broken)));
  BATON_ASSIGN_OR_RETURN(line->transport_, MakeTransport("tcp", host, 0, {}, *line, std::move(trust)));
  BATON_ASSIGN_OR_RETURN(line->peer_, line->transport_->Connect(TextOf(invitation)));
  v1::RankNews news;
  news.mutable_hello()->set_rank(static_cast<uint32_t>(rank));
  news.mutable_hello()->set_word(invitation.word.data(), invitation.word.size());
  line->Send(news);
  return line;
}

void KvLine::Send(const RankNews& news) {
  if (peer_ != 0) transport_->Send(peer_, EncodeRankNews(news), [](const absl::Status&) {});
}

/// Its transport listens, too: whoever comes there has no say.
void KvLine::OnMessage(PeerNumber peer, std::string_view message) {
  if (peer_ == 0 || peer != peer_) return;
  const absl::StatusOr<RankOrder> order = DecodeRankOrder(message);
  if (!order.ok()) return OnLost(peer_, order.status());
  on_order_(*order);
}

void KvLine::OnLost(PeerNumber peer, const absl::Status& why) {
  if (peer_ == 0 || peer != peer_) return;
  peer_ = 0;
  on_broken_(absl::UnavailableError(StrCat("the line for KV to rank 0 is gone: ", View(why.message()))));
}

}  // namespace baton::worker
