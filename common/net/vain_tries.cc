#include "common/net/vain_tries.h"

#include <algorithm>

namespace baton::net {
namespace {

constexpr double kForgottenIn = 25;  // seconds
constexpr size_t kMostKept = 65536;
constexpr Duration kDropPause = std::chrono::seconds(1);

}  // namespace

template <class Who>
double TriesOf<Who>::LeftAt(const Tries& tries, TimePoint now) const {
  const double seconds = std::chrono::duration<double>(now - tries.at).count();
  return std::max(0.0, tries.made - seconds * most_ / kForgottenIn);
}

template <class Who>
bool TriesOf<Who>::May(const Who& from) const {
  const auto one = by_who_.find(from);
  return most_ <= 0 || one == by_who_.end() || LeftAt(one->second, clock_.Now()) + 1 <= most_;
}

template <class Who>
void TriesOf<Who>::Count(const Who& from, double tries) {
  if (most_ <= 0) return;
  const TimePoint now = clock_.Now();
  DropForgotten(now);
  if (by_who_.size() >= kMostKept && !by_who_.contains(from)) return;
  Tries& of = by_who_[from];
  of = {std::min<double>(LeftAt(of, now) + tries, most_ + beyond_), now};
}

template <class Who>
void TriesOf<Who>::TakeBack(const Who& from, double tries) {
  const auto one = by_who_.find(from);
  if (one == by_who_.end()) return;
  const TimePoint now = clock_.Now();
  one->second = {std::max(0.0, LeftAt(one->second, now) - tries), now};
}

template <class Who>
void TriesOf<Who>::DropForgotten(TimePoint now) {
  if (now - dropped_ < kDropPause) return;
  dropped_ = now;
  std::erase_if(by_who_, [&](const auto& one) { return LeftAt(one.second, now) == 0; });
}

template class TriesOf<boost::asio::ip::address>;
template class TriesOf<std::string>;

}  // namespace baton::net
