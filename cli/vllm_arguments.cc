// What the table of vLLM's flags makes of command lines, files and variables.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/vllm_flags.h"
#include "common/json.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

using enum Values;

// A value of our own flags that has another name there.
struct ValueName {
  std::string_view flag, theirs, ours;  ///< ours empty: the default
  std::string_view why{};               ///< what is told of it
};
constexpr std::string_view kHalf =
    "nothing is computed in float16: weights of it are computed in what --dtype auto chooses, bfloat16 or float32";
constexpr std::array kValues = std::to_array<ValueName>({{"dtype", "float", "float32"},
                                                         {"dtype", "half", "", kHalf},
                                                         {"dtype", "float16", "", kHalf},
                                                         {"device", "auto", ""},
                                                         {"seed", "None", ""},
                                                         {"max-model-len", "auto", ""},
                                                         {"max-model-len", "-1", ""},
                                                         {"allowed-origins", "[\"*\"]", "*"},
                                                         {"load-format", "safetensors", "auto"},
                                                         {"load-format", "gguf", "auto"},
                                                         {"distributed-executor-backend", "uni", ""},
                                                         {"kv-cache-dtype", "fp8_e4m3", "fp8"}});

// Values of our own flags that mean something there and nothing here: refused with a reason, not as a typing error.
struct RefusedValues {
  std::string_view flag, theirs, taken, why;
};
constexpr std::array kRefused = std::to_array<RefusedValues>(
    {{"load-format",
      "pt npcache tensorizer sharded_state bitsandbytes mistral runai_streamer runai_streamer_sharded fastsafetensors",
      "auto safetensors gguf dummy", "weights are read from files of safetensors and GGUF alone"},
     {"kv-cache-dtype", "fp8_e5m2 fp8_inc fp8_ds_mla", "auto bfloat16 float16 float32 fp8 fp8_e4m3",
      "KV in fp8 is E4M3"},
     {"distributed-executor-backend", "ray external_launcher", "threads uni mp",
      "there is no Ray and no launcher of others here: ranks are threads, or processes on as many machines as --nnodes "
      "says"},
     {"device", "neuron tpu xpu hpu openvino mps", "auto cpu cuda", "kernels are for CPUs and NVIDIA's GPUs"}});

// The same of `baton bench`: backends that are asked in the same way, and sets of prompts that it has not.
constexpr std::array kBenchValues = std::to_array<ValueName>({{"backend", "sglang", "openai"},
                                                              {"backend", "lmdeploy", "openai"},
                                                              {"backend", "scalellm", "openai"},
                                                              {"backend", "llama.cpp", "openai"}});
constexpr std::array kBenchRefused = std::to_array<RefusedValues>(
    {{"backend", "tgi deepspeed-mii tensorrt-llm", "openai openai-chat", "its API is not OpenAI's"},
     {"backend",
      "openai-audio openai-embeddings openai-embeddings-chat openai-embeddings-clip openai-embeddings-vlm2vec "
      "infinity-embeddings infinity-embeddings-clip vllm-pooling vllm-rerank",
      "openai openai-chat", "what is measured is generated text"},
     {"dataset-name", "random-mm custom_mm custom_image custom_audio", "random custom", "prompts are texts"},
     {"dataset-name", "random-rerank", "random custom", "what is measured is generated text"},
     {"dataset-name", "burstgpt hf spec_bench speed_bench", "sharegpt custom azure mooncake",
      "nothing is fetched: --dataset-name custom takes any prompts as JSON lines"}});

