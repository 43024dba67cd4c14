#include "cli/model_shape.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_replace.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "plan/known_models.h"

namespace baton::cli {

ModelShape::~ModelShape() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

absl::Status ModelShape::Use(const std::string& text, worker::WorkerConfig& config) {
  if (text.empty()) return absl::OkStatus();
  if (!config.model.empty())
    return absl::InvalidArgumentError(
        StrCat("--model-shape ", text, " and the model ", config.model, " both say what is planned: leave one out"));
  BATON_ASSIGN_OR_RETURN(const plan::KnownModel shape, plan::ShapeOf(text));
  std::string folder = (std::filesystem::temp_directory_path() / "baton-shape-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::InternalError(StrCat("cannot make the folder ", folder));
  folder_ = folder;
  std::ofstream out(folder_ + "/config.json");
  out << plan::ConfigJson(shape);
  if (!out.flush()) return absl::InternalError(StrCat("cannot write ", folder_, "/config.json"));
  std::ofstream(folder_ + "/tokenizer.json") << "{}";  // nobody reads it: a worker of such a model has one
  config.model = folder_;
  config.load_format = "dummy";
  name_ = text;
  return absl::OkStatus();
}

absl::Status ModelShape::Named(const absl::Status& status) const {
  if (status.ok() || folder_.empty()) return status;
  return absl::Status(status.code(), Named(status.message()));
}

std::string ModelShape::Named(absl::string_view text) const {
  return folder_.empty() ? std::string(text) : absl::StrReplaceAll(text, {{folder_, name_}});
}

}  // namespace baton::cli
