// The flags of vLLM's servers that Baton's do not have under that name: one table that says of each what becomes of it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

/// How a command line writes a flag's values. kNone: it is true or false, true when nothing is said.
enum class Values : uint8_t { kNone, kOne, kMany };

struct VllmFlag {
  std::string_view name;
  Values values;
  std::string_view becomes;  ///< our flag with the same values; empty: none
  /// Values, with spaces between, that ask for what Baton does anyway: taken and dropped. "*": all are. Of kNone, and
  /// empty: false.
  std::string_view same;
  std::string_view why;  ///< why it is dropped, or any other value refused
};

std::span<const VllmFlag> VllmFlags();
/// The same of `vllm bench serve` and `baton bench`.
std::span<const VllmFlag> VllmBenchFlags();

/// A flag as Baton's parser takes it; without a name: nothing is left of it.
struct TranslatedFlag {
  std::string name;
  std::vector<std::string> values;
};

/// One flag of a server, by its name without dashes (also with `no-`, or a role's `prefill.` before it), as a file or a
/// variable gives it. What is dropped gets a line in `notes`; InvalidArgument: refused, with the reason. Unset: it has
/// no row here.
absl::StatusOr<std::optional<TranslatedFlag>> TranslateFlag(std::string_view name,
                                                            const std::vector<std::string>& values,
                                                            std::vector<std::string>& notes);

/// A command line, without the program's name, for the parser: `--a_b` is `--a-b`, `-tp 2` is the long name, `--flag
/// True` is `--flag=True`, `--flag.key 1` is `--flag={"key":1}`, names behind a list's flag are each its value once the
/// model is named, `bench serve` is `bench`, and flags are translated as above. Of the commands that are servers, and
/// of `bench` with its own table; others are left alone.
absl::StatusOr<std::vector<std::string>> TranslateArguments(std::vector<std::string> arguments,
                                                            std::vector<std::string>& notes);

/// Whether BATON_NAME is of a flag that has a row here.
bool IsVllmVariable(std::string_view variable);
/// Of variables in the form NAME=VALUE those that have a row here, as arguments.
absl::StatusOr<std::vector<std::string>> TranslateVariables(std::span<const std::string> variables,
                                                            std::vector<std::string>& notes);

}  // namespace baton::cli