constexpr auto kShort =
    std::to_array<std::pair<std::string_view, std::string_view>>({{"-tp", "--tensor-parallel-size"},
                                                                  {"-pp", "--pipeline-parallel-size"},
                                                                  {"-dp", "--data-parallel-size"},
                                                                  {"-dpn", "--data-parallel-rank"},
                                                                  {"-dpr", "--data-parallel-start-rank"},
                                                                  {"-dpl", "--data-parallel-size-local"},
                                                                  {"-dpa", "--data-parallel-address"},
                                                                  {"-dpp", "--data-parallel-rpc-port"},
                                                                  {"-dpb", "--data-parallel-backend"},
                                                                  {"-dph", "--data-parallel-hybrid-lb"},
                                                                  {"-dpe", "--data-parallel-external-lb"},
                                                                  {"-dcp", "--decode-context-parallel-size"},
                                                                  {"-pcp", "--prefill-context-parallel-size"},
                                                                  {"-ep", "--enable-expert-parallel"},
                                                                  {"-sc", "--speculative-config"},
                                                                  {"-cc", "--compilation-config"},
                                                                  {"-ac", "--attention-config"},
                                                                  {"-q", "--quantization"},
                                                                  {"-O", "--compilation-config"},
                                                                  {"-n", "--nnodes"},
                                                                  {"-r", "--node-rank"}});

// A flag of ours that takes `A B C` there, and A,B,C here.
constexpr std::string_view kJoined = "cuda-graph-sizes";
// Flags of ours that take `A B C` there.
constexpr std::array<std::string_view, 5> kLists = {"served-model-name", "api-key", "worker", "workers-dns",
                                                    "workers-kubernetes"};

constexpr std::array<std::string_view, 2> kRoles = {"prefill.", "decode."};

constexpr std::string_view kPrefix = "BATON_";
std::string FlagOfVariable(std::string_view variable) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(AbslView(variable.substr(kPrefix.size()))), {{"_", "-"}});
}

bool Lists(std::string_view values, std::string_view value) {
  if (values == "*") return true;
  const std::vector<std::string> all = absl::StrSplit(AbslView(values), ' ', absl::SkipEmpty());
  return std::ranges::count(all, value) > 0;
}

std::string Joined(std::string_view values) { return values.empty() ? "" : StrCat(" (taken: ", values, ")"); }

bool IsTrueOrFalse(std::string_view word) {
  const std::string lower = absl::AsciiStrToLower(AbslView(word));
  return lower == "true" || lower == "false";
}

// A flag of a command line: its name without dashes, and the values that are its own.
struct Given {
  std::string name;
  std::vector<std::string> values;
};

bool IsFlag(std::string_view word) { return word.starts_with("--"); }

// Reads the flag at `at` and goes past it. Words behind a flag are its values as `values` says.
Given Take(const std::vector<std::string>& words, size_t& at, Values values) {
  Given given;
  const std::string& word = words[at++];
  const size_t equals = word.find('=');
  given.name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
  if (equals != std::string::npos) {
    given.values.push_back(word.substr(equals + 1));
    return given;
  }
  if (values == kNone) {
    if (at < words.size() && IsTrueOrFalse(words[at])) given.values.push_back(words[at++]);
    return given;
  }
  const size_t most = values == kOne ? 1 : words.size();
  while (given.values.size() < most && at < words.size() && !IsFlag(words[at])) given.values.push_back(words[at++]);
  return given;
}

std::string LongName(std::string word) {
  if (IsFlag(word) || word.size() < 2 || word[0] != '-') return word;
  for (const auto& [brief, name] : kShort) {
    if (!word.starts_with(brief)) continue;
    std::string rest = word.substr(brief.size());
    if (rest.empty()) return std::string(name);
    if (rest[0] == '=' || rest[0] == '.') return StrCat(name, rest);  // -O.level=3
    if (brief == "-O") return StrCat(name, "=", rest);                // -O3
  }
  return word;
}

// Of "prefill.swap-space" the first part.
std::string_view RoleOf(std::string_view name) {
  for (const std::string_view role : kRoles) {
    if (name.starts_with(role)) return role;
  }
  return "";
}

