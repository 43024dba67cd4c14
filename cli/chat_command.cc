// `baton chat`: one question with --message, else a conversation on the terminal.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/chat_client.h"
#include "cli/command.h"
#include "cli/exit_code.h"

namespace baton::cli {
namespace {

struct ChatFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string grpc;
  std::string message;
  std::string system;
  bool stats = false;
  ChatOptions options;
};

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void PrintStats(const ChatStats& s) {
  const double decode_ms = s.total_ms - s.first_token_ms;
  const double rate = s.completion_tokens > 1 && decode_ms > 0 ? 1000.0 * (s.completion_tokens - 1) / decode_ms : 0;
  std::printf("[%d prompt tokens (%d cached), %d generated · first token %.0f ms · %.1f tokens/s]\n", s.prompt_tokens,
              s.cached_tokens, s.completion_tokens, s.first_token_ms, rate);
  std::vector<std::string> stages;
  for (const auto& [name, ms] : s.stages) {
    if (ms > 0) stages.push_back(absl::StrFormat("%s %.1f ms", name, ms));
  }
  if (!stages.empty()) std::printf("[stages: %s]\n", absl::StrJoin(stages, ", ").c_str());
}

// Asks once; the answer is appended to `turns`.
absl::Status AskOnce(ChatClient& client, const ChatFlags& flags, std::vector<ChatTurn>& turns) {
  std::string answer;
  absl::StatusOr<ChatStats> stats = client.Ask(turns, flags.options, [&](std::string_view text) {
    answer.append(text);
    Print(text);
  });
  if (!answer.empty()) Print("\n");
  if (!stats.ok()) return stats.status();
  turns.push_back({"assistant", answer});
  if (flags.stats) PrintStats(*stats);
  return absl::OkStatus();
}

int Converse(ChatClient& client, const ChatFlags& flags, std::vector<ChatTurn> turns) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) Print("Type a message; an empty line or Ctrl-D ends.\n");
  std::string line;
  while (true) {
    if (terminal) Print("\n> ");
    if (!std::getline(std::cin, line) || line.empty()) return kExitOk;
    turns.push_back({"user", line});
    if (absl::Status status = AskOnce(client, flags, turns); !status.ok()) {
      if (!terminal) return Fail(status);
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      turns.pop_back();
    }
  }
}

int RunChat(const ChatFlags& flags) {
  absl::StatusOr<std::unique_ptr<ChatClient>> client =
      flags.grpc.empty() ? MakeHttpChatClient(flags.url) : MakeGrpcChatClient(flags.grpc);
  if (!client.ok()) return FailUsage(client.status());
  std::vector<ChatTurn> turns;
  if (!flags.system.empty()) turns.push_back({"system", flags.system});
  if (flags.message.empty()) return Converse(**client, flags, std::move(turns));
  turns.push_back({"user", flags.message});
  absl::Status status = AskOnce(**client, flags, turns);
  return status.ok() ? static_cast<int>(kExitOk) : Fail(status);
}

}  // namespace

Runner AddChat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  app.add_option("--url", flags->url, "router's HTTP address")->capture_default_str()->envname("BATON_URL");
  app.add_option("--grpc", flags->grpc, "talk gRPC to this host:port instead");
  app.add_option("-m,--message", flags->message, "ask this once and leave; without it, a conversation");
  app.add_option("--system", flags->system, "system message");
  app.add_option("--model", flags->options.model, "model name (default: the one served)");
  app.add_option("--api-key", flags->options.api_key, "sent as a bearer token")->envname("BATON_API_KEY");
  app.add_option("--temperature", flags->options.temperature, "0 = greedy (default: the model's)");
  app.add_option("--max-tokens", flags->options.max_tokens, "longest answer, tokens");
  app.add_option("--seed", flags->options.seed, "same seed, same answer");
  app.add_flag("--stats", flags->stats, "print tokens, rates and stages after each answer");
  return [flags] { return RunChat(*flags); };
}

}  // namespace baton::cli
