// --workers-file: a file with a worker a line, "HOST:PORT" or "HOST:PORT draining"; '#' begins a comment. It is read
// again four times a second and taken when it is whole (WholeFile), so that a writer that replaces it (rename) and one
// that writes it in place are both read whole; one that is never the same twice is taken once a second. A file that is
// broken, empty or gone changes nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "router/discovery/endpoint_source.h"
#include "router/pausing_thread.h"

namespace baton::router {

struct WorkersInFile {
  std::vector<Endpoint> workers;
  std::string left_out;  ///< lines that name a worker again, with both lines; empty: none
};

/// InvalidArgument begins with `file` and the number of the line that is wrong. A text without a line that is a comment
/// or a worker is broken, for it is being written; to have no workers, leave a comment. A worker that is there twice is
/// taken once, and drains when one of its lines says so.
absl::StatusOr<WorkersInFile> ParseWorkersFile(std::string_view text, const std::string& file);

/// When what a file holds is all of it. A writer in place may pause anywhere, and half of an address is one as well: a
/// file without a newline at its end is believed later than one that has it, unless it was whole when it came to its
/// name (a rename). Sans-IO; not thread-safe.
///
/// One that was another at each look for kMoving is looked at sooner: it is whole once it was the same for kLookSoon,
/// or at once where it was renamed. One that grows is not: its writer goes on.
class WholeFile {
 public:
  static constexpr Duration kStill = std::chrono::seconds(2), kMoving = std::chrono::seconds(1),
                            kLook = std::chrono::milliseconds(250), kLookSoon = std::chrono::milliseconds(20);

  /// What is there now. True: the same was there at the look before, and its end is an end. `renamed`: the last change
  /// was of its name, not of its bytes.
  bool See(const std::string& text, bool renamed, TimePoint now);
  /// There is nothing to be read.
  void Gone() { seen_.reset(); }
  /// How long to wait for the next look.
  Duration pause() const { return moves_ ? kLookSoon : kLook; }

 private:
  std::optional<std::string> seen_;  ///< by the last look
  TimePoint since_{};                ///< when it was first
  TimePoint stood_{};                ///< when it was last the same twice, or there again
  bool grows_ = false;               ///< what is seen begins with what was before
  bool moves_ = false;               ///< it has been another at each look for kMoving
};

class WorkersFile final : public EndpointSource {
 public:
  explicit WorkersFile(std::string file);
  ~WorkersFile() override;

  const std::string& name() const override { return name_; }
  void Start(Tell tell) override;

 private:
  void Run();
  void Look();

  const std::string file_, name_;
  Tell tell_;
  SourceLog log_;
  const SteadyClock clock_;
  WholeFile whole_;
  std::optional<std::string> taken_;  ///< or refused
  std::vector<Endpoint> known_;
  PausingThread thread_;
};

}  // namespace baton::router
