#include "kernels/cuda/host/python_library.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

namespace baton::cuda {
namespace {

namespace fs = std::filesystem;

/// In the packages of the Python whose `bin` is in `prefix`, of the latest version that has it; Debian has two places.
std::string LibraryUnder(const fs::path& prefix, const std::string& within) {
  std::vector<std::pair<int, fs::path>> found;  // by 9 of 3.9
  for (const char* lib : {"local/lib", "lib"}) {
    std::error_code error;
    for (fs::directory_iterator at(prefix / lib, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      int minor = 0;
      if (!name.starts_with("python3.") || !absl::SimpleAtoi(name.substr(8), &minor)) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        fs::path library = at->path() / packages / within;
        if (std::error_code none; fs::exists(library, none)) found.emplace_back(minor, std::move(library));
      }
    }
  }
  const auto newest = std::ranges::max_element(found);
  return newest == found.end() ? "" : newest->second.string();
}

}  // namespace

std::string LibraryOfPython(std::string_view path, const std::string& within) {
  while (!path.empty()) {
    const size_t end = std::min(path.find(':'), path.size());
    const fs::path folder(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
    for (const char* name : {"python3", "python"}) {
      std::error_code error;
      const fs::path program = fs::canonical(folder / name, error);
      if (error || !folder.is_absolute()) continue;
      for (const fs::path& bin : {folder, program.parent_path()})
        if (std::string library = LibraryUnder(bin.parent_path(), within); !library.empty()) return library;
    }
  }
  return {};
}

std::string FoldersOfPrograms() {
  const char* const path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return path == nullptr ? "" : path;
}

}  // namespace baton::cuda
