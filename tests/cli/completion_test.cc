// Completion scripts, and a real bash that takes one.
#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "common/str_cat.h"

namespace baton::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<CompletedCommand> kCommands = {
    {"serve",
     "it's all",
     {{"--dtype", {"auto", "float32"}, true, "what [a]: b"}, {"--model", {}, true, ""}, {"--insecure", {}, false, ""}}},
    {"help", "say", {}, {"serve", "help"}}};

/// What bash offers for the word that is being written last.
std::string Offered(const std::string& words, int count) {
  const std::string path = testing::TempDir() + "/complete.sh";
  std::ofstream(path) << CompletionScript("bash", kCommands).value() << "COMP_WORDS=(" << words
                      << "); COMP_CWORD=" << count - 1 << "; _baton; echo \"${COMPREPLY[*]}\"\n";
  std::string out;
  std::FILE* bash = popen(StrCat("bash ", path).c_str(), "r");
  std::array<char, 4096> some{};
  while (std::fgets(some.data(), some.size(), bash) != nullptr) out += some.data();
  pclose(bash);
  return out;
}

TEST(Completion, BashOffersCommandsFlagsAndValues) {
  EXPECT_EQ(Offered("baton ''", 2), "serve help\n");
  EXPECT_EQ(Offered("baton se", 2), "serve\n");
  EXPECT_EQ(Offered("baton serve --d", 3), "--dtype\n");
  EXPECT_EQ(Offered("baton serve --dtype ''", 4), "auto float32\n");
  EXPECT_EQ(Offered("baton serve --dtype = fl", 5), "float32\n");
  EXPECT_EQ(Offered("baton serve --insecure --m", 4), "--model\n");
  EXPECT_EQ(Offered("baton serve --model x", 4), "\n") << "a file";
  EXPECT_EQ(Offered("baton help s", 3), "serve\n");
  EXPECT_EQ(Offered("baton other x", 3), "\n");
  EXPECT_EQ(Offered("baton config explain serve --d", 5), "--dtype\n");
  EXPECT_EQ(Offered("baton config explain serve --dtype a", 6), "auto\n");
}

TEST(Completion, ZshAndFishHaveTheSameFlags) {
  const std::string zsh = CompletionScript("zsh", kCommands).value(),
                    fish = CompletionScript("fish", kCommands).value();
  EXPECT_THAT(zsh, HasSubstr("#compdef baton"));
  EXPECT_THAT(zsh, HasSubstr("then compdef _baton baton; fi\n")) << "also where it is sourced";
  EXPECT_THAT(zsh, HasSubstr("'--dtype=[what (a)  b]:value:(auto float32)'"));
  EXPECT_THAT(zsh, HasSubstr("'serve:it’s all'"));
  EXPECT_THAT(fish,
              HasSubstr("complete -c baton -n '__fish_seen_subcommand_from serve' -l dtype -x -a 'auto float32'"));
  EXPECT_THAT(fish, HasSubstr("-d 'it'\\''s all'"));
  EXPECT_THAT(CompletionScript("tcsh", kCommands).status().message(), HasSubstr("bash, zsh, fish"));
}

TEST(Completion, ValuesAreReadOutOfARulesHelp) {
  EXPECT_THAT(ValuesOfHelp("how [a: words of it | b | c: more]"), ElementsAre("a", "b", "c"));
  for (const char* none : {"no list", "a number [1…5]", "a file [an HF directory or a .gguf file]", "[]", ""}) {
    EXPECT_TRUE(ValuesOfHelp(none).empty()) << none;
  }
}

}  // namespace
}  // namespace baton::cli
