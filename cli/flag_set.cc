#include "cli/flag_set.h"

#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "cli/vllm_flags.h"
#include "common/json.h"
#include "common/nearest_name.h"
#include "common/open_to_read.h"
#include "common/status.h"

namespace baton::cli {

std::string EnvironmentName(std::string_view flag_name) {
  return StrCat("BATON_", absl::AsciiStrToUpper(absl::StrReplaceAll(AbslView(flag_name), {{"-", "_"}, {".", "_"}})));
}

namespace {

// What is on the command line is not looked for in the environment.
std::string SourceOf(const CLI::App& app, const Flag& flag) {
  const CLI::Option* option = app.get_option_no_throw("--" + flag.name);
  const bool written = std::ranges::any_of(app.parse_order(), [&](const CLI::Option* one) { return one == option; });
  return written ? "the command line" : EnvironmentName(flag.name);
}

}  // namespace

void FlagSet::Set(const Flag& flag, const std::vector<std::string>& values, const std::string& source) {
  absl::Status status = flag.set(values);
  if (status.ok() && !flag.is_list && std::ranges::adjacent_find(values, std::not_equal_to<>()) != values.end())
    status = absl::InvalidArgumentError(StrCat("one value is wanted, got ", absl::StrJoin(values, " and ")));
  if (!status.ok() && status_.ok()) {
    const std::string where = source == "the command line" ? "" : StrCat(" (", source, ")");
    status_ = absl::InvalidArgumentError(StrCat("--", flag.name, where, ": ", status.message()));
  }
  // "yes" is true, too; who is given it on is told one word.
  given_[flag.name] = flag.is_bool && status.ok() ? std::vector{flag.text()} : values;
  layers_[flag.name].push_back({source, values});
}

void FlagSet::Merge(Flag flag) {
  for (Flag& known : flags_) {
    if (known.name != flag.name) continue;
    known.shared_with.push_back(flag.group);
    known.set = [first = known.set, second = flag.set](const std::vector<std::string>& values) {
      absl::Status status = first(values);
      status.Update(second(values));
      return status;
    };
    return;
  }
  flags_.push_back(std::move(flag));
}

void FlagSet::Attach(CLI::App& app, std::string_view positional, FlagsOf whose) {
  for (const Flag& flag : flags_) {
    const std::string dashed = StrCat(flag.name == positional ? StrCat(flag.name, ",") : "", "--", flag.name);
    CLI::Option* option = nullptr;
    if (flag.is_bool) {
      const size_t own = flag.name.rfind('.') + 1;  // of the name without its prefix
      const std::string after_prefix = StrCat(flag.name.substr(0, own), "no-", flag.name.substr(own));
      option = app.add_flag_function(
          StrCat(dashed, ",!--no-", flag.name, own > 0 ? StrCat(",!--", after_prefix) : ""),
          [this, &flag, &app](int64_t count) { Set(flag, {count > 0 ? "true" : "false"}, SourceOf(app, flag)); },
          flag.help);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      // Before CLI11 reads it, which takes 8x for true and ends the process over a word that it does not know.
      option->transform([this, &flag, &app](const std::string& word) -> std::string {
        bool truth = false;
        if (const absl::Status status = ParseField(word, truth); !status.ok()) Set(flag, {word}, SourceOf(app, flag));
        return truth ? "true" : "false";
      });
    } else {
      option = app.add_option_function<std::vector<std::string>>(
          dashed,
          [this, &flag, &app](const std::vector<std::string>& values) { Set(flag, values, SourceOf(app, flag)); },
          flag.help);
      option->expected(flag.is_list ? -1 : 1)->type_name(absl::AsciiStrToUpper(flag.unit.empty() ? "text" : flag.unit));
      // One word behind a flag is its value; the next may be the positional one.
      if (flag.is_list || flag.name != positional) option->allow_extra_args(flag.is_list && whose == FlagsOf::kTool);
      if (!flag.default_text.empty()) option->default_str(flag.default_text);
      // Of a flag the last counts; words that could each be the positional one are told apart by nobody.
      option->multi_option_policy(flag.is_list || flag.name == positional ? CLI::MultiOptionPolicy::TakeAll
                                                                          : CLI::MultiOptionPolicy::TakeLast);
    }
    if (whose == FlagsOf::kServer) option->envname(EnvironmentName(flag.name));
    option->group(flag.group);
  }
  if (whose == FlagsOf::kServer) app.add_flag("--explain-config", explains_)->group("");  // baton config explain
}

void AddConfigFile(CLI::App& app, FlagSet& set, std::string& path) {
  // CLI11 runs callbacks in order of definition: the file first, what was given elsewhere over it.
  app.add_option_function<std::string>(
         "--config",
         [&set, &path](const std::string& file) {
           path = file;
           std::vector<std::string> notes;
           set.NoteStatus(set.ApplyYaml(file, notes));
           for (const std::string& note : notes) std::fprintf(stderr, "baton: %s: %s\n", file.c_str(), note.c_str());
         },
         "YAML file of flag names; below environment and command line")
      ->type_name("FILE")
      ->envname("BATON_CONFIG");
}

namespace {

// A mapping's values, nested ones counted too: an alias may stand within its own anchor, which would have no end.
constexpr int kMostValues = 1000;

// What a scalar says: as in JSON where it is a number, true or false there.
nlohmann::json JsonOfScalar(const YAML::Node& node) {
  const auto text = node.as<std::string>();
  if (node.Tag() == "!") return text;  // in quotes
  bool truth = false;
  if (YAML::convert<bool>::decode(node, truth)) return truth;
  nlohmann::json number = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (number.is_number()) return number;
  double value = 0;
  return YAML::convert<double>::decode(node, value) && std::isfinite(value) ? nlohmann::json(value)
                                                                            : nlohmann::json(text);
}

// What a mapping says, for flags that take a JSON object. `left` falls below 0 where it has too many values.
nlohmann::json JsonOf(const YAML::Node& node, int& left) {
  nlohmann::json out;
  if (--left < 0) return out;
  if (node.IsMap()) {
    out = nlohmann::json::object();
    for (const auto& entry : node) out[entry.first.as<std::string>()] = JsonOf(entry.second, left);
  } else if (node.IsSequence()) {
    out = nlohmann::json::array();
    for (const YAML::Node& one : node) out.push_back(JsonOf(one, left));
  } else if (node.IsScalar()) {
    out = JsonOfScalar(node);
  }
  return out;
}

// A key of the file with its values, none where they are no texts. Throws what yaml-cpp throws: a key is no text.
absl::StatusOr<TranslatedFlag> EntryOf(const YAML::Node& key, const YAML::Node& value) {
  TranslatedFlag given{absl::StrReplaceAll(key.as<std::string>(), {{"_", "-"}}), {}};
  if (value.IsScalar()) given.values = {value.as<std::string>()};
  if (value.IsMap()) {
    int left = kMostValues;
    given.values = {JsonOf(value, left).dump()};
    if (left < 0)
      return absl::InvalidArgumentError(StrCat("\"", given.name, "\" has more than ", kMostValues, " values"));
  }
  for (size_t i = 0; value.IsSequence() && i < value.size(); ++i) {
    if (!value[i].IsScalar())
      return absl::InvalidArgumentError(StrCat("\"", given.name, "\": number ", i + 1, " of the list, in line ",
                                               value[i].Mark().line + 1,
                                               ", is no text (HOST: PORT is a mapping, HOST:PORT a text)"));
    given.values.push_back(value[i].as<std::string>());
  }
  return given;
}

// The same, translated where it is vLLM's.
absl::StatusOr<TranslatedFlag> ReadEntry(const YAML::Node& key, const YAML::Node& value,
                                         std::vector<std::string>& notes) {
  TranslatedFlag given;
  try {
    BATON_ASSIGN_OR_RETURN(given, EntryOf(key, value));
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(e.what());
  }
  BATON_ASSIGN_OR_RETURN(std::optional<TranslatedFlag> translated, TranslateFlag(given.name, given.values, notes));
  return translated ? *std::move(translated) : given;
}

}  // namespace

absl::Status FlagSet::ApplyYaml(const std::string& path, std::vector<std::string>& notes) {
  BATON_ASSIGN_OR_RETURN(std::ifstream in, OpenToRead(path, "--config"));
  YAML::Node root;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(in);
    if (documents.size() > 1)
      return absl::InvalidArgumentError(StrCat("--config ", path, ": has ", documents.size(), " documents, of one"));
    if (!documents.empty()) root = documents.front();
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(StrCat("--config ", path, ": ", e.what()));
  }
  if (root.IsNull()) return absl::OkStatus();
  if (!root.IsMap()) return absl::InvalidArgumentError(StrCat("--config ", path, ": expected a mapping of flag names"));
  std::set<std::string> keys;
  for (const auto& entry : root) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (!key.empty() && !keys.insert(absl::StrReplaceAll(key, {{"_", "-"}})).second)
      return absl::InvalidArgumentError(
          StrCat("--config ", path, ":", entry.first.Mark().line + 1, ": \"", key, "\" is there twice"));
    const absl::StatusOr<TranslatedFlag> read = ReadEntry(entry.first, entry.second, notes);
    if (!read.ok()) return absl::InvalidArgumentError(StrCat("--config ", path, ": ", read.status().message()));
    const TranslatedFlag& given = *read;
    if (given.name.empty()) continue;
    const auto flag = std::ranges::find(flags_, given.name, &Flag::name);
    if (flag == flags_.end()) {
      std::vector<std::string> names;
      for (const Flag& f : flags_) names.push_back(f.name);
      return absl::InvalidArgumentError(
          StrCat("--config ", path, ": no flag is called \"", given.name, "\"", DidYouMean(given.name, names, "")));
    }
    if (given.values.empty() || (given.values.size() > 1 && !flag->is_list)) {
      return absl::InvalidArgumentError(StrCat("--config ", path, ": \"", given.name, "\" wants ",
                                               flag->is_list ? "a value or a list" : "one value"));
    }
    Set(*flag, given.values, path);
    if (!status_.ok()) return status_;
  }
  return absl::OkStatus();
}

void AppendGiven(const FlagSet& set, std::string_view group, std::vector<std::string>& argv, std::string_view prefix) {
  for (const Flag& flag : set.flags()) {
    auto given = set.given().find(flag.name);
    const bool belongs = flag.group == group || std::ranges::count(flag.shared_with, group) > 0;
    if (!belongs || given == set.given().end()) continue;
    for (const std::string& value : given->second) {
      const std::string name = flag.name.substr(prefix.size());
      if (flag.is_bool) {
        argv.push_back(StrCat(value == "true" ? "--" : "--no-", name));
      } else {
        argv.push_back(StrCat("--", name, "=", value));
      }
    }
  }
}

}  // namespace baton::cli
