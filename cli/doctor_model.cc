#include <cstdio>

#include "absl/strings/str_format.h"
#include "cli/doctor_report.h"
#include "common/host_memory.h"
#include "engine/model/model.h"
#include "router/model_text.h"
#include "worker/worker_config.h"

namespace baton::cli {

void DoctorReport::Line(Verdict verdict, const std::string& what, const std::string& text) {
  static constexpr const char* kNames[] = {"ok     ", "warning", "error  "};
  std::printf("%s  %-14s %s\n", kNames[static_cast<int>(verdict)], what.c_str(), text.c_str());
  failed_ = failed_ || verdict == Verdict::kError;
}

void CheckModel(DoctorReport& report, const std::string& model, const kernels::OpsTraits& traits) {
  const int max_tokens = worker::WorkerConfig().max_num_batched_tokens;
  const absl::StatusOr<engine::ModelFacts> facts = engine::InspectModel({.path = model}, traits, max_tokens);
  report.Line(facts.ok() ? Verdict::kOk : Verdict::kError, "model",
              facts.ok() ? absl::StrFormat("%s: %s, %.1f M parameters, context %d tokens; weights take %.2f GiB", model,
                                           facts->config.family, static_cast<double>(facts->parameters) / 1e6,
                                           facts->config.max_position_embeddings, GiB(facts->weight_bytes))
                         : std::string(facts.status().message()));
  const absl::StatusOr<router::ModelText> text = router::ModelText::Load(model, "", true, 0);
  if (!text.ok()) return report.Line(Verdict::kError, "tokenizer", std::string(text.status().message()));
  report.Line(Verdict::kOk, "tokenizer", StrCat(text->tokenizer->vocab_size(), " tokens"));
  report.Line(text->chat_template ? Verdict::kOk : Verdict::kWarning, "chat template",
              text->chat_template ? "the model has one"
                                  : "the model has none: /v1/completions only, or give --chat-template FILE");
}

}  // namespace baton::cli
