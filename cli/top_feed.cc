#include "cli/top_feed.h"

#include <algorithm>
#include <fstream>

#include "cli/foreign_json.h"
#include "cli/top_model.h"
#include "common/json.h"
#include "common/open_to_read.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr Duration kTryAgain = std::chrono::milliseconds(500);

}  // namespace

TopFeed::TopFeed(HttpUrl url, std::string api_key)
    : url_(std::move(url)), api_key_(std::move(api_key)), thread_([this] { Run(); }) {}

TopFeed::~TopFeed() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  came_.notify_all();
  stop_.Cancel();
  thread_.join();
}

/// One connection, until it ends.
absl::Status TopFeed::Follow() {
  const auto on_event = [this](std::string_view event) {
    std::lock_guard lock(mutex_);
    status_ = absl::OkStatus();
    events_.emplace_back(event);
    came_.notify_all();
  };
  BATON_ASSIGN_OR_RETURN(const HttpResponse answer, HttpEvents(url_, "/events", api_key_, on_event, &stop_));
  if (answer.status == 200) return absl::UnavailableError(StrCat(AuthorityOf(url_), " ended the stream"));
  const nlohmann::json body = ShallowJson(answer.body);
  const std::string what = ShownTextOf(FieldOf(body, "error"), "message");
  if (answer.status == 404) {
    return absl::FailedPreconditionError(StrCat(
        AuthorityOf(url_), " has no events: --url is a router's admin port (--admin-port, by default --port + 2)"));
  }
  const std::string message = StrCat(AuthorityOf(url_), ": ", what.empty() ? StrCat("HTTP ", answer.status) : what);
  if (answer.status == 401) return absl::FailedPreconditionError(message + " (--api-key)");
  return absl::UnavailableError(message);
}

void TopFeed::Run() {
  while (!over_) {
    absl::Status ended = Follow();
    std::unique_lock lock(mutex_);
    status_ = std::move(ended);
    came_.notify_all();
    came_.wait_for(lock, kTryAgain, [this] { return over_.load(); });
  }
}

std::vector<std::string> TopFeed::Take(Duration timeout) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, timeout, [this] { return !events_.empty() || !status_.ok(); });
  return std::exchange(events_, {});
}

absl::Status TopFeed::status() {
  std::lock_guard lock(mutex_);
  return status_;
}

absl::StatusOr<Recording> ReadRecording(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::ifstream file, OpenToRead(path, "--replay"));
  Recording out;
  std::string line;
  double latest = 0;  // events of several threads lie a little across
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    TopModel model;
    if (const absl::Status taken = model.Take(line); !taken.ok()) {
      if (file.eof() && !out.events.empty()) {  // nobody wrote its end: who recorded was killed, or had no room
        out.cut_line = number;
        break;
      }
      return absl::InvalidArgumentError(StrCat("--replay ", path, ":", number, ": ", taken.message()));
    }
    const double t = model.time(), pause_ms = out.events.empty() ? 0 : std::clamp(t - latest, 0.0, kLongestPauseMs);
    if (t > latest || latest - t > kLongestPauseMs) latest = t;
    out.events.push_back({pause_ms, std::move(line)});
  }
  if (out.events.empty()) return absl::InvalidArgumentError(StrCat("--replay ", path, ": it has no events"));
  return out;
}

}  // namespace baton::cli
