// TempFolder: a folder of this process that nothing is left of, also where a signal ends the process.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

/// One at a time. The main thread's, where signals end the process (LetSignalsEnd).
class TempFolder {
 public:
  /// In TMPDIR, or in /tmp: baton-NAME- and six letters. `files`: the names that there may be in it.
  /// FailedPrecondition: why there can be none.
  static absl::StatusOr<std::unique_ptr<TempFolder>> Make(std::string_view name, const std::vector<std::string>& files);
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  TempFolder(std::string path, const std::vector<std::string>& files);
  static void RemoveAndEnd(int signal);
  void Remove() const;

  const std::string path_;
  std::vector<std::string> files_;  ///< their paths
};

}  // namespace baton::cli
