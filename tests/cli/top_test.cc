// `baton top` without a terminal: events in, lines out.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cli/top_feed.h"
#include "cli/top_frame.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

const char kRecording[] = "tests/data/console/pair.jsonl";

TopModel Recorded() {
  TopModel model;
  const std::vector<RecordedEvent> events = ReadRecording(kRecording).value().events;
  for (const RecordedEvent& e : events) EXPECT_TRUE(model.Take(e.line).ok());
  return model;
}

std::string Text(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

int WidthOf(const std::string& line) {
  int n = 0;
  for (const char c : line) n += (c & 0xC0) != 0x80;
  return n;
}

TEST(TopFrame, OfARecordingIsThisVeryText) {
  std::ifstream golden("tests/data/console/pair.txt");
  std::stringstream wanted;
  wanted << golden.rdbuf();
  EXPECT_EQ(Text(TopFrame(Recorded(), {})), wanted.str())
      << "if that is better: build/baton top --replay tests/data/console/pair.jsonl --once | cat > "
         "tests/data/console/pair.txt";
}

TEST(TopFrame, IsNeverWiderOrHigherThanTheScreen) {
  const TopModel model = Recorded();
  for (const int columns : {1, 7, 40, 79, 100, 300}) {
    for (const int rows : {1, 3, 10, 24, 60}) {
      const std::vector<std::string> frame =
          TopFrame(model, {.columns = columns, .rows = rows}, "a note of some length");
      EXPECT_LE(frame.size(), static_cast<size_t>(rows));
      for (const std::string& line : frame) EXPECT_LE(WidthOf(line), columns) << line;
    }
  }
}

TEST(TopFrame, InATerminalOf80ColumnsEveryColumnIsThere) {
  const std::string frame = Text(TopFrame(Recorded(), {.columns = 80, .rows = 24}));
  for (const char* whole : {"0.1 %\n", "prefill-0 → decode-0\n", "DECODE  TOKENS\n", "20+36\n"})
    EXPECT_NE(frame.find(whole), std::string::npos) << whole << "in\n" << frame;
}

TEST(TopFrame, WithoutUnicodeItIsAscii) {
  for (const char c : Text(TopFrame(Recorded(), {.unicode = false}))) ASSERT_GE(c, 0);
}

TEST(TopFrame, ColoursAreOnlyWhereTheyAreAskedFor) {
  EXPECT_EQ(Text(TopFrame(Recorded(), {})).find('\x1b'), std::string::npos);
  EXPECT_NE(Text(TopFrame(Recorded(), {.colour = true})).find("\x1b[32mready\x1b[0m"), std::string::npos);
}

TEST(TopFrame, RequestsWhoseNamesBeginAlikeAreToldApart) {
  TopModel model;
  ASSERT_TRUE(model.Take(R"({"event":"hello","t":1,"model":"m"})").ok());
  ASSERT_TRUE(model.Take(R"({"event":"state","t":2,"status":"ready","workers":[],"requests":[]})").ok());
  for (const char* id : {"bench-again-1-0123456789abcdef", "bench-again-2-0123456789fedcba", "0123456789abcdef0123"})
    ASSERT_TRUE(
        model.Take(StrCat(R"({"event":"request","t":3,"id":")", id, R"(","stage":"finished","reason":"stop"})")).ok());
  const std::string text = Text(TopFrame(model, {}));
  for (const char* shown : {"bench…abcdef", "bench…fedcba", "0123456789ab "})
    EXPECT_NE(text.find(shown), std::string::npos) << shown << "\n" << text;
  EXPECT_NE(Text(TopFrame(model, {.unicode = false})).find("bench~abcdef"), std::string::npos);
}

TEST(TopFrame, NamesThatAWorkerOrClientChoseMoveNoCursor) {
  TopModel model;
  const std::string bad = R"(\u001b[2J\n)";
  ASSERT_TRUE(model.Take(StrCat(R"({"event":"hello","t":1,"model":")", bad, R"("})")).ok());
  ASSERT_TRUE(model
                  .Take(StrCat(R"({"event":"state","t":2,"status":"ready","workers":[{"name":")", bad,
                               R"(","kv":{"blocks":4}}],"requests":[{"id":")", bad, R"(","stage":"x"}]})"))
                  .ok());
  ASSERT_TRUE(model
                  .Take(StrCat(R"({"event":"request","t":3,"id":"a","stage":"finished","reason":"error","error":")",
                               bad, R"("})"))
                  .ok());
  EXPECT_EQ(Text(TopFrame(model, {})).find('\x1b'), std::string::npos);
}

