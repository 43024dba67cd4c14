#include "sim/both_node.h"

namespace baton::sim {

BothNode::Life::Life(BothNode& node)
    : engine(node.plant_.engines.Make(node.role(), node.odd(), nullptr)),
      book({.vocab_size = engine::kFakeVocab}),
      hub(node.incarnation()) {}

BothNode::~BothNode() = default;

void BothNode::OnBirth() {
  life_now_ = std::make_unique<Life>(*this);
  Run(life_now_->engine, life_now_->hub);
}

void BothNode::OnDeath() {
  WorkerNode::OnDeath();
  life_now_.reset();
}

v1::ReserveReply BothNode::OnReserve(const v1::ReserveRequest&, const std::string&) {
  plant_.Break(StrCat(name(), ": a worker that prefills and decodes was asked for a ticket"));
  return {};
}

void BothNode::OnPrefill(const v1::PrefillRequest&, const std::string&, std::shared_ptr<worker::PrefillSink> sink) {
  sink->Finish(absl::UnimplementedError("this worker does not prefill for others"));
  plant_.Break(StrCat(name(), ": a worker that prefills and decodes was asked for a prefill leg"));
}

void BothNode::OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) {
  life_now_->book.OnMessage(stream, message, life_now_->engine.scheduler(), time_.Now());
  Wake();
}

void BothNode::OnRelayEnd(const worker::RelayWriter& stream, const std::string&) {
  life_now_->book.OnStreamEnd(&stream, life_now_->engine.scheduler(), time_.Now());
  Wake();
}

void BothNode::OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) {
  life_now_->book.OnOutputs(std::move(outputs), step);
}

void BothNode::OnTick() { life_now_->book.Tick(life_now_->engine.scheduler(), time_.Now()); }

std::string BothNode::Holds() const {
  if (!life_now_) return "";
  const auto blocks = life_now_->engine.cache().pool(0).used_blocks();
  return blocks == 0 ? "" : StrCat(name(), ": ", blocks, " blocks; ");
}

}  // namespace baton::sim
