// EndpointSource: something that knows which workers there are and hears when that changes: a file, DNS, Kubernetes. A
// source that fails keeps what it said last; it says so in the log, once for each reason.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/endpoint.h"

namespace baton::router {

class EndpointSource {
 public:
  /// The whole set, each time that it has changed. Called on a thread of the source's own.
  using Tell = std::function<void(std::vector<Endpoint>)>;

  /// Stops; `tell` is not called any more.
  virtual ~EndpointSource() = default;
  /// For people: "--workers-file /etc/workers".
  virtual const std::string& name() const = 0;
  /// Begins to look; once.
  virtual void Start(Tell tell) = 0;
};

/// What a source says in the log. Not thread-safe.
class SourceLog {
 public:
  explicit SourceLog(std::string name) : name_(std::move(name)) {}
  /// It does not know what is there now. One line for each new reason.
  void Failed(const absl::Status& why, size_t known);
  /// What it left out of what it knows now. One line for each new text; empty: nothing.
  void LeftOut(const std::string& what);
  /// It knows again. A line when it did not before, or when the number is another.
  void Knows(size_t workers);

 private:
  const std::string name_;
  std::string failed_;  ///< the last reason; empty: it knows
  std::string left_out_;
  bool spoke_ = false;
  size_t workers_ = 0;
};

}  // namespace baton::router