// Where a flag's name ends: before its value, or before the path into its JSON.
size_t EndOfName(std::string_view word) {
  const size_t role = RoleOf(word.substr(2)).size();
  return std::min(word.find_first_of("=.", 2 + role), word.size());
}

std::string WithDashes(std::string word) {
  if (IsFlag(word)) std::replace(word.begin(), word.begin() + static_cast<ptrdiff_t>(EndOfName(word)), '_', '-');
  return word;
}

// `--hf-overrides.a.b 4` for `--hf-overrides={"a":{"b":4}}`, as vLLM takes it: paths into one flag's JSON are one flag
// where the first stands.
std::vector<std::string> WithoutPaths(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  std::vector<std::pair<size_t, nlohmann::json>> made;  // place in `out`, and what stands there
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    const size_t end = IsFlag(word) ? EndOfName(word) : word.size();
    if (end == word.size() || word[end] != '.') {
      out.push_back(word);
      continue;
    }
    const size_t equals = std::min(word.find('=', end), word.size());
    std::string value = "true";
    if (equals < word.size()) {
      value = word.substr(equals + 1);
    } else if (at + 1 < words.size() && !IsFlag(words[at + 1])) {
      value = words[++at];
    }
    const std::string name = word.substr(0, end);
    auto found = std::ranges::find_if(made, [&](const auto& one) { return out[one.first] == name; });
    if (found == made.end()) {
      found = made.insert(made.end(), {out.size(), nlohmann::json::object()});
      out.push_back(name);
    }
    nlohmann::json* place = &found->second;
    for (const std::string& key : std::vector<std::string>(
             absl::StrSplit(AbslView(std::string_view(word).substr(end + 1, equals - end - 1)), '.'))) {
      if (!place->is_object()) *place = nlohmann::json::object();
      place = &(*place)[key];
    }
    nlohmann::json read = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
    *place = read.is_discarded() ? nlohmann::json(value) : std::move(read);
  }
  for (const auto& [at, json] : made)
    out[at] += "=" + json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return out;
}

absl::Status Refused(std::string_view name, std::string_view value, std::string_view why, std::string_view same) {
  return absl::InvalidArgumentError(
      StrCat("--", name, value.empty() ? "" : " ", value, " is refused: ", why, Joined(same == "*" ? "" : same)));
}

TranslatedFlag Dropped(std::string_view name, std::string_view why, std::vector<std::string>& notes) {
  notes.push_back(StrCat("--", name, " changes nothing: ", why));
  return {};
}

absl::StatusOr<TranslatedFlag> TranslateSwitch(const VllmFlag& flag, bool negated, const Given& given,
                                               std::vector<std::string>& notes) {
  const std::string value = given.values.empty() ? "" : given.values[0];
  bool said = true;
  if (!value.empty() && !absl::SimpleAtob(value, &said))
    return absl::InvalidArgumentError(StrCat("--", given.name, " is true or false, got ", value));
  const bool on = said != negated;
  if (!flag.becomes.empty()) {
    const bool ours_negates = flag.becomes.starts_with("no-");
    return TranslatedFlag{std::string(flag.becomes.substr(ours_negates ? 3 : 0)),
                          {on != ours_negates ? "true" : "false"}};
  }
  if (Lists(flag.same.empty() ? "false" : flag.same, on ? "true" : "false"))
    return Dropped(given.name, flag.why, notes);
  return Refused(given.name, value, flag.why, flag.same);
}

absl::StatusOr<TranslatedFlag> Translate(const VllmFlag& flag, bool negated, const Given& given,
                                         std::vector<std::string>& notes) {
  if (flag.values == kNone) return TranslateSwitch(flag, negated, given, notes);
  if (given.values.empty()) return absl::InvalidArgumentError(StrCat("--", given.name, " wants a value"));
  if (!flag.becomes.empty()) return TranslatedFlag{std::string(flag.becomes), {given.values[0]}};
  if (!std::ranges::all_of(given.values, [&](const auto& v) { return Lists(flag.same, v); }))
    return Refused(given.name, given.values[0], flag.why, flag.same);
  return Dropped(given.name, flag.why, notes);
}

