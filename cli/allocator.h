// What this process asks of its allocator (cmake/allocator.cmake).
#pragma once

namespace baton::cli {

/// What a thread freed goes back to the system when it ends, where mimalloc is the allocator: it would keep it for the
/// threads to come. Reading a tokenizer of 60,000 tokens leaves 25 MB of it. Any thread.
void GiveBackWhatEndedThreadsFreed();

}  // namespace baton::cli
