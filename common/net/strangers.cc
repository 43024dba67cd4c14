#include "common/net/strangers.h"

namespace baton::net {

bool Strangers::May(const boost::asio::ip::address& from) {
  if (per_second_ <= 0) return true;
  const TimePoint now = clock_.Now();
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    made_.clear();
  }
  int32_t& made = made_[from];
  if (made >= per_second_) return false;
  ++made;
  return true;
}

}  // namespace baton::net
