#include "cli/vllm_flags.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/str_cat.h"
#include "tests/cli/parsed_serve.h"

namespace baton::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// vLLM's usage text: each flag with a value as people write it.
const std::vector<std::vector<std::string>> kUsage = {{"model", "m"},
                                                      {"task", "auto"},
                                                      {"tokenizer", "t"},
                                                      {"skip-tokenizer-init"},
                                                      {"revision", "main"},
                                                      {"code-revision", "main"},
                                                      {"tokenizer-revision", "main"},
                                                      {"tokenizer-mode", "auto"},
                                                      {"trust-remote-code"},
                                                      {"allowed-local-media-path", "/m"},
                                                      {"download-dir", "/d"},
                                                      {"load-format", "auto"},
                                                      {"config-format", "auto"},
                                                      {"dtype", "auto"},
                                                      {"kv-cache-dtype", "auto"},
                                                      {"max-model-len", "10000"},
                                                      {"guided-decoding-backend", "xgrammar"},
                                                      {"logits-processor-pattern", "x"},
                                                      {"model-impl", "auto"},
                                                      {"distributed-executor-backend", "mp"},
                                                      {"pipeline-parallel-size", "1"},
                                                      {"tensor-parallel-size", "1"},
                                                      {"max-parallel-loading-workers", "2"},
                                                      {"ray-workers-use-nsight"},
                                                      {"block-size", "16"},
                                                      {"enable-prefix-caching"},
                                                      {"disable-sliding-window"},
                                                      {"use-v2-block-manager"},
                                                      {"num-lookahead-slots", "0"},
                                                      {"seed", "0"},
                                                      {"swap-space", "4"},
                                                      {"cpu-offload-gb", "0"},
                                                      {"gpu-memory-utilization", "0.9"},
                                                      {"num-gpu-blocks-override", "100"},
                                                      {"max-num-batched-tokens", "2048"},
                                                      {"max-num-partial-prefills", "1"},
                                                      {"max-long-partial-prefills", "1"},
                                                      {"long-prefill-token-threshold", "0"},
                                                      {"max-num-seqs", "256"},
                                                      {"max-logprobs", "20"},
                                                      {"disable-log-stats"},
                                                      {"quantization", "awq"},
                                                      {"rope-scaling", "{}"},
                                                      {"rope-theta", "1e6"},
                                                      {"hf-overrides", "{}"},
                                                      {"enforce-eager"},
                                                      {"max-seq-len-to-capture", "8192"},
                                                      {"disable-custom-all-reduce"},
                                                      {"tokenizer-pool-size", "2"},
                                                      {"tokenizer-pool-type", "ray"},
                                                      {"tokenizer-pool-extra-config", "{}"},
                                                      {"limit-mm-per-prompt", "image=1"},
                                                      {"mm-processor-kwargs", "{}"},
                                                      {"disable-mm-preprocessor-cache"},
                                                      {"enable-lora"},
                                                      {"enable-lora-bias"},
                                                      {"max-loras", "1"},
                                                      {"max-lora-rank", "16"},
                                                      {"lora-extra-vocab-size", "256"},
                                                      {"lora-dtype", "auto"},
                                                      {"long-lora-scaling-factors", "1.0"},
                                                      {"max-cpu-loras", "1"},
                                                      {"fully-sharded-loras"},
                                                      {"enable-prompt-adapter"},
                                                      {"max-prompt-adapters", "1"},
                                                      {"max-prompt-adapter-token", "8"},
                                                      {"device", "auto"},
                                                      {"num-scheduler-steps", "1"},
                                                      {"multi-step-stream-outputs", "True"},
                                                      {"scheduler-delay-factor", "0.0"},
                                                      {"enable-chunked-prefill"},
                                                      {"speculative-model", "d"},
                                                      {"speculative-model-quantization", "awq"},
                                                      {"num-speculative-tokens", "3"},
                                                      {"speculative-disable-mqa-scorer"},
                                                      {"speculative-draft-tensor-parallel-size", "1"},
                                                      {"speculative-max-model-len", "100"},
                                                      {"speculative-disable-by-batch-size", "4"},
                                                      {"ngram-prompt-lookup-max", "4"},
                                                      {"ngram-prompt-lookup-min", "1"},
                                                      {"spec-decoding-acceptance-method", "rejection_sampler"},
                                                      {"typical-acceptance-sampler-posterior-threshold", "0.1"},
                                                      {"typical-acceptance-sampler-posterior-alpha", "0.3"},
                                                      {"disable-logprobs-during-spec-decoding", "True"},
                                                      {"model-loader-extra-config", "{}"},
                                                      {"ignore-patterns", "a", "b"},
                                                      {"preemption-mode", "recompute"},
                                                      {"served-model-name", "n"},
                                                      {"qlora-adapter-name-or-path", "p"},
                                                      {"show-hidden-metrics-for-version", "0.5"},
                                                      {"otlp-traces-endpoint", "x"},
                                                      {"collect-detailed-traces", "all"},
                                                      {"disable-async-output-proc"},
                                                      {"scheduling-policy", "priority"},
                                                      {"scheduler-cls", "x"},
                                                      {"override-neuron-config", "{}"},
                                                      {"override-pooler-config", "{}"},
                                                      {"compilation-config", "0"},
                                                      {"kv-transfer-config", "{}"},
                                                      {"worker-cls", "auto"},
                                                      {"generation-config", "auto"},
                                                      {"override-generation-config", "{}"},
                                                      {"enable-sleep-mode"},
                                                      {"calculate-kv-scales"},
                                                      {"additional-config", "{}"},
                                                      {"hf-config-path", "c"}};

