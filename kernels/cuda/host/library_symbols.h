// The functions of a library that is loaded while the process runs, and stays.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/str_cat.h"

namespace baton::cuda {

class LibrarySymbols {
 public:
  /// `path`: a file, or a name that the dynamic linker looks for. NotFound: with its reason.
  static absl::StatusOr<LibrarySymbols> Open(std::string path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::NotFoundError(dlerror());
    return LibrarySymbols(std::move(path), library);
  }
  /// Null where the library has none of that name.
  template <typename Function>
  void Take(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  /// FailedPrecondition: names the first that was not there.
  absl::Status AllThere() const {
    return missing_.empty() ? absl::OkStatus() : absl::FailedPreconditionError(StrCat(path_, " has no ", missing_));
  }

 private:
  LibrarySymbols(std::string path, void* library) : path_(std::move(path)), library_(library) {}

  std::string path_, missing_;
  void* library_;
};

}  // namespace baton::cuda
