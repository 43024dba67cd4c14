// Shell completion of `baton`, made of the parser's own tables: commands, their flags, and the values of flags that
// have few.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

struct CompletedFlag {
  std::string name;                   ///< with dashes
  std::vector<std::string> values{};  ///< that it may have; empty: any, or files
  bool takes_value = true;
  std::string help{};
};

struct CompletedCommand {
  std::string name, help;
  std::vector<CompletedFlag> flags{};
  std::vector<std::string> words{};  ///< that may stand behind it: "explain"
};

/// A script for "bash", "zsh" or "fish". InvalidArgument: another shell.
absl::StatusOr<std::string> CompletionScript(std::string_view shell, const std::vector<CompletedCommand>& commands);

/// The values of a help that ends with "[a: words | b | c]", as rules write it; empty: none.
std::vector<std::string> ValuesOfHelp(std::string_view help);

}  // namespace baton::cli
