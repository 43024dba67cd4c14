// --workers-file: a file with a worker a line, "HOST:PORT" or "HOST:PORT draining"; '#' begins a comment. It is read
// again four times a second and taken when it has been the same twice, so a writer that replaces it (rename) and one
// that writes it in place are both read whole. A file that is broken, empty or gone changes nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "router/discovery/endpoint_source.h"
#include "router/pausing_thread.h"

namespace baton::router {

/// InvalidArgument begins with `file` and the number of the line that is wrong. A text without a line that is a comment
/// or a worker is broken, for it is being written; to have no workers, leave a comment.
absl::StatusOr<std::vector<Endpoint>> ParseWorkersFile(std::string_view text, const std::string& file);

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
  std::optional<std::string> seen_;   ///< by the last look
  std::optional<std::string> taken_;  ///< or refused
  std::vector<Endpoint> known_;
  PausingThread thread_;
};

}  // namespace baton::router
