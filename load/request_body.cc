#include "load/request_body.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Foreign bytes in a file must not throw: malformed UTF-8 is replaced.
std::string JsonText(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<RequestBody> RequestBody::Make(const BenchOptions& o, const std::string& model) {
  OrderedJson fields = OrderedJson::object();
  fields["model"] = o.served_model_name.empty() ? model : o.served_model_name;
  fields["stream"] = true;
  fields["stream_options"] = {{"include_usage", true}};
  if (IgnoresEos(o)) fields["ignore_eos"] = true;
  for (const auto& [name, text] : {std::pair{"temperature", &o.temperature},
                                   {"top_p", &o.top_p},
                                   {"top_k", &o.top_k},
                                   {"min_p", &o.min_p},
                                   {"frequency_penalty", &o.frequency_penalty},
                                   {"presence_penalty", &o.presence_penalty},
                                   {"repetition_penalty", &o.repetition_penalty}}) {
    if (text->empty()) continue;
    const OrderedJson value = OrderedJson::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!value.is_number()) return absl::InvalidArgumentError(StrCat("--", name, ": \"", *text, "\" is not a number"));
    fields[name] = value;
  }
  if (!o.extra_body.empty()) {
    const OrderedJson extra = OrderedJson::parse(o.extra_body, nullptr, /*allow_exceptions=*/false);
    if (!extra.is_object()) return absl::InvalidArgumentError("--extra-body: not a JSON object");
    if (extra.contains("stream") && extra["stream"] != true)
      return absl::InvalidArgumentError("--extra-body: \"stream\" is true: answers are measured as they come");
    for (const auto& [key, value] : extra.items()) fields[key] = value;
  }
  RequestBody body;
  body.has_seed_ = fields.contains("seed");
  body.has_length_ = fields.contains("max_tokens") || fields.contains("max_completion_tokens");
  for (const char* taken : {"prompt", "messages"}) {
    if (fields.contains(taken))
      return absl::InvalidArgumentError(StrCat("--extra-body: \"", taken, "\" is what --dataset-name asks"));
  }
  body.chat_ = IsChat(o);
  body.seed_ = o.seed;
  body.tail_ = JsonText(fields);
  body.tail_.pop_back();
  return body;
}

std::string RequestBody::Of(const Prompt& prompt, size_t index) const {
  std::string out = tail_;
  if (!has_seed_) absl::StrAppend(&out, ",\"seed\":", (seed_ + index) & 0x7fffffff);
  if (!has_length_) absl::StrAppend(&out, ",\"max_tokens\":", prompt.output_tokens);
  if (!chat_) {
    if (prompt.ids.empty()) return StrCat(out, ",\"prompt\":", JsonText(prompt.text), "}");
    return StrCat(out, ",\"prompt\":[", absl::StrJoin(prompt.ids, ","), "]}");
  }
  if (!prompt.messages.empty()) return StrCat(out, ",\"messages\":", prompt.messages, "}");
  return StrCat(out, R"(,"messages":[{"role":"user","content":)", JsonText(prompt.text), "}]}");
}

}  // namespace baton::load
