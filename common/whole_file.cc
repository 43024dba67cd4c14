#include "common/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "common/errno_text.h"
#include "common/held_signals.h"
#include "common/random_word.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton {
namespace {

absl::Status CannotWrite(const std::string& path, int error) {
  const std::string text = StrCat("cannot write ", path, ": ", ErrnoText(error));
  const bool no_room = error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO || error == ENOMEM;
  return no_room ? absl::ResourceExhaustedError(text) : absl::FailedPreconditionError(text);
}

// 0, or why not all of it is written.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int Failed(int result) { return result < 0 ? errno : 0; }

/// A file beside the one in whose place it comes. Gone with this object, unless it has come there.
class Unfinished {
 public:
  explicit Unfinished(const NewFile& file) : file_(file) {
    std::error_code none;
    const std::filesystem::path real = std::filesystem::canonical(file.path, none);  // a link stays one
    place_ = none ? file.path : real.string();
  }
  ~Unfinished() {
    if (fd_ >= 0) close(fd_);
    if (!name_.empty()) unlink(name_.c_str());
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // These return 0, or an errno.
  int Write() {
    struct stat there{};
    const bool replaces = stat(place_.c_str(), &there) == 0;
    if (replaces && S_ISDIR(there.st_mode)) return EISDIR;
    if (replaces && !S_ISREG(there.st_mode)) {
      fd_ = open(place_.c_str(), O_WRONLY | O_CLOEXEC);
      return fd_ < 0 ? errno : WriteAll(fd_, file_.text);
    }
    const std::string name = StrCat(place_, ".", absl::Hex(RandomWord()));
    fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file_.mode.value_or(0666));
    if (fd_ < 0) return errno;
    name_ = name;
    const std::optional<mode_t> mode =
        file_.mode || !replaces ? file_.mode : std::optional<mode_t>(there.st_mode & 07777);
    if (const int error = mode ? Failed(fchmod(fd_, *mode)) : 0; error != 0) return error;
    if (const int error = WriteAll(fd_, file_.text); error != 0) return error;
    return Failed(fsync(fd_));
  }
  int TakePlace() {
    const int closed = Failed(close(std::exchange(fd_, -1)));
    if (closed != 0 || name_.empty()) return closed;
    if (std::rename(name_.c_str(), place_.c_str()) != 0) return errno;
    name_.clear();
    return 0;
  }

 private:
  const NewFile& file_;
  std::string place_, name_;
  int fd_ = -1;
};

}  // namespace

absl::Status WriteWhole(const std::vector<NewFile>& files) {
  const HeldSignals held;
  std::vector<std::unique_ptr<Unfinished>> all;
  for (const NewFile& file : files) {
    all.push_back(std::make_unique<Unfinished>(file));
    if (const int error = all.back()->Write(); error != 0) return CannotWrite(file.path, error);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (const int error = all[i]->TakePlace(); error != 0) return CannotWrite(files[i].path, error);
  }
  return absl::OkStatus();
}

absl::StatusOr<GrowingFile> GrowingFile::Open(const std::string& path, bool keep) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (keep ? 0 : O_TRUNC), 0666);
  if (fd < 0) return CannotWrite(path, errno);
  return GrowingFile(path, fd);
}

GrowingFile::GrowingFile(GrowingFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

GrowingFile::~GrowingFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status GrowingFile::Add(std::string_view text) {
  const HeldSignals held;
  struct stat before{};
  if (fstat(fd_, &before) != 0) return CannotWrite(path_, errno);
  const int error = WriteAll(fd_, text);
  if (error == 0) return absl::OkStatus();
  if (S_ISREG(before.st_mode) && ftruncate(fd_, before.st_size) != 0)
    return CannotWrite(path_ + ", whose last line is broken", error);
  return CannotWrite(path_, error);
}

}  // namespace baton
