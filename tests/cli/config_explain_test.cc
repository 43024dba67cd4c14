// Where values came from, and the reference page.
#include "cli/config_explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cli/router_ports.h"
#include "router/router_config.h"
#include "worker/worker_config.h"

namespace baton::cli {
namespace {

using testing::HasSubstr;

/// What `baton config explain router ARGS` prints.
std::string Explained(std::vector<std::string> args, const std::string& yaml = "") {
  CLI::App app;
  router::RouterConfig config;
  FlagSet set;
  std::string file;
  set.Add(config, "router");
  AddConfigFile(app, set, file);
  set.Attach(app);
  if (!yaml.empty()) {
    const std::string path = testing::TempDir() + "explain.yaml";
    std::ofstream(path) << yaml;
    args.insert(args.begin(), "--config=" + path);
  }
  std::ranges::reverse(args);
  app.parse(args);
  FollowPort(set, config);
  return ExplainText(set);
}

std::string LineOf(const std::string& text, const std::string& flag) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(flag + " ")) {
      line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
                 line.end());
      return line;
    }
  }
  return "no line of " + flag;
}

TEST(ConfigExplain, AWorkerOfARoleHasWhatIsSaidForAllUnlessSomethingIsSaidForIt) {
  CLI::App app;
  worker::WorkerConfig all, prefill, decode;
  FlagSet set;
  set.Add(all, "worker");
  set.Add(prefill, "workers of --prefill", {}, "prefill.");
  set.Add(decode, "workers of --decode", {}, "decode.");
  set.Attach(app);
  std::vector<std::string> args = {"--max-num-seqs=9", "--decode.max-num-seqs=3"};
  std::ranges::reverse(args);
  app.parse(args);
  const std::string text = ExplainText(set);
  EXPECT_EQ(LineOf(text, "prefill.max-num-seqs"), "prefill.max-num-seqs 9 as max-num-seqs");
  EXPECT_EQ(LineOf(text, "decode.max-num-seqs"), "decode.max-num-seqs 3 the command line");
  EXPECT_THAT(LineOf(text, "prefill.block-size"), HasSubstr("prefill.block-size 16 default"));
}

TEST(ConfigExplain, EachValueHasItsSourceAndThoseItBeat) {
  setenv("BATON_MAX_CHOICES", "9", 1);
  setenv("BATON_MAX_LOGPROBS", "8", 1);
  const std::string text = Explained({"--max-logprobs=7", "--no-log-requests", "--worker=a:1", "--worker=b:2"},
                                     "max-logprobs: 6\nmax-choices: 5\nroute-policy: session\n");
  unsetenv("BATON_MAX_CHOICES"), unsetenv("BATON_MAX_LOGPROBS");
  const std::string file = testing::TempDir() + "explain.yaml";
  EXPECT_EQ(LineOf(text, "max-logprobs"), "max-logprobs 7 the command line, over 6 of " + file)
      << "a variable is not looked at where a flag is";
  EXPECT_EQ(LineOf(text, "max-choices"), "max-choices 9 BATON_MAX_CHOICES, over 5 of " + file);
  EXPECT_EQ(LineOf(text, "route-policy"), "route-policy session " + file);
  EXPECT_EQ(LineOf(text, "log-requests"), "log-requests false the command line");
  EXPECT_EQ(LineOf(text, "worker"), "worker a:1 b:2 the command line");
  EXPECT_EQ(LineOf(text, "keep-alive-ms"), "keep-alive-ms 120000 default");
}

TEST(ConfigExplain, PortsThatFollowAnotherFlagAreSaidTo) {
  const std::string text = Explained({"--port=9000"});
  EXPECT_EQ(LineOf(text, "grpc-port"), "grpc-port 9001 follows another flag");
  EXPECT_EQ(LineOf(Explained({}), "grpc-port"), "grpc-port 8001 default");
}

TEST(ConfigExplain, KeysAreNotShown) {
  const std::string text = Explained({"--api-key=hunter2"}, "api-key: [swordfish]\n");
  EXPECT_EQ(text.find("hunter2"), std::string::npos);
  EXPECT_EQ(text.find("swordfish"), std::string::npos);
  EXPECT_THAT(LineOf(text, "api-key"), HasSubstr("the command line"));
}

TEST(ReferencePage, IsWhatTheTablesInTheCodeSay) {
  std::ifstream page("docs/reference.md");
  std::stringstream text;
  text << page.rdbuf();
  EXPECT_EQ(text.str(), ReferencePage()) << "build/baton config reference > docs/reference.md";
}

}  // namespace
}  // namespace baton::cli
