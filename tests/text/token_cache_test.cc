// TokenCache: the tokenizer's ids, whatever it has seen before, within its bytes.
#include "text/token_cache.h"

#include <thread>

#include "common/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/golden.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name) {
  auto tokenizer = Tokenizer::FromHfDirectory(golden::kFolder + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

/// Every token that begins a piece, put between the texts of the corpus in every way that has bitten somebody: at the
/// ends, doubled, beside spaces, cut short.
std::vector<std::string> TextsWithSpecials(const Tokenizer& tokenizer) {
  std::vector<std::string> specials, out;
  for (int32_t id = 0; id < tokenizer.vocab_size() && specials.size() < 8; ++id) {
    if (tokenizer.IsSpecial(id)) specials.emplace_back(tokenizer.IdToToken(id));
  }
  size_t turn = 0;
  for (const std::string& text : golden::Corpus()) {
    if (text.size() > 3000) continue;
    const std::string& a = specials[turn++ % specials.size()];
    const std::string& b = specials[turn++ % specials.size()];
    const std::string almost = b.substr(0, b.size() - 1);
    out.insert(out.end(),
               {StrCat(a, text, b), StrCat(text, a, b, text), StrCat(text, " ", a, "\n ", text, almost, a), a});
  }
  return out;
}

class TokenCacheOf : public testing::TestWithParam<const char*> {};

TEST_P(TokenCacheOf, GivesTheTokenizersIdsTheFirstTimeAndLater) {
  const auto tokenizer = LoadTokenizer(GetParam());
  TokenCache cache(*tokenizer, 64 << 20);
  int64_t tokenized = 0;
  for (int round = 0; round < 2; ++round) {
    for (const std::string& text : TextsWithSpecials(*tokenizer)) {
      for (const bool add : {false, true}) {
        const auto expected = tokenizer->Encode(text, add), ids = cache.Encode(text, add, "");
        ASSERT_TRUE(expected.ok() && ids.ok()) << expected.status() << ids.status();
        ASSERT_EQ(*ids, *expected) << "round " << round << ", special tokens " << add << ": " << text;
      }
    }
    if (round == 0) tokenized = cache.counts().tokenized_bytes;
  }
  EXPECT_EQ(cache.counts().tokenized_bytes, tokenized) << "the second round knew every text";
}

INSTANTIATE_TEST_SUITE_P(All, TokenCacheOf,
                         testing::Values("gpt2", "llama3", "qwen2", "smollm", "spm-bpe", "spm-bpe-no-prefix",
                                         "spm-unigram", "tekken", "wordpiece"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(PieceCutter, CutsBeforeSpecialTokensOnly) {
  const auto tokenizer = LoadTokenizer("smollm");
  const PieceCutter cutter(*tokenizer);
  EXPECT_THAT(cutter.Cut("<|im_start|>user\nx < y<|im_end|>\n<|im_start|>"),
              ElementsAre("<|im_start|>user\nx < y", "<|im_end|>\n", "<|im_start|>"));
  EXPECT_THAT(cutter.Cut("no <|im_ cut"), ElementsAre("no <|im_ cut"));
  EXPECT_THAT(cutter.Cut(""), IsEmpty());
}

TEST(TokenCache, ATurnMoreOfAChatTokenizesThatTurnOnly) {
  const auto tokenizer = LoadTokenizer("smollm");
  TokenCache cache(*tokenizer, 1 << 20);
  const std::string first = "<|im_start|>user\nWho ran first?<|im_end|>\n",
                    reply = "<|im_start|>assistant\nThe router.<|im_end|>\n";
  ASSERT_TRUE(cache.Encode(first, false, "").ok());
  const int64_t before = cache.counts().tokenized_bytes;
  ASSERT_TRUE(cache.Encode(first + reply, false, "").ok());
  const int64_t news = std::ssize(std::string_view("<|im_start|>assistant\nThe router."));
  EXPECT_EQ(cache.counts().tokenized_bytes - before, news)
      << "<|im_end|> and its line end are known from the first turn";
  EXPECT_EQ(cache.counts().found_bytes, std::ssize(first + reply) - news);
}

TEST(TokenCache, StaysWithinItsBytesAndDropsTheLeastRecentlyUsed) {
  const auto tokenizer = LoadTokenizer("smollm");
  constexpr size_t kCapacity = 8192;
  TokenCache cache(*tokenizer, kCapacity);
  const auto text = [](int i) { return "text number " + std::to_string(i) + std::string(100, 'x'); };
  const auto is_known = [&](int i) {
    const int64_t before = cache.counts().tokenized_bytes;
    EXPECT_TRUE(cache.Encode(text(i), false, "").ok());
    return cache.counts().tokenized_bytes == before;
  };
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(is_known(0), i > 0) << "in use all the time";
    ASSERT_TRUE(cache.Encode(text(i), false, "").ok());
    ASSERT_LE(cache.counts().kept_bytes, kCapacity);
  }
  EXPECT_TRUE(is_known(0) && is_known(199));
  EXPECT_FALSE(is_known(1));
  const size_t before = cache.counts().kept_bytes;
  ASSERT_TRUE(cache.Encode(std::string(kCapacity, 'y'), false, "").ok());  // larger than may be kept
  EXPECT_EQ(cache.counts().kept_bytes, before);
}

TEST(TokenCache, WhatCameWithOneSaltIsNotFoundWithAnother) {
  const auto tokenizer = LoadTokenizer("smollm");
  TokenCache cache(*tokenizer, 1 << 20);
  const std::string text = "The quick brown fox jumps over the lazy dog.";
  const auto found = [&](std::string_view salt) {
    const int64_t before = cache.counts().found_bytes;
    EXPECT_EQ(cache.Encode(text, false, salt).value(), tokenizer->Encode(text, false).value());
    return cache.counts().found_bytes > before;
  };
  EXPECT_FALSE(found("alice"));
  EXPECT_TRUE(found("alice"));
  EXPECT_FALSE(found("bob"));
  EXPECT_FALSE(found(""));
  for (const std::string_view salt : {"alice", "bob", ""}) EXPECT_TRUE(found(salt)) << salt;
}

TEST(TokenCache, WithoutBytesItIsTheTokenizer) {
  const auto tokenizer = LoadTokenizer("smollm");
  TokenCache cache(*tokenizer, 0);
  EXPECT_EQ(*cache.Encode("<|im_start|>a", false, ""), *tokenizer->Encode("<|im_start|>a", false));
  EXPECT_EQ(cache.counts().kept_bytes, 0u);
}

TEST(TokenCache, ThreadsMeetInIt) {
  const auto tokenizer = LoadTokenizer("smollm");
  TokenCache cache(*tokenizer, 4096);  // small: entries come and go under the readers
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 50; ++i) expected.push_back(*tokenizer->Encode("<|im_start|>turn " + std::to_string(i), false));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int n = 0; n < 2000; ++n) {
        const int i = (n * 7 + t * 13) % 50;
        wrong += *cache.Encode("<|im_start|>turn " + std::to_string(i), false, "") != expected[static_cast<size_t>(i)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace baton
