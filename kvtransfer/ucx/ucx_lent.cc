// Memory of GPUs that peers lend each other, and reads of it.
#include <cstring>
#include <utility>

#include "common/status.h"
#include "kvtransfer/ucx/ucx_peers.h"

namespace baton::ucx {

/// Its address and size, and UCX's key.
absl::StatusOr<std::string> UcxTransport::Lend(std::span<std::byte> memory) {
  BATON_ASSIGN_OR_RETURN(const ucp_mem_h handle,
                         worker_->Map(memory, UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ));
  BATON_ASSIGN_OR_RETURN(const std::string key, worker_->KeyOf(handle));
  const uint64_t place[2] = {reinterpret_cast<uint64_t>(memory.data()), memory.size()};
  return std::string(reinterpret_cast<const char*>(place), sizeof(place)) + key;
}

absl::Status UcxTransport::TakeInto(std::span<std::byte> memory) {
  BATON_ASSIGN_OR_RETURN(const ucp_mem_h handle,
                         worker_->Map(memory, UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE));
  takings_.push_back({memory, handle});
  return absl::OkStatus();
}

absl::StatusOr<const UcxTransport::LentKey*> UcxTransport::Borrow(Peer& peer, std::string_view lent) {
  if (const auto known = peer.lent.find(lent); known != peer.lent.end()) return &known->second;
  uint64_t place[2];
  if (lent.size() <= sizeof(place)) return absl::InvalidArgumentError("it names no memory that is lent");
  std::memcpy(place, lent.data(), sizeof(place));
  ucp_rkey_h key = nullptr;
  const absl::Status unpacked =
      ToStatus(ucp_ep_rkey_unpack(peer.endpoint, lent.data() + sizeof(place), &key), "key of lent memory");
  if (!unpacked.ok()) return absl::InvalidArgumentError(unpacked.message());
  LentKey& kept = peer.lent.try_emplace(std::string(lent)).first->second;
  kept.key = key, kept.address = place[0], kept.bytes = place[1];
  return &kept;
}

const UcxTransport::Taking* UcxTransport::TakingOf(std::span<std::byte> to) const {
  for (const Taking& taking : takings_) {
    const auto at = static_cast<size_t>(to.data() - taking.memory.data());
    if (to.data() >= taking.memory.data() && at <= taking.memory.size() && to.size() <= taking.memory.size() - at)
      return &taking;
  }
  return nullptr;
}

void UcxTransport::Read(PeerNumber number, std::string_view lent, uint64_t at, std::span<std::byte> to, Done done) {
  const auto refuse = [&](const absl::Status& why) { Later([why, done = std::move(done)] { done(why); }); };
  Peer* peer = Find(number);
  if (peer == nullptr) return refuse(absl::InvalidArgumentError("no such peer"));
  const Taking* taking = TakingOf(to);
  if (taking == nullptr) return refuse(absl::InvalidArgumentError("a read into memory of which UCX knows nothing"));
  const absl::StatusOr<const LentKey*> key = Borrow(*peer, lent);
  if (!key.ok()) return refuse(key.status());
  if (at > (*key)->bytes || to.size() > (*key)->bytes - at)
    return refuse(absl::InvalidArgumentError(StrCat(to.size(), " bytes from ", at, " of ", (*key)->bytes, " lent")));
  std::unique_ptr<Operation> operation = NewOperation(number);
  operation->read = next_read_++;
  peer->reads.emplace(operation->read, std::move(done));
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
  param.cb.send = &UcxTransport::Ended;
  param.user_data = operation.get();
  param.memory_type = worker_->lent_type();
  param.memh = taking->handle;
  const ucs_status_ptr_t request =
      ucp_get_nbx(peer->endpoint, to.data(), to.size(), (*key)->address + at, (*key)->key, &param);
  Complete(request, std::move(operation));
}

/// With an error the connection breaks, and with that every other read, too.
void UcxTransport::EndRead(PeerNumber number, uint64_t read, const absl::Status& status) {
  Peer* peer = Find(number);
  if (peer == nullptr) return;
  if (!status.ok()) {
    peer->failed.Update(status);
    return;
  }
  const auto node = peer->reads.extract(read);
  if (!node.empty()) node.mapped()(absl::OkStatus());
}

}  // namespace baton::ucx
