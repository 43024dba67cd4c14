// libFuzzer target of what a worker says on a relay: any bytes, in pieces of any size, give messages within the limit
// and at most one end, after which nothing comes; what is sent back stays bounded.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "router/outbound/http2_call.h"

namespace {

constexpr size_t kMostMessage = 4096, kMostOutput = 1 << 20;

void Ensure(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

/// The first byte is the size of the pieces, the rest is what the worker says.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  bool ended = false;
  baton::router::Http2Call call({"http", "worker:7000", "/baton.v1.Worker/Relay", {{"baton-session", "r/1"}}},
                                kMostMessage, [&ended](std::string_view message) {
                                  Ensure(!ended && message.size() <= kMostMessage);
                                  const bool taken = !message.starts_with("no");
                                  ended = !taken;
                                  return taken ? absl::OkStatus() : absl::InternalError("refused");
                                });
  absl::Cord out;
  call.TakeOutput(out, kMostOutput);
  const std::string order = "an order " + std::string(100, 'x');
  call.Send(
      absl::Cord(order.c_str()));  // the constructor that moves strings has a name that gcc and clang spell differently
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = size_t{1} + data[0];
  while (!rest.empty()) {
    call.Feed(rest.substr(0, piece));
    rest.remove_prefix(std::min(piece, rest.size()));
    ended = call.over();
    out.Clear();
    call.TakeOutput(out, kMostOutput);
  }
  call.Lost("the end");
  Ensure(call.over());
  return 0;
}
