#include "worker/ranks/other_ranks.h"

#include <utility>

#include "proto/ranks.pb.h"

namespace baton::worker {

OtherRanks::OtherRanks(RankLines& lines, RankLines::OnNews on_news)
    : lines_(lines), told_(static_cast<size_t>(lines.ranks())), figures_(static_cast<size_t>(lines.ranks() - 1)) {
  lines_.Listen([this, on_news = std::move(on_news)](int rank, const v1::RankNews& news) {
    if (!news.has_figures()) return on_news(rank, news);
    std::lock_guard lock(mutex_);
    figures_.at(static_cast<size_t>(rank - 1)) = DecodeFigures(news.figures());
  });
}

void OtherRanks::SendWork(int rank, const SlotWork& work, TransferEnd end) {
  v1::RankOrder order;
  *order.mutable_work() = EncodeSlotWork(work, end, told_.at(static_cast<size_t>(rank)));
  lines_.Send(rank, order);
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
