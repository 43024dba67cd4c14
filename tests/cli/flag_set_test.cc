#include "cli/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "cli/router_ports.h"
#include "cli/serve_config.h"
#include "common/nearest_name.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

struct SampleConfig {
  int32_t max_num_seqs = 256;
  int64_t kv_cache_memory = 0;
  bool enable_prefix_caching = true;
  std::optional<bool> async_scheduling;
  double max_step_ms = 200;
  std::string host = "127.0.0.1";
  std::vector<std::string> worker;
};

template <class Visitor>
void VisitFields(SampleConfig& c, Visitor&& field) {
  field("max-num-seqs", c.max_num_seqs, "sequences", "in one step", Range(1, 65536));
  field("kv-cache-memory", c.kv_cache_memory, "bytes", "");
  field("enable-prefix-caching", c.enable_prefix_caching, "", "");
  field("async-scheduling", c.async_scheduling, "", "auto = on a GPU");
  field("max-step-ms", c.max_step_ms, "ms", "");
  field("host", c.host, "", "");
  field("worker", c.worker, "", "");
}

// A parsed command line; `status` is what the values said.
struct Parsed {
  explicit Parsed(std::vector<std::string> args) {
    set.Add(config, "sample");
    AddConfigFile(app, set, file);
    set.Attach(app);
    std::reverse(args.begin(), args.end());
    app.parse(args);
  }
  CLI::App app;
  SampleConfig config;
  FlagSet set;
  std::string file;
};

std::string TempYaml(const std::string& text) {
  const std::string path = testing::TempDir() + "flag_set_test.yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(FlagSet, HelpSaysWhatAFieldMayBe) {
  Parsed p({});
  EXPECT_THAT(p.app.help(), testing::HasSubstr("in one step [1…65536]"));
}

TEST(FlagSet, DefaultsStayWhenNothingIsGiven) {
  Parsed p({});
  EXPECT_EQ(p.config.max_num_seqs, 256);
  EXPECT_TRUE(p.set.given().empty());
}

TEST(FlagSet, ABoolThatIsNotGivenMayBeLeftToTheProcess) {
  EXPECT_EQ(Parsed({}).config.async_scheduling, std::nullopt);
  EXPECT_EQ(Parsed({}).set.flags()[3].default_text, "auto");
  EXPECT_EQ(Parsed({"--async-scheduling"}).config.async_scheduling, true);
  EXPECT_EQ(Parsed({"--async-scheduling=false"}).config.async_scheduling, false);
  EXPECT_EQ(Parsed({"--no-async-scheduling"}).config.async_scheduling, false);
  EXPECT_EQ(Parsed({"--config", TempYaml("async-scheduling: false\n")}).config.async_scheduling, false);
  const Parsed given({"--no-async-scheduling"});
  std::vector<std::string> argv;
  AppendGiven(given.set, "sample", argv);
  EXPECT_THAT(argv, testing::ElementsAre("--no-async-scheduling"));
}

TEST(FlagSet, YesInAFileIsTrueForTheProcessesThatAreStartedToo) {
  const std::pair<const char*, const char*> rows[] = {{"yes", "--enable-prefix-caching"},
                                                      {"True", "--enable-prefix-caching"},
                                                      {"1", "--enable-prefix-caching"},
                                                      {"no", "--no-enable-prefix-caching"},
                                                      {"False", "--no-enable-prefix-caching"}};
  for (const auto& [text, argument] : rows) {
    const Parsed given({"--config", TempYaml(StrCat("enable-prefix-caching: ", text, "\n"))});
    ASSERT_TRUE(given.set.status().ok()) << given.set.status();
    std::vector<std::string> argv;
    AppendGiven(given.set, "sample", argv);
    EXPECT_THAT(argv, testing::ElementsAre(argument)) << text;
  }
}

TEST(FlagSet, NothingOfAFileIsLeftOutInSilence) {
  const std::pair<const char*, const char*> rows[] = {
      {"worker:\n  - a:1\n  - b: 2\n", "\"worker\": number 2 of the list, in line 3, is no text"},
      {"worker: [a:1, [b:2]]\n", "number 2 of the list, in line 1"},
      {"worker: [a:1, ~]\n", "number 2 of the list"},
      {"max-num-seqs: 2\n---\nmax-num-seqs: 3\n", "has 2 documents, of one"},
      {"max-num-seqs: x\n", "--max-num-seqs ("},
      {"host: a\nmax-num-seqs: 2\nhost: b\n", ":3: \"host\" is there twice"},
      {"max-num-seqs: 2\nmax_num_seqs: 3\n", ":2: \"max_num_seqs\" is there twice"}};
  for (const auto& [text, why] : rows)
    EXPECT_THAT(std::string(Parsed({"--config", TempYaml(text)}).set.status().message()), testing::HasSubstr(why))
        << text;
}

struct OtherConfig {
  std::string host = "127.0.0.1";
  int32_t threads = 0;
};

