#include "common/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton {

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: a named pipe is refused below instead of waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const std::string message = StrCat(path, ": cannot open: ", ErrnoText(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
  }
  struct stat status;
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const size_t size = regular ? static_cast<size_t>(status.st_size) : 0;
  void* mapping = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  const int map_error = errno;
  ::close(fd);
  if (!regular) return absl::InvalidArgumentError(StrCat(path, ": not a regular file"));
  if (size == 0) return absl::InvalidArgumentError(StrCat(path, ": the file is empty"));
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(StrCat(path, ": cannot map ", size, " bytes: ", ErrnoText(map_error)));
  }
  return std::unique_ptr<MappedFile>(new MappedFile({static_cast<const uint8_t*>(mapping), size}));
}

MappedFile::~MappedFile() { ::munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size()); }

}  // namespace baton
