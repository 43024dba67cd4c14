// The memory that a worker keeps of its model's tokenizer, for grammars: said at its start, and by a plan.
#pragma once

#include <cstdint>

#include "worker/worker_config.h"

namespace baton::worker {

/// About what a GrammarCompiler keeps for each id that the model scores: some twenty tries of the tokenizer's tokens,
/// with a table of all ids in each. Measured on whole workers: 534 to 581 bytes, for tokenizers of 49,152 to 262,208
/// ids, of JSON and GGUF files alike.
inline constexpr int64_t kTextBytesPerId = 576;

/// Of one worker, whatever its ranks. `vocab_size`: ids that the model scores. 0: no tokenizer is read, or there is
/// none.
int64_t TextBytes(const WorkerConfig& config, int64_t vocab_size);

}  // namespace baton::worker
