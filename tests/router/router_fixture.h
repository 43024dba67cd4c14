// A whole router with the tiny model before scripted workers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/json.h"
#include "common/str_cat.h"
#include "fake_worker.h"
#include "http_client.h"
#include "router/server.h"

namespace baton::router {

using Json = nlohmann::json;

/// Little is kept for a client that takes nothing, and it is dropped after 200 ms.
inline RouterConfig ImpatientConfig() {
  RouterConfig config;
  config.relay_credit_tokens = 64;
  config.write_buffer_bytes = 4096;
  config.write_timeout_ms = 200;
  return config;
}

class RouterTest : public testing::Test {
 protected:
  bool canaries_ = false;  ///< scripted workers count what they are asked

  /// Waits until every worker is ready in the router.
  void Start(const std::vector<const FakeWorker*>& workers, RouterConfig config = {}, bool wait = true) {
    config.model = "tests/data/tiny-llama";
    config.port = config.grpc_port = config.admin_port = 0;
    config.http_threads = 2;
    config.tokenizer_threads = 1;
    config.log_requests = false;
    config.worker_backoff_min_ms = 10;
    config.canaries = canaries_;
    config.load_interval_ms = 20;
    config.failover_wait_ms = std::min(config.failover_wait_ms, 500);  // most workers here do not come back
    for (const FakeWorker* w : workers) config.worker.push_back(w->address());
    auto server = RouterServer::Start(config, "test");
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->http_port();
    if (!wait) return;
    ASSERT_TRUE(server_->WaitReady(std::chrono::seconds(10)));  // one is; a test of several counts on all of them
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (size_t i = 0; i < workers.size(); ++i) {
      while (server_->workers()[i].state != "ready" || workers[i]->watches() == 0) {
        const WorkerStatus status = server_->workers()[i];
        ASSERT_LT(std::chrono::steady_clock::now(), deadline)
            << "worker " << i << " is not ready after 10 s: " << status.state << " " << status.detail;
        std::this_thread::yield();
      }
    }
  }

  static std::string Completion(const std::string& more = "", int prompt_tokens = 8) {
    std::string ids;
    for (int i = 0; i < prompt_tokens; ++i) absl::StrAppend(&ids, i ? "," : "", 100 + i);
    return StrCat(R"({"model":"tiny-llama","prompt":[)", ids, "]", more.empty() ? "" : ",", more, "}");
  }
  HttpReply Complete(const std::string& more = "") { return Ask(port_, "POST", "/v1/completions", Completion(more)); }
  HttpReply Chat(const std::string& more = "") {
    return Ask(port_, "POST", "/v1/chat/completions",
               StrCat(R"({"model":"tiny-llama","messages":[{"role":"user","content":"Hello"}])",
                      more.empty() ? "" : ",", more, "}"));
  }
  /// The text of a streamed completion.
  static std::string StreamedText(const std::vector<std::string>& events) {
    std::string text;
    for (const std::string& event : events) {
      if (event == "[DONE]") break;
      const Json chunk = Json::parse(event);
      if (!chunk.contains("choices")) continue;
      for (const Json& choice : chunk["choices"]) {
        if (choice.contains("text")) text += choice["text"];
        if (choice.contains("delta") && choice["delta"].contains("content")) text += choice["delta"]["content"];
      }
    }
    return text;
  }
  double Metric(const std::string& name) {
    const std::string body = Ask(port_, "GET", "/metrics").body;
    double sum = 0;
    bool found = false;
    for (size_t at = body.find("\n" + name); at != std::string::npos; at = body.find("\n" + name, at + 1)) {
      const size_t end = body.find('\n', at + 1);
      const char after = body[at + 1 + name.size()];
      if (after != '{' && after != ' ') continue;
      found = true;
      sum += std::stod(body.substr(body.rfind(' ', end) + 1));
    }
    EXPECT_TRUE(found) << "no metric " << name;
    return sum;
  }

  std::unique_ptr<RouterServer> server_;
  int port_ = 0;
};

}  // namespace baton::router