TEST(VllmFlags, EachOfTheUsageTextIsTakenOrRefusedWithAReason) {
  EXPECT_EQ(kUsage.size(), 106u);
  std::set<std::string> names;
  int taken = 0, refused = 0;
  for (const auto& row : kUsage) {
    names.insert(row[0]);
    for (const char separator : {'-', '_'}) {
      std::vector<std::string> words = row;
      std::replace(words[0].begin(), words[0].end(), '-', separator);
      words[0] = "--" + words[0];
      const std::string said = ParsedServe().Parse(words);
      (said.empty() ? taken : refused) += 1;
      if (!said.empty()) {
        EXPECT_THAT(said, HasSubstr(" is refused: ")) << row[0];
      }
    }
  }
  EXPECT_EQ(names.size(), 106u);
  EXPECT_EQ(taken % 2, 0) << "underscores change nothing";
  EXPECT_GE(taken / 2, 45);
}

// What the usage text says that a flag may be, where that is a set: each is taken, or refused with a reason.
TEST(VllmFlags, EachValueOfItsSetsIsTakenOrRefusedWithAReason) {
  const std::vector<std::pair<std::string, std::string>> sets = {
      {"task", "auto generate embedding embed classify score reward transcription"},
      {"tokenizer-mode", "auto slow mistral custom"},
      {"load-format",
       "auto pt safetensors npcache dummy tensorizer sharded_state gguf bitsandbytes mistral runai_streamer"},
      {"config-format", "auto hf mistral"},
      {"dtype", "auto half float16 bfloat16 float float32"},
      {"kv-cache-dtype", "auto fp8 fp8_e5m2 fp8_e4m3"},
      {"guided-decoding-backend", "outlines lm-format-enforcer xgrammar xgrammar:no-fallback auto"},
      {"model-impl", "auto vllm transformers"},
      {"distributed-executor-backend", "ray mp uni external_launcher"},
      {"block-size", "16 32 64 128"},
      {"quantization",
       "aqlm awq deepspeedfp tpu_int8 fp8 ptpc_fp8 fbgemm_fp8 modelopt marlin gguf gptq_marlin_24 gptq_marlin "
       "awq_marlin gptq compressed-tensors bitsandbytes qqq hqq experts_int8 neuron_quant ipex quark moe_wna16 None"},
      {"lora-dtype", "auto float16 bfloat16"},
      {"device", "auto cuda neuron cpu openvino tpu xpu hpu"},
      {"spec-decoding-acceptance-method", "rejection_sampler typical_acceptance_sampler"},
      {"preemption-mode", "recompute swap"},
      {"collect-detailed-traces", "model worker all model,worker"},
      {"scheduling-policy", "fcfs priority"},
      {"generation-config", "auto vllm"},
      {"compilation-config", R"(0 1 2 3 {"level":3})"},
  };
  for (const auto& [name, values] : sets) {
    for (const std::string& value : std::vector<std::string>(absl::StrSplit(values, ' '))) {
      ParsedServe serve;
      const std::string said = serve.Parse({"m", "--" + name, value});
      if (!said.empty()) {
        EXPECT_THAT(said, HasSubstr(StrCat("--", name, " ", value, " is refused: "))) << said;
        continue;
      }
      serve.router.model = serve.worker.model = serve.serve.model;  // which `serve` gives them
      for (const absl::Status& status :
           {CheckFields(serve.serve), CheckFields(serve.router), CheckFields(serve.worker)})
        EXPECT_TRUE(status.ok()) << status;
    }
  }
  EXPECT_EQ(ParsedServe().Parse({"m", "--quantization", "awq_marlin", "--load-format", "safetensors"}), "");
  EXPECT_THAT(ParsedServe().Parse({"m", "--prefill.kv-cache-dtype", "fp8_e5m2"}),
              HasSubstr("KV in fp8 is E4M3 (taken: auto"));
}

