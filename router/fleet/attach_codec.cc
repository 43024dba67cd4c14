#include "router/fleet/attach_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstring>
#include <vector>

#include "common/check.h"
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

uint8_t* WriteIds(const std::vector<int32_t>& ids, uint8_t* out) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  const size_t bytes = ids.size() * sizeof(int32_t);
  if (bytes > 0) std::memcpy(out, ids.data(), bytes);
  return out + bytes;
}

}  // namespace

AttachEntry::AttachEntry(const TokenizedRequest& generation, const AttachLeg& leg)
    : generation_(generation), leg_(leg), head_(EncodeAttachHead(generation, leg)), head_bytes_(head_.ByteSizeLong()) {}

size_t AttachEntry::IdBytes() const {
  return (generation_.prompt.size() + (leg_.output ? leg_.output->size() : 0)) * sizeof(int32_t);
}

size_t AttachEntry::MessageBytes() const { return head_bytes_ + FieldHeadBytes(kIdsTag, IdBytes()) + IdBytes(); }

size_t AttachEntry::size() const { return FieldHeadBytes(kAttachTag, MessageBytes()) + MessageBytes(); }

void AttachEntry::Write(uint8_t* out) const {
  uint8_t* const end = out + size();
  out = WriteFieldHead(kAttachTag, MessageBytes(), out);
  out = head_.SerializeWithCachedSizesToArray(out);
  out = WriteFieldHead(kIdsTag, IdBytes(), out);
  out = WriteIds(generation_.prompt, out);
  if (leg_.output) out = WriteIds(*leg_.output, out);
  BATON_CHECK(out == end);
}

}  // namespace baton::router
