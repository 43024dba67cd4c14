#include "cli/tools/model_shape.h"

#include "absl/strings/str_replace.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/whole_file.h"
#include "plan/known_models.h"

namespace baton::cli {

absl::Status ModelShape::Use(const std::string& text, worker::WorkerConfig& config) {
  if (text.empty()) return absl::OkStatus();
  if (!config.model.empty())
    return absl::InvalidArgumentError(
        StrCat("--model-shape ", text, " and the model ", config.model, " both say what is planned: leave one out"));
  BATON_ASSIGN_OR_RETURN(const plan::KnownModel shape, plan::ShapeOf(text));
  BATON_ASSIGN_OR_RETURN(folder_, TempFolder::Make("shape", {"config.json", "tokenizer.json"}));
  const std::string& folder = folder_->path();
  BATON_RETURN_IF_ERROR(WriteWhole({{folder + "/config.json", plan::ConfigJson(shape)},
                                    {folder + "/tokenizer.json", "{}"}}));  // nobody reads it: a worker has one
  config.model = folder_->path();
  config.load_format = "dummy";
  name_ = text;
  return absl::OkStatus();
}

absl::Status ModelShape::Named(const absl::Status& status) const {
  if (status.ok() || folder_ == nullptr) return status;
  return absl::Status(status.code(), Named(status.message()));
}

std::string ModelShape::Named(absl::string_view text) const {
  return folder_ == nullptr ? std::string(text) : absl::StrReplaceAll(text, {{folder_->path(), name_}});
}

}  // namespace baton::cli
