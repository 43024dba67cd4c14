#include "kvtransfer/shm/shm_transport.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton {
namespace {

constexpr size_t kTrailer = 4096;  ///< behind the slots; holds the nonce
constexpr uint64_t kPidfdMark = 1ull << 63;

/// No overflow: greetings with more slots or larger ones are refused (frame.h).
size_t FileBytes(const LandingShape& shape) { return shape.slots * shape.slot_bytes + kTrailer; }

/// Memory that its owner can no longer shorten under us, and no file of somebody else's.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// The path of a landing memory as its owner gives it, and nothing else: no other process's and no other file.
absl::Status CheckPath(const std::string& path, int64_t pid) {
  const std::string folder = StrCat("/proc/", pid, "/fd/");
  const std::string_view number = path.starts_with(folder) ? std::string_view(path).substr(folder.size()) : "";
  const bool digits = std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  if (!number.empty() && number.size() <= 10 && digits && pid > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("a greeting of process ", pid, " names no landing memory of its own"));
}

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
  BATON_ASSIGN_OR_RETURN(const int listener, tcp::Listen(options.host, options.port));
  std::unique_ptr<ShmTransport> transport(new ShmTransport(std::move(options), events, listener));
  BATON_RETURN_IF_ERROR(transport->MakeRing());
  return transport;
}

absl::Status ShmTransport::MakeRing() {
  const size_t bytes = FileBytes(options_.landing);
  memfd_ = static_cast<int>(syscall(SYS_memfd_create, "baton-landing", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memfd_ < 0 || ftruncate(memfd_, static_cast<off_t>(bytes)) != 0 || fcntl(memfd_, F_ADD_SEALS, kSeals) != 0) {
    return absl::ResourceExhaustedError(StrCat("a memory file of ", bytes, " bytes: ", ErrnoText()));
  }
  BATON_ASSIGN_OR_RETURN(std::byte * memory, Map(memfd_, bytes));
  landing_ = {memory, bytes - kTrailer};
  while (nonce_ == 0) {  // which unwritten memory holds
    if (getrandom(&nonce_, sizeof(nonce_), 0) != sizeof(nonce_)) return absl::UnavailableError("no random numbers");
  }
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
  if (nonce == 0) return absl::InvalidArgumentError("a greeting without landing memory");
  BATON_RETURN_IF_ERROR(CheckPath(path, peer.pid));
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return absl::FailedPreconditionError(StrCat("cannot open the peer's landing memory ", path, ": ", ErrnoText()));
  const size_t bytes = FileBytes(peer.landing);
  const absl::Status fits = CheckMemory(fd, bytes);
  absl::StatusOr<std::byte*> memory = fits.ok() ? Map(fd, bytes) : fits;
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
