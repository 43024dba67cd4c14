// How requests reach one server: OpenAI's API (client.h), or what the caller brings.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "load/outcome.h"
#include "load/prompts.h"

namespace baton::load {

/// Asks one server, on one io thread (the caller's). Nothing here decides when to send. Offsets of an outcome are its
/// clock's minus `start`.
class Asker {
 public:
  virtual ~Asker() = default;
  /// `until`: no answer is waited for beyond it.
  virtual void Begin(TimePoint start, TimePoint until) = 0;
  /// Sends prompt number `index` and reads its answer into `outcome` (sent, arrivals, end, answer, failure), which
  /// outlives this. Never throws.
  virtual boost::asio::awaitable<void> Ask(const Prompt& prompt, size_t index, std::string request_id,
                                           Outcome& outcome) = 0;
  /// The coroutines of Ask that have not ended may be destroyed from now on: nothing writes into their outcomes any
  /// more.
  virtual void Abandon() = 0;
  /// How many connections were made: fewer than requests, where the server keeps them.
  virtual int64_t connections() const = 0;
};

/// A new one for each run; `clock` outlives it.
using MakeAsker = std::function<std::unique_ptr<Asker>(const Clock& clock)>;

/// The first cause of a failure stays.
void Fail(Outcome& outcome, Failure failure, std::string error);

}  // namespace baton::load
