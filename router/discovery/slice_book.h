// SliceBook: the EndpointSlices of one service, from the API server's lists and watch events, and the workers in them.
// Sans-IO; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "router/endpoint.h"

namespace baton::router {

class SliceBook {
 public:
  /// `port`: the name of the port on which workers serve gRPC.
  explicit SliceBook(std::string port) : port_(std::move(port)) {}

  // ---- a list, which replaces everything when its last page is here
  void BeginList() { listed_.clear(), next_page_.clear(), pages_ = 0; }
  /// A page. InvalidArgument: it is no EndpointSliceList. ResourceExhausted: there are too many.
  absl::Status Page(std::string_view json);
  /// What to ask the next page with; empty: that was the last.
  const std::string& next_page() const { return next_page_; }

  // ---- a watch
  /// One event. OutOfRange: what happened since the list is not known any more (410): list again. Unavailable: the
  /// server ends the watch with an error. InvalidArgument: it is no event. ResourceExhausted: there are too many
  /// slices.
  absl::Status Event(std::string_view json);
  /// Where the next watch begins; empty: there was no list.
  const std::string& resource_version() const { return version_; }

  /// The workers, in the order of their addresses; of a pod with several addresses the first one that takes requests.
  std::vector<Endpoint> endpoints() const;
  /// Why slices bring no worker, or where they were: no port of the name, or none of a valid number. OK otherwise.
  absl::Status Trouble() const;

 private:
  struct Worker {
    std::string pod;  ///< its uid; empty: not known
    Endpoint endpoint;
  };
  struct Slice {
    std::vector<Worker> workers;
    int64_t port = 0;  ///< that of the name; where it is no port, the one of before. 0: none
    std::string trouble;
  };
  using Slices = std::map<std::string, Slice>;  // by name

  const std::string port_;
  Slices slices_, listed_;
  std::string version_, next_page_;
  size_t pages_ = 0;  ///< of the list
  friend struct SliceReader;
};

}  // namespace baton::router