template <class Visitor>
void VisitFields(OtherConfig& c, Visitor&& field) {
  field("host", c.host, "", "");
  field("threads", c.threads, "", "");
}

TEST(FlagSet, AFlagWithAPrefixIsNegatedBeforeOrBehindIt) {
  for (const char* flag : {"--no-prefill.enable-prefix-caching", "--prefill.no-enable-prefix-caching"}) {
    CLI::App app;
    SampleConfig config;
    FlagSet set;
    set.Add(config, "sample", {}, "prefill.");
    set.Attach(app);
    app.parse(std::vector<std::string>{flag});
    EXPECT_FALSE(config.enable_prefix_caching) << flag;
  }
}

TEST(FlagSet, ANameThatTwoConfigsHaveIsOneFlagThatSetsBoth) {
  CLI::App app;
  SampleConfig first;
  OtherConfig second;
  FlagSet set;
  set.Add(first, "first");
  set.Add(second, "second");
  set.Attach(app);
  std::vector<std::string> args{"--host=::1"};
  app.parse(args);
  EXPECT_EQ(first.host, "::1");
  EXPECT_EQ(second.host, "::1");
  const auto host = std::ranges::find(set.flags(), "host", &Flag::name);
  EXPECT_THAT(host->shared_with, testing::ElementsAre("second"));
}

TEST(FlagSet, ReadsEveryTypeFromTheCommandLine) {
  Parsed p({"--max-num-seqs", "32", "--kv-cache-memory=4GiB", "--no-enable-prefix-caching", "--max-step-ms", "12.5",
            "--host", "::1", "--worker", "a:1", "--worker", "b:2"});
  ASSERT_TRUE(p.set.status().ok()) << p.set.status();
  EXPECT_EQ(p.config.max_num_seqs, 32);
  EXPECT_EQ(p.config.kv_cache_memory, int64_t{4} << 30);
  EXPECT_FALSE(p.config.enable_prefix_caching);
  EXPECT_EQ(p.config.max_step_ms, 12.5);
  EXPECT_EQ(p.config.host, "::1");
  EXPECT_EQ(p.config.worker, (std::vector<std::string>{"a:1", "b:2"}));
}

TEST(FlagSet, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  setenv("BATON_MAX_NUM_SEQS", "2", 1);
  setenv("BATON_HOST", "env", 1);
  const std::string file =
      TempYaml("max-num-seqs: 3\nhost: file\nmax_step_ms: 7\nworker: [x:1, y:2]\nenable-prefix-caching: false\n");
  Parsed p({"--max-num-seqs", "1", "--config", file});
  unsetenv("BATON_MAX_NUM_SEQS");
  unsetenv("BATON_HOST");
  ASSERT_TRUE(p.set.status().ok()) << p.set.status();
  EXPECT_EQ(p.config.max_num_seqs, 1);
  EXPECT_EQ(p.config.host, "env");
  EXPECT_EQ(p.config.max_step_ms, 7);
  EXPECT_EQ(p.config.worker, (std::vector<std::string>{"x:1", "y:2"}));
  EXPECT_FALSE(p.config.enable_prefix_caching);
}

TEST(FlagSet, ABadValueNamesFlagAndValue) {
  Parsed p({"--max-num-seqs", "many"});
  EXPECT_THAT(std::string(p.set.status().message()),
              testing::AllOf(testing::HasSubstr("--max-num-seqs"), testing::HasSubstr("many")));
  Parsed too_big({"--max-num-seqs", "5000000000"});
  EXPECT_FALSE(too_big.set.status().ok());
}

TEST(FlagSet, WhatIsNeitherTrueNorFalseNamesWhereItStands) {
  for (const char* word : {"maybe", "8x", "", "99999999999999999999", "2", "-1", " true"}) {
    Parsed line({StrCat("--enable-prefix-caching=", word)});
    if (*word != '\0') {
      EXPECT_EQ(line.set.status().message(), StrCat("--enable-prefix-caching: \"", word, "\" is not true or false"));
    }
    setenv("BATON_ENABLE_PREFIX_CACHING", word, 1);
    Parsed variable({});
    unsetenv("BATON_ENABLE_PREFIX_CACHING");
    EXPECT_EQ(variable.set.status().message(), *word == '\0'
                                                   ? ""
                                                   : StrCat("--enable-prefix-caching (BATON_ENABLE_PREFIX_CACHING): \"",
                                                            word, "\" is not true or false"));
  }
  for (const char* word : {"off", "OFF", "no", "False", "0", "n"}) {
    EXPECT_FALSE(Parsed({StrCat("--enable-prefix-caching=", word)}).config.enable_prefix_caching) << word;
    EXPECT_FALSE(
        Parsed({"--config", TempYaml(StrCat("enable-prefix-caching: ", word, "\n"))}).config.enable_prefix_caching)
        << word;
    EXPECT_TRUE(Parsed({StrCat("--no-enable-prefix-caching=", word)}).config.enable_prefix_caching) << word;
  }
}

