// Changes inputs of text_files_fuzz by parts that its readers know: nodes of a tokenizer.json, pieces of Jinja.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::fuzz {

/// First byte of an input that is a chat template; with any other it is a tokenizer.json.
inline constexpr uint8_t kTemplate = 'C';

/// As LLVMFuzzerCustomMutator: `size` bytes at `data` are changed in place, to at most `most`.
size_t MutateText(uint8_t* data, size_t size, size_t most, unsigned seed);

}  // namespace baton::fuzz
