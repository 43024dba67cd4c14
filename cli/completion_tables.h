// What completes the commands of a program, read from its parser, and as text from one program to another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/completion.h"

namespace CLI {
class App;
}

namespace baton::cli {

/// The command that prints what completes all others of its program.
inline constexpr char kCompletionTables[] = "completion-tables";

/// Of every command of `program` that its help names.
std::vector<CompletedCommand> CompletionsOf(const CLI::App& program);

std::string CompletionsText(const std::vector<CompletedCommand>& commands);
/// The other way. InvalidArgument: it is not such a text.
absl::StatusOr<std::vector<CompletedCommand>> CompletionsOfText(std::string_view text);

}  // namespace baton::cli
