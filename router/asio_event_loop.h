// The Asio side of EventLoopPool, for what has sockets. Include only from .cc files.
#pragma once

#include <boost/asio/io_context.hpp>

#include "router/event_loop.h"

namespace baton::router {

struct EventLoopPoolAccess {
  static boost::asio::io_context& Context(EventLoopPool& pool, size_t i);
};

/// Of a loop of an EventLoopPool.
boost::asio::io_context& AsioContext(EventLoop& loop);

}  // namespace baton::router
