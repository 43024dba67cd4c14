#include "worker/ranks/other_ranks.h"

#include <utility>

#include "proto/ranks.pb.h"

namespace baton::worker {

OtherRanks::OtherRanks(RankLines& lines, RankLines::OnNews on_news)
    : lines_(lines), told_(static_cast<size_t>(lines.ranks())), figures_(static_cast<size_t>(lines.ranks() - 1)) {
  lines_.Listen([this, on_news = std::move(on_news)](int rank, const RankNews& news) {
    const auto* other = std::get_if<v1::RankNews>(&news);
    if (other == nullptr || !other->has_figures()) return on_news(rank, news);
    std::lock_guard lock(mutex_);
    figures_.at(static_cast<size_t>(rank - 1)) = DecodeFigures(other->figures());
  });
}

void OtherRanks::SendWork(int rank, const SlotWork& work, TransferEnd end) {
  if (!told_.at(static_cast<size_t>(rank)).Knows(work.plan->digest())) {
    v1::RankOrder order;
    *order.mutable_plan() = EncodeTerms(*work.plan);
    lines_.Send(rank, order);
  }
  lines_.Send(rank, EncodeSlotWork(work, end));
}

void OtherRanks::Tick() {
  v1::RankOrder order;
  order.set_tick(true);
  for (int rank = 1; rank < lines_.ranks(); ++rank) lines_.Send(rank, order);
}

std::vector<RankFigures> OtherRanks::figures() const {
  std::lock_guard lock(mutex_);
  return figures_;
}

}  // namespace baton::worker
