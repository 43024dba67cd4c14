// GgufTokenizerMetadata::Read: what a GGUF file says about its tokenizer, and the lies it may tell.
#include "text/gguf_tokenizer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/gguf_builder.h"
#include "text/tokenizer.h"

namespace baton {
namespace {

using testing::HasSubstr;

/// A file with this builder's metadata, read; keeps the bytes that the views point to.
struct ReadBack {
  explicit ReadBack(const GgufBuilder& builder) : bytes(builder.Build()) {
    auto parsed = GgufFile::Parse(bytes, "test.gguf");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    file = *std::move(parsed);
    metadata = GgufTokenizerMetadata::Read(*file);
  }
  std::string message() const { return std::string(metadata.status().message()); }
  std::vector<uint8_t> bytes;
  std::unique_ptr<GgufFile> file;
  absl::StatusOr<GgufTokenizerMetadata> metadata;
};

GgufBuilder Valid() {
  GgufBuilder builder;
  builder.AddString("tokenizer.ggml.model", "gpt2").AddString("tokenizer.ggml.pre", "gpt-2");
  builder.AddStrings("tokenizer.ggml.tokens", {"a", "b", "ab", "</s>"}).AddStrings("tokenizer.ggml.merges", {"a b"});
  return builder;
}

TEST(GgufTokenizerMetadata, EveryFieldIsRead) {
  GgufBuilder builder = Valid();
  builder.AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufValueType::kI32, {1, 1, 1, 3});
  builder.AddNumbers<float>("tokenizer.ggml.scores", GgufValueType::kF32, {0, -1, -2, -3});
  builder.AddUint("tokenizer.ggml.eos_token_id", 3).AddUint("tokenizer.ggml.bos_token_id", 0xFFFFFFFF);
  builder.AddRaw("tokenizer.ggml.add_bos_token", GgufValueType::kBool, std::string(1, '\0'));
  builder.AddString("tokenizer.chat_template", "{{ messages }}");
  const ReadBack read(builder);
  ASSERT_TRUE(read.metadata.ok()) << read.metadata.status();
  EXPECT_EQ(read.metadata->tokens.size(), 4u);
  EXPECT_EQ(read.metadata->token_types.back(), 3);
  EXPECT_EQ(read.metadata->scores[1], -1);
  EXPECT_EQ(read.metadata->eos_id, 3);
  EXPECT_FALSE(read.metadata->bos_id) << "2^32 - 1 is how writers say none";
  EXPECT_EQ(read.metadata->add_bos, false);
  EXPECT_EQ(read.metadata->chat_template, "{{ messages }}");
  const auto tokenizer = Tokenizer::FromGguf(*read.metadata);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("ab</s>a", true), testing::ElementsAre(2, 3, 0));
  EXPECT_THAT((*tokenizer)->eos_ids(), testing::ElementsAre(3));
}

TEST(GgufTokenizerMetadata, AFileWithoutATokenizerIsNotFound) {
  const ReadBack read(GgufBuilder().AddString("general.architecture", "llama"));
  EXPECT_EQ(read.metadata.status().code(), absl::StatusCode::kNotFound);
}

TEST(GgufTokenizerMetadata, LiesAreNamedWithTheirNumbers) {
  GgufBuilder short_types = Valid();
  short_types.AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufValueType::kI32, {1, 1});
  EXPECT_THAT(ReadBack(short_types).message(), HasSubstr("tokenizer.ggml.token_type has 2 entries for 4 tokens"));

  GgufBuilder long_scores = Valid();
  long_scores.AddNumbers<float>("tokenizer.ggml.scores", GgufValueType::kF32, {0, 0, 0, 0, 0});
  EXPECT_THAT(ReadBack(long_scores).message(), HasSubstr("tokenizer.ggml.scores has 5 entries for 4 tokens"));

  GgufBuilder far_eos = Valid();
  far_eos.AddUint("tokenizer.ggml.eos_token_id", 4);
  EXPECT_THAT(ReadBack(far_eos).message(), HasSubstr("eos_token_id is 4, there are 4 tokens"));

  GgufBuilder wrong_type = Valid();
  wrong_type.AddUint("tokenizer.chat_template", 7);
  EXPECT_EQ(ReadBack(wrong_type).metadata.status().code(), absl::StatusCode::kInvalidArgument);

  GgufBuilder no_tokens;
  no_tokens.AddString("tokenizer.ggml.model", "gpt2").AddStrings("tokenizer.ggml.tokens", {});
  EXPECT_THAT(ReadBack(no_tokens).message(), HasSubstr("tokenizer.ggml.tokens is empty"));
}

// Work that grows with the square of the added tokens would not end in the test's time.
TEST(GgufTokenizerMetadata, EveryTokenOfALargeVocabularyMayBeAControlToken) {
  constexpr int kTokens = 50000;
  std::vector<std::string> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back("<tok" + std::to_string(i) + ">");
  tokens.push_back("<tok7><tok8>");
  GgufBuilder builder;
  builder.AddString("tokenizer.ggml.model", "gpt2").AddString("tokenizer.ggml.pre", "gpt-2");
  builder.AddStrings("tokenizer.ggml.tokens", tokens).AddStrings("tokenizer.ggml.merges", {});
  builder.AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufValueType::kI32, std::vector<int32_t>(kTokens + 1, 3));
  const ReadBack read(builder);
  ASSERT_TRUE(read.metadata.ok()) << read.metadata.status();
  const auto tokenizer = Tokenizer::FromGguf(*read.metadata);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("<tok1><tok49999><tok7><tok8>", true), testing::ElementsAre(1, 49999, kTokens));
  EXPECT_TRUE((*tokenizer)->BeginsPiece(7));
  EXPECT_FALSE((*tokenizer)->BeginsPiece(8)) << "the last token covers it";
}

TEST(GgufTokenizerMetadata, TokensThatAreTooLongToBeCutEverywhereAreRefusedAtOnce) {
  const auto built = [](size_t bytes) {
    GgufBuilder builder;
    builder.AddString("tokenizer.ggml.model", "llama");
    builder.AddStrings("tokenizer.ggml.tokens", {"a", "aa", std::string(bytes, 'a')});
    builder.AddNumbers<float>("tokenizer.ggml.scores", GgufValueType::kF32, {0, -1, -2});
    const ReadBack read(builder);
    return read.metadata.ok() ? Tokenizer::FromGguf(*read.metadata).status() : read.metadata.status();
  };
  EXPECT_TRUE(built(1024).ok()) << built(1024);
  EXPECT_THAT(built(16 << 20).message(),
              HasSubstr("token 2 has 16777216 bytes, at most 1024 where merges are made of scores"));
}

TEST(GgufTokenizerMetadata, WhatAMessageQuotesOfTheFileIsPrintable) {
  GgufBuilder builder = Valid();
  builder.AddString("tokenizer.chat_template", "");
  const ReadBack read(builder);
  GgufTokenizerMetadata metadata = *read.metadata;
  metadata.pre = "\x1b[2J" + std::string(10000, 'x');
  const std::string message(Tokenizer::FromGguf(metadata).status().message());
  EXPECT_THAT(message, HasSubstr("tokenizer.ggml.pre"));
  EXPECT_THAT(message, testing::Not(HasSubstr("\x1b")));
  EXPECT_LT(message.size(), 700u);
}

}  // namespace
}  // namespace baton
