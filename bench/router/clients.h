// The client side of bench_router: what its client and reader processes run.
#pragma once

namespace baton::bench {

/// Takes Loads from the orders' pipe and answers each with what it Seen, until the pipe closes. Does not return.
[[noreturn]] void RunClient();

/// Reads from the connections to a port (an order) and throws away, until all of them close. Does not return.
[[noreturn]] void RunReader(int connections);

}  // namespace baton::bench
