// A cluster of this machine that lives as long as a measurement: `baton serve` with a layout of workers.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/temp_folder.h"
#include "common/clock.h"

namespace baton::cli {

/// Workers of each role.
struct Layout {
  int prefill = 0, decode = 0, both = 0;
  int workers() const { return prefill + decode + both; }
};

/// "both", "both:3", "pd", "2:1" (prefill : decode); "both" alone: 0 workers, which is as many as the layout beside it
/// has. Nothing: it is none of these, or has more workers than `kMostWorkers`.
std::optional<Layout> ParseLayout(const std::string& text);
inline constexpr int kMostWorkers = 64;

/// One thread's. The cluster ends with this object, or with this process.
class LocalCluster {
 public:
  /// `arguments`: of `baton serve`, beside the layout. What goes wrong within the cluster is written to standard error.
  /// Unavailable: it could not be started, ended, or was not ready in time.
  static absl::StatusOr<LocalCluster> Start(const std::string& name, const Layout& layout,
                                            const std::vector<std::string>& arguments, Duration within);
  LocalCluster(LocalCluster&& other) noexcept;
  LocalCluster& operator=(LocalCluster&&) = delete;
  ~LocalCluster();

  /// Of its HTTP API, "http://127.0.0.1:41873".
  const std::string& url() const { return url_; }

 private:
  LocalCluster() = default;
  absl::Status WaitReady(const std::string& name, const std::string& ready_file, Duration within);

  pid_t pid_ = -1;                      // -1: none, or it has ended
  std::unique_ptr<TempFolder> folder_;  // of its ready file, until it is read
  std::string url_;
};

}  // namespace baton::cli
