#include "kvtransfer/shm/shm_transport.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "common/errno_text.h"
#include "common/status.h"
#include "kvtransfer/shm/unix_socket.h"

namespace baton {
namespace {

constexpr uint64_t kPidfdMark = 1ull << 63;

/// No overflow: greetings with more slots or larger ones are refused (frame.h).
size_t BytesOf(const LandingShape& shape) { return shape.slots * shape.slot_bytes; }

/// Memory that its owner can no longer shorten under us.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// FailedPrecondition unless `fd` is memory of exactly that size that stays as it is.
absl::Status CheckMemory(int fd, size_t bytes) {
  if (const int seals = fcntl(fd, F_GET_SEALS); seals < 0 || (seals & kSeals) != kSeals)
    return absl::FailedPreconditionError("the peer's landing memory is no sealed memory");
  struct stat facts{};
  if (fstat(fd, &facts) != 0 || facts.st_size != static_cast<off_t>(bytes)) {
    return absl::FailedPreconditionError(
        StrCat("the peer's landing memory has ", facts.st_size, " bytes, its greeting says ", bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Map(int fd, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return absl::ResourceExhaustedError(StrCat("mapping ", bytes, " bytes of landing memory: ", ErrnoText()));
  return static_cast<std::byte*>(memory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Create(TcpOptions options, TransportEvents& events) {
  options.trust.tls = nullptr;
  BATON_ASSIGN_OR_RETURN(unix_socket::Listener listener, unix_socket::Listen());
  std::unique_ptr<ShmTransport> transport(
      new ShmTransport(std::move(options), events, listener.socket, std::move(listener.name)));
  BATON_RETURN_IF_ERROR(transport->MakeRing());
  return transport;
}

absl::Status ShmTransport::MakeRing() {
  const size_t bytes = BytesOf(options_.landing);
  if (bytes == 0) return absl::OkStatus();
  memfd_ = memfd_create("baton-landing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memfd_ < 0 || ftruncate(memfd_, static_cast<off_t>(bytes)) != 0 || fcntl(memfd_, F_ADD_SEALS, kSeals) != 0) {
    return absl::ResourceExhaustedError(StrCat("a memory file of ", bytes, " bytes: ", ErrnoText()));
  }
  BATON_ASSIGN_OR_RETURN(std::byte * memory, Map(memfd_, bytes));
  landing_ = {memory, bytes};
  return absl::OkStatus();
}

ShmTransport::~ShmTransport() {
  for (const auto& [peer, mapping] : mapped_) munmap(mapping.memory, mapping.bytes);
  if (landing_.data() != nullptr) munmap(landing_.data(), landing_.size());
  if (memfd_ >= 0) close(memfd_);
}

absl::StatusOr<int> ShmTransport::Dial(const std::string& where) { return unix_socket::Dial(where); }

absl::Status ShmTransport::MayStay(int socket) const { return unix_socket::CheckSameUser(socket); }

absl::Status ShmTransport::OnGreeted(PeerNumber number, Peer& peer) {
  BATON_ASSIGN_OR_RETURN(PeerExit exit, PeerExit::OfPeer(peer.connection->socket()));
  const int memory = peer.connection->TakeDescriptor();
  const absl::StatusOr<Mapping> mapping = MapOf(peer, memory);
  if (memory >= 0) close(memory);
  BATON_RETURN_IF_ERROR(mapping.status());
  if (mapping->bytes > 0) mapped_[number] = *mapping;
  if (options_.landing.slots > 0) exits_.Know(number, std::move(exit));
  return absl::OkStatus();
}

/// Nothing, of a peer that only sends.
absl::StatusOr<ShmTransport::Mapping> ShmTransport::MapOf(const Peer& peer, int memory) const {
  const size_t bytes = BytesOf(peer.landing);
  if (bytes == 0) return Mapping{};
  if (memory < 0) return absl::InvalidArgumentError("a greeting without landing memory");
  BATON_RETURN_IF_ERROR(CheckMemory(memory, bytes));
  BATON_ASSIGN_OR_RETURN(std::byte * mapped, Map(memory, bytes));
  return Mapping{mapped, bytes};
}

std::span<std::byte> ShmTransport::slot_of(PeerNumber peer, uint32_t slot) {
  const auto found = mapped_.find(peer);
  const LandingShape shape = landing_of(peer);
  if (found == mapped_.end() || slot >= shape.slots) return {};
  return {found->second.memory + slot * shape.slot_bytes, shape.slot_bytes};
}

void ShmTransport::Put(PeerNumber number, Peer& peer, const LandingPlace& place, std::span<const std::byte> bytes,
                       Done done) {
  std::byte* slot = mapped_.at(number).memory + place.slot.slot * peer.landing.slot_bytes;
  if (slot != bytes.data()) memcpy(slot, bytes.data(), bytes.size());
  Later([done = std::move(done)] { done(absl::OkStatus()); });
}

void ShmTransport::Forget(PeerNumber number) {
  if (const auto node = mapped_.extract(number); !node.empty()) munmap(node.mapped().memory, node.mapped().bytes);
}

void ShmTransport::Close(PeerNumber number, std::function<void()> fenced) {
  TcpTransport::Close(number, [] {});
  if (!exits_.Await(number, wait_fd(), kPidfdMark | number, fenced)) Later(std::move(fenced));  // it wrote nothing here
}

bool ShmTransport::Progress() {
  const bool moved = TcpTransport::Progress();
  return exits_.Progress() || moved;
}

}  // namespace baton
