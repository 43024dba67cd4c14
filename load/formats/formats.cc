#include "load/formats/formats.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/errno_text.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  return out ? absl::OkStatus()
             : absl::ResourceExhaustedError(StrCat("--save-as: cannot write ", path, ": ", ErrnoText()));
}

}  // namespace

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

absl::Status SaveAs(const SaveWish& wish, const std::vector<Measured>& all, const BenchOptions& options) {
  if (wish.format == "guidellm") return Write(wish.path, GuidellmReport(all, options));
  if (wish.format == "sglang") return Write(wish.path, SglangLines(all, options));
  std::error_code error;
  std::filesystem::create_directories(wish.path, error);
  if (error)
    return absl::UnavailableError(StrCat("--save-as: cannot make the folder ", wish.path, ": ", error.message()));
  for (const auto& [name, text] : InferencePerfFiles(all, options))
    BATON_RETURN_IF_ERROR(Write(StrCat(wish.path, "/", name), text));
  return absl::OkStatus();
}

}  // namespace baton::load
