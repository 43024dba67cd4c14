// A server's name that the system's resolver does not answer for.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <netdb.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "load/client.h"
#include "load/run.h"

namespace {

constexpr char kSilent[] = "silent.example";

/// The system's resolver while nobody answers it.
struct Silence {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  int asked = 0, left = 0;
};
Silence& TheSilence() {
  static Silence& silence = *new Silence;  // its threads are nobody's
  return silence;
}

}  // namespace

/// The C library's, but for one name.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  if (name != nullptr && std::strcmp(name, kSilent) == 0) {
    Silence& silence = TheSilence();
    std::unique_lock lock(silence.mutex);
    ++silence.asked;
    silence.changed.wait(lock, [&] { return silence.over; });
    ++silence.left;
    silence.changed.notify_all();
    return EAI_AGAIN;
  }
  const auto usual = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return usual(name, service, hints, found);
}

namespace baton::load {
namespace {

TEST(Execute, ANameThatNobodyResolvesIsAskedForOnceAndHoldsUpNoRequestLongerThanAnAnswerMay) {
  BenchOptions o{.num_prompts = 20, .random_input_len = 4, .random_output_len = 2};
  const Server server{.host = kSilent, .port = "80", .path = "/", .timeout = std::chrono::milliseconds(100)};
  const auto prompts = *MakePrompts(o);
  const RunResult run =
      Execute({HttpAsker(server, *RequestBody::Make(o, "m")), prompts, std::vector<Duration>(prompts.size()), 0, "t-"},
              SteadyClock());
  for (const Outcome& one : run.outcomes) {
    EXPECT_EQ(one.failure, Failure::kTimeout);
    EXPECT_THAT(one.error, testing::HasSubstr("silent.example: no address of this name within 0.1"));
  }
  Silence& silence = TheSilence();
  std::unique_lock lock(silence.mutex);
  EXPECT_EQ(silence.asked, 1);
  EXPECT_EQ(silence.left, 0) << "the system did not answer";
  silence.over = true;
  silence.changed.notify_all();
  silence.changed.wait(lock, [&] { return silence.left == silence.asked; });
}

TEST(Execute, ANameThatIsUnknownIsAFailureToConnect) {
  BenchOptions o{.num_prompts = 3, .random_input_len = 4, .random_output_len = 2};
  const Server server{.host = "no/name", .port = "80", .path = "/", .timeout = std::chrono::seconds(20)};
  const auto prompts = *MakePrompts(o);
  const RunResult run =
      Execute({HttpAsker(server, *RequestBody::Make(o, "m")), prompts, std::vector<Duration>(prompts.size()), 1, "t-"},
              SteadyClock());
  for (const Outcome& one : run.outcomes) EXPECT_EQ(one.failure, Failure::kConnect) << one.error;
}

}  // namespace
}  // namespace baton::load
