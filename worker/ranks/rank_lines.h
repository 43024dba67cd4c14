// How rank 0 of a worker reaches its other ranks where each moves the KV that it keeps: KvLines in the product, turns
// of virtual time in the simulator. What is sent to one rank comes in order, or not at all once that is lost.
#pragma once

#include <functional>

#include "kvtransfer/rank_line_codec.h"

namespace baton::worker {

class RankLines {
 public:
  using OnNews = std::function<void(int rank, const RankNews& news)>;

  virtual ~RankLines() = default;
  /// Of the worker, rank 0 among them.
  virtual int ranks() const = 0;
  /// Who hears the ranks from now on. It must outlive the lines, or hear nothing more before it goes (null).
  virtual void Listen(OnNews on_news) = 0;
  /// Dropped when the rank was lost.
  virtual void Send(int rank, const RankOrder& order) = 0;
};

}  // namespace baton::worker
