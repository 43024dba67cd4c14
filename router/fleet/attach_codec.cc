#include "router/fleet/attach_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "proto/worker.pb.h"
#include "router/fleet/relay_codec.h"

namespace baton::router {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kAttachTag =
    WireFormatLite::MakeTag(v1::RelayUp::kAttachFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kIdsTag =
    WireFormatLite::MakeTag(v1::Attach::kPromptTokenIdsFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kShortIdsTag =
    WireFormatLite::MakeTag(v1::Attach::kShortPromptTokenIdsFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

size_t FieldHeadBytes(uint32_t tag, size_t length) {
  return CodedOutputStream::VarintSize32(tag) + CodedOutputStream::VarintSize64(length);
}

uint8_t* WriteFieldHead(uint32_t tag, size_t length, uint8_t* out) {
  return CodedOutputStream::WriteVarint64ToArray(length, CodedOutputStream::WriteVarint32ToArray(tag, out));
}

constexpr size_t kFewBytes = 4096;  ///< of ids: they are copied as they are, which costs less than sharing them

template <class Id>
absl::string_view BytesOf(std::span<const Id> ids) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return {reinterpret_cast<const char*>(ids.data()), ids.size_bytes()};
}

void AppendShared(absl::string_view bytes, const PromptIds& of, absl::Cord& out) {
  if (bytes.size() <= kFewBytes) return out.Append(bytes);
  out.Append(absl::MakeCordFromExternal(bytes, [held = of] {}));
}

/// Nothing: one of them is greater.
std::optional<std::vector<uint16_t>> ShortOf(std::span<const int32_t> ids) {
  std::vector<uint16_t> out;
  for (const int32_t id : ids) {
    if (id < 0 || id > std::numeric_limits<uint16_t>::max()) return std::nullopt;
    out.push_back(static_cast<uint16_t>(id));
  }
  return out;
}

}  // namespace

absl::Cord AttachEntry(const TokenizedRequest& generation, const AttachLeg& leg, bool takes_short_ids) {
  const v1::Attach head = EncodeAttachHead(generation, leg);  // all but the ids
  const size_t head_bytes = head.ByteSizeLong();
  std::span<const int32_t> generated;
  if (leg.output) generated = *leg.output;
  uint32_t tag = kIdsTag;
  absl::string_view prompt = BytesOf(std::span(generation.prompt.get())), output = BytesOf(generated);
  std::optional<std::vector<uint16_t>> short_output;
  std::span<const uint16_t> shorts;
  if (takes_short_ids && prompt.size() > kFewBytes) short_output = ShortOf(generated);
  if (short_output) shorts = generation.prompt.Short();
  if (!shorts.empty()) {
    tag = kShortIdsTag;
    prompt = BytesOf(shorts);
    output = BytesOf(std::span<const uint16_t>(*short_output));
  }
  const size_t id_bytes = prompt.size() + output.size();
  const size_t message_bytes = head_bytes + FieldHeadBytes(tag, id_bytes) + id_bytes;
  std::string before(FieldHeadBytes(kAttachTag, message_bytes) + message_bytes - id_bytes, '\0');
  uint8_t* at = WriteFieldHead(kAttachTag, message_bytes, reinterpret_cast<uint8_t*>(before.data()));
  at = head.SerializeWithCachedSizesToArray(at);
  at = WriteFieldHead(tag, id_bytes, at);
  BATON_CHECK(at == reinterpret_cast<uint8_t*>(before.data()) + before.size());
  absl::Cord out(std::move(before));
  AppendShared(prompt, generation.prompt, out);
  out.Append(output);
  return out;
}

}  // namespace baton::router