// Switches of the usage text that may stand alone or before True and False.
TEST(VllmFlags, ASwitchThatMayHaveAWordBehindItNeedsNone) {
  for (const std::string flag : {"--multi-step-stream-outputs", "--enable-chunked-prefill"}) {
    std::vector<std::string> notes;
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"serve", "m", flag, "--port", "1"}, {"serve", "m", flag, "True", "--port", "1"}}) {
      const auto out = TranslateArguments(words, notes);
      ASSERT_TRUE(out.ok()) << out.status();
      EXPECT_THAT(*out, ElementsAre("serve", "m", "--port", "1"));
    }
  }
  EXPECT_THAT(ParsedServe().Parse({"m", "--disable-logprobs-during-spec-decoding"}), HasSubstr(" is refused: "));
}

TEST(VllmFlags, NoRowOfTheTableIsAFlagOfOurOwnAndEveryOneHasAReason) {
  const ParsedServe serve;
  std::set<std::string_view> seen;
  for (const VllmFlag& row : VllmFlags()) {
    EXPECT_TRUE(seen.insert(row.name).second) << row.name;
    EXPECT_TRUE(!row.becomes.empty() || !row.why.empty()) << row.name;
    for (const Flag& own : serve.set.flags()) EXPECT_NE(own.name, row.name);
  }
}

TEST(VllmFlags, HalfIsWhatAutoChoosesAndThatIsSaid) {
  for (const std::string half : {"half", "float16"}) {
    std::vector<std::string> notes;
    const auto out = TranslateArguments({"serve", "m", "--dtype", half, "--seed", "1"}, notes);
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_THAT(*out, ElementsAre("serve", "m", "--seed", "1"));
    EXPECT_THAT(notes, ElementsAre(HasSubstr(StrCat("--dtype ", half, " changes nothing: nothing is computed in"))));
  }
}

TEST(VllmFlags, ACommandLineOfTheirsBecomesOneOfOurs) {
  std::vector<std::string> notes;
  auto out = TranslateArguments(
      {"serve", "/m_x", "--max_model_len", "10000", "--dtype=float", "--device", "auto", "--ignore-patterns", "a_b",
       "c", "--tokenizer_pool_size=3", "--swap-space", "4", "--enforce-eager", "--host", "a_b"},
      notes);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_THAT(*out, ElementsAre("serve", "/m_x", "--max-model-len", "10000", "--dtype=float32", "--tokenizer-threads=3",
                                "--enforce-eager", "--host", "a_b"));
  EXPECT_EQ(notes.size(), 2u);
}

TEST(VllmFlags, ARefusalSaysWhyAndWhatIsTaken) {
  std::vector<std::string> notes;
  auto message = [&](std::vector<std::string> words) {
    return std::string(TranslateArguments(std::move(words), notes).status().message());
  };
  EXPECT_EQ(
      message({"serve", "m", "--task", "embed"}),
      "--task embed is refused: models generate text; they embed, score and transcribe nothing (taken: auto generate)");
  EXPECT_THAT(message({"worker", "--trust-remote-code"}), HasSubstr("no code of a model"));
  EXPECT_THAT(message({"serve", "m", "--no-enable-chunked-prefill"}), HasSubstr("always computed in chunks"));
  EXPECT_EQ(message({"serve", "m", "--task"}), "--task wants a value");
}