// The row of a name, and whether that says `no-`.
std::pair<const VllmFlag*, bool> RowOf(std::span<const VllmFlag> table, std::string_view name) {
  const auto find = [&](std::string_view wanted) -> const VllmFlag* {
    const auto found = std::ranges::find(table, wanted, &VllmFlag::name);
    return found == table.end() ? nullptr : &*found;
  };
  if (const VllmFlag* row = find(name)) return {row, false};
  if (!name.starts_with("no-")) return {nullptr, false};
  const VllmFlag* row = find(name.substr(3));
  return {row != nullptr && row->values == kNone ? row : nullptr, true};
}

// One of our own flags whose value has another name there; unset: left as it is.
absl::StatusOr<std::optional<TranslatedFlag>> TranslateValue(const Given& given, std::string_view own,
                                                             std::span<const RefusedValues> all_refused,
                                                             std::span<const ValueName> all_values,
                                                             std::vector<std::string>& notes) {
  for (const RefusedValues& refused : all_refused) {
    if (own == refused.flag && given.values.size() == 1 && Lists(refused.theirs, given.values[0]))
      return Refused(given.name, given.values[0], refused.why, refused.taken);
  }
  for (const ValueName& value : all_values) {
    if (own != value.flag || given.values.size() != 1 || given.values[0] != value.theirs) continue;
    if (!value.why.empty())
      notes.push_back(StrCat("--", given.name, " ", value.theirs, " changes nothing: ", value.why));
    return std::optional(value.ours.empty() ? TranslatedFlag{}
                                            : TranslatedFlag{std::string(own), {std::string(value.ours)}});
  }
  return std::optional<TranslatedFlag>();
}

absl::StatusOr<std::optional<TranslatedFlag>> TranslateServerFlag(const Given& given, std::vector<std::string>& notes) {
  const std::string_view role = RoleOf(given.name);
  const std::string_view own = std::string_view(given.name).substr(role.size());
  std::optional<TranslatedFlag> out;
  if (const auto [row, negated] = RowOf(VllmFlags(), own); row != nullptr) {
    BATON_ASSIGN_OR_RETURN(out, Translate(*row, negated, given, notes));
  } else {
    BATON_ASSIGN_OR_RETURN(out, TranslateValue(given, own, kRefused, kValues, notes));
  }
  if (out && !out->name.empty()) out->name = StrCat(role, out->name);
  return out;
}

void Append(const TranslatedFlag& flag, std::vector<std::string>& out) {
  if (flag.name.empty()) return;
  const std::string& value = flag.values[0];
  if (IsTrueOrFalse(value)) {
    out.push_back(StrCat(absl::AsciiStrToLower(value) == "true" ? "--" : "--no-", flag.name));
  } else {
    out.push_back(StrCat("--", flag.name, "=", value));
  }
}

// The words of our own flag at `at`, as the parser takes them.
void TakeOwn(const std::vector<std::string>& words, bool takes_lists, size_t& at, std::vector<std::string>& out) {
  const std::string name = words[at++];
  const bool open = name.find('=') == std::string::npos && at < words.size() && !IsFlag(words[at]);
  if (open && IsTrueOrFalse(words[at])) {
    out.push_back(StrCat(name, "=", words[at++]));
  } else if (open && takes_lists && name.ends_with(kJoined)) {
    std::string all = words[at++];
    while (at < words.size() && !IsFlag(words[at])) all += "," + words[at++];
    out.push_back(StrCat(name, "=", all));
  } else if (open && takes_lists && std::ranges::count(kLists, name.substr(2)) > 0) {
    while (at < words.size() && !IsFlag(words[at])) out.push_back(StrCat(name, "=", words[at++]));
  } else {
    out.push_back(name);
  }
}

