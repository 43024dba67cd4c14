#include "cli/status_server.h"

#include <mutex>
#include <utility>

#include "cli/command.h"
#include "common/clock.h"
#include "common/limited_lines.h"
#include "common/log.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/tls/live_context.h"
#include "common/tls/live_identity.h"
#include "common/tls/refusals.h"
#include "router/event_loop.h"
#include "router/http/http_server.h"

namespace baton::cli {

MachineStatus MachineOf(const worker::WorkerConfig& config, const std::string& name) {
  return {.worker = name,
          .role = config.role,
          .version = kVersion,
          .node = config.node_rank,
          .nodes = config.nnodes,
          .first_rank = config.first_local_rank(),
          .num_ranks = config.local_ranks()};
}

class StatusServer::Parts {
 public:
  absl::Status Start(const worker::WorkerConfig& config, std::function<MachineStatus()> status) {
    router::HttpServer::Options options;
    options.host = config.host;
    options.port = static_cast<uint16_t>(config.status_port);
    options.port_flag = "--status-port";
    options.max_body_bytes = 1024;
    options.limits = {kConnections, kConnections / 2, /*leaves_others=*/true};
    options.error_body = [](int, const std::string& message) { return StrCat("{\"error\":\"", message, "\"}"); };
    options.read_timeout_ms = options.keep_alive_ms = 10000;
    options.closed = [this](const char* why, const std::string& address) { OnClosed(why, address); };
    if (config.tls_files.given()) {
      BATON_ASSIGN_OR_RETURN(identity_, tls::LiveIdentity::Open(config.tls_files));
      BATON_ASSIGN_OR_RETURN(context_, tls::LiveContext::Make(*identity_, {/*asks_clients=*/false, {"http/1.1"}}));
      identity_->Watch();
      options.tls = router::HttpTls{[this] { return context_->now(); },
                                    [this](tls::Refusal why, const std::string& address, const std::string& message) {
                                      refusals_.Note("status", why, address, message);
                                    }};
    }
    const auto answer = [status = std::move(status)](const std::shared_ptr<router::HttpExchange>& exchange,
                                                     const router::HttpRequest& request) {
      exchange->Respond(AnswerOf(request, status(), UseOfThisProcess()));
    };
    BATON_ASSIGN_OR_RETURN(http_, router::HttpServer::Start(std::move(options), pool_, answer));
    LogInfo("worker: /live, /ready and /metrics at {}", UrlAt(config.host));
    return absl::OkStatus();
  }
  ~Parts() {
    if (http_) http_->Stop();
  }
  std::string UrlAt(const std::string& host) const {
    return StrCat(context_ ? "https://" : "http://", net::JoinHostPort(host, http_->port()));
  }

 private:
  static constexpr int32_t kConnections = 256;
  void OnClosed(const char* why, const std::string& address) {
    {
      std::lock_guard lock(mutex_);
      if (!lines_.May(address)) return;
    }
    LogWarning("status port: a connection of {} is ended ({})", address, why);
  }

  const SteadyClock clock_;
  std::mutex mutex_;  // guards what follows
  LimitedLines lines_{clock_};
  tls::Refusals refusals_{clock_};
  std::unique_ptr<tls::LiveIdentity> identity_;  ///< null: no TLS
  std::unique_ptr<tls::LiveContext> context_;    ///< of identity_
  router::EventLoopPool pool_{1};
  std::unique_ptr<router::HttpServer> http_;
};

absl::StatusOr<std::unique_ptr<StatusServer>> StatusServer::Start(const worker::WorkerConfig& config,
                                                                  std::function<MachineStatus()> status) {
  if (config.status_port < 0) return nullptr;
  auto parts = std::make_unique<Parts>();
  BATON_RETURN_IF_ERROR(parts->Start(config, std::move(status)));
  return std::unique_ptr<StatusServer>(new StatusServer(std::move(parts)));
}

StatusServer::StatusServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
StatusServer::~StatusServer() = default;

std::string StatusServer::UrlAt(const std::string& host) const { return parts_->UrlAt(host); }

}  // namespace baton::cli
