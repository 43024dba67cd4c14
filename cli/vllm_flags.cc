#include "cli/vllm_flags.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr std::string_view kLora = "there are no LoRA adapters: serve the merged weights";
constexpr std::string_view kPrompt = "there are no prompt adapters";
constexpr std::string_view kGuess = "there is no speculative decoding";
constexpr std::string_view kMedia = "models take text only";
constexpr std::string_view kHub = "models are folders or files on this machine: fetch the revision that is meant";
constexpr std::string_view kCode = "no code of a model or a plugin is loaded";
constexpr std::string_view kGraph =
    "--cuda-graph-sizes says which steps a GPU replays; nothing is compiled at run time";
constexpr std::string_view kPartial = "prefill chunks are bounded by --max-num-batched-tokens and --max-stall-ms";
constexpr std::string_view kTokenizer =
    "the tokenizer is the one beside the weights, in the GGUF file, or that of --tokenizer";

using enum Values;
constexpr std::array kFlags = std::to_array<VllmFlag>({
    // Always so here, or under another name.
    {"enable-chunked-prefill", kNone, "", "*", "prompts are always computed in chunks"},
    {"no-enable-chunked-prefill", kNone, "", "", "prompts are always computed in chunks"},
    {"num-gpu-blocks-override", kOne, "", "", "--kv-cache-memory says how many bytes KV takes"},
    {"use-v2-block-manager", kNone, "", "*", "there is one block manager"},
    {"disable-log-stats", kNone, "", "*", "statistics are metrics, not log lines"},
    {"disable-log-requests", kNone, "no-log-requests", "", ""},
    {"enable-log-requests", kNone, "log-requests", "", ""},
    {"max-num-partial-prefills", kOne, "", "1", kPartial},
    {"max-long-partial-prefills", kOne, "", "1", kPartial},
    {"tokenizer-pool-size", kOne, "tokenizer-threads", "", ""},
    {"tokenizer-pool-type", kOne, "", "ray", "texts are tokenized by threads of the router"},
    {"tokenizer-pool-extra-config", kOne, "", "", "texts are tokenized by threads of the router"},
    {"preemption-mode", kOne, "", "recompute", "a preempted sequence is computed again: there is no swap space"},
    {"max-parallel-loading-workers", kOne, "", "*", "weights are mapped, not copied"},
    {"disable-async-output-proc", kNone, "", "", "answers are always sent beside the next step"},
    {"num-scheduler-steps", kOne, "", "1", "each step is scheduled"},
    {"multi-step-stream-outputs", kOne, "", "*", "each step is streamed; --stream-interval gathers tokens"},
    {"scheduler-delay-factor", kOne, "", "0 0.0", "a prompt is never held back for others"},
    {"disable-sliding-window", kNone, "", "", "a model's window is a part of it: without it the answers are wrong"},
    // What a model says of itself.
    {"tokenizer-mode", kOne, "", "auto", kTokenizer},
    {"tokenizer-revision", kOne, "", "", kHub},
    {"skip-tokenizer-init", kNone, "", "", kTokenizer},
    {"hf-config-path", kOne, "", "", "config.json is the one beside the weights"},
    {"config-format", kOne, "", "auto hf", "config.json or a GGUF file's metadata is read"},
    {"model-impl", kOne, "", "auto vllm", "every model runs on Baton's own decoder"},
    {"revision", kOne, "", "", kHub},
    {"code-revision", kOne, "", "", kHub},
    {"download-dir", kOne, "", "", kHub},
    {"ignore-patterns", kMany, "", "*", "nothing is downloaded"},
    {"show-hidden-metrics-for-version", kOne, "", "*", "no metric is hidden"},
    // Not there.
    {"quantization", kOne, "", "None none gguf", "weights are kept as stored or dequantized; GGUF's kinds are read"},
    {"calculate-kv-scales", kNone, "", "", "KV in fp8 has the scale 1"},
    {"swap-space", kOne, "", "0 0.0 4 4.0", "there is no swap space: a preempted sequence is computed again"},
    {"cpu-offload-gb", kOne, "", "0 0.0", "weights stay where they are computed"},
    {"enable-lora", kNone, "", "", kLora},
    {"max-loras", kOne, "", "", kLora},
    {"max-lora-rank", kOne, "", "", kLora},
    {"max-cpu-loras", kOne, "", "", kLora},
    {"lora-dtype", kOne, "", "", kLora},
    {"lora-extra-vocab-size", kOne, "", "", kLora},
    {"long-lora-scaling-factors", kOne, "", "", kLora},
    {"fully-sharded-loras", kNone, "", "", kLora},
    {"enable-lora-bias", kNone, "", "", kLora},
    {"enable-prompt-adapter", kNone, "", "", kPrompt},
    {"max-prompt-adapters", kOne, "", "", kPrompt},
    {"max-prompt-adapter-token", kOne, "", "", kPrompt},
    {"speculative-model", kOne, "", "", kGuess},
    {"speculative-model-quantization", kOne, "", "", kGuess},
    {"num-speculative-tokens", kOne, "", "", kGuess},
    {"speculative-disable-mqa-scorer", kNone, "", "", kGuess},
    {"speculative-draft-tensor-parallel-size", kOne, "", "", kGuess},
    {"speculative-max-model-len", kOne, "", "", kGuess},
    {"speculative-disable-by-batch-size", kOne, "", "", kGuess},
    {"ngram-prompt-lookup-max", kOne, "", "", kGuess},
    {"ngram-prompt-lookup-min", kOne, "", "", kGuess},
    {"spec-decoding-acceptance-method", kOne, "", "", kGuess},
    {"typical-acceptance-sampler-posterior-threshold", kOne, "", "", kGuess},
    {"typical-acceptance-sampler-posterior-alpha", kOne, "", "", kGuess},
    {"disable-logprobs-during-spec-decoding", kOne, "", "", kGuess},
    {"num-lookahead-slots", kOne, "", "0", kGuess},
    {"guided-decoding-backend", kOne, "", "auto guidance", "grammars are compiled by llguidance"},
    {"logits-processor-pattern", kOne, "", "", kCode},
    {"task", kOne, "", "auto generate", "models generate text; they embed, score and transcribe nothing"},
    {"override-pooler-config", kOne, "", "", "models generate text; nothing is pooled"},
    {"limit-mm-per-prompt", kOne, "", "", kMedia},
    {"mm-processor-kwargs", kOne, "", "", kMedia},
    {"disable-mm-preprocessor-cache", kNone, "", "", kMedia},
    {"allowed-local-media-path", kOne, "", "", kMedia},
    {"max-seq-len-to-capture", kOne, "", "*", kGraph},
    {"compilation-config", kOne, "", "0", kGraph},
    {"disable-custom-all-reduce", kNone, "", "*", "ranks add up in one fixed order, by Baton's own code"},
    {"kv-transfer-config", kOne, "", "", "--prefill and --decode make a cluster whose workers hand KV over"},
    {"enable-sleep-mode", kNone, "", "", "a worker does not sleep: stop it"},
    {"collect-detailed-traces", kOne, "", "*", "a trace has a span for each stage of a request"},
    // Other worlds.
    {"trust-remote-code", kNone, "", "", kCode},
    {"ray-workers-use-nsight", kNone, "", "", "there is no Ray here"},
    {"override-neuron-config", kOne, "", "", "Neuron devices are not served"},
    {"worker-cls", kOne, "", "auto", kCode},
    {"scheduler-cls", kOne, "", "", kCode},
    {"model-loader-extra-config", kOne, "", "{}", "weights are read by Baton's own loader"},
    {"qlora-adapter-name-or-path", kOne, "", "", kLora},
    {"additional-config", kOne, "", "{}", "it is for other platforms"},
});

