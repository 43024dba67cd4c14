#include "kvtransfer/rank_line_codec.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/status.h"

namespace baton {
namespace {

static_assert(std::endian::native == std::endian::little, "plain fields are little-endian");

/// In front of plain fields, where a Protobuf message has the number of its first field, which is no zero.
constexpr char kPlain = 0;
enum class Word : uint8_t { kOrder = 1, kWorked, kFull, kFree };
constexpr size_t kUsual = 256;  ///< bytes of a message

class FieldWriter {
 public:
  explicit FieldWriter(Word word) {
    out_.reserve(kUsual);
    Put(kPlain);
    Put(word);
  }
  template <class T>
  void Put(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Put(const LaneKey& lane) { Put(lane.ticket), Put(lane.epoch), Put(lane.lane); }
  void Put(SlotTurn slot) { Put(slot.slot), Put(slot.turn); }
  /// Their number in front.
  template <class T>
  void PutAll(const T& values) {
    Put(static_cast<uint32_t>(values.size()));
    out_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  }
  std::string Out() && { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads zeros behind the end, and says so.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  void Take(T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    if (bytes_.size() < sizeof(value)) return Fail();
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
  }
  void Take(bool& value) {
    uint8_t byte = 0;
    Take(byte);
    if (byte > 1) return Fail();
    value = byte == 1;
  }
  void Take(LaneKey& lane) { Take(lane.ticket), Take(lane.epoch), Take(lane.lane); }
  void Take(SlotTurn& slot) { Take(slot.slot), Take(slot.turn); }
  void Take(absl::Status& status) {
    uint8_t code = 0;
    std::string message;
    Take(code), TakeAll(message);
    if (code > static_cast<uint8_t>(absl::StatusCode::kUnauthenticated) || (code == 0 && !message.empty()))
      return Fail();
    status = absl::Status(static_cast<absl::StatusCode>(code), message);
  }
  template <class T>
  void TakeAll(T& values) {
    uint32_t count = 0;
    Take(count);
    if (count > bytes_.size() / sizeof(values[0])) return Fail();
    values.resize(count);
    if (count != 0) std::memcpy(values.data(), bytes_.data(), count * sizeof(values[0]));
    bytes_.remove_prefix(count * sizeof(values[0]));
  }
  bool failed() const { return failed_; }
  bool whole() const { return !failed_ && bytes_.empty(); }

 private:
  void Fail() {
    failed_ = true;
    bytes_ = {};
  }
  std::string_view bytes_;
  bool failed_ = false;
};

std::string BytesOf(const SlotOrder& order) {
  FieldWriter out(Word::kOrder);
  out.Put(order.peer), out.Put(order.lane), out.Put(order.slot), out.Put(order.plan);
  out.Put(order.tell), out.Put(order.may_wait);
  out.PutAll(order.segments);
  out.Put(static_cast<uint32_t>(order.tables.size()));
  for (const BlockRun& run : order.tables) out.Put(run.group), out.Put(run.first), out.PutAll(run.blocks);
  return std::move(out).Out();
}

std::string BytesOf(const SlotWorked& worked) {
  FieldWriter out(Word::kWorked);
  out.Put(worked.peer), out.Put(worked.lane), out.Put(worked.slot), out.Put(worked.told);
  out.Put(static_cast<uint8_t>(worked.status.code()));
  out.PutAll(View(worked.status.message()));
  return std::move(out).Out();
}

std::string BytesOf(const SlotHeard& heard) {
  if (const auto* full = std::get_if<SlotFull>(&heard.said)) {
    FieldWriter out(Word::kFull);
    out.Put(heard.peer), out.Put(full->lane), out.Put(full->slot), out.PutAll(full->segments);
    return std::move(out).Out();
  }
  const SlotFree& free = std::get<SlotFree>(heard.said);
  FieldWriter out(Word::kFree);
  out.Put(heard.peer), out.Put(free.lane), out.Put(free.grant), out.Put(free.ok);
  return std::move(out).Out();
}

std::string BytesOf(const v1::RankOrder& order) { return order.SerializeAsString(); }
std::string BytesOf(const v1::RankNews& news) { return news.SerializeAsString(); }

void Take(FieldReader& in, SlotOrder& order) {
  in.Take(order.peer), in.Take(order.lane), in.Take(order.slot), in.Take(order.plan);
  in.Take(order.tell), in.Take(order.may_wait);
  in.TakeAll(order.segments);
  uint32_t runs = 0;
  in.Take(runs);
  for (uint32_t i = 0; i < runs && !in.failed(); ++i) {
    BlockRun& run = order.tables.emplace_back();
    in.Take(run.group), in.Take(run.first), in.TakeAll(run.blocks);
  }
}

void Take(FieldReader& in, SlotWorked& worked) {
  in.Take(worked.peer), in.Take(worked.lane), in.Take(worked.slot), in.Take(worked.told);
  in.Take(worked.status);
}

absl::Status NoWord(std::string_view bytes, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(bytes.size(), " bytes that are no ", what));
}

bool IsPlain(std::string_view bytes) { return !bytes.empty() && bytes[0] == kPlain; }

/// Behind kPlain.
absl::StatusOr<RankNews> DecodeSlotNews(std::string_view bytes) {
  FieldReader in(bytes.substr(1));
  Word word{};
  in.Take(word);
  RankNews out;
  if (word == Word::kWorked) {
    Take(in, out.emplace<SlotWorked>());
  } else if (word == Word::kFull) {
    auto& heard = out.emplace<SlotHeard>();
    auto& full = heard.said.emplace<SlotFull>();
    in.Take(heard.peer), in.Take(full.lane), in.Take(full.slot), in.TakeAll(full.segments);
  } else if (word == Word::kFree) {
    auto& heard = out.emplace<SlotHeard>();
    auto& free = heard.said.emplace<SlotFree>();
    in.Take(heard.peer), in.Take(free.lane), in.Take(free.grant), in.Take(free.ok);
  } else {
    return NoWord(bytes, "news of a rank");
  }
  if (!in.whole()) return NoWord(bytes, "news of a rank");
  return out;
}

}  // namespace

std::string EncodeRankOrder(const RankOrder& order) {
  return std::visit([](const auto& one) { return BytesOf(one); }, order);
}

std::string EncodeRankNews(const RankNews& news) {
  return std::visit([](const auto& one) { return BytesOf(one); }, news);
}

absl::StatusOr<RankOrder> DecodeRankOrder(std::string_view bytes) {
  RankOrder out;
  if (IsPlain(bytes)) {
    FieldReader in(bytes.substr(1));
    Word word{};
    in.Take(word);
    Take(in, out.emplace<SlotOrder>());
    if (word != Word::kOrder || !in.whole()) return NoWord(bytes, "order of rank 0");
  } else if (!out.emplace<v1::RankOrder>().ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return NoWord(bytes, "order of rank 0");
  }
  return out;
}

absl::StatusOr<RankNews> DecodeRankNews(std::string_view bytes) {
  if (IsPlain(bytes)) return DecodeSlotNews(bytes);
  RankNews out;
  if (!out.emplace<v1::RankNews>().ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return NoWord(bytes, "news of a rank");
  return out;
}

}  // namespace baton
