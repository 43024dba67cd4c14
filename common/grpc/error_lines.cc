#include "common/grpc/error_lines.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "common/foreign_text.h"
#include "common/limited_lines.h"
#include "common/log.h"
#include "common/str_cat.h"

namespace baton::net {
namespace {

constexpr size_t kMostText = 400;

std::atomic<bool> taken = false;

void TakeErrors(gpr_log_func_args* line) {
  if (line->severity == GPR_LOG_SEVERITY_ERROR) LogGrpcError(line->message);
}

}  // namespace

void LogGrpcError(std::string_view text) {
  static const SteadyClock clock;
  static std::mutex mutex;
  static LimitedLines lines(clock);
  static uint64_t left_out = 0;
  uint64_t before = 0;
  {
    std::lock_guard lock(mutex);
    if (!lines.May("")) {
      ++left_out;
      return;
    }
    before = std::exchange(left_out, 0);
  }
  LogError("gRPC: {}{}", Printable(text, kMostText), before == 0 ? "" : StrCat(" (and more such lines: ", before, ")"));
}

void SetGrpcLog(gpr_log_func log) {
  taken = true;
  gpr_set_log_function(log);
}

void TakeGrpcErrors() {
  if (!taken.exchange(true)) gpr_set_log_function(TakeErrors);
}

}  // namespace baton::net
