#include "load/formats/formats.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/whole_file.h"

namespace baton::load {

absl::StatusOr<std::vector<SaveWish>> ParseSaveAs(const std::vector<std::string>& texts) {
  std::vector<SaveWish> out;
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    const bool known = parts.first == "guidellm" || parts.first == "inference-perf" || parts.first == "sglang";
    if (!known || parts.second.empty())
      return absl::InvalidArgumentError(
          StrCat("--save-as: \"", text, "\" is not guidellm=FILE, sglang=FILE or inference-perf=FOLDER"));
    out.push_back({parts.first, parts.second});
  }
  return out;
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (!failed) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("cannot make the folder ", path, ": ", failed.message()));
}

absl::Status SaveAs(const SaveWish& wish, const std::vector<Measured>& all, const BenchOptions& options) {
  if (wish.format == "guidellm") return WriteWhole({{wish.path, GuidellmReport(all, options)}});
  if (wish.format == "sglang") return WriteWhole({{wish.path, SglangLines(all, options)}});
  BATON_RETURN_IF_ERROR(MakeFolder(wish.path));
  std::vector<NewFile> files;
  for (auto& [name, text] : InferencePerfFiles(all, options))
    files.push_back({StrCat(wish.path, "/", name), std::move(text)});
  return WriteWhole(files);
}

}  // namespace baton::load