constexpr std::string_view kCounted = "nothing is tokenized here: lengths are those that the server counted";
constexpr std::string_view kDrawn = "--html FILE draws tokens per second over time, and how times are distributed";

// Flags of its load generator that `baton bench` does not have.
constexpr std::array kBenchFlags = std::to_array<VllmFlag>({
    {"tokenizer", kOne, "", "*", kCounted},
    {"tokenizer-mode", kOne, "", "*", kCounted},
    {"skip-tokenizer-init", kNone, "", "*", kCounted},
    {"trust-remote-code", kNone, "", "*", "no code of a model is loaded"},
    {"use-beam-search", kNone, "", "", "--extra-body '{\"use_beam_search\": true, \"n\": 4}' asks for it"},
    {"logprobs", kOne, "", "", "--extra-body '{\"logprobs\": 5}' asks for them"},
    {"chat-template-kwargs", kOne, "", "", "--extra-body '{\"chat_template_kwargs\": {…}}' passes them on"},
    {"probe-request-rate", kOne, "", "0 0.0", "no probes are sent beside the load"},
    {"profile", kNone, "", "", "Baton has no /start_profile: the report has the server's stages"},
    {"plot-timeline", kNone, "", "", kDrawn},
    {"timeline-itl-thresholds", kMany, "", "", kDrawn},
    {"plot-dataset-stats", kNone, "", "", kDrawn},
    {"lora-modules", kMany, "", "", kLora},
    {"lora-assignment", kOne, "", "", kLora},
});

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
                                                         {"load-format", "safetensors", "auto"},
                                                         {"load-format", "gguf", "auto"},
                                                         {"distributed-executor-backend", "uni", ""},
                                                         {"kv-cache-dtype", "fp8_e4m3", "fp8"}});

