// What one rank of a worker has moved of KV since its start, and the ways that it uses. Values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton {

/// How a decode worker is reached.
struct RankWay {
  std::string incarnation;  ///< of the decode worker
  std::string transport, path;
  double gigabytes_per_second = 0;  ///< in the self-test
};

struct RankFigures {
  int64_t bytes = 0, slots = 0;
  int64_t nanoseconds = 0;        ///< during which it moved some
  int64_t waiting = 0;            ///< prefill: slots that wait for a buffer
  int64_t peers_lost = 0;         ///< connections that broke
  int64_t refused = 0;            ///< decode: connections that were not let in
  int64_t digest_mismatches = 0;  ///< decode: slots whose bytes changed on the way
  int64_t unreadable_slots = 0;   ///< decode: header or table of a slot is wrong
  int64_t self_tests_failed = 0;
  std::vector<RankWay> ways{};  ///< prefill
};

}  // namespace baton
