// `baton chat`: one question with --message, else a conversation on the terminal.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/chat_client.h"
#include "cli/chat_session.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/interrupts.h"
#include "cli/line_editor.h"
#include "cli/request_timeout.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

struct ChatFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string grpc;
  tls::TlsFiles tls;
  std::string tls_server_name;
  std::string message;
  std::string system;
  bool stats = false;
  ChatOptions options;
  RequestTimeout greeting;
};

int RunChat(ChatFlags& flags) {
  flags.options.patience = flags.greeting.patience();
  absl::StatusOr<std::unique_ptr<ChatClient>> client =
      flags.grpc.empty() ? MakeHttpChatClient(flags.url, flags.tls, flags.tls_server_name)
                         : MakeGrpcChatClient(flags.grpc, flags.tls);
  if (!client.ok()) return FailUsage(client.status());
  Interrupts interrupts;
  ChatSession session(**client, interrupts, flags.options, flags.system, flags.stats);
  const absl::StatusOr<std::string> model = session.Greet();
  if (session.signal()) return 128 + *session.signal();
  if (!model.ok()) return Fail(model.status());
  if (!flags.message.empty()) return session.AskOnce(flags.message);
  const std::unique_ptr<LineEditor> editor = MakeLineEditor(interrupts, "> ");
  if (editor->is_terminal()) {
    std::printf("This is %s at %s. /help says what can be typed; Ctrl-D leaves.\n\n", model->c_str(),
                flags.grpc.empty() ? flags.url.c_str() : flags.grpc.c_str());
  }
  return session.Converse(*editor);
}

}  // namespace

Runner AddChat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  ChatOptions& options = flags->options;
  app.add_option("--url", flags->url, "router's HTTP address, http:// or https://")
      ->capture_default_str()
      ->envname("BATON_URL");
  app.add_option("--grpc", flags->grpc, "talk gRPC to this host:port instead; grpcs://host:port for TLS");
  app.add_option("--tls-ca", flags->tls.ca,
                 "with TLS: authorities of the router's certificate, PEM (default: the system's)");
  app.add_option("--tls-cert", flags->tls.cert, "with TLS: our certificate, PEM, where the router asks for one");
  app.add_option("--tls-key", flags->tls.key, "its key, PEM");
  app.add_option("--tls-server-name", flags->tls_server_name,
                 "with --url https://: whom the router's certificate names, where that is not the host of --url");
  flags->greeting.AddTo(app, "the server may take so long to say which model it serves (0 = as long as it takes)");
  app.add_option("-m,--message", flags->message, "ask this once and leave; without it, a conversation");
  app.add_option("--system", flags->system, "system message");
  app.add_option("--model", options.model, "model name (default: the one served)");
  app.add_option("--api-key", options.api_key, "sent as a bearer token")->envname("BATON_API_KEY");
  app.add_option("--temperature", options.temperature, "0 = greedy")->capture_default_str();
  app.add_option("--top-k", options.top_k, "only the most likely tokens, 0 = all")->capture_default_str();
  app.add_option("--top-p", options.top_p, "only the tokens that have this probability together")
      ->capture_default_str();
  app.add_option("--min-p", options.min_p, "no token below this share of the likeliest one's probability")
      ->capture_default_str();
  app.add_option("--max-tokens", options.max_tokens, "longest answer, tokens (default: up to the context length)");
  app.add_option("--seed", options.seed, "same seed, same answer");
  app.add_flag("--stats", flags->stats, "print tokens, rates and stages after each answer");
  return [flags] { return RunChat(*flags); };
}

}  // namespace baton::cli
