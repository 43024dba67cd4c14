// Flags of one process, made from the fields of its config structs: command line, environment, YAML and --help.
// Single-threaded; the config structs must outlive the set.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/config_fields.h"
#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace CLI {
class App;
}

namespace baton::cli {

/// One field of a config struct.
struct Flag {
  std::string name;  ///< without dashes: "max-num-seqs"
  std::string unit;
  std::string help;
  std::string group;  ///< heading in --help
  std::string default_text;
  bool is_bool = false;
  bool is_auto = false;  ///< of a bool: unless it is given, what its help says
  bool is_list = false;  ///< may be repeated; the first use replaces the default
  std::function<absl::Status(const std::vector<std::string>&)> set;
  std::function<std::string()> text;  ///< the value as it is now
  std::vector<std::string>
      shared_with{};  ///< further headings whose config has a field of this name; one flag sets all
};

/// Values that a flag was given, and where: "the command line", a variable, a file.
struct GivenLayer {
  std::string source;
  std::vector<std::string> values;
};

/// Whose flags they are. A server's have environment variables, and a list is
/// repeated, so that the model may stand behind it; a tool's have none, and a list takes all that follows.
enum class FlagsOf : uint8_t { kServer, kTool };

class FlagSet {
 public:
  /// Adds every field of `config` (through VisitFields) under a heading, except names in `without`. A name that is
  /// there already becomes one flag that sets both configs. `prefix` goes before every name: "prefill." +
  /// "max-num-seqs".
  template <class Config>
  void Add(Config& config, const std::string& group, const std::vector<std::string>& without = {},
           const std::string& prefix = "");

  /// Registers all flags with CLI11. `positional`: the flag whose value may stand without its name.
  void Attach(CLI::App& app, std::string_view positional = "", FlagsOf whose = FlagsOf::kServer);

  /// Reads a YAML mapping of flag names, ours or vLLM's (cli/vllm_flags.h, `notes` too). Unknown keys and wrong types
  /// are InvalidArgument with file and key.
  absl::Status ApplyYaml(const std::string& path, std::vector<std::string>& notes);

  /// Values given by command line, environment or file (not defaults), by flag name, as texts.
  const std::map<std::string, std::vector<std::string>>& given() const { return given_; }
  const std::vector<Flag>& flags() const { return flags_; }
  /// All values that a flag was given, the one in force last.
  const std::map<std::string, std::vector<GivenLayer>>& layers() const { return layers_; }
  /// Asked is what the values are, not to run with them (--explain-config).
  bool explains() const { return explains_; }
  /// Takes a flag out of given(), once its values have gone another way.
  void Forget(const std::string& name) { given_.erase(name); }
  /// First error of a value given by flag or environment.
  const absl::Status& status() const { return status_; }
  void NoteStatus(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

 private:
  void Set(const Flag& flag, const std::vector<std::string>& values, const std::string& source);
  /// Appends the flag, or makes it part of the one that has its name.
  void Merge(Flag flag);

  std::vector<Flag> flags_;
  std::map<std::string, std::vector<std::string>> given_;
  std::map<std::string, std::vector<GivenLayer>> layers_;
  bool explains_ = false;
  absl::Status status_;
};

/// The flags of one heading that were given, as arguments for a child process, without `prefix`.
void AppendGiven(const FlagSet& set, std::string_view group, std::vector<std::string>& argv,
                 std::string_view prefix = "");

/// Registers --config FILE: its values go below environment and command line. Call before FlagSet::Attach; `path` must
/// outlive the parse.
void AddConfigFile(CLI::App& app, FlagSet& set, std::string& path);

/// "max-num-seqs" → "BATON_MAX_NUM_SEQS".
std::string EnvironmentName(std::string_view flag_name);

// ---- implementation of Add

template <class T>
absl::Status ParseField(const std::string& text, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    const std::string word = absl::AsciiStrToLower(text);  // on and off, as YAML has them
    if (word == "on" || word == "off") {
      out = word == "on";
    } else if (!absl::SimpleAtob(word, &out)) {
      return absl::InvalidArgumentError(StrCat(Quoted(text), " is not true or false"));
    }
  } else if constexpr (std::is_integral_v<T>) {
    absl::StatusOr<int64_t> value = ParseQuantity(text);
    if (!value.ok()) return value.status();
    out = static_cast<T>(*value);
    if (static_cast<int64_t>(out) != *value || (std::is_unsigned_v<T> && *value < 0)) {
      return absl::InvalidArgumentError(StrCat(text, " is out of range"));
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    double value = 0;
    if (!absl::SimpleAtod(text, &value)) return absl::InvalidArgumentError(StrCat("\"", text, "\" is not a number"));
    out = static_cast<T>(value);
  } else {
    out = text;
  }
  return absl::OkStatus();
}

inline absl::Status ParseField(const std::string& text, std::optional<bool>& out) {
  bool value = false;
  BATON_RETURN_IF_ERROR(ParseField(text, value));
  out = value;
  return absl::OkStatus();
}

template <class T>
std::string FieldText(const T& value) {
  if constexpr (std::is_same_v<T, std::optional<bool>>) {
    return value ? FieldText(*value) : "auto";
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return absl::StrJoin(value, ",");
  } else {
    return StrCat(value);
  }
}

/// "sequences in one step [1…65536]".
inline std::string HelpText(std::string_view help, const FieldRule& rule) {
  return StrCat(help, rule.help.empty() ? "" : StrCat(help.empty() ? "[" : " [", rule.help, "]"));
}

template <class Config>
void FlagSet::Add(Config& config, const std::string& group, const std::vector<std::string>& without,
                  const std::string& prefix) {
  VisitFields(config, [&]<class T>(std::string_view name, T& member, std::string_view unit, std::string_view help,
                                   const FieldRule& rule = {}) {
    for (const std::string& skip : without) {
      if (skip == name) return;
    }
    Flag flag{prefix + std::string(name), std::string(unit), HelpText(help, rule), group, FieldText(member)};
    flag.text = [&member] { return FieldText(member); };
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      flag.is_list = true;
      flag.set = [&member](const std::vector<std::string>& values) {
        member = values;
        return absl::OkStatus();
      };
    } else {
      flag.is_auto = std::is_same_v<T, std::optional<bool>>;
      flag.is_bool = std::is_same_v<T, bool> || flag.is_auto;
      flag.set = [&member](const std::vector<std::string>& values) { return ParseField(values.back(), member); };
    }
    Merge(std::move(flag));
  });
}

}  // namespace baton::cli
