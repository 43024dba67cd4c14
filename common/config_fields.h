// How a process's one config struct declares its fields, so that flags, environment, YAML
// and --help come from one place:
//
//   struct WorkerConfig { int max_num_seqs = 256; … };
//   template <class Visitor>
//   void VisitFields(WorkerConfig& c, Visitor&& field) {
//     field("max-num-seqs", c.max_num_seqs, "sequences", "most sequences in one step", Range(1, 65536));
//   }
//
// Name, member, unit, help and what the field may be; without the last, all that its type holds. CheckFields refuses
// the rest and --help shows it, so a config's Validate() has the rules between fields only.
//
// The default is the member's initializer. Field types: bool, std::optional<bool> (unset: auto, what its help says),
// int32_t, int64_t, uint64_t, double, std::string, std::vector<std::string>. Integers take suffixes: 32k = 32,000; 32K
// = 32,768; 4G, 4GiB. A flag `--max-num-seqs` is also `BATON_MAX_NUM_SEQS` and the YAML key `max-num-seqs`; flag over
// environment over file over default.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

/// "32k" → 32000, "32K" → 32768, "1.5GiB", "-1". InvalidArgument names the text.
absl::StatusOr<int64_t> ParseQuantity(std::string_view text);

/// What a field may be. Made by the functions below.
struct FieldRule {
  std::string text;  ///< "0…65535", "auto or dummy"; empty: anything
  std::string help;  ///< what --help shows of it behind the field's help; empty: nothing
  std::function<bool(double)> takes_number;
  std::function<bool(std::string_view)> takes_text;
  bool must_be_given = false;  ///< an empty text is called missing
};

/// Numbers from `least` to `most`, both taken. Exact up to 2^53; NaN is none of them.
FieldRule Range(double least, double most);
FieldRule AtLeast(double least);
FieldRule PowerOfTwo(double least, double most);
FieldRule MultipleOf(int64_t factor, double least, double most);

/// One of several texts, and what it means.
struct FieldChoice {
  std::string name;
  std::string help{};
};
FieldRule OneOf(const std::vector<FieldChoice>& choices);
/// A text that must be given; `what` it is.
FieldRule NotEmpty(std::string_view what);
/// debug, info, warning, error.
FieldRule LogLevelRule();
/// text, json.
FieldRule LogFormatRule();

/// InvalidArgument with the flag, its value and what it may be.
absl::Status CheckField(std::string_view name, double value, const FieldRule& rule);
absl::Status CheckField(std::string_view name, std::string_view value, const FieldRule& rule);

/// The first field of `config` that its rule does not take. A list's rule is of each of its texts.
template <class Config>
absl::Status CheckFields(Config config) {
  absl::Status first;
  VisitFields(config, [&]<class T>(std::string_view name, T& member, std::string_view, std::string_view,
                                   const FieldRule& rule = {}) {
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      for (const std::string& one : member) first.Update(CheckField(name, one, rule));
    } else if constexpr (std::is_same_v<T, std::string>) {
      first.Update(CheckField(name, member, rule));
    } else if constexpr (!std::is_same_v<T, std::optional<bool>>) {
      first.Update(CheckField(name, static_cast<double>(member), rule));
    }
  });
  return first;
}

}  // namespace baton