bool Lists(std::string_view values, std::string_view value) {
  if (values == "*") return true;
  const std::vector<std::string> all = absl::StrSplit(AbslView(values), ' ', absl::SkipEmpty());
  return std::ranges::count(all, value) > 0;
}

std::string Joined(std::string_view values) { return values.empty() ? "" : StrCat(" (taken: ", values, ")"); }

// A flag of a command line: its name without dashes, and the values that are its own.
struct Given {
  std::string name;
  std::vector<std::string> values;
  bool has_equals = false;
};

// Reads the flag at `at` and goes past it. Words behind a flag are its values as `values` says.
Given Take(const std::vector<std::string>& words, size_t& at, Values values) {
  Given given;
  const std::string& word = words[at++];
  const size_t equals = word.find('=');
  given.name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
  given.has_equals = equals != std::string::npos;
  if (given.has_equals) given.values.push_back(word.substr(equals + 1));
  const size_t most = given.has_equals ? 0 : values == kNone ? 0 : values == kOne ? 1 : words.size();
  while (given.values.size() < most && at < words.size() && !words[at].starts_with("--"))
    given.values.push_back(words[at++]);
  return given;
}

std::string WithDashes(std::string word) {
  if (word.starts_with("--"))
    std::replace(word.begin(), word.begin() + std::min(word.find('='), word.size()), '_', '-');
  return word;
}

absl::Status Translate(const VllmFlag& flag, const Given& given, std::vector<std::string>& out,
                       std::vector<std::string>& notes) {
  if (flag.values != kNone && given.values.empty())
    return absl::InvalidArgumentError(StrCat("--", flag.name, " wants a value"));
  if (!flag.becomes.empty()) {
    out.push_back(
        StrCat("--", flag.becomes, given.values.empty() ? "" : "=", given.values.empty() ? "" : given.values[0]));
    return absl::OkStatus();
  }
  const bool dropped = given.values.empty()
                           ? flag.same == "*"
                           : std::ranges::all_of(given.values, [&](const auto& v) { return Lists(flag.same, v); });
  if (!dropped) {
    return absl::InvalidArgumentError(StrCat("--", flag.name, given.values.empty() ? "" : " ",
                                             given.values.empty() ? "" : given.values[0], " is refused: ", flag.why,
                                             Joined(flag.same == "*" ? "" : flag.same)));
  }
  notes.push_back(StrCat("--", flag.name, " changes nothing: ", flag.why));
  return absl::OkStatus();
}

// One of our own flags whose value has another name there; false: left as it is.
bool TranslateValue(const Given& given, std::vector<std::string>& out, std::vector<std::string>& notes) {
  for (const ValueName& value : kValues) {
    if (given.name != value.flag || given.values.size() != 1 || given.values[0] != value.theirs) continue;
    if (!value.ours.empty()) out.push_back(StrCat("--", value.flag, "=", value.ours));
    if (!value.why.empty())
      notes.push_back(StrCat("--", value.flag, " ", value.theirs, " changes nothing: ", value.why));
    return true;
  }
  return false;
}

}  // namespace

std::span<const VllmFlag> VllmFlags() { return kFlags; }
std::span<const VllmFlag> VllmBenchFlags() { return kBenchFlags; }

absl::StatusOr<std::vector<std::string>> TranslateArguments(std::vector<std::string> words,
                                                            std::vector<std::string>& notes) {
  if (words.empty()) return words;
  const bool server = words[0] == "serve" || words[0] == "router" || words[0] == "worker";
  if (!server && words[0] != "bench") return words;
  for (std::string& word : words) word = WithDashes(std::move(word));
  const std::span<const VllmFlag> table = server ? VllmFlags() : VllmBenchFlags();
  std::vector<std::string> out;
  for (size_t at = 0; at < words.size();) {
    if (!words[at].starts_with("--")) {
      out.push_back(words[at++]);
      continue;
    }
    const std::string name = words[at].substr(2, words[at].find('=') - 2);
    const auto flag = std::ranges::find(table, name, &VllmFlag::name);
    const size_t begin = at;
    const Given given = Take(words, at, flag == table.end() ? kOne : flag->values);
    if (flag != table.end()) {
      if (absl::Status status = Translate(*flag, given, out, notes); !status.ok()) return status;
    } else if (!server || !TranslateValue(given, out, notes)) {
      at = begin + 1;
      out.push_back(words[begin]);
    }
  }
  return out;
}

}  // namespace baton::cli
