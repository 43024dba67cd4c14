#include "kvtransfer/lent_outbox.h"

#include <xxhash.h>

#include <cstring>

namespace baton {
namespace {

constexpr std::string_view kFormat = "KVLENT01";
constexpr uint64_t kMaxOutboxBytes = uint64_t{1} << 40;

}  // namespace

uint64_t MarkDigest(std::string_view mark) { return XXH3_64bits(mark.data(), mark.size()); }

std::string LentOutbox::Pack() const {
  std::string out(kFormat);
  for (const uint64_t number : {bytes, mark_bytes, mark_digest})
    out.append(reinterpret_cast<const char*>(&number), sizeof(number));
  return out + lent;
}

std::optional<LentOutbox> LentOutbox::Parse(std::string_view packed) {
  LentOutbox out;
  if (!packed.starts_with(kFormat) || packed.size() < kFormat.size() + 3 * sizeof(uint64_t)) return std::nullopt;
  packed.remove_prefix(kFormat.size());
  for (uint64_t* number : {&out.bytes, &out.mark_bytes, &out.mark_digest}) {
    std::memcpy(number, packed.data(), sizeof(*number));
    packed.remove_prefix(sizeof(*number));
  }
  out.lent = packed;
  const bool fits = out.bytes <= kMaxOutboxBytes && out.mark_bytes > 0 && out.mark_bytes <= kMaxMarkBytes &&
                    out.mark_bytes <= out.bytes;
  return fits ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace baton
