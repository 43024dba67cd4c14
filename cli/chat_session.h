// A conversation with a running cluster: what is typed, what is answered, and the commands in between. One thread;
// while an answer runs, a second one talks to the server and writes to standard output.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/chat_client.h"
#include "cli/interrupts.h"
#include "cli/line_editor.h"

namespace baton::cli {

class ChatSession {
 public:
  /// `client` and `interrupts` must outlive the session.
  ChatSession(ChatClient& client, Interrupts& interrupts, ChatOptions options, std::string system, bool stats);

  /// Whether somebody serves the model; its name. signal(): SIGINT or SIGTERM ended the wait.
  absl::StatusOr<std::string> Greet();
  std::optional<int> signal() const { return signal_; }
  /// One message and its answer. Returns the exit code: 130 or 143 after SIGINT or SIGTERM.
  int AskOnce(const std::string& message);
  /// Until /quit, Ctrl-D or the end of the input, or SIGTERM. From a pipe, the first failure ends it.
  int Converse(LineEditor& editor);

 private:
  enum class Next { kGoOn, kQuit };

  /// Asks, and takes the answer into the conversation; after a failure the message is out of it again.
  absl::Status Ask(const std::string& message);
  /// Runs `call` on a thread of its own; a signal asks `stop` to end it. Returns the signal.
  std::optional<int> WhileCalling(const std::function<void()>& call, Cancellation& stop,
                                  const std::function<void()>& each_second);
  /// The answer, which signals and a server that drains end early: `cut_by` says what did.
  absl::StatusOr<ChatStats> AskInterruptibly(std::string& answer, std::string& cut_by);
  Next Command(const std::string& line);
  void Clear();

  ChatClient& client_;
  Interrupts& interrupts_;
  const ChatOptions options_;
  std::string system_;
  bool stats_;
  std::vector<ChatTurn> turns_;
  std::optional<int> signal_;  ///< that ended the last call
};

}  // namespace baton::cli
