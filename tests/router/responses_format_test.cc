// The events of a streamed answer of /v1/responses.
#include "router/http/responses_format.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace baton::router {
namespace {

using Json = nlohmann::json;

std::vector<Json> StreamedEvents(std::string_view stream) {
  std::vector<Json> events;
  constexpr std::string_view kData = "data: ";
  for (size_t at = stream.find(kData); at != std::string_view::npos; at = stream.find(kData, at + 1)) {
    const std::string_view rest = stream.substr(at + kData.size());
    events.push_back(Json::parse(rest.substr(0, rest.find('\n'))));
  }
  return events;
}

// Clients put texts together by these.
TEST(ResponsesFormat, EachEventOfATextSaysWhichItemItIsOf) {
  const auto tokenizer = Tokenizer::OfModel("tests/data/tiny-llama").value();
  ResponsesFormat format({"resp_1", 1700000000, "m", true}, *tokenizer, R"("instructions":null)", nullptr);
  const AnswerTail tail;
  std::string stream = format.Begin(1, tail);
  ChoicePart part;
  part.thoughts = "Hm", part.text = "Yes";
  stream += format.Piece(part, tail);
  part = {};
  part.text = "!";
  part.calls = {{.index = 0, .id = "call_1", .name = "f", .arguments = "{}", .at = 1}};
  stream += format.Piece(part, tail);
  stream += format.Finish({}, {0, FinishReason::kStop}, tail) + format.End(tail);
  std::vector<std::string> ids, texts;
  for (const Json& event : StreamedEvents(stream)) {
    const std::string type = event["type"];
    if (type == "response.output_item.added") {
      ids.push_back(event["item"]["id"]);
      texts.emplace_back();
    }
    if (!type.ends_with(".delta")) continue;
    EXPECT_EQ(event["item_id"], ids.back()) << event;
    EXPECT_EQ(event["output_index"], ids.size() - 1) << event;
    EXPECT_EQ(event.value("content_index", -1), type.find("function_call") != std::string::npos ? -1 : 0) << event;
    texts.back() += event["delta"];
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"Hm", "Yes!", "{}"}));
}

}  // namespace
}  // namespace baton::router
