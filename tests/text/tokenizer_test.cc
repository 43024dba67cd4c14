// What a tokenizer promises beyond the goldens: BOS once, special tokens, ids of EOS, bad files, long lines, threads.
#include "text/tokenizer.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/golden.h"
#include "text/detokenizer.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> Load(const std::string& name) {
  auto made = Tokenizer::FromHfDirectory(golden::kFolder + name);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

TEST(Tokenizer, BosIsNeverPutTwice) {
  const auto tokenizer = Load("llama3");
  const int32_t bos = *tokenizer->bos_id();
  const auto plain = tokenizer->Encode("hi", true), begun = tokenizer->Encode("<|begin_of_text|>hi", true);
  EXPECT_EQ((*plain)[0], bos);
  EXPECT_EQ(*plain, *begun);
  EXPECT_EQ(*tokenizer->Encode("<|begin_of_text|>hi", false), *begun);
  EXPECT_THAT(*tokenizer->Encode("", true), ElementsAre(bos));
  // Where special tokens are not read in the text, it does not begin with BOS.
  EXPECT_GT(tokenizer->Encode("<|begin_of_text|>hi", true, /*parse_special=*/false)->size(), begun->size());
}

TEST(Tokenizer, ATextThatSaysBosTwiceKeepsBothWhereNoneIsPut) {
  const auto tokenizer = Load("smollm");  // has a BOS, does not put it
  const int32_t bos = *tokenizer->bos_id();
  EXPECT_THAT(*tokenizer->Encode("<|im_start|><|im_start|>", true), ElementsAre(bos, bos));
}

TEST(Tokenizer, SpecialTokensAreKnownAndSkipped) {
  const auto tokenizer = Load("qwen2");
  const auto ids = tokenizer->Encode("<|im_start|>a<tool>b<|im_end|>", false);
  EXPECT_EQ(tokenizer->Decode(*ids, true), "a<tool>b") << "an added token that is not special is text";
  EXPECT_EQ(tokenizer->Decode(*ids, false), "<|im_start|>a<tool>b<|im_end|>");
  EXPECT_TRUE(tokenizer->IsSpecial(*tokenizer->TokenToId("<|im_end|>")));
  EXPECT_FALSE(tokenizer->IsSpecial(*tokenizer->TokenToId("<tool>")));
  EXPECT_FALSE(tokenizer->TokenToId("no such token"));
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode("<|im_end|>", false, /*parse_special=*/false), true), "<|im_end|>");
}

TEST(Tokenizer, TokenBytesAreTheBytesAndNamesTheSpelling) {
  const auto bytes = Load("gpt2"), pieces = Load("spm-bpe");
  EXPECT_EQ(bytes->TokenBytes(*bytes->TokenToId("Ġ")), " ");
  EXPECT_EQ(bytes->IdToToken(*bytes->TokenToId("Ġ")), "Ġ");
  EXPECT_EQ(pieces->TokenBytes(*pieces->TokenToId("▁")), " ");
  EXPECT_EQ(pieces->TokenBytes(*pieces->TokenToId("<0xE2>")), "\xE2");
}

TEST(Tokenizer, EveryTextRoundTripsWhereTheTokenizerKeepsIt) {
  for (const char* name : {"gpt2", "llama3", "smollm", "tekken", "spm-bpe", "spm-bpe-no-prefix"}) {
    const auto tokenizer = Load(name);
    for (const std::string& text : golden::Corpus()) {
      if (text.size() > 1000 || text.find('<') != std::string::npos || text.find("▁") != std::string::npos) continue;
      const auto ids = tokenizer->Encode(text, true, /*parse_special=*/false);
      const std::string back = tokenizer->Decode(*ids, true);
      const auto again = tokenizer->Encode(back, true, /*parse_special=*/false);
      EXPECT_EQ(*ids, *again) << name << ": " << text;
    }
  }
}