// What people also write: answered as an operator would want it, and no word of it becomes the model.
TEST(VllmFlags, OddSpellingsAreTheFlagsThatTheyLookLike) {
  std::vector<std::string> notes;
  auto words = [&](std::vector<std::string> given) {
    notes.clear();
    const auto out = TranslateArguments(std::move(given), notes);
    return out.ok() ? absl::StrJoin(*out, " ") : std::string(out.status().message());
  };
  EXPECT_EQ(words({"serve", "m", "-tp", "2", "-pp=2"}), "serve m --tensor-parallel-size 2 --pipeline-parallel-size=2");
  EXPECT_THAT(words({"serve", "m", "-q", "fp8"}), HasSubstr("--quantization fp8 is refused"));
  EXPECT_EQ(words({"serve", "m", "-O3"}), "serve m");
  EXPECT_THAT(notes, ElementsAre(HasSubstr("--compilation-config changes nothing")));
  EXPECT_EQ(words({"serve", "m", "--enable-chunked-prefill", "True"}), "serve m");
  EXPECT_THAT(words({"serve", "m", "--enable-chunked-prefill", "False"}), HasSubstr("always computed in chunks"));
  EXPECT_THAT(words({"serve", "m", "--enable_chunked_prefill=false"}), HasSubstr("always computed in chunks"));
  EXPECT_EQ(words({"serve", "m", "--no-enable-lora", "--enable-lora=False", "--no_trust_remote_code"}), "serve m");
  EXPECT_EQ(notes.size(), 3u);
  EXPECT_EQ(words({"serve", "m", "--enable-prefix-caching", "False", "--port", "1"}),
            "serve m --enable-prefix-caching=False --port 1");
  EXPECT_EQ(words({"serve", "m", "--no-disable-log-requests", "--disable-uvicorn-access-log"}),
            "serve m --log-requests --no-log-requests");
  EXPECT_EQ(words({"serve", "m", "--enable-lora=maybe"}), "--enable-lora is true or false, got maybe");
  EXPECT_THAT(words({"serve", "m", "--prefill.enable-lora"}), HasSubstr("there are no LoRA adapters"));
  EXPECT_EQ(words({"serve", "m", "--decode.dtype", "float", "--decode.swap-space", "0"}),
            "serve m --decode.dtype=float32");
}

TEST(VllmFlags, TheModelMayStandBehindAnyFlag) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--port", "1", "m"},
                                             {"--port=1", "m"},
                                             {"--seed", "4", "m", "--port", "1"},
                                             {"--dtype", "auto", "m"},
                                             {"--enforce-eager", "m"},
                                             {"--tokenizer-pool-size", "3", "m"},
                                             {"--served-model-name", "a", "m"},
                                             {"--port", "1", "--model", "m"}}) {
    ParsedServe serve;
    EXPECT_EQ(serve.Parse(words), "") << words[0];
    EXPECT_EQ(serve.serve.model, "m") << words[0];
  }
  EXPECT_THAT(ParsedServe().Parse({"m", "--port", "1", "n"}), HasSubstr("--model: one value is wanted, got m and n"));
}

TEST(VllmFlags, NamesBehindAListAreItsValuesOnceTheModelIsNamed) {
  std::vector<std::string> notes;
  auto words = [&](std::vector<std::string> given) { return *TranslateArguments(std::move(given), notes); };
  EXPECT_THAT(words({"serve", "m", "--served-model-name", "a", "b", "--port", "1"}),
              ElementsAre("serve", "m", "--served-model-name=a", "--served-model-name=b", "--port", "1"));
  EXPECT_THAT(words({"serve", "--served-model-name", "a", "b", "--model", "m"}),
              ElementsAre("serve", "--served-model-name=a", "--served-model-name=b", "--model", "m"));
  EXPECT_THAT(words({"serve", "--served-model-name", "a", "m"}), ElementsAre("serve", "--served-model-name", "a", "m"));
  EXPECT_THAT(words({"router", "--worker", "h:1", "h:2"}), ElementsAre("router", "--worker=h:1", "--worker=h:2"));
  EXPECT_THAT(ParsedServe().Parse({"m", "n"}), HasSubstr("--model: one value is wanted, got m and n"));
}

