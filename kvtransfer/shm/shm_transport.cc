#include "kvtransfer/shm/shm_transport.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <utility>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton {
namespace {

constexpr size_t kTrailer = 4096;  ///< behind the slots; holds the nonce
constexpr uint64_t kPidfdMark = 1ull << 63;

size_t FileBytes(const LandingShape& shape) { return shape.slots * shape.slot_bytes + kTrailer; }

absl::StatusOr<std::byte*> Map(int fd, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return absl::ResourceExhaustedError(StrCat("mapping ", bytes, " bytes of landing memory: ", ErrnoText()));
  return static_cast<std::byte*>(memory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Create(TcpOptions options, TransportEvents& events) {
  BATON_ASSIGN_OR_RETURN(const int listener, tcp::Listen(options.host, options.port));
  std::unique_ptr<ShmTransport> transport(new ShmTransport(std::move(options), events, listener));
  BATON_RETURN_IF_ERROR(transport->MakeRing());
  return transport;
}

absl::Status ShmTransport::MakeRing() {
  const size_t bytes = FileBytes(options_.landing);
  memfd_ = static_cast<int>(syscall(SYS_memfd_create, "baton-landing", MFD_CLOEXEC));
  if (memfd_ < 0 || ftruncate(memfd_, static_cast<off_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(StrCat("a memory file of ", bytes, " bytes: ", ErrnoText()));
  }
  BATON_ASSIGN_OR_RETURN(std::byte * memory, Map(memfd_, bytes));
  landing_ = {memory, bytes - kTrailer};
  if (getrandom(&nonce_, sizeof(nonce_), 0) != sizeof(nonce_)) return absl::UnavailableError("no random numbers");
  memcpy(memory + bytes - sizeof(nonce_), &nonce_, sizeof(nonce_));
  return absl::OkStatus();
}

ShmTransport::~ShmTransport() {
  for (const auto& [peer, mapping] : mapped_) munmap(mapping.memory, mapping.bytes);
  if (landing_.data() != nullptr) munmap(landing_.data(), landing_.size() + kTrailer);
  if (memfd_ >= 0) close(memfd_);
}

std::string ShmTransport::GreetingTail() const { return StrCat(nonce_, " /proc/", getpid(), "/fd/", memfd_); }

absl::Status ShmTransport::OnGreeted(PeerNumber number, Peer& peer, std::string_view tail) {
  BATON_ASSIGN_OR_RETURN(PeerExit exit, PeerExit::Of(peer.pid));
  if (options_.landing.slots > 0) exits_.Know(number, std::move(exit));
  if (peer.landing.slots == 0) return absl::OkStatus();
  uint64_t nonce = 0, found = 0;
  const char* end = std::from_chars(tail.data(), tail.data() + tail.size(), nonce).ptr;
  const std::string path(std::min(end + 1, tail.data() + tail.size()), tail.data() + tail.size());
  if (!path.starts_with("/proc/")) return absl::InvalidArgumentError("a greeting without landing memory");
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return absl::FailedPreconditionError(StrCat("cannot open the peer's landing memory ", path, ": ", ErrnoText()));
  const size_t bytes = FileBytes(peer.landing);
  const bool long_enough = lseek(fd, 0, SEEK_END) >= static_cast<off_t>(bytes);
  absl::StatusOr<std::byte*> memory =
      long_enough ? Map(fd, bytes) : absl::InvalidArgumentError("the peer's landing memory is too small");
  close(fd);
  BATON_RETURN_IF_ERROR(memory.status());
  mapped_[number] = {*memory, bytes};
  memcpy(&found, *memory + bytes - sizeof(found), sizeof(found));
  if (found != nonce)
    return absl::FailedPreconditionError(StrCat(path, " is another process's memory: other PID namespace?"));
  return absl::OkStatus();
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
