// Bytes to valid UTF-8 as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

/// How malformed bytes are replaced by U+FFFD.
enum class Utf8Repair : uint8_t {
  kMaximalPart,  ///< one per maximal malformed part (Unicode's recommendation; Python's errors="replace")
  kEachByte,     ///< one per byte
};

/// True if `text` is well-formed UTF-8.
bool IsUtf8(std::string_view text);

/// Bytes of the code point at the start of `text`; 0 if what stands there is none, or if `text` is empty.
size_t Utf8Length(std::string_view text);

/// Appends to `out` every code point that is complete in `held` + `bytes`; what may still become one stays in `held`
/// (at most 3 bytes).
void AppendUtf8(std::string_view bytes, Utf8Repair repair, std::string& held, std::string& out);

/// No more bytes will come: what `held` has is malformed.
void FlushUtf8(Utf8Repair repair, std::string& held, std::string& out);

}  // namespace baton
