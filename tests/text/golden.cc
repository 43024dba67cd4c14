#include "tests/text/golden.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace baton::golden {
namespace {

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string Expand(const nlohmann::json& entry) {
  if (entry.is_string()) return entry.get<std::string>();
  if (entry.contains("hex")) return FromHex(entry["hex"].get<std::string>());
  const auto units = entry["units"].get<std::vector<std::string>>();
  const size_t bytes = entry["bytes"].get<size_t>();
  uint64_t state = entry["seed"].get<uint64_t>();
  std::string out;
  while (out.size() < bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out += units[(state >> 33) % units.size()];
  }
  return out;
}

}  // namespace

nlohmann::json LoadJson(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path + ": cannot open");
  return nlohmann::json::parse(in);
}

const std::vector<std::string>& Corpus() {
  static const std::vector<std::string>* const corpus = [] {
    auto* texts = new std::vector<std::string>;
    for (const nlohmann::json& entry : LoadJson(std::string(kFolder) + "corpus.json")) texts->push_back(Expand(entry));
    return texts;
  }();
  return *corpus;
}

std::string Hash(std::string_view bytes) {
  uint64_t value = 0xCBF29CE484222325u;
  for (char byte : bytes) value = (value ^ static_cast<uint8_t>(byte)) * 0x100000001B3u;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string HashIds(absl::Span<const int32_t> ids) {
  return Hash({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
}

std::vector<Case> LoadCases(const nlohmann::json& golden) {
  std::vector<Case> cases;
  for (const nlohmann::json& c : golden["cases"]) cases.push_back({c[0], c[1], c[2], c[3], c[4], c[5]});
  return cases;
}

GgufOf::GgufOf(const std::string& name, const std::string& pre) {
  const std::string folder = kFolder + name;
  const nlohmann::json tokenizer = LoadJson(folder + "/tokenizer.json");
  const nlohmann::json config = LoadJson(folder + "/tokenizer_config.json");
  if (std::ifstream(folder + "/spm.json")) {
    ReadSentencePiece(LoadJson(folder + "/spm.json"), tokenizer["model"]["type"] == "Unigram");
  } else {
    ReadByteLevel(tokenizer, pre);
  }
  metadata_.tokens.assign(tokens_.begin(), tokens_.end());
  metadata_.merges.assign(merges_.begin(), merges_.end());
  const auto id_of = [&](const char* key) -> std::optional<int64_t> {
    if (!config.contains(key) || config[key].is_null()) return std::nullopt;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i] == config[key]) return static_cast<int64_t>(i);
    }
    return std::nullopt;
  };
  metadata_.bos_id = id_of("bos_token");
  metadata_.eos_id = id_of("eos_token");
  metadata_.pad_id = id_of("pad_token");
  metadata_.unk_id = id_of("unk_token");
  if (config.contains("add_bos_token")) metadata_.add_bos = config["add_bos_token"].get<bool>();
}

void GgufOf::ReadByteLevel(const nlohmann::json& tokenizer, const std::string& pre) {
  metadata_.model = "gpt2";
  metadata_.pre = pre;
  const auto put = [this](const std::string& token, size_t id, int32_t type) {
    if (tokens_.size() <= id) {
      tokens_.resize(id + 1);
      metadata_.token_types.resize(id + 1, 1);
    }
    tokens_[id] = token;
    metadata_.token_types[id] = type;
  };
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) put(token, id.get<size_t>(), 1);
  for (const nlohmann::json& added : tokenizer["added_tokens"]) {
    put(added["content"].get<std::string>(), added["id"].get<size_t>(), added["special"].get<bool>() ? 3 : 4);
  }
  for (const nlohmann::json& merge : tokenizer["model"]["merges"]) {
    merges_.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
}

void GgufOf::ReadSentencePiece(const nlohmann::json& pieces, bool unigram) {
  metadata_.model = unigram ? "t5" : "llama";
  tokens_ = pieces["tokens"].get<std::vector<std::string>>();
  metadata_.scores = pieces["scores"].get<std::vector<float>>();
  metadata_.token_types = pieces["types"].get<std::vector<int32_t>>();
  metadata_.add_space_prefix = pieces["add_space_prefix"].get<bool>();
  if (pieces.contains("charsmap")) {
    const std::string map = FromHex(pieces["charsmap"].get<std::string>());
    metadata_.normalizer.assign(map.begin(), map.end());
  }
}

DemoModel OpenDemoModel() {
  const char* home = std::getenv("HOME");
  DemoModel demo;
  demo.path = std::string(home != nullptr ? home : "") + "/.cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  auto file = GgufFile::Open(demo.path);
  if (absl::IsNotFound(file.status())) return demo;
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return demo;
  auto metadata = GgufTokenizerMetadata::Read(**file);
  EXPECT_TRUE(metadata.ok()) << metadata.status();
  if (!metadata.ok()) return demo;
  demo.file = *std::move(file);
  demo.metadata = *std::move(metadata);
  return demo;
}

}  // namespace baton::golden