TEST(FlagSet, TheLastOfAFlagCountsAlsoWhereItIsNegated) {
  EXPECT_TRUE(Parsed({"--no-enable-prefix-caching", "--enable-prefix-caching"}).config.enable_prefix_caching);
  EXPECT_FALSE(Parsed({"--enable-prefix-caching", "--enable-prefix-caching", "--no-enable-prefix-caching"})
                   .config.enable_prefix_caching);
}

TEST(FlagSet, AnUnknownKeyOfTheFileIsNamed) {
  const std::string file = TempYaml("max-num-sqs: 3\n");
  Parsed p({"--config", file});
  EXPECT_THAT(std::string(p.set.status().message()),
              testing::AllOf(testing::HasSubstr("max-num-sqs"), testing::HasSubstr(file)));
}

TEST(FlagSet, AnUnknownKeyThatIsNearlyAFlagIsToldWhich) {
  Parsed p({"--config", TempYaml("max_num_sqs: 3\n")});
  EXPECT_THAT(std::string(p.set.status().message()), testing::HasSubstr("did you mean max-num-seqs?"));
}

TEST(NearestName, IsTheOneThatFewChangesReach) {
  const std::vector<std::string> names = {"max-num-seqs", "max-num-batched-tokens", "port"};
  EXPECT_EQ(NearestName("max-num-seq", names), "max-num-seqs");
  EXPECT_EQ(NearestName("max-nun-sqs", names), "max-num-seqs");
  EXPECT_EQ(NearestName("pont", names), "port");
  EXPECT_EQ(NearestName("temperature", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(DidYouMean("prt", names, "--"), " (did you mean --port?)");
  EXPECT_EQ(DidYouMean("x-y-z-q", names, "--"), "");
}

// `baton serve` itself has no flag that only the command line can set.
TEST(ServeConfig, ComesFromFileEnvironmentAndPositionAlike) {
  const std::string file = TempYaml("model: /from/file\nprefill: 2\nrestart: false\nserved_model_name: [a, b]\n");
  setenv("BATON_DECODE", "3", 1);
  ServeConfig config;
  FlagSet set;
  std::string path;
  CLI::App app;
  set.Add(config, "serve");
  AddConfigFile(app, set, path);
  set.Attach(app, "model");
  std::vector<std::string> args{file, "--config"};  // from the last to the first
  app.parse(args);
  unsetenv("BATON_DECODE");
  ASSERT_TRUE(set.status().ok()) << set.status();
  EXPECT_EQ(config.model, "/from/file");
  EXPECT_EQ(config.prefill, 2);
  EXPECT_EQ(config.decode, 3);
  EXPECT_FALSE(config.restart);
  EXPECT_EQ(config.served_model_name, (std::vector<std::string>{"a", "b"}));
  args = {file, "--config", "/by/position"};
  app.parse(args);
  EXPECT_EQ(config.model, "/by/position");
}

TEST(FlagSet, AMissingOrBrokenFileIsAnError) {
  EXPECT_FALSE(Parsed({"--config", "/no/such.yaml"}).set.status().ok());
  EXPECT_EQ(Parsed({"--config", "/tmp"}).set.status().message(), "--config: cannot read /tmp: Is a directory");
  EXPECT_EQ(Parsed({"--config", "/dev/zero"}).set.status().message(),
            "--config: cannot read /dev/zero: it is a device, which may have no end");
  EXPECT_TRUE(Parsed({"--config", "/dev/null"}).set.status().ok());
  EXPECT_FALSE(Parsed({"--config", TempYaml("[1, 2")}).set.status().ok());
  EXPECT_FALSE(Parsed({"--config", TempYaml("just text")}).set.status().ok());
}

struct PortsConfig {
  int32_t port = 8000, grpc_port = 8001, admin_port = 8002;
};

template <class Visitor>
void VisitFields(PortsConfig& c, Visitor&& field) {
  field("port", c.port, "", "");
  field("grpc-port", c.grpc_port, "", "");
  field("admin-port", c.admin_port, "", "");
}

TEST(RouterPorts, ThoseThatNobodyNamedStandBehindPort) {
  const auto ports = [](std::vector<std::string> args) {
    PortsConfig config;
    FlagSet set;
    CLI::App app;
    set.Add(config, "router");
    set.Attach(app);
    std::reverse(args.begin(), args.end());
    app.parse(args);
    FollowPort(set, config);
    return std::vector<int32_t>{config.port, config.grpc_port, config.admin_port};
  };
  EXPECT_EQ(ports({}), (std::vector<int32_t>{8000, 8001, 8002}));
  EXPECT_EQ(ports({"--port", "9000"}), (std::vector<int32_t>{9000, 9001, 9002}));
  EXPECT_EQ(ports({"--port", "0"}), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(ports({"--port", "9000", "--grpc-port", "-1", "--admin-port", "7"}), (std::vector<int32_t>{9000, -1, 7}));
  EXPECT_EQ(ports({"--grpc-port", "0"}), (std::vector<int32_t>{8000, 0, 8002}));
}

}  // namespace
}  // namespace baton::cli
