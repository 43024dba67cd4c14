#include "common/open_to_read.h"

#include <sys/stat.h>

#include "common/errno_text.h"
#include "common/str_cat.h"

namespace baton {

absl::StatusOr<std::ifstream> OpenToRead(const std::string& path, std::string_view flag) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  struct stat found{};
  const bool is_folder = in && ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  if (in && !is_folder) return in;
  return absl::NotFoundError(StrCat(flag, ": cannot read ", path, ": ", ErrnoText(is_folder ? EISDIR : errno)));
}

}  // namespace baton
