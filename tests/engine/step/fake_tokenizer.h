// A tokenizer of the fake model, for grammars: a character each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/fake_model.h"
#include "text/gguf_tokenizer.h"
#include "text/tokenizer.h"

namespace baton::engine {

inline constexpr int32_t kEos = 3;

inline std::unique_ptr<Tokenizer> FakeTokenizer() {
  static const std::vector<std::string> characters = [] {
    std::vector<std::string> all;
    for (const char c : std::string("abc<{}[]\":,0123456789defghijklmnopqrstuvwxyz-.+*")) all.emplace_back(1, c);
    all[kEos] = "<end>";
    all.resize(kFakeVocab, "<more>");
    return all;
  }();
  GgufTokenizerMetadata metadata;
  metadata.model = "gpt2";
  metadata.pre = "gpt-2";
  metadata.tokens.assign(characters.begin(), characters.end());
  metadata.token_types.assign(kFakeVocab, 1);
  metadata.token_types[kEos] = 3;
  metadata.eos_id = kEos;
  return *Tokenizer::FromGguf(metadata);
}

}  // namespace baton::engine
