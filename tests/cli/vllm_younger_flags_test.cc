// Flags of vLLM 0.9 and later, and paths into the JSON of one.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/cli/parsed_serve.h"

namespace baton::cli {
namespace {

using testing::HasSubstr;

// Flags of vLLM 0.9 to 0.12 and later with values as people write them.
const std::vector<std::string> kYounger = {
    "--allowed-media-domains a.com",
    "--logprobs-mode raw_logprobs",
    "--logprobs-mode processed_logits",
    "--disable-cascade-attn",
    "--override-attention-dtype bfloat16",
    "--enable-prompt-embeds",
    "--pooler-config {}",
    "--io-processor-plugin x",
    "--safetensors-load-strategy eager",
    "--no-use-tqdm-on-load",
    "--pt-load-map-location cpu",
    "--guided-decoding-disable-fallback",
    "--guided-decoding-disable-any-whitespace",
    "--structured-outputs-config.backend xgrammar",
    "--decode-context-parallel-size 1",
    "-dcp 2",
    "-dpn 0",
    "--data-parallel-address 10.0.0.1",
    "--data-parallel-rpc-port 13345",
    "--data-parallel-hybrid-lb",
    "--all2all-backend pplx",
    "-ep",
    "--enable-dbo",
    "--enable-eplb",
    "--eplb-config {\"window_size\":1000}",
    "--num-redundant-experts 0",
    "--worker-extension-cls x",
    "--kv-sharing-fast-prefill",
    "--mamba-cache-dtype auto",
    "--kv-offloading-size 4",
    "--kv-offloading-backend native",
    "--mm-processor-cache-gb 4",
    "--mm-encoder-tp-mode data",
    "--limit-mm-per-prompt.image 0",
    "--language-model-only",
    "--disable-hybrid-kv-cache-manager",
    "--no-async-scheduling",
    "--kv-events-config {\"enable_kv_cache_events\":true}",
    "--compilation-config {\"cudagraph_mode\":\"FULL_DECODE_ONLY\"}",
    "--compilation-config.cudagraph_mode FULL",
    "-O.cudagraph_mode=FULL",
    "-cc.mode 3",
    "-O3",
    "--optimization-level 2",
    "--attention-config.backend FLASH_ATTN",
    "--speculative-config.method ngram",
    "--trust-request-chat-template",
    "--default-chat-template-kwargs {\"enable_thinking\":false}",
    "--enable-force-include-usage",
    "--exclude-tools-when-tool-choice-none",
    "--tool-server demo",
    "--log-config-file x",
    "--enable-tokenizer-info-endpoint",
    "--enable-per-request-metrics",
    "--h11-max-header-count 100",
    "--disable-access-log-for-endpoints /health",
    "--shutdown-timeout 10",
    "--renderer-num-workers 2",
    "--max-num-queued-reqs 100",
    "--moe-backend triton",
    "--kv-cache-dtype-skip-layers 0 1",
    "--cuda-graph-sizes 1 2 4",
    "--hf-overrides.max_position_embeddings 4096",
};

TEST(VllmFlags, EachOfItsYoungerFlagsIsTakenOrRefusedWithAReason) {
  for (const std::string& line : kYounger) {
    std::vector<std::string> words = absl::StrSplit(line, ' ');
    words.insert(words.begin(), "m");
    const std::string said = ParsedServe().Parse(words);
    if (!said.empty()) {
      EXPECT_THAT(said, HasSubstr(" is refused: ")) << line;
    }
  }
}

TEST(VllmFlags, APathBehindAFlagGoesIntoItsJson) {
  std::vector<std::string> notes;
  const auto words = [&](std::vector<std::string> given) {
    given.insert(given.begin(), {"serve", "m"});
    const auto out = TranslateArguments(std::move(given), notes);
    return out.ok() ? absl::StrJoin(*out, " ") : std::string(out.status().message());
  };
  EXPECT_EQ(
      words({"--hf_overrides.rope_scaling.factor", "4", "--port", "1", "--hf-overrides.a_b=x", "--hf-overrides.c"}),
      R"(serve m --hf-overrides={"a_b":"x","c":true,"rope_scaling":{"factor":4}} --port 1)")
      << "names in JSON keep their underscores";
  EXPECT_EQ(words({"--prefill.max_model_len", "7"}), "serve m --prefill.max-model-len 7") << "a role is no path";
  EXPECT_EQ(words({"--decode.hf-overrides.a", "1"}), R"(serve m --decode.hf-overrides={"a":1})");
  EXPECT_EQ(words({"--cuda-graph-sizes", "1", "2", "4", "--port", "1"}), "serve m --cuda-graph-sizes=1,2,4 --port 1");
  EXPECT_THAT(words({"--kv-transfer-config.kv_connector", "NixlConnector"}),
              HasSubstr(R"(--kv-transfer-config {"kv_connector":"NixlConnector"} is refused: --prefill and --decode)"));
}

}  // namespace
}  // namespace baton::cli
