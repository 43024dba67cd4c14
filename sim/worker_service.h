// What worker/process/worker_service.cc is in the product: takes a router's calls and gives them to the worker. Each
// function serves one method; it runs in a turn of the worker's process.
#pragma once

#include <memory>
#include <string>

#include "sim/connection.h"

namespace baton::sim::service {

void Handshake(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request);
void Watch(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request);
/// `session`: the metadata "baton-session".
void Relay(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& session);
void Reserve(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request);
void Prefill(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request);
void Cancel(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request);
void Flip(WorkerNode& worker, const std::shared_ptr<Call>& call, const std::string& request);

}  // namespace baton::sim::service
