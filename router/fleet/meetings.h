// Which prefill workers connect to which decode workers before a request needs it. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol_versions.h"

namespace baton::router {

/// So many decode workers each prefill worker connects to ahead; to others when a request sends it there. A thousand
/// workers would have a quarter of a million connections otherwise.
inline constexpr size_t kMetAhead = 16;

class Meetings {
 public:
  /// A worker that serves.
  struct Member {
    int32_t slot = 0;
    bool prefills = false;  ///< for others
    bool takes_kv = false;
    ProtocolVersions kv_protocol = kKvProtocolUnnamed;  ///< who share no version do not meet
  };
  struct Meeting {
    int32_t prefill = 0, decode = 0;  ///< slots
    bool operator==(const Meeting&) const = default;
  };

  /// `self` serves from now on, as a process that knows nobody; `others` serve. Each prefill worker begins behind its
  /// own slot, so that not all of them know the same few. A decode worker that comes back before anybody else is met by
  /// those who met it; one that is gone makes room.
  std::vector<Meeting> Ready(const Member& self, absl::Span<const Member> others);

 private:
  bool Meet(int32_t prefill, int32_t decode);

  std::map<int32_t, std::set<int32_t>> met_;  ///< decode slots by prefill slot
};

}  // namespace baton::router
