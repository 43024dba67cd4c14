#include "worker/relay/open_streams.h"

#include <algorithm>
#include <optional>

#include "common/log.h"
#include "common/str_cat.h"

namespace baton::worker {
namespace {

/// Who has something to take, and takes nothing for so long, gives way first.
constexpr Duration kStuck = std::chrono::seconds(1);

const char* StreamName(OpenStreams::Kind kind) {
  switch (kind) {
    case OpenStreams::Kind::kWatch: return "Watch";
    case OpenStreams::Kind::kRelay: return "Relay";
    case OpenStreams::Kind::kPrefill: return "Prefill";
  }
  return "";
}

}  // namespace

/// "10.0.0.7" of "ipv4:10.0.0.7:4000".
std::string_view OpenStreams::One::host() const {
  std::string_view place = peer;
  place.remove_prefix(std::min(place.size(), place.find(':') + 1));
  return place.substr(0, place.rfind(':'));
}

/// Which one must give way to one more of its kind; end(): none.
OpenStreams::All::iterator OpenStreams::OneTooMany(Kind kind, const std::string& peer, std::string& why) {
  size_t of_connection = 0, of_all = 0;
  std::map<std::string_view, size_t> of_host;
  for (const auto& [number, one] : all_) {
    if (one.kind != kind) continue;
    ++of_all;
    ++of_host[one.host()];
    of_connection += one.peer == peer;
  }
  if (of_connection > limits_.of_connection) {
    why = StrCat("its connection has more than ", limits_.of_connection);
    return std::ranges::find_if(all_, [&](const auto& at) { return at.second.kind == kind && at.second.peer == peer; });
  }
  if (of_all <= limits_.of_all) return all_.end();
  why = StrCat("there are more than ", limits_.of_all, ", and most are its host's");
  return OneOf(kind, std::ranges::max_element(of_host, {}, [](const auto& host) { return host.second; })->first);
}

/// Of a host: that which has taken nothing for longest, of those that have something to take; or the oldest of the
/// connection with the most; or where all have as many the newest.
OpenStreams::All::iterator OpenStreams::OneOf(Kind kind, std::string_view host) {
  auto stuck = all_.end(), newest = all_.end();
  std::map<std::string_view, std::pair<size_t, All::iterator>> connections;  // how many, and the oldest
  for (auto at = all_.begin(); at != all_.end(); ++at) {
    if (at->second.kind != kind || at->second.host() != host) continue;
    if (stuck == all_.end() || at->second.since < stuck->second.since) stuck = at;
    ++connections.try_emplace(at->second.peer, 0, at).first->second.first;
    newest = at;
  }
  if (own_.Now() - stuck->second.since > kStuck) return stuck;
  const auto most = std::ranges::max_element(connections, {}, [](const auto& one) { return one.second.first; });
  return most->second.first > 1 ? most->second.second : newest;
}

OpenStreams::Ended OpenStreams::Take(All::iterator at, std::string why) {
  Ended out{std::move(at->second), std::move(why)};
  all_.erase(at);
  return out;
}

uint64_t OpenStreams::Enter(Kind kind, std::string peer, std::shared_ptr<OpenStream> stream) {
  std::vector<Ended> ended;
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = ++last_;
    all_.emplace(number, One{kind, peer, std::move(stream), 0, own_.Now()});
    std::string why;
    const auto too_many = kind == Kind::kPrefill ? all_.end() : OneTooMany(kind, peer, why);
    if (too_many != all_.end()) ended.push_back(Take(too_many, std::move(why)));
  }
  End(std::move(ended));
  return number;
}

void OpenStreams::Leave(uint64_t number) {
  std::lock_guard lock(mutex_);
  all_.erase(number);
}

void OpenStreams::Look() {
  std::vector<Ended> ended;
  {
    std::lock_guard lock(mutex_);
    own_.Tick(clock_.Now());
    size_t bytes = 0;
    std::multimap<size_t, uint64_t, std::greater<>> by_bytes;
    for (auto at = all_.begin(); at != all_.end();) {
      const auto next = std::next(at);
      One& one = at->second;
      const OpenStream::Unread unread = one.stream->unread();
      if (unread.bytes == 0 || std::exchange(one.taken, unread.taken) != unread.taken) one.since = own_.Now();
      if (own_.Now() - one.since > limits_.unread_time) {
        ended.push_back(Take(at, StrCat(unread.bytes, " bytes wait, and nothing was taken for ",
                                        static_cast<int64_t>(Seconds(limits_.unread_time)), " s")));
      } else {
        bytes += unread.bytes;
        by_bytes.emplace(unread.bytes, at->first);
      }
      at = next;
    }
    for (auto most = by_bytes.begin(); bytes > limits_.unread_bytes; ++most) {
      bytes -= most->first;
      ended.push_back(
          Take(all_.find(most->second),
               StrCat(most->first, " bytes wait there, the most of all, which are more than ", limits_.unread_bytes)));
    }
  }
  End(std::move(ended));
}

/// Without the lock: a stream that ends leaves.
void OpenStreams::End(std::vector<Ended> ended) {
  for (const auto& [one, why] : ended) {
    ++cut_off_;
    const std::string host(one.host());
    std::unique_lock lock(mutex_);
    const bool line = lines_.May(host);
    lock.unlock();
    if (line) LogWarning("worker: a {} stream of {} is ended: {}", StreamName(one.kind), host, why);
    one.stream->CutOff(absl::ResourceExhaustedError(StrCat("this ", StreamName(one.kind), " stream is ended: ", why)));
  }
}

}  // namespace baton::worker
