// LiveIdentity: the identity that new handshakes take, read again when its files change. A file that cannot be used
// leaves the last good one in place, with one line in the log. Warns for 14 days before the certificate expires, once a
// day. Thread-safe; Watch starts a thread of its own, which the destructor ends.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/tls/identity.h"

namespace baton::tls {

class LiveIdentity {
 public:
  using Changed = std::function<void(const std::shared_ptr<const Identity>&)>;

  /// As Identity::Load. `now_s`: the wall clock.
  static absl::StatusOr<std::unique_ptr<LiveIdentity>> Open(TlsFiles files,
                                                            std::function<int64_t()> now_s = WallSeconds);
  ~LiveIdentity();

  std::shared_ptr<const Identity> now() const;
  /// Seconds until the certificate expires, negative afterwards; 0 without one.
  int64_t SecondsLeft() const;

  /// Called at every change from then on, on the thread that polls. Before Watch.
  void OnChange(Changed changed);

  /// Looks at the files. They are read when they have changed and stood still since the last look: a certificate and
  /// its key are two files, and nobody writes them at once. Files that cannot be used are read again at each look: a
  /// certificate may be valid from a moment on that has not come.
  void Poll();
  /// Polls every `interval` from now on.
  void Watch(Duration interval = std::chrono::seconds(1));

 private:
  LiveIdentity(TlsFiles files, std::function<int64_t()> now_s) : files_(std::move(files)), now_s_(std::move(now_s)) {}
  std::string Stamp() const;  ///< changes with the files
  absl::StatusOr<std::shared_ptr<const Identity>> LoadAgain() const;
  void WarnOfExpiry(const Identity& identity);

  const TlsFiles files_;
  const std::function<int64_t()> now_s_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable stop_;
  bool stopping_ = false;
  std::shared_ptr<const Identity> identity_;
  std::vector<Changed> changed_;

  std::string read_, seen_;  // stamps: of what was read last, of the last look; the polling thread's
  bool refused_ = false;     // what was read last cannot be used
  int64_t warned_s_ = 0;
  bool warned_over_ = false;
  std::thread thread_;
};

}  // namespace baton::tls