TEST(Tokenizer, LongLinesDoNotBlowUp) {
  for (const char* name : {"llama3", "smollm", "spm-bpe", "spm-unigram"}) {
    const auto tokenizer = Load(name);
    for (const std::string& text : golden::Corpus()) {
      if (text.size() < 100'000) continue;
      const std::clock_t begin = std::clock();
      ASSERT_TRUE(tokenizer->Encode(text, true).ok());
      const double cpu_ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      const double ns_per_byte = 1e6 * cpu_ms / static_cast<double>(text.size());
      std::printf("%-12s %6.0f ns/byte  %.8s…\n", name, ns_per_byte, text[0] == '\n' ? "\\n" : text.c_str());
      EXPECT_LT(ns_per_byte, 20'000) << name << " on a line of " << text.size()
                                     << " bytes";  // seen on a busy machine: 150 to 3,046
    }
  }
}

TEST(Tokenizer, MayBeUsedFromManyThreads) {
  const auto tokenizer = Load("llama3");
  const std::string& text = golden::Corpus()[9];
  const auto expected = tokenizer->Encode(text, true);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        count += *tokenizer->Encode(text, true, i % 2 == 0) != *expected;
        count += tokenizer->Decode(*expected, true) != text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "baton_tokenizer_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    std::filesystem::copy(golden::kFolder + std::string("llama3"), folder_, std::filesystem::copy_options::recursive);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() { return Tokenizer::FromHfDirectory(folder_); }
  std::string Message() { return std::string(Load().status().message()); }
  std::string folder_;
};

TEST_F(Files, GenerationConfigListsEveryEos) {
  Write("generation_config.json", R"({"eos_token_id": [721, 722, 722, 999999]})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->eos_ids().front(), *(*tokenizer)->TokenToId("<|eot_id|>"));
  EXPECT_THAT((*tokenizer)->eos_ids(), testing::UnorderedElementsAre(721, 722));
}

TEST_F(Files, ConfigDecidesAboutBosAndEos) {
  const json config = {{"bos_token", "<|begin_of_text|>"},
                       {"eos_token", "<|eot_id|>"},
                       {"add_bos_token", false},
                       {"add_eos_token", true}};
  Write("tokenizer_config.json", config.dump());
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("", true), ElementsAre(*(*tokenizer)->TokenToId("<|eot_id|>")));
}

TEST_F(Files, TokensOfTheConfigAreAdded) {
  const json config = {{"additional_special_tokens", {"<new>"}}, {"bos_token", "<|begin_of_text|>"}};
  Write("tokenizer_config.json", config.dump());
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("<new>", false), ElementsAre((*tokenizer)->vocab_size() - 1));
}

TEST_F(Files, EverySpaceBeforeTheFirstTokenIsDroppedWhereMetaspacePutsOneThere) {
  Write("tokenizer.json", R"({"version": "1.0", "added_tokens": [],
                              "model": {"type": "BPE", "vocab": {"a": 0, "\u2581\u2581a": 1}, "merges": []},
                              "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  Detokenizer detokenizer(**tokenizer, false, DetokenizeFrom::kTextStart);
  EXPECT_EQ(detokenizer.Append(1), "a");
  EXPECT_EQ(detokenizer.Append(1), "  a");
  EXPECT_EQ((*tokenizer)->Decode({1, 1}, false), "a  a");
}

// Bytes as tokens, and a decoder that nobody knows token by token.
constexpr char kWholeWithBytes[] = R"({"version": "1.0", "added_tokens": [],
  "model": {"type": "BPE", "vocab": {"a": 0, "<0xC3>": 1, "<0xA9>": 2}, "merges": []},
  "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}})";

TEST_F(Files, WhereADecoderRunsAsAWholeACharacterIsHeldUntilItIsThereAndReplacedAtTheEnd) {
  Write("tokenizer.json", kWholeWithBytes);
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ASSERT_EQ((*tokenizer)->assembly(), TextAssembly::kWhole);
  Detokenizer detokenizer(**tokenizer, false, DetokenizeFrom::kTextStart);
  EXPECT_EQ(detokenizer.Append(0), "a");
  EXPECT_EQ(detokenizer.Append(1), "");
  EXPECT_EQ(detokenizer.Append(2), "é");
  EXPECT_EQ(detokenizer.Append(1), "");
  EXPECT_EQ(detokenizer.Finish(), "\xEF\xBF\xBD");
}

TEST_F(Files, WhereADecoderRunsAsAWholeEachPieceIsUtf8WhateverBytesCome) {
  Write("tokenizer.json", kWholeWithBytes);
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (int number = 0; number < 729; ++number) {  // six tokens of three
    Detokenizer detokenizer(**tokenizer, false, DetokenizeFrom::kTextStart);
    for (int left = number, count = 0; count < 6; ++count, left /= 3) {
      const std::string piece = detokenizer.Append(left % 3);
      ASSERT_TRUE(IsUtf8(piece)) << number << " " << piece;
    }
    ASSERT_TRUE(IsUtf8(detokenizer.Finish())) << number;
  }
}

// The crate panics where some of its parts end early.
TEST_F(Files, AFileThatEndsEarlyIsTheFilesFaultWhereverItEnds) {
  std::ostringstream whole;
  whole << std::ifstream(folder_ + "/tokenizer.json").rdbuf();
  const std::string text = whole.str();
  const size_t dense = std::min<size_t>(text.size() - 2, 700);
  for (size_t length = 0; length + 2 < text.size(); length += length < dense ? 1 : 197) {
    Write("tokenizer.json", text.substr(0, length));
    const absl::Status status = Load().status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << length << " bytes: " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr(folder_ + "/tokenizer.json: ")) << length << " bytes";
  }
}

TEST_F(Files, BadFilesAreNamed) {
  Write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(Message(), HasSubstr("generation_config.json: eos_token_id is neither"));
  Write("generation_config.json", "[]");
  EXPECT_THAT(Message(), HasSubstr("generation_config.json: not a JSON object"));
  Write("generation_config.json", "{}");
  Write("tokenizer_config.json", R"({"add_bos_token": 3})");
  EXPECT_THAT(Message(), HasSubstr("add_bos_token is not a bool"));
  Write("tokenizer_config.json", R"({"bos_token": 3})");
  EXPECT_THAT(Message(), HasSubstr("bos_token"));
  Write("tokenizer_config.json", R"({"bos_token": "no such token", "add_bos_token": true, "added_tokens_decoder": 3})");
  EXPECT_TRUE(Load().ok()) << "the BOS that the config names is added to the vocabulary";
  Write("tokenizer_config.json", "{}");
  for (const char* text :
       {"", "{", "[]", "{}", R"({"model": {"type": "BPE"}})", R"({"model": {"type": "None", "vocab": {}}})",
        R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}})"}) {
    Write("tokenizer.json", text);
    EXPECT_EQ(Load().status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(), HasSubstr(folder_ + "/tokenizer.json: "));
  }
  Write(
      "tokenizer.json",
      R"({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}})");
  EXPECT_THAT(Message(), HasSubstr("4000000001 ids"));
  std::filesystem::remove(folder_ + "/tokenizer.json");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kNotFound);
}

