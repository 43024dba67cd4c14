// A worker that prefills and decodes: it hands nothing over.
#pragma once

#include <memory>
#include <string>

#include "sim/worker_node.h"
#include "worker/relay/relay_book.h"

namespace baton::sim {

class BothNode final : public WorkerNode {
 public:
  BothNode(const Plant& plant, std::string name) : WorkerNode(plant, std::move(name), /*odd=*/false) {}
  ~BothNode() override;
  v1::WorkerRole role() const override { return v1::WORKER_ROLE_BOTH; }
  v1::ReserveReply OnReserve(const v1::ReserveRequest& request, const std::string& router) override;
  void OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) override;
  void OnRelayEnd(const worker::RelayWriter& stream, const std::string& session) override;
  void OnPrefill(const v1::PrefillRequest& request, const std::string& router,
                 std::shared_ptr<worker::PrefillSink> sink) override;
  void OnPrefillStreamEnd(const v1::RequestKey&, const std::string&) override {}
  void OnCancel(const v1::CancelRequest&, const std::string&) override {}
  std::string Holds() const override;

 private:
  struct Life {
    explicit Life(BothNode& node);
    engine::SteppedEngine engine;
    worker::RelayBook book;
    worker::EventHub hub;
  };
  void OnBirth() override;
  void OnDeath() override;
  void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) override;
  void OnTick() override;
  int64_t OwnedBlocks(int32_t) const override { return 0; }

  std::unique_ptr<Life> life_now_;
};

}  // namespace baton::sim
