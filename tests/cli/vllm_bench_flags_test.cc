// The flags of `vllm bench serve`, for `baton bench`.
#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/flag_set.h"
#include "cli/vllm_flags.h"
#include "common/str_cat.h"
#include "load/bench_options.h"

namespace baton::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(VllmFlags, OfItsLoadGeneratorsFlagsWhatIsNotThereIsTakenOrRefusedWithAReason) {
  std::vector<std::string> notes;
  const auto out = TranslateArguments({"bench", "--tokenizer", "t", "--trust_remote_code", "--num_prompts", "3",
                                       "--probe-request-rate=0", "--dtype", "float"},
                                      notes);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_THAT(*out, ElementsAre("bench", "--tokenizer", "t", "--num-prompts", "3", "--dtype", "float"))
      << "a server's values are a server's";
  EXPECT_THAT(notes, ElementsAre(HasSubstr("--trust-remote-code"), HasSubstr("--probe-request-rate")));
  for (const VllmFlag& row : VllmBenchFlags()) {
    if (row.same == "*") continue;
    const auto said = TranslateArguments({"bench", StrCat("--", row.name), "7"}, notes);
    EXPECT_THAT(said.status().message(), HasSubstr(StrCat("--", row.name))) << row.name;
    EXPECT_THAT(said.status().message(), HasSubstr(" is refused: ")) << row.name;
  }
}

TEST(VllmFlags, ItsLoadGeneratorsCommandLineIsOneOfOurs) {
  std::vector<std::string> notes;
  auto words = [&](std::vector<std::string> given) {
    const auto out = TranslateArguments(std::move(given), notes);
    return out.ok() ? absl::StrJoin(*out, " ") : std::string(out.status().message());
  };
  EXPECT_EQ(words({"bench", "serve", "--model", "m", "--endpoint-type", "openai-chat"}),
            "bench --model m --backend openai-chat");
  EXPECT_EQ(words({"bench", "--backend", "sglang", "--model", "serve"}), "bench --backend=openai --model serve");
  EXPECT_EQ(words({"bench", "--endpoint_type=llama.cpp", "--custom-skip-chat-template"}), "bench --backend=openai");
  EXPECT_THAT(words({"bench", "--backend", "tgi"}), HasSubstr("--backend tgi is refused: its API is not OpenAI's"));
  EXPECT_THAT(words({"bench", "--backend=vllm-rerank"}), HasSubstr("what is measured is generated text"));
  EXPECT_THAT(words({"bench", "--dataset-name", "hf"}), HasSubstr("nothing is fetched: --dataset-name custom"));
  EXPECT_THAT(words({"bench", "--dataset-name", "random-mm"}), HasSubstr("prompts are texts"));
}

// Each flag of `vllm bench serve` 0.33, with a value as people write it.
TEST(VllmFlags, EachFlagOfItsLoadGeneratorIsTakenOrRefusedWithAReason) {
  const char* const usage =
      "--trust-remote-code --seed=0 --num-prompts=3 --dataset-name=random --no-stream --dataset-path=f --no-oversample "
      "--skip-chat-template --enable-multimodal-chat --disable-shuffle --custom-output-len=7 "
      "--custom-ensure-client-side-data --spec-bench-output-len=7 --spec-bench-category=x --sharegpt-output-len=7 "
      "--timed-trace-chunk-hash-size=512 --timed-trace-sec-multiplier=0.001 --timed-trace-label-timestamp=t "
      "--timed-trace-label-input-length=i --timed-trace-label-output-length=o --timed-trace-label-hash-ids=h "
      "--blazedit-min-distance=0.0 --blazedit-max-distance=1.0 --asr-max-audio-len-sec=9 --asr-min-audio-len-sec=0 "
      "--random-input-len=9 --random-output-len=9 --random-range-ratio=0.0 --random-prefix-len=0 --random-batch-size=1 "
      "--no-reranker --random-mm-base-items-per-request=1 --random-mm-num-mm-items-range-ratio=0 "
      "--random-mm-limit-mm-per-prompt={} --random-mm-bucket-config={} --hf-subset=x --hf-split=x --hf-name=x "
      "--hf-output-len=7 --bfcl-categories=x --prefix-repetition-prefix-len=9 --prefix-repetition-suffix-len=9 "
      "--prefix-repetition-num-prefixes=2 --prefix-repetition-output-len=9 --speed-bench-dataset-subset=x "
      "--speed-bench-output-len=7 --speed-bench-category=x --label=l --backend=openai --base-url=http://h:1 --host=h "
      "--port=1 --endpoint=/v1/completions --header=a=b --max-concurrency=2 --model=m --input-len=9 --output-len=9 "
      "--tokenizer=t --tokenizer-mode=auto --use-beam-search --logprobs=5 --request-rate=inf --burstiness=1.0 "
      "--probe-request-rate=0 --disable-tqdm --num-warmups=0 --profile --save-result --save-detailed --append-result "
      "--metadata=a=b --result-dir=d --result-filename=f --ignore-eos --self-timed --no-self-timed "
      "--percentile-metrics=ttft,client_queue_time --metric-percentiles=50,99 --goodput=ttft:9 --request-id-prefix=r "
      "--top-p=0.9 --top-k=5 --min-p=0.1 --temperature=0 --frequency-penalty=0 --presence-penalty=0 "
      "--repetition-penalty=1 --served-model-name=n --lora-modules=x --lora-assignment=random "
      "--ramp-up-strategy=linear --ramp-up-start-rps=1 --ramp-up-end-rps=9 --ready-check-timeout-sec=0 "
      "--chat-template-kwargs={} --extra-body={} --skip-tokenizer-init --insecure --plot-timeline "
      "--timeline-itl-thresholds=25,50 --plot-dataset-stats";
  for (const std::string& flag : std::vector<std::string>(absl::StrSplit(usage, ' '))) {
    std::vector<std::string> notes;
    auto out = TranslateArguments({"bench", flag}, notes);
    if (!out.ok()) {
      EXPECT_THAT(out.status().message(), HasSubstr(" is refused: ")) << flag;
      continue;
    }
    CLI::App app;
    load::BenchOptions options;
    FlagSet set;
    set.Add(options, "bench");
    set.Attach(app, "", FlagsOf::kTool);
    out->erase(out->begin());
    std::reverse(out->begin(), out->end());
    EXPECT_NO_THROW(app.parse(*out)) << flag;
    EXPECT_TRUE(set.status().ok()) << set.status();
  }
}

}  // namespace
}  // namespace baton::cli
