#include "router/router_config.h"

#include <algorithm>

#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "router/dialect/call_form.h"
#include "router/discovery/discovery.h"
#include "router/http/web_guard.h"
#include "router/index/worker_set.h"
#include "router/policy/policies.h"

namespace baton::router {
namespace {

// What a field may be beside another one.
absl::Status CheckPairs(const RouterConfig& c) {
  if (c.worker_backoff_max_ms < c.worker_backoff_min_ms) {
    return absl::InvalidArgumentError(StrCat("--worker-backoff-max-ms ", c.worker_backoff_max_ms,
                                             ": must be ≥ --worker-backoff-min-ms ", c.worker_backoff_min_ms));
  }
  if (c.heartbeat_timeout_ms < 2 * c.load_interval_ms) {
    return absl::InvalidArgumentError(StrCat("--heartbeat-timeout-ms ", c.heartbeat_timeout_ms,
                                             ": must be ≥ 2 × --load-interval-ms ", c.load_interval_ms));
  }
  return absl::OkStatus();
}

absl::Status CheckWorkers(const std::vector<std::string>& workers) {
  if (workers.size() > kMaxWorkers) {
    return absl::InvalidArgumentError(
        StrCat("--worker is given ", workers.size(), " times, at most ", kMaxWorkers, " workers are possible"));
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    const std::string& worker = workers[i];
    if (const auto address = net::ParseHostPort(worker); !address.ok())
      return absl::InvalidArgumentError(StrCat("--worker ", worker, ": ", address.status().message()));
    if (std::find(workers.begin(), workers.begin() + static_cast<ptrdiff_t>(i), worker) !=
        workers.begin() + static_cast<ptrdiff_t>(i)) {
      return absl::InvalidArgumentError(StrCat("--worker ", worker, " is given twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTls(const RouterConfig& c) {
  BATON_RETURN_IF_ERROR(tls::CheckFlags(c.tls_files, tls::Needs::kCertificate));
  const tls::TlsFiles own{c.http_tls_cert, c.http_tls_key, "", "", "http-tls-cert", "http-tls-key"};
  BATON_RETURN_IF_ERROR(tls::CheckFlags(own, tls::Needs::kCertificate));
  if (own.given() && c.insecure_no_tls) {
    return absl::InvalidArgumentError(StrCat("--http-tls-cert ", c.http_tls_cert,
                                             " is shown to clients, --insecure-no-tls keeps HTTP in plain text"));
  }
  if (!c.tls_client_ca.empty() && c.client_files().cert.empty())
    return absl::InvalidArgumentError(StrCat("--tls-client-ca ", c.tls_client_ca, " needs --tls-cert and --tls-key"));
  if (!c.tls_client_ca.empty() && c.insecure_no_tls) {
    return absl::InvalidArgumentError(StrCat("--tls-client-ca ", c.tls_client_ca,
                                             " asks clients for certificates, --insecure-no-tls for plain text"));
  }
  if (c.admin_without_client_cert && c.tls_client_ca.empty()) {
    return absl::InvalidArgumentError(
        "--admin-without-client-cert says where --tls-client-ca does not hold, and that is not given");
  }
  return absl::OkStatus();
}

// Nothing that others can reach without a key and an encrypted connection, unless the operator says so.
absl::Status CheckBind(const RouterConfig& c) {
  if (net::IsLoopback(c.host) || c.insecure) return absl::OkStatus();
  const bool keys = !c.api_key.empty() || !c.api_key_file.empty();
  if (keys && (c.insecure_no_tls || c.http_tls())) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("--host ", c.host, " can be reached from other machines: that needs ",
                                           keys ? "" : "--api-key or --api-key-file, and ",
                                           "TLS: --tls-cert and --tls-key, or a proxy in front (--insecure-no-tls "
                                           "allows plain text behind it; --insecure allows everyone)"));
}

}  // namespace

tls::TlsFiles RouterConfig::client_files() const {
  if (!http_tls_cert.empty()) {
    return {http_tls_cert, http_tls_key, tls_client_ca, "tls-client-ca", "http-tls-cert", "http-tls-key"};
  }
  return {tls_files.cert, tls_files.key, tls_client_ca, "tls-client-ca"};
}

FieldRule RoutePolicyRule() {
  std::vector<FieldChoice> choices;
  for (const Policy& policy : kPolicies) choices.push_back({std::string(policy.name), std::string(policy.help)});
  return OneOf(choices);
}

FieldRule ToolCallParserRule() {
  std::vector<FieldChoice> choices = {{"auto", "as the chat template shows it"}};
  for (const CallForm& form : CallForms()) choices.push_back({std::string(form.name), std::string(form.help)});
  return OneOf(choices);
}

FieldRule GenerationConfigRule() {
  FieldRule rule;
  rule.text = "auto, vllm or a folder (a path with a /)";
  rule.help = "auto: those of the model's generation_config.json | vllm: neutral ones | a folder with such a file";
  rule.takes_text = [](std::string_view text) {
    return text == "auto" || text == "vllm" || text.find('/') != std::string_view::npos;
  };
  return rule;
}

absl::Status CheckTexts(const RouterConfig& c) {
  if (!c.skip_tokenizer_init) return absl::OkStatus();
  for (const auto& [flag, value] :
       {std::pair{"tokenizer", &c.tokenizer}, std::pair{"chat-template", &c.chat_template}}) {
    if (!value->empty())
      return absl::InvalidArgumentError(
          StrCat("--", flag, " ", *value, ": is not read with --skip-tokenizer-init: leave one of them out"));
  }
  return absl::OkStatus();
}

absl::Status RouterConfig::Validate() const {
  BATON_RETURN_IF_ERROR(CheckFields(*this));
  BATON_RETURN_IF_ERROR(CheckPairs(*this));
  BATON_RETURN_IF_ERROR(CheckTls(*this));
  BATON_RETURN_IF_ERROR(CheckTexts(*this));
  if (const std::string never = WebGuard::NeverSent(allowed_origins); !never.empty())
    return absl::InvalidArgumentError(StrCat("--allowed-origins: no browser says \"", never,
                                             "\": an origin has a scheme and no path, such as https://chat.example"));
  BATON_RETURN_IF_ERROR(CheckWorkers(worker));
  BATON_RETURN_IF_ERROR(CheckDiscovery(*this));
  return CheckBind(*this);
}

}  // namespace baton::router
