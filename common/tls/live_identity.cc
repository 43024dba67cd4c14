#include "common/tls/live_identity.h"

#include <sys/stat.h>

#include <utility>

#include "common/log.h"
#include "common/status.h"

namespace baton::tls {
namespace {

constexpr int64_t kDay = 24 * 3600, kWarnBefore = 14 * kDay;

}  // namespace

absl::StatusOr<std::unique_ptr<LiveIdentity>> LiveIdentity::Open(TlsFiles files, std::function<int64_t()> now_s) {
  std::unique_ptr<LiveIdentity> live(new LiveIdentity(std::move(files), std::move(now_s)));
  live->read_ = live->seen_ = live->Stamp();
  BATON_ASSIGN_OR_RETURN(live->identity_, Identity::Load(live->files_, live->now_s_()));
  live->WarnOfExpiry(*live->identity_);
  return live;
}

LiveIdentity::~LiveIdentity() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const Identity> LiveIdentity::now() const {
  std::lock_guard lock(mutex_);
  return identity_;
}

int64_t LiveIdentity::SecondsLeft() const {
  const auto identity = now();
  return identity->has_certificate() ? identity->not_after_s() - now_s_() : 0;
}

void LiveIdentity::OnChange(Changed changed) {
  std::lock_guard lock(mutex_);
  changed_.push_back(std::move(changed));
}

std::string LiveIdentity::Stamp() const {
  std::string out;
  for (const std::string& path : files_.paths()) {
    struct stat s{};
    if (stat(path.c_str(), &s) != 0) s = {};
    out += StrCat(s.st_dev, ".", s.st_ino, ".", s.st_size, ".", s.st_mtim.tv_sec, ".", s.st_mtim.tv_nsec, ".",
                  s.st_ctim.tv_sec, ".", s.st_ctim.tv_nsec, " ");
  }
  return out;
}

/// Once a day, and when the end has come.
void LiveIdentity::WarnOfExpiry(const Identity& identity) {
  if (!identity.has_certificate()) return;
  const int64_t now = now_s_(), left = identity.not_after_s() - now;
  const bool over = left < 0, said = warned_s_ != 0 && now - warned_s_ < kDay && over == warned_over_;
  if (left > kWarnBefore || said) return;
  warned_s_ = now;
  warned_over_ = over;
  LogWarning("TLS: the certificate {} ({}) {} {} days: new connections are refused{}", files_.cert, identity.text(),
             over ? "has been expired for" : "expires in", (over ? -left : left) / kDay, over ? "" : " from then on");
}

absl::StatusOr<std::shared_ptr<const Identity>> LiveIdentity::LoadAgain() const {
  for (const std::string& path : files_.paths()) {  // a pipe might keep who reads it for ever
    struct stat s{};
    if (stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))
      return absl::FailedPreconditionError(StrCat(path, " is no file"));
  }
  return Identity::Load(files_, now_s_());
}

void LiveIdentity::Poll() {
  const std::string stamp = Stamp();
  const bool still = stamp == std::exchange(seen_, stamp), told = stamp == read_;
  if (!still || (told && !refused_)) return WarnOfExpiry(*now());
  read_ = stamp;
  const auto loaded = LoadAgain();
  refused_ = !loaded.ok();
  if (refused_) {
    if (!told)
      LogError("TLS: the changed files cannot be used: {}; what was read before stays: {}",
               View(loaded.status().message()), now()->text());
    return WarnOfExpiry(*now());
  }
  std::vector<Changed> changed;
  {
    std::lock_guard lock(mutex_);
    identity_ = *loaded;
    changed = changed_;
  }
  warned_s_ = 0;
  LogInfo("TLS: new connections take the changed files: {}; open ones go on", (*loaded)->text());
  for (const Changed& call : changed) call(*loaded);
  WarnOfExpiry(**loaded);
}

void LiveIdentity::Watch(Duration interval) {
  thread_ = std::thread([this, interval] {
    std::unique_lock lock(mutex_);
    while (!stop_.wait_for(lock, interval, [this] { return stopping_; })) {
      lock.unlock();
      Poll();
      lock.lock();
    }
  });
}

}  // namespace baton::tls
