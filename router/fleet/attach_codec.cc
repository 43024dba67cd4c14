#include "router/fleet/attach_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

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

size_t FieldHeadBytes(uint32_t tag, size_t length) {
  return CodedOutputStream::VarintSize32(tag) + CodedOutputStream::VarintSize64(length);
}

uint8_t* WriteFieldHead(uint32_t tag, size_t length, uint8_t* out) {
  return CodedOutputStream::WriteVarint64ToArray(length, CodedOutputStream::WriteVarint32ToArray(tag, out));
}

absl::string_view BytesOf(const std::vector<int32_t>& ids) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

// Few are copied: that costs less than sharing them.
void AppendShared(const PromptIds& ids, absl::Cord& out) {
  constexpr size_t kShort = 4096;
  const absl::string_view bytes = BytesOf(ids);
  if (bytes.size() <= kShort) return out.Append(bytes);
  out.Append(absl::MakeCordFromExternal(bytes, [held = ids] {}));
}

}  // namespace

absl::Cord AttachEntry(const TokenizedRequest& generation, const AttachLeg& leg) {
  const v1::Attach head = EncodeAttachHead(generation, leg);  // all but the ids
  const size_t head_bytes = head.ByteSizeLong();
  const absl::string_view output = leg.output ? BytesOf(*leg.output) : absl::string_view();
  const size_t id_bytes = BytesOf(generation.prompt).size() + output.size();
  const size_t message_bytes = head_bytes + FieldHeadBytes(kIdsTag, id_bytes) + id_bytes;
  std::string before(FieldHeadBytes(kAttachTag, message_bytes) + message_bytes - id_bytes, '\0');
  uint8_t* at = WriteFieldHead(kAttachTag, message_bytes, reinterpret_cast<uint8_t*>(before.data()));
  at = head.SerializeWithCachedSizesToArray(at);
  at = WriteFieldHead(kIdsTag, id_bytes, at);
  BATON_CHECK(at == reinterpret_cast<uint8_t*>(before.data()) + before.size());
  absl::Cord out(std::move(before));
  AppendShared(generation.prompt, out);
  out.Append(output);
  return out;
}

}  // namespace baton::router
