// A load on a running OpenAI server, ours or another: N clients, each sending one streamed completion after another.
//   bench_serve_load --url http://127.0.0.1:8000 --model NAME [--clients 8] [--requests 32] [--prompt-words 100]
//                    [--max-tokens 64] [--json FILE]
// Prints output tokens/s over the whole run, time to the first token and time between tokens (p50, p90, p99), and what
// failed, by its error: an answer that is an error, ends with one or breaks off.
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "cli/http_client.h"
#include "common/check.h"

using namespace baton;
using SteadyTime = std::chrono::steady_clock::time_point;

namespace {

struct Samples {
  std::vector<double> first_token, between_tokens;  // seconds
  int64_t output_tokens = 0, prompt_tokens = 0;
  std::map<std::string, int> failures;  // by text
};

double SinceSeconds(SteadyTime start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Words that tokenizers do not merge into each other; a different prompt for every request, so no cache helps.
std::string Prompt(int words, uint32_t seed) {
  static const char* const kWords[] = {"river", "stone", "cloud", "paper", "green",
                                       "seven", "quiet", "light", "north", "apple"};
  std::mt19937 rng(seed);
  std::string text;
  for (int i = 0; i < words; ++i) text += std::string(i == 0 ? "" : " ") + kWords[rng() % 10];
  return text;
}

/// What an answer's JSON says went wrong; else the text itself.
std::string ErrorText(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("error") ? json["error"].value("message", body) : body;
}

void Request(const cli::HttpUrl& url, const std::string& body, Samples& out) {
  const SteadyTime start = std::chrono::steady_clock::now();
  SteadyTime last = start;
  int chunks = 0;
  bool whole = false;
  std::string error;
  auto reply = cli::HttpPost(url, "/v1/completions", "", body, [&](std::string_view data) {
    const auto json = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return void(whole = data == "[DONE]");
    if (json.contains("error")) error = "in the stream: " + ErrorText(std::string(data));
    if (json.contains("usage") && json["usage"].is_object()) {
      out.output_tokens += json["usage"].value("completion_tokens", 0);
      out.prompt_tokens += json["usage"].value("prompt_tokens", 0);
    }
    if (!json.contains("choices") || json["choices"].empty() || json["choices"][0].value("text", "").empty()) return;
    (chunks++ == 0 ? out.first_token : out.between_tokens).push_back(SinceSeconds(last));
    last = std::chrono::steady_clock::now();
  });
  if (!reply.ok()) {
    error = reply.status().ToString();
  } else if (reply->status != 200) {
    error = std::to_string(reply->status) + " " + ErrorText(reply->body);
  } else if (error.empty() && !whole) {
    error = "the stream broke off";
  }
  if (!error.empty()) ++out.failures[error];
}

double Percentile(std::vector<double> v, double p) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(p * static_cast<double>(v.size())))];
}

Samples Load(const cli::HttpUrl& url, const std::string& model, int clients, int requests, int words, int max_tokens) {
  std::atomic<int> next{0};
  std::mutex mutex;
  Samples all;
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&] {
      Samples mine;
      for (int i; (i = next.fetch_add(1)) < requests;) {
        const nlohmann::json body{{"model", model},
                                  {"prompt", Prompt(words, static_cast<uint32_t>(i))},
                                  {"max_tokens", max_tokens},
                                  {"temperature", 0},
                                  {"ignore_eos", true},
                                  {"stream", true},
                                  {"stream_options", {{"include_usage", true}}}};
        Request(url, body.dump(), mine);
      }
      std::lock_guard lock(mutex);
      all.first_token.insert(all.first_token.end(), mine.first_token.begin(), mine.first_token.end());
      all.between_tokens.insert(all.between_tokens.end(), mine.between_tokens.begin(), mine.between_tokens.end());
      all.output_tokens += mine.output_tokens;
      all.prompt_tokens += mine.prompt_tokens;
      for (const auto& [text, count] : mine.failures) all.failures[text] += count;
    });
  }
  for (std::thread& t : threads) t.join();
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(argc, argv, {"url", "model", "clients", "requests", "prompt-words", "max-tokens", "json"});
  const auto url = cli::ParseHttpUrl(flags("url", "http://127.0.0.1:8000"));
  BATON_CHECK(url.ok(), url.status().ToString());
  const int clients = flags.Count("clients", 8), requests = flags.Count("requests", 32);
  const SteadyTime start = std::chrono::steady_clock::now();
  const Samples s =
      Load(*url, flags("model"), clients, requests, flags.Count("prompt-words", 100), flags.Count("max-tokens", 64));
  const double seconds = SinceSeconds(start);
  const int failed = std::accumulate(s.failures.begin(), s.failures.end(), 0,
                                     [](int sum, const auto& failure) { return sum + failure.second; });
  std::printf("%d clients, %d requests, %.1f s: %.1f output tokens/s, %.1f prompt tokens/s, %d failed\n", clients,
              requests, seconds, static_cast<double>(s.output_tokens) / seconds,
              static_cast<double>(s.prompt_tokens) / seconds, failed);
  for (const auto& [text, count] : s.failures) std::printf("%6d x %s\n", count, text.c_str());
  nlohmann::json json{{"clients", clients}, {"requests", requests},
                      {"seconds", seconds}, {"output_tokens", s.output_tokens},
                      {"failed", failed},   {"failures", s.failures}};
  for (auto [name, samples] : {std::pair{"first token", &s.first_token}, {"between tokens", &s.between_tokens}}) {
    std::printf("%-15s p50 %8.1f ms  p90 %8.1f ms  p99 %8.1f ms\n", name, 1e3 * Percentile(*samples, 0.5),
                1e3 * Percentile(*samples, 0.9), 1e3 * Percentile(*samples, 0.99));
    json[name] = {
        {"p50", Percentile(*samples, 0.5)}, {"p90", Percentile(*samples, 0.9)}, {"p99", Percentile(*samples, 0.99)}};
  }
  bench::WriteJson(flags("json"), json);
  return failed == 0 ? 0 : 1;
}
