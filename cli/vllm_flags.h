// The flags of vLLM's servers that Baton's do not have under that name: one table that says of each what becomes of it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

/// How a command line writes a flag's values.
enum class Values : uint8_t { kNone, kOne, kMany };

struct VllmFlag {
  std::string_view name;
  Values values;
  std::string_view becomes;  ///< our flag with the same values; empty: none
  /// Values, with spaces between, that ask for what Baton does anyway: taken and dropped. "*": all are.
  std::string_view same;
  std::string_view why;  ///< why it is dropped, or any other value refused
};

std::span<const VllmFlag> VllmFlags();
/// The same of `vllm bench serve` and `baton bench`.
std::span<const VllmFlag> VllmBenchFlags();

/// A command line, without the program's name, for the parser: `--a_b` is `--a-b`, flags of the table are replaced,
/// dropped with a line in `notes`, or refused with the reason (InvalidArgument). Of the commands that are servers, and
/// of `bench` with its own table; others are left alone.
absl::StatusOr<std::vector<std::string>> TranslateArguments(std::vector<std::string> arguments,
                                                            std::vector<std::string>& notes);

}  // namespace baton::cli
