// A model of which there is nothing but its shape, as a folder with a config.json that lives as long as this.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/temp_folder.h"
#include "worker/worker_config.h"

namespace baton::cli {

class ModelShape {
 public:
  /// Empty: there is none.
  ModelShape() = default;
  ModelShape(const ModelShape&) = delete;
  ModelShape& operator=(const ModelShape&) = delete;

  /// Makes the folder, and `config` plan for it; nothing with an empty `text`. InvalidArgument: no such shape, or a
  /// model is given as well.
  absl::Status Use(const std::string& text, worker::WorkerConfig& config);
  /// What people call the model of `config`.
  std::string NameOf(const worker::WorkerConfig& config) const { return name_.empty() ? config.model : name_; }

  /// The same with the model's name in place of the folder's.
  absl::Status Named(const absl::Status& status) const;
  std::string Named(absl::string_view text) const;

 private:
  std::unique_ptr<TempFolder> folder_;
  std::string name_;
};

}  // namespace baton::cli
