// Chat templates against transformers' apply_chat_template, on the cases of golden/templates.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/text/golden.h"
#include "text/chat_template.h"
#include "text/gguf_tokenizer.h"

namespace baton {
namespace {

using json = nlohmann::ordered_json;  // templates print keys in the order in which they came

const std::string kTemplates = std::string(golden::kFolder) + "templates/";

TemplateTokens GoldenTokens() {
  const nlohmann::json tokens = golden::LoadJson(kTemplates + "cases.json")["tokens"];
  return {tokens["bos_token"], tokens["eos_token"], tokens["pad_token"], tokens["unk_token"]};
}

/// Renders every case of `name`, and compares with what transformers rendered or refused.
void ExpectRendersAsGolden(const ChatTemplate& chat, const std::string& name) {
  std::ifstream in(kTemplates + "cases.json");
  const json golden = json::parse(in);
  size_t cases = 0;
  for (const json& c : golden["cases"]) {
    if (c["template"] != name) continue;
    ++cases;
    json shown = c;
    shown.erase("expected");
    SCOPED_TRACE(shown.dump());
    const std::string messages = golden["conversations"][c["conversation"].get<std::string>()].dump();
    const std::string tools = c.contains("tools") ? c["tools"].dump() : "";
    const std::string kwargs = c.contains("kwargs") ? c["kwargs"].dump() : "";
    RenderRequest request{.messages_json = messages, .tools_json = tools, .kwargs_json = kwargs};
    request.add_generation_prompt = c.value("add_generation_prompt", false);
    request.continue_final_message = c.value("continue_final_message", false);
    request.now_s = golden["now_s"].get<int64_t>();
    const auto text = chat.Render(request);
    if (c.contains("expected")) {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, c["expected"].get<std::string>());
    } else {
      ASSERT_FALSE(text.ok()) << *text;
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
      // What the template itself raised reaches the client unadorned; Python's own errors have other words than ours.
      if (c["error"] != "") {
        EXPECT_EQ(std::string(text.status().message()), c["error"].get<std::string>());
      }
    }
  }
  EXPECT_GT(cases, 20u);
}

class TemplateGolden : public testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {  // strftime_now prints local time, as Python's datetime.now() does
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

TEST_P(TemplateGolden, RendersAsTransformers) {
  std::ifstream in(kTemplates + GetParam() + ".jinja");
  std::stringstream source;
  source << in.rdbuf();
  const auto chat = ChatTemplate::Create(source.str(), GoldenTokens());
  ASSERT_TRUE(chat.ok()) << chat.status();
  ExpectRendersAsGolden(**chat, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Text, TemplateGolden,
                         testing::Values("chatml", "headers", "alternating", "turns", "reasoning", "types", "python"));

TEST(DemoModel, TemplateRendersAsTransformers) {
  const golden::DemoModel demo = golden::OpenDemoModel();
  if (demo.file == nullptr) GTEST_SKIP() << demo.path << " is not there (scripts/fetch_model.sh gets it)";
  const auto chat = ChatTemplate::FromGguf(demo.metadata, GoldenTokens());
  ASSERT_TRUE(chat.ok()) << chat.status();
  ExpectRendersAsGolden(**chat, "demo");
}

}  // namespace
}  // namespace baton