TEST(TopModel, TakesWhatIsMissingOrOfAnotherTypeAsNotSaid) {
  TopModel model;
  for (const char* line : {"", "nothing", "[]", "3", "{}", R"({"event":"state"})", R"({"t":1})", R"({"event":1,"t":1})",
                           R"({"event":"state","t":"now"})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(model.Take(line))) << line;
  }
  for (const char* line :
       {R"({"event":"state","t":1})", R"({"event":"state","t":1,"workers":3,"links":{},"requests":[1,null]})",
        R"({"event":"state","t":1,"workers":[{"name":3,"kv":[],"running":"x","last_step_ms":null}],"links":[{}]})",
        R"({"event":"request","t":1})", R"({"event":"request","t":1,"id":4,"stage":[]})",
        R"({"event":"request","t":1,"id":"a","stage":"finished","timings":7,"marks":0})",
        R"({"event":"new kind","t":1})"}) {
    EXPECT_TRUE(model.Take(line).ok()) << line;
    TopFrame(model, {});
  }
}

TEST(TopModel, ARequestsStageIsTheLatestAndItsEndTakesItOffTheList) {
  TopModel model;
  const auto take = [&](double at, const std::string& stage, const std::string& more = "") {
    ASSERT_TRUE(model
                    .Take(StrCat(R"({"event":"request","id":"r","t":)", 1000 + at, R"(,"at_ms":)", at, R"(,"stage":")",
                                 stage, "\"", more, "}"))
                    .ok());
  };
  take(0, "received");
  take(5, "placed", R"(,"worker":"d","prefill_worker":"p")");
  take(9, "tokens", R"(,"tokens":4)");
  ASSERT_EQ(model.Requests().size(), 1u);
  EXPECT_EQ(model.Requests()[0].stage, "tokens");
  EXPECT_EQ(model.Requests()[0].prefill_worker, "p");
  EXPECT_EQ(model.Requests()[0].began, 1000);
  take(20, "finished", R"(,"reason":"stop","worker":"d","completion_tokens":7,"timings":{"prefill_ms":3})");
  EXPECT_TRUE(model.Requests().empty());
  ASSERT_EQ(model.finished().size(), 1u);
  EXPECT_EQ(model.finished()[0].request.tokens, 7);
  EXPECT_EQ(model.finished()[0].stages_ms[1], 3);
}

TEST(TopRecording, AClockThatIsSetIsNoPause) {
  const std::string path = testing::TempDir() + "/clock.jsonl";
  std::ofstream file(path);
  for (const char* t : {"1000", "2000", "1990", "2100", "3600000", "3601000", "5000", "6000"})
    file << R"({"event":"state","t":)" << t << "}\n";
  file.close();
  std::vector<double> pauses;
  const std::vector<RecordedEvent> events = ReadRecording(path).value().events;
  for (const RecordedEvent& e : events) pauses.push_back(e.pause_ms);
  EXPECT_EQ(pauses, (std::vector<double>{0, 1000, 0, 100, kLongestPauseMs, 1000, 0, 1000}));
}

TEST(TopRecording, SaysFileAndLineOfWhatIsWrong) {
  const std::string path = testing::TempDir() + "/broken.jsonl";
  std::ofstream(path) << R"({"event":"hello","t":1})" << "\n\n{\n";
  const auto broken = ReadRecording(path);
  EXPECT_TRUE(absl::IsInvalidArgument(broken.status()));
  EXPECT_NE(broken.status().message().find(path + ":3:"), std::string_view::npos) << broken.status();
  EXPECT_TRUE(absl::IsNotFound(ReadRecording("/nowhere").status()));
  std::ofstream(path) << "\n";
  EXPECT_TRUE(absl::IsInvalidArgument(ReadRecording(path).status()));
}

TEST(TopRecording, ALastLineThatIsCutIsLeftOutAndNamed) {
  const std::string path = testing::TempDir() + "/cut.jsonl";
  const std::string whole = "{\"event\":\"hello\",\"t\":1}\n\n{\"event\":\"state\",\"t\":2}\n";
  for (const char* cut : {"{\"event\":\"sta", "{", "\"", "{\"event\":\"hello\",\"t\":"}) {
    std::ofstream(path) << whole << cut;
    const Recording recording = ReadRecording(path).value();
    EXPECT_EQ(recording.events.size(), 2u) << cut;
    EXPECT_EQ(recording.cut_line, 4u) << cut;
    std::ofstream(path) << whole << cut << "\n" << whole;
    EXPECT_NE(ReadRecording(path).status().message().find(path + ":4:"), std::string_view::npos) << "not the last";
    std::ofstream(path) << cut;
    EXPECT_NE(ReadRecording(path).status().message().find(path + ":1:"), std::string_view::npos) << "nothing is whole";
  }
  std::ofstream(path) << whole << "{\"event\":\"hello\",\"t\":3}";
  EXPECT_EQ(ReadRecording(path)->cut_line, 0u) << "it wants its line break only";
  EXPECT_EQ(ReadRecording(path)->events.size(), 3u);
}

}  // namespace
}  // namespace baton::cli