TEST(VllmFlags, AFileAndVariablesMaySayThemToo) {
  std::vector<std::string> notes;
  const std::vector<std::string> variables = {"HOME=/x", "BATON_SWAP_SPACE=4", "BATON_PORT=1",
                                              "BATON_DISABLE_LOG_REQUESTS=maybe"};
  EXPECT_THAT(TranslateVariables(variables, notes).status().message(), HasSubstr("is true or false, got maybe"));
  const std::vector<std::string> good = {"BATON_SWAP_SPACE=4", "BATON_TOKENIZER_POOL_SIZE=3",
                                         "BATON_DISABLE_LOG_REQUESTS=1"};
  EXPECT_THAT(*TranslateVariables(good, notes), ElementsAre("--tokenizer-threads=3", "--no-log-requests"));
  EXPECT_TRUE(IsVllmVariable("BATON_SWAP_SPACE"));
  EXPECT_FALSE(IsVllmVariable("BATON_PORT"));

  const std::string path = testing::TempDir() + "theirs.yaml";
  const auto of_file = [&](const std::string& text) {
    std::ofstream(path) << text;
    ParsedServe s;
    notes.clear();
    const absl::Status status = s.set.ApplyYaml(path, notes);
    return std::pair(status, s.worker.dtype + " " + absl::StrJoin(s.serve.served_model_name, "+"));
  };
  const auto [status, seen] =
      of_file("swap_space: 4\ntokenizer-mode: auto\ndtype: float\nserved-model-name: [a, b]\nenable-lora: false\n");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen, "float32 a+b");
  EXPECT_EQ(notes.size(), 3u);
  const auto overrides = [&](const std::string& text) {
    std::ofstream(path) << text;
    ParsedServe s;
    const absl::Status read = s.set.ApplyYaml(path, notes);
    return read.ok() ? s.worker.hf_overrides + s.worker.rope_scaling : std::string(read.message());
  };
  EXPECT_EQ(overrides("hf_overrides:\n  rope_theta: 1e6\n  tie: true\n  name: \"7\"\n  ids: [1, -2]\n  none: null\n"),
            R"({"ids":[1,-2],"name":"7","none":null,"rope_theta":1000000.0,"tie":true})");
  EXPECT_EQ(overrides("rope-scaling: {rope_type: yarn, factor: 4}\n"), R"({"factor":4,"rope_type":"yarn"})");
  EXPECT_THAT(overrides("hf-overrides: &a\n  b: *a\n"), HasSubstr("\"hf-overrides\" has more than 1000 values"));
  EXPECT_THAT(overrides("hf-overrides: {[a]: b}\n"), HasSubstr("theirs.yaml: "));
  EXPECT_THAT(overrides("[a]: b\n"), HasSubstr("theirs.yaml: "));
  EXPECT_THAT(overrides("kv-transfer-config:\n  kv_connector: X\n"), HasSubstr("is refused: --prefill and --decode"));
  EXPECT_THAT(of_file("enable_lora: true\n").first.message(), HasSubstr("theirs.yaml: --enable-lora true is refused"));
}

TEST(VllmFlags, OtherCommandsAreLeftAlone) {
  std::vector<std::string> notes;
  EXPECT_THAT(*TranslateArguments({"chat", "--a_b", "--task", "x"}, notes),
              ElementsAre("chat", "--a_b", "--task", "x"));
  EXPECT_THAT(*TranslateArguments({"bench", "--request_rate", "a_b"}, notes),
              ElementsAre("bench", "--request-rate", "a_b"));
  for (const char* command : {"plan", "sim"})
    EXPECT_THAT(*TranslateArguments({command, "--max_model_len=1_0", "a_b"}, notes),
                ElementsAre(command, "--max-model-len=1_0", "a_b"));
  EXPECT_TRUE(TranslateArguments({}, notes)->empty());
}

}  // namespace
}  // namespace baton::cli
