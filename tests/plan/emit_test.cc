// Names of models and tokenizers, whatever they are, are read out of what a plan emits as they were given.
#include "plan/emit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/str_cat.h"

namespace baton::plan {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNames[] = {"llama:8b",
                                  "a: b",
                                  "#1",
                                  "a #1",
                                  "it's",
                                  "the \"best\"",
                                  "two  words ",
                                  " led",
                                  "yes",
                                  "~",
                                  "null",
                                  "0x1f",
                                  "1e3",
                                  "1.5",
                                  "-x",
                                  "- x",
                                  "?",
                                  "{a: b}",
                                  "[a]",
                                  "a,b",
                                  "&a",
                                  "*a",
                                  "!a",
                                  "%a",
                                  "@a",
                                  "`a`",
                                  "|",
                                  ">",
                                  "back\\slash",
                                  "$HOME ${X} $(id)",
                                  "%s %d",
                                  "tab\tin",
                                  "line\nfeed",
                                  "\x1b[31m",
                                  "caf\u00e9 \u4f60 \U0001f600",
                                  "next\u0085line",
                                  "\u2028",
                                  "\ufeffmark",
                                  "---",
                                  "...",
                                  ".hidden"};

struct Emitted {
  worker::WorkerConfig config;
  MemoryPlan memory;
  Proposal layout{.prefill = 1, .decode = 1};
  explicit Emitted(const std::string& name) {
    config.model = StrCat("/models of all/", name);
    config.tokenizer = StrCat("/elsewhere/", name, "/");
  }
};

YAML::Node Read(const absl::StatusOr<std::string>& text) {
  EXPECT_TRUE(text.ok()) << text.status();
  try {
    return YAML::Load(text.value_or(""));
  } catch (const YAML::Exception& e) {
    ADD_FAILURE() << e.what() << "\n" << *text;
    return {};
  }
}

/// A word of a command line as bash reads it.
std::string Echoed(const std::string& word) {
  const std::string script = StrCat("printf %s ", word);
  FILE* out = popen(StrCat("exec bash -c '", absl::StrReplaceAll(script, {{"'", "'\\''"}}), "'").c_str(), "r");
  std::string text;
  std::array<char, 256> piece{};
  for (size_t n = 0; (n = fread(piece.data(), 1, piece.size(), out)) > 0;) text.append(piece.data(), n);
  EXPECT_EQ(pclose(out), 0) << word;
  return text;
}

TEST(Emit, NamesAreTextsInTheChartsValues) {
  for (const std::string name : kNames) {
    const Emitted e(name);
    const YAML::Node values = Read(HelmValues(e.config, e.memory, e.layout));
    EXPECT_EQ(values["model"]["path"].as<std::string>(), name);
    EXPECT_EQ(values["model"]["path"].Tag(), "!") << "quoted, so no reader takes it for anything but a text";
    EXPECT_EQ(values["model"]["volume"]["persistentVolumeClaim"]["claimName"].as<std::string>(), "models");
    for (const char* who : {"router", "prefill", "decode"}) {
      EXPECT_EQ(values[who]["extraArgs"]["tokenizer"].as<std::string>(), StrCat("/models/", name)) << who;
    }
  }
}

TEST(Emit, NamesAreTextsInAComposeFileWhichReadsVariablesInThem) {
  for (const std::string name : kNames) {
    const Emitted e(name);
    const YAML::Node file = Read(ComposeFile(e.config, e.memory, e.layout));
    const auto text = file["x-tls"]["BATON_TOKENIZER"].as<std::string>();
    EXPECT_EQ(absl::StrReplaceAll(text, {{"$$", "$"}}), StrCat("/models/", name));
    EXPECT_EQ(absl::StrReplaceAll(text, {{"$$", ""}}).find('$'), std::string::npos) << text;
    EXPECT_TRUE(file["services"]["router"].IsMap()) << name;
  }
}

TEST(Emit, TheCommandThatAComposeFileNamesHasTheModelAsItIs) {
  for (const std::string name : kNames) {
    const Emitted e(name);
    const std::string text = ComposeFile(e.config, e.memory, e.layout).value();
    const size_t line = text.find("\n#   MODELS=") + 1;
    const std::string command = text.substr(line, text.find('\n', line) - line);
    const size_t from = command.find(" MODEL=") + 7, to = command.rfind(" BATON_API_KEY=");
    ASSERT_LT(from, to) << command;
    EXPECT_EQ(Echoed(command.substr(from, to - from)), name);
  }
}

TEST(Emit, FlagsHaveNamesAsAShellReadsThem) {
  for (const std::string name : kNames) {
    worker::WorkerConfig config;
    config.model = name;
    const std::string flags = PlanFlags(config, {});
    const size_t to = flags.find(" --device ");
    ASSERT_NE(to, std::string::npos) << flags;
    const bool dash = name.starts_with('-');
    ASSERT_TRUE(flags.starts_with(dash ? "--model=" : "--model ")) << flags;
    EXPECT_EQ(Echoed(flags.substr(8, to - 8)), name);
  }
}

TEST(Emit, WhatStandsOverTheModelsConfigGoesToThoseWhoReadIt) {
  Emitted e("m");
  e.config.hf_overrides = R"({"a": "it's $HOME: #1", "b": {"c": 1}})";
  e.config.rope_theta = 5e5;
  e.config.hf_config_path = "/elsewhere/other config/";
  const YAML::Node values = Read(HelmValues(e.config, e.memory, e.layout));
  for (const char* who : {"prefill", "decode"}) {
    const YAML::Node extra = values[who]["extraArgs"];
    EXPECT_EQ(extra["hf-overrides"].as<std::string>(), e.config.hf_overrides);
    EXPECT_EQ(extra["rope-theta"].as<double>(), 5e5);
    EXPECT_EQ(extra["hf-config-path"].as<std::string>(), "/models/other config");
  }
  EXPECT_EQ(values["router"]["extraArgs"]["hf-config-path"].as<std::string>(), "/models/other config");
  EXPECT_FALSE(values["router"]["extraArgs"]["hf-overrides"]) << "a router has no such flag";
  const YAML::Node file = Read(ComposeFile(e.config, e.memory, e.layout));
  EXPECT_EQ(file["x-tls"]["BATON_HF_CONFIG_PATH"].as<std::string>(), "/models/other config");
  const auto words = file["services"]["decode-0"]["command"].as<std::vector<std::string>>();
  const auto at = std::ranges::find(words, "--hf-overrides");
  ASSERT_LT(std::distance(words.begin(), at) + 1, std::ssize(words));
  EXPECT_EQ(absl::StrReplaceAll(*(at + 1), {{"$$", "$"}}), e.config.hf_overrides);
  EXPECT_THAT(PlanFlags(e.config, {}), HasSubstr(" --hf-config-path '/elsewhere/other config/'"));
}

TEST(Emit, AFolderIsNamedAsItIsWhateverItIsCalledFromWithin) {
  Emitted e("x");
  e.config.model = "tests/data/tiny-llama/.";
  EXPECT_EQ(Read(HelmValues(e.config, e.memory, e.layout))["model"]["path"].as<std::string>(), "tiny-llama");
  e.config.model = "tests/data/tiny-llama/../tiny-llama//";
  EXPECT_EQ(Read(HelmValues(e.config, e.memory, e.layout))["model"]["path"].as<std::string>(), "tiny-llama");
  e.config.model = "tests/data/tiny-llama/..";
  EXPECT_EQ(Read(HelmValues(e.config, e.memory, e.layout))["model"]["path"].as<std::string>(), "data");
}

TEST(Emit, ANameThatIsNoUtf8IsRefused) {
  const Emitted e("caf\xe9");
  for (const auto& text : {HelmValues(e.config, e.memory, e.layout), ComposeFile(e.config, e.memory, e.layout)}) {
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("\"caf\\xe9\" is not UTF-8"));
  }
}

}  // namespace
}  // namespace baton::plan
