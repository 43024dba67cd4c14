// Files that are there whole, or not at all: what a full disk, or a signal, leaves of one is what was there before.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

struct NewFile {
  std::string path, text;
  /// Who may read it, from its first byte on. nullopt: as of the file in whose place it comes, else as the umask says.
  std::optional<mode_t> mode{};
};

/// Writes all of them beside their paths, and only then gives them their names. What is there and no file, such as
/// a device or a pipe, is written into. Signals that would end the process wait meanwhile, on this thread.
/// "cannot write PATH: why": ResourceExhausted where there is no room, FailedPrecondition where it may not be.
absl::Status WriteWhole(const std::vector<NewFile>& files);

/// A file that grows by whole pieces. One thread's.
class GrowingFile {
 public:
  /// `keep`: what is there stays. Errors: as WriteWhole's.
  static absl::StatusOr<GrowingFile> Open(const std::string& path, bool keep);
  GrowingFile(GrowingFile&& other) noexcept;
  GrowingFile& operator=(GrowingFile&&) = delete;
  ~GrowingFile();

  /// Adds all of it, or nothing.
  absl::Status Add(std::string_view text);

 private:
  GrowingFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
};

}  // namespace baton
