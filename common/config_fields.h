// How a process's one config struct declares its fields, so that flags, environment, YAML
// and --help come from one place:
//
//   struct WorkerConfig { int max_num_seqs = 256; … };
//   template <class Visitor>
//   void VisitFields(WorkerConfig& c, Visitor&& field) {
//     field("max-num-seqs", c.max_num_seqs, "sequences", "most sequences in one step");
//   }
//
// The default is the member's initializer. Field types: bool, int32_t, int64_t, uint64_t, double, std::string,
// std::vector<std::string>. Integers take suffixes: 32k = 32,000; 32K = 32,768; 4G, 4GiB. A flag `--max-num-seqs` is
// also `BATON_MAX_NUM_SEQS` and the YAML key `max-num-seqs`; flag over environment over file over default.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

/// "32k" → 32000, "32K" → 32768, "1.5GiB", "-1". InvalidArgument names the text.
absl::StatusOr<int64_t> ParseQuantity(std::string_view text);

/// What --log-level takes: debug, info, warning, error.
bool IsLogLevel(std::string_view name);
bool IsLogFormat(std::string_view name);

}  // namespace baton