// `bench serve …`, as it is called there, and a flag's older name.
std::vector<std::string> OfItsLoadGenerator(std::vector<std::string> words) {
  constexpr std::string_view kOlder = "--endpoint-type";
  if (words.size() > 1 && words[1] == "serve") words.erase(words.begin() + 1);
  for (std::string& word : words) {
    if (word == kOlder || word.starts_with(StrCat(kOlder, "="))) word = StrCat("--backend", word.substr(kOlder.size()));
  }
  return words;
}

// Whether no word behind a list can be the model: it was named, or the command takes none.
bool NamesTheModel(const std::vector<std::string>& words) {
  return words[0] != "serve" || (words.size() > 1 && !words[1].starts_with("-")) ||
         std::ranges::any_of(words, [](const auto& w) { return w == "--model" || w.starts_with("--model="); });
}

}  // namespace

absl::StatusOr<std::optional<TranslatedFlag>> TranslateFlag(std::string_view name,
                                                            const std::vector<std::string>& values,
                                                            std::vector<std::string>& notes) {
  return TranslateServerFlag({std::string(name), values}, notes);
}

absl::StatusOr<std::vector<std::string>> TranslateArguments(std::vector<std::string> words,
                                                            std::vector<std::string>& notes) {
  if (words.empty()) return words;
  const bool server = words[0] == "serve" || words[0] == "router" || words[0] == "worker";
  const bool bench = words[0] == "bench";
  if (!server && !bench && words[0] != "plan" && words[0] != "sim") return words;
  for (std::string& word : words) word = WithDashes(server ? LongName(std::move(word)) : std::move(word));
  if (bench) words = OfItsLoadGenerator(std::move(words));
  if (!server && !bench) return words;
  if (server) words = WithoutPaths(words);
  const bool takes_lists = server && NamesTheModel(words);
  std::vector<std::string> out;
  for (size_t at = 0; at < words.size();) {
    if (!IsFlag(words[at])) {
      out.push_back(words[at++]);
      continue;
    }
    const std::string name = words[at].substr(2, words[at].find('=') - 2);
    const VllmFlag* row =
        RowOf(server ? VllmFlags() : VllmBenchFlags(), name.substr(server ? RoleOf(name).size() : 0)).first;
    size_t after = at;
    const Given given = Take(words, after, row == nullptr ? kOne : row->values);
    std::optional<TranslatedFlag> translated;
    if (server) {
      BATON_ASSIGN_OR_RETURN(translated, TranslateServerFlag(given, notes));
    } else if (row != nullptr) {
      BATON_ASSIGN_OR_RETURN(translated, Translate(*row, /*negated=*/false, given, notes));
    } else {
      BATON_ASSIGN_OR_RETURN(translated, TranslateValue(given, name, kBenchRefused, kBenchValues, notes));
    }
    if (translated) {
      at = after;
      Append(*translated, out);
    } else if (server) {
      TakeOwn(words, takes_lists, at, out);
    } else {
      out.push_back(words[at++]);
    }
  }
  return out;
}

bool IsVllmVariable(std::string_view variable) {
  return variable.starts_with(kPrefix) && RowOf(VllmFlags(), FlagOfVariable(variable)).first != nullptr;
}

absl::StatusOr<std::vector<std::string>> TranslateVariables(std::span<const std::string> variables,
                                                            std::vector<std::string>& notes) {
  std::vector<std::string> out;
  for (const std::string& variable : variables) {
    const size_t equals = variable.find('=');
    if (equals == std::string::npos || !IsVllmVariable(variable.substr(0, equals))) continue;
    BATON_ASSIGN_OR_RETURN(const auto flag, TranslateFlag(FlagOfVariable(variable.substr(0, equals)),
                                                          {variable.substr(equals + 1)}, notes));
    if (flag) Append(*flag, out);
  }
  return out;
}

}  // namespace baton::cli