// Its reader would allocate twice what the first four bytes say before it reads on.
TEST_F(Files, ACharsmapThatSaysItIsLongerThanItIsIsRefused) {
  const auto with = [](const std::string& map) {
    return R"({"version": "1.0", "normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap" : ")" +
           map + R"("}]}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";
  };
  Write("tokenizer.json", with("/////w=="));
  EXPECT_THAT(Message(), HasSubstr("tokenizer.json: precompiled_charsmap has a trie of 4294967295 bytes in 2"));
  Write("tokenizer.json", with("\\u002f////w=="));
  EXPECT_THAT(Message(), HasSubstr("precompiled_charsmap is not base64"));
  Write("tokenizer.json", with("!"));
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kInvalidArgument);
  Write("tokenizer.json", with("BAAAAAAAAABhAA=="));  // a trie of one unit, and "a"
  EXPECT_TRUE(Load().ok()) << Load().status();
}

/// A tokenizer of "a" and its neighbours with one more part, such as `"normalizer": …`.
std::string With(const std::string& part) {
  return R"({"version": "1.0", )" + part +
         R"(, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<s>": 2}, "merges": []}})";
}

std::string Replace(const std::string& pattern, const std::string& content) {
  return R"({"type": "Replace", "pattern": )" + pattern + R"(, "content": ")" + content + R"("})";
}

/// `count` times `step`, as a list of JSON.
std::string Chain(const std::string& step, int count) {
  std::string out = "[" + step;
  for (int i = 1; i < count; ++i) out += ", " + step;
  return out + "]";
}

// Each link of a chain writes many bytes for one, and ten of them a gigabyte for a byte.
TEST_F(Files, ChainsThatMultiplyATextAreRefusedWithTheirProduct) {
  const auto normalizers = [](const std::string& chain) {
    return With(R"("normalizer": {"type": "Sequence", "normalizers": )" + chain + "}");
  };
  const std::string eight = Replace(R"({"String": "a"})", "aaaaaaaa");
  Write("tokenizer.json", normalizers(Chain(eight, 10)));
  EXPECT_THAT(Message(), HasSubstr("normalizers and pre-tokenizers may make 1073741824 bytes of one of a text, at most "
                                   "4096 are possible"));
  Write("tokenizer.json", normalizers(Chain(eight, 4)));
  const auto made = Load();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->Encode("ab", false)->size(), 4097u);
  const std::string text(70'000, 'b');  // what it becomes is bounded by what it might become
  EXPECT_THAT((*made)->Encode(text, false).status().message(),
              HasSubstr("the text has 70000 bytes, of each of which the tokenizer's normalizers, pre-tokenizers and "
                        "post-processors may make 4096: at most 268435456 in all"));
  // An expression that matches nothing writes at every character; one of two characters and more is counted so.
  Write("tokenizer.json", normalizers(Chain(Replace(R"({"Regex": "(?=b)|x*"})", "aaa"), 7)));
  EXPECT_THAT(Message(), HasSubstr("may make 16384 bytes"));
  Write("tokenizer.json", normalizers(Chain(Replace(R"({"Regex": " {2,}"})", "  "), 100)));
  EXPECT_TRUE(Load().ok()) << Load().status();
  Write("tokenizer.json",
        With(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": )" +
             Chain(R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true})", 7) + "}"));
  EXPECT_THAT(Message(), HasSubstr("may make 16384 bytes"));
}

