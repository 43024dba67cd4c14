// A head that is tied to the embedding is held once where the device looks rows up in packed weights: bytes, and the
// same logits as with two tables.
#include <gtest/gtest.h>

#include "tests/engine/model/model_files.h"
#include "tests/engine/model/paged_model.h"

namespace baton::engine {
namespace {

constexpr int64_t kVocab = 320, kHidden = 192;  // of the golden
const std::vector<int32_t> kTiedPrompt = {1, 17, 200, 3, 319, 44, 5};

class TiedEmbedding : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const auto ops = kernels::MakeCpuOps({.dtype = GetParam()});
    if (absl::IsFailedPrecondition(ops.status())) GTEST_SKIP() << ops.status();
  }
  // A checkpoint of `type` whose head is the embedding, said by the config or written out as a tensor of its own.
  void Write(const std::string& type, bool tied) {
    const std::string golden = "tests/engine/model/goldens/llama3";
    const auto read = ReadHfConfig(golden);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_TRUE(read->config.tied_embeddings);
    ASSERT_EQ(read->config.vocab_size * read->config.hidden_size, kVocab * kHidden);
    std::vector<NamedTensor> tensors = GoldenTensors(read->config, type);
    if (!tied) {
      NamedTensor head = tensors.front();
      ASSERT_EQ(head.name, "model.embed_tokens.weight");
      head.name = "lm_head.weight";
      tensors.push_back(head);
    }
    std::ifstream in(golden + "/config.json");
    nlohmann::json json = nlohmann::json::parse(in);
    json["tie_word_embeddings"] = tied;
    directory_.Write("config.json", json.dump());
    directory_.Write("model.safetensors", SafetensorsBytes(tensors));
  }
  std::unique_ptr<PagedModel> Load() {
    auto model = PagedModel::Load({.path = directory_.path()}, {.dtype = GetParam()});
    EXPECT_TRUE(model.ok()) << model.status();
    return std::move(*model);
  }
  TempDirectory directory_;
};

TEST_P(TiedEmbedding, IsHeldOnce) {
  for (const char* type : {"F32", "BF16", "F16"}) {
    SCOPED_TRACE(type);
    ASSERT_NO_FATAL_FAILURE(Write(type, false));
    const std::unique_ptr<PagedModel> two = Load();
    ASSERT_NO_FATAL_FAILURE(Write(type, true));
    const std::unique_ptr<PagedModel> one = Load();
    const kernels::OpsTraits& traits = one->ops().traits();
    const int64_t element = GetParam() == DType::kBF16 || type != std::string("F32") ? 2 : 4;
    const int64_t table = kVocab * kHidden * element;
    EXPECT_EQ(static_cast<int64_t>(two->model().weight_bytes() - one->model().weight_bytes()), table);
    const auto planned = InspectModel({.path = directory_.path()}, traits, PagedModel::kMaxTokens);
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->weight_bytes, static_cast<int64_t>(one->model().weight_bytes()));
  }
}

TEST_P(TiedEmbedding, HasTheLogitsOfTwoTables) {
  for (const char* type : {"F32", "BF16", "F16"}) {
    SCOPED_TRACE(type);
    ASSERT_NO_FATAL_FAILURE(Write(type, false));
    const LogitRows two = Load()->Prefill(kTiedPrompt, PagedModel::kMaxTokens).value();
    ASSERT_NO_FATAL_FAILURE(Write(type, true));
    EXPECT_EQ(Load()->Prefill(kTiedPrompt, PagedModel::kMaxTokens).value(), two);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TiedEmbedding, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace baton::engine
