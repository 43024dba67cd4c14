// The Asio side of ExecutorPool, for the HTTP server. Include only from .cc files.
#pragma once

#include <boost/asio/io_context.hpp>

#include "router/executor.h"

namespace baton::router {

struct ExecutorPoolAccess {
  static boost::asio::io_context& Context(ExecutorPool& pool, size_t i);
};

}  // namespace baton::router