TEST_F(Files, DecodersAndTemplatesThatMultiplyAreRefusedWithTheirProduct) {
  Write("tokenizer.json",
        With(R"("decoder": {"type": "Sequence", "decoders": )" + Chain(Replace(R"({"String": "a"})", "aaa"), 4) + "}"));
  EXPECT_THAT(Message(), HasSubstr("decoders may make 81 bytes of one of a token, at most 64 are possible"));
  const auto around = [](const std::string& pieces, int ids) {
    return With(R"("post_processor": {"type": "TemplateProcessing", "pair": [], "single": )" + pieces +
                R"(, "special_tokens": {"<s>": {"id": "<s>", "ids": )" + Chain("2", ids) + R"(, "tokens": )" +
                Chain(R"("<s>")", ids) + "}}}");
  };
  const std::string text = R"({"Sequence": {"id": "A", "type_id": 0}})";
  Write("tokenizer.json", around(Chain(R"({"SpecialToken": {"id": "<s>", "type_id": 0}})", 100), 41));
  EXPECT_THAT(Message(), HasSubstr("post-processors put 4100 tokens around a text, at most 4096 are possible"));
  Write("tokenizer.json", around(Chain(text, 4097), 1));
  EXPECT_THAT(Message(), HasSubstr("may make 4097 bytes of one of a text"));
  Write("tokenizer.json", around(Chain(text, 2), 1));
  EXPECT_EQ((*Load())->Encode("ab", true)->size(), 4u);
}

// The crate normalizes added tokens while it reads them.
TEST_F(Files, AddedTokensThatNormalizersMultiplyAreRefusedBeforeTheyAreRead) {
  const std::string token = std::string(70'000, 'a');
  Write("tokenizer.json", With(R"("added_tokens": [{"id": 3, "content": ")" + token +
                               R"(", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, )"
                               R"("special": false}], "normalizer": )" +
                               Replace(R"({"String": "a"})", std::string(4096, 'a'))));
  EXPECT_THAT(Message(), AllOf(HasSubstr("added tokens have 70027 bytes"),  // those of the other files, too
                               HasSubstr("of each of which normalizers may make 4096: at most 268435456 in all")));
}

class Gguf : public testing::Test {
 protected:
  std::string Message() {
    const auto made = Tokenizer::FromGguf(gguf_.metadata());
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  }
  golden::GgufOf gguf_{"smollm", "smollm"};
};

TEST_F(Gguf, UnknownKindsAreNamedNotGuessed) {
  gguf_.metadata().pre = "new-model";
  EXPECT_THAT(Message(), HasSubstr("tokenizer.ggml.pre \"new-model\" is not known"));
  gguf_.metadata().model = "rwkv";
  EXPECT_THAT(Message(), HasSubstr("tokenizer.ggml.model \"rwkv\" is not known"));
}

TEST_F(Gguf, MergesThatMakeNoTokenAreRefused) {
  gguf_.metadata().merges[3] = "qqqq zzzz";
  EXPECT_THAT(Message(), HasSubstr("merge 3"));
  gguf_.metadata().merges[3] = "one";
  EXPECT_THAT(Message(), HasSubstr("not two tokens"));
}

TEST_F(Gguf, TokensThatAreNotUtf8AreRefused) {
  gguf_.metadata().tokens[5] = "\xFF";
  EXPECT_THAT(Message(), HasSubstr("token 5 is not UTF-8"));
}

TEST_F(Gguf, SentencePieceNeedsScores) {
  for (const char* name : {"spm-bpe", "spm-unigram"}) {
    golden::GgufOf pieces(name, "");
    pieces.metadata().scores.clear();
    EXPECT_THAT(std::string(Tokenizer::FromGguf(pieces.metadata()).status().message()), HasSubstr("scores is missing"));
  }
}

TEST_F(Gguf, TheSameTokenTwiceKeepsBothIds) {
  auto& tokens = gguf_.metadata().tokens;
  tokens.push_back(tokens[10]);
  gguf_.metadata().token_types.push_back(1);
  const auto made = Tokenizer::FromGguf(gguf_.metadata());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->vocab_size(), std::ssize(tokens));
  EXPECT_EQ((*made)->TokenBytes((*made)->vocab_size() - 1), (*made)->TokenBytes(10));
}

}  // namespace
}  // namespace baton
