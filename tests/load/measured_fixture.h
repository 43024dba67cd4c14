// Runs with known figures.
#pragma once

#include <chrono>
#include <string>

#include "load/measured.h"

namespace baton::load {

/// `requests` one after another, each `ttft_ms` to its first token and 5 tokens 10 ms apart.
inline Measured Steady(const std::string& target, const LoadPoint& point, int round, int requests, int ttft_ms,
                       const std::string& text = "x") {
  Measured out{.target = target, .model = "m", .point = point, .round = round, .date = "20261123-141500"};
  Duration now{};
  for (int i = 0; i < requests; ++i) {
    Outcome o{.index = static_cast<size_t>(i), .due = now, .sent = now};
    for (int t = 0; t < 5; ++t) o.arrivals.push_back(now + std::chrono::milliseconds(ttft_ms + 10 * t));
    o.end = now = o.arrivals.back();
    o.answer = {.text = text, .prompt_tokens = 50, .completion_tokens = 5, .counted = true, .finished = true};
    o.answer.stages = Stages{.queue_prefill = 1, .prefill = 2};
    o.http_status = 200;
    out.run.outcomes.push_back(o);
  }
  out.run.duration = now;
  out.run.most_at_a_time = 1;
  out.run.connections = 1;
  out.run.started_at_s = 1000;
  out.summary = Summarize(out.run, {});
  return out;
}

}  // namespace baton::load
