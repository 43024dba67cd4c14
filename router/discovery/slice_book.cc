#include "router/discovery/slice_book.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/net/address.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

using Json = nlohmann::json;

// What is not there, or is of another type, is nothing: the wire is another program's.
const Json& At(const Json& object, const char* key) {
  static const Json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}
std::string TextOf(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}
std::optional<bool> Flag(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}
int64_t Number(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}
std::string NameOf(const Json& slice) { return TextOf(At(slice, "metadata"), "name"); }

constexpr int64_t kGone = 410;
constexpr size_t kMostSlices = 1000;   // of a service, of 100 endpoints or more each
constexpr size_t kMostOfSlice = 1000;  // endpoints, as Kubernetes has it

/// None where it is no array.
const Json::array_t& SliceItems(const Json& value) {
  static const Json::array_t none;
  return value.is_array() ? value.get_ref<const Json::array_t&>() : none;
}

}  // namespace

struct SliceReader {
  /// `before`: what is known of it. A port that is none is somebody's mistake, and its workers are still where they
  /// were.
  static SliceBook::Slice Read(const Json& json, const std::string& port_name, const SliceBook::Slices& before) {
    SliceBook::Slice slice;
    std::string others;
    const Json* named = nullptr;
    for (const Json& one : SliceItems(At(json, "ports"))) {
      if (TextOf(one, "name") == port_name) named = &one;
      absl::StrAppend(&others, others.empty() ? "" : ", ", TextOf(one, "name"));
    }
    if (named == nullptr) {
      slice.trouble = StrCat("has no port named \"", port_name,
                             "\" (its ports: ", others.empty() ? "none" : Printable(others), ")");
      return slice;
    }
    slice.port = Number(*named, "port");
    if (slice.port <= 0 || slice.port > 65535) {
      const std::string said = At(*named, "port").dump(-1, ' ', false, Json::error_handler_t::replace);
      const auto known = before.find(NameOf(json));
      slice.port = known == before.end() ? 0 : known->second.port;
      slice.trouble = StrCat("has a port named \"", port_name, "\" whose number is ", Printable(said),
                             ", not in [1, 65535]", slice.port > 0 ? StrCat(": it stays ", slice.port) : "");
    }
    if (slice.port == 0) return slice;
    for (const Json& one : SliceItems(At(json, "endpoints"))) AddEndpoint(one, slice.port, slice);
    return slice;
  }

  // All addresses of an endpoint are the same pod; consumers use the first.
  static void AddEndpoint(const Json& json, int64_t port, SliceBook::Slice& slice) {
    const Json& addresses = At(json, "addresses");
    if (!addresses.is_array() || addresses.empty() || !addresses[0].is_string()) return;
    if (slice.workers.size() >= kMostOfSlice) return;
    const std::string host = addresses[0].get<std::string>();
    if (!net::CheckHost(host).ok()) return;
    const Json& conditions = At(json, "conditions");
    SliceBook::Worker worker{TextOf(At(json, "targetRef"), "uid"), {net::JoinHostPort(host, static_cast<int>(port))}};
    const bool ready = Flag(conditions, "ready").value_or(true);
    worker.endpoint.terminating = Flag(conditions, "terminating").value_or(false);
    worker.endpoint.serving = Flag(conditions, "serving").value_or(ready || worker.endpoint.terminating);
    slice.workers.push_back(std::move(worker));
  }
};

absl::Status SliceBook::Page(std::string_view text) {
  const Json json = ShallowJson(text);
  const Json& items = At(json, "items");
  const std::string version = TextOf(At(json, "metadata"), "resourceVersion");
  if (!items.is_array() || version.empty())
    return absl::InvalidArgumentError(StrCat("an answer of ", text.size(), " bytes is no EndpointSliceList"));
  for (const Json& item : items) listed_[NameOf(item)] = SliceReader::Read(item, port_, slices_);
  next_page_ = TextOf(At(json, "metadata"), "continue");
  ++pages_;
  if (listed_.size() > kMostSlices || pages_ > kMostSlices) {
    return absl::ResourceExhaustedError(StrCat("the list goes on after ", pages_, " pages with ", listed_.size(),
                                               " EndpointSlices, at most ", kMostSlices));
  }
  if (!next_page_.empty()) return absl::OkStatus();
  slices_ = std::exchange(listed_, {});
  version_ = version;
  return absl::OkStatus();
}

absl::Status SliceBook::Event(std::string_view text) {
  const Json json = ShallowJson(text);
  const std::string type = TextOf(json, "type");
  const Json& object = At(json, "object");
  if (type == "ERROR") {
    const int64_t code = Number(object, "code");
    const std::string why = StrCat("the watch ends with ", code, ": ", Printable(TextOf(object, "message")));
    return code == kGone ? absl::OutOfRangeError(why) : absl::UnavailableError(why);
  }
  const std::string name = NameOf(object), version = TextOf(At(object, "metadata"), "resourceVersion");
  const bool change = type == "ADDED" || type == "MODIFIED" || type == "DELETED";
  if (version.empty() || (!change && type != "BOOKMARK") || (change && name.empty()))
    return absl::InvalidArgumentError(StrCat("a line of ", text.size(), " bytes is no watch event"));
  if (type == "DELETED") slices_.erase(name);
  if (change && type != "DELETED" && slices_.size() >= kMostSlices && !slices_.contains(name))
    return absl::ResourceExhaustedError(StrCat(slices_.size() + 1, " EndpointSlices, at most ", kMostSlices));
  if (type == "ADDED" || type == "MODIFIED") slices_[name] = SliceReader::Read(object, port_, slices_);
  version_ = version;
  return absl::OkStatus();
}

std::vector<Endpoint> SliceBook::endpoints() const {
  std::map<std::string, Worker> by_address;  // an endpoint that moves between slices is in both for a moment
  for (const auto& [name, slice] : slices_) {
    for (const Worker& worker : slice.workers) {
      const auto [at, fresh] = by_address.try_emplace(worker.endpoint.address, worker);
      if (!fresh && worker.endpoint.takes_requests()) at->second = worker;
    }
  }
  std::map<std::string, std::string> address_of;  // of a pod
  for (const bool wanted : {true, false}) {
    for (const auto& [address, worker] : by_address) {
      if (worker.endpoint.takes_requests() == wanted) address_of.try_emplace(worker.pod, address);
    }
  }
  std::vector<Endpoint> out;
  for (const auto& [address, worker] : by_address) {
    if (worker.pod.empty() || address_of[worker.pod] == address) out.push_back(worker.endpoint);
  }
  return out;
}

absl::Status SliceBook::Trouble() const {
  for (const auto& [name, slice] : slices_) {
    if (slice.trouble.empty()) continue;
    return absl::NotFoundError(StrCat("EndpointSlice ", Printable(name), " ", slice.trouble));
  }
  return absl::OkStatus();
}

}  // namespace baton::router
