#include <cstdio>

#include "absl/strings/str_format.h"
#include "cli/doctor_report.h"
#include "common/host_memory.h"
#include "engine/model/model.h"
#include "router/request/model_text.h"
#include "worker/worker_config.h"

namespace baton::cli {

void DoctorReport::Line(Verdict verdict, const std::string& what, const std::string& text) {
  static constexpr const char* kNames[] = {"ok     ", "warning", "error  "};
  std::printf("%s  %-14s %s\n", kNames[static_cast<int>(verdict)], what.c_str(), text.c_str());
  if (verdict == Verdict::kError && exit_code_ == kExitOk) exit_code_ = kExitUsage;
}

void DoctorReport::Error(const std::string& what, const absl::Status& status) {
  if (exit_code_ == kExitOk) exit_code_ = ExitCodeOf(status);
  Line(Verdict::kError, what, std::string(status.message()));
}

void CheckModel(DoctorReport& report, const std::string& model, const kernels::OpsTraits& traits) {
  const int max_tokens = worker::WorkerConfig().max_num_batched_tokens;
  const absl::StatusOr<engine::ModelFacts> facts = engine::InspectModel({.path = model}, traits, max_tokens);
  if (!facts.ok()) {
    report.Error("model", facts.status());
  } else {
    report.Line(Verdict::kOk, "model",
                absl::StrFormat("%s: %s, %.1f M parameters, context %d tokens; weights take %.2f GiB", model,
                                facts->config.family, static_cast<double>(facts->parameters) / 1e6,
                                facts->config.max_position_embeddings, GiB(facts->weight_bytes)));
  }
  const absl::StatusOr<router::ModelText> text = router::ModelText::Load(model, "", true, 0);
  if (!text.ok()) return report.Error("tokenizer", text.status());
  report.Line(Verdict::kOk, "tokenizer", StrCat(text->tokenizer->vocab_size(), " tokens"));
  report.Line(text->chat_template ? Verdict::kOk : Verdict::kWarning, "chat template",
              text->chat_template ? "the model has one"
                                  : "the model has none: /v1/completions only, or give --chat-template FILE");
}

}  // namespace baton::cli
