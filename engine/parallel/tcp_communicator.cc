#include "engine/parallel/tcp_communicator.h"

#include <cstring>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "engine/parallel/tree_sum.h"

namespace baton::engine {
namespace {

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(std::shared_ptr<TcpMesh> mesh, int first, int size)
      : Communicator(mesh->rank() - first, size), mesh_(std::move(mesh)), first_(first) {}

  absl::Status Send(int to, std::span<const std::byte> data) override {
    const TcpMesh::Out out{first_ + to, data};
    return mesh_->Exchange({&out, 1}, {});
  }
  absl::Status Recv(int from, std::span<std::byte> data) override {
    const TcpMesh::In in{first_ + from, data};
    return mesh_->Exchange({}, {&in, 1});
  }

  absl::Status Broadcast(int root, std::span<std::byte> data) override {
    if (rank() != root) return Recv(root, data);
    std::vector<TcpMesh::Out> outs;
    for (int r = 0; r < size(); ++r) {
      if (r != root) outs.push_back({first_ + r, data});
    }
    return mesh_->Exchange(outs, {});
  }

  absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const size_t bytes = mine.size();
    BATON_CHECK(all.size() == bytes * static_cast<size_t>(size()), all.size(), " bytes for ", size(), " times ", bytes);
    std::vector<TcpMesh::Out> outs;
    std::vector<TcpMesh::In> ins;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      outs.push_back({first_ + r, mine});
      ins.push_back({first_ + r, all.subspan(static_cast<size_t>(r) * bytes, bytes)});
    }
    if (bytes > 0) std::memcpy(all.data() + static_cast<size_t>(rank()) * bytes, mine.data(), bytes);
    return mesh_->Exchange(outs, ins);
  }

  // Everybody gathers and adds: one round on the wire, and one tree.
  absl::Status TreeAllReduce(std::span<float> data) override {
    gathered_.resize(data.size() * static_cast<size_t>(size()));
    BATON_RETURN_IF_ERROR(AllGather(std::as_bytes(data), std::as_writable_bytes(std::span(gathered_))));
    std::vector<const float*> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(gathered_.data() + static_cast<size_t>(r) * data.size());
    TreeSum(parts, static_cast<int64_t>(data.size()), data.data());
    return absl::OkStatus();
  }

  void OnBroken(std::function<void(const absl::Status&)> hook) override { mesh_->OnBroken(std::move(hook)); }
  void Abort(const absl::Status& why) override { mesh_->Abort(why); }

 private:
  const std::shared_ptr<TcpMesh> mesh_;
  const int first_;
  std::vector<float> gathered_;  ///< [size, n] of the last sum
};

}  // namespace

std::unique_ptr<Communicator> MakeTcpGroup(std::shared_ptr<TcpMesh> mesh, int first, int size) {
  return std::make_unique<TcpCommunicator>(std::move(mesh), first, size);
}

}  // namespace baton::engine
