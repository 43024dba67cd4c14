// The tiny model's tokenizer with tokens of its own for marks that models of families have.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/json.h"
#include "gtest/gtest.h"
#include "text/tokenizer.h"

namespace baton::router {

inline std::unique_ptr<Tokenizer> TinyWith(const std::vector<std::string>& tokens, bool special) {
  namespace fs = std::filesystem;
  std::string folder_name = testing::TempDir() + "baton_more_tokens.XXXXXX";  // of this process: tests run side by side
  EXPECT_NE(mkdtemp(folder_name.data()), nullptr) << folder_name;
  const fs::path folder = folder_name;
  for (const char* file : {"tokenizer_config.json", "config.json", "generation_config.json"})
    fs::copy_file(fs::path("tests/data/tiny-llama") / file, folder / file, fs::copy_options::overwrite_existing);
  std::ifstream in("tests/data/tiny-llama/tokenizer.json");
  nlohmann::json tokenizer = nlohmann::json::parse(in);
  int id = 548;
  for (const std::string& token : tokens) {
    tokenizer["added_tokens"].push_back({{"id", id++},
                                         {"content", token},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", special}});
  }
  std::ofstream(folder / "tokenizer.json") << tokenizer.dump();
  auto made = Tokenizer::FromHfDirectory(folder_name).value();
  fs::remove_all(folder);
  return made;
}

}  // namespace baton::router
