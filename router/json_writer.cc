#include "router/json_writer.h"

#include <charconv>
#include <cmath>
#include <cstring>

#include "common/utf8.h"

namespace baton::router {
namespace {

template <class T>
void AppendFloating(T value, std::string& out) {
  if (!std::isfinite(value)) value = value > 0 ? T(9999) : T(-9999);
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  std::string_view text(digits, end - digits);
  out.append(text);
  if (text.find_first_of(".e") == std::string_view::npos) out.append(".0");
}

std::string Repaired(std::string_view bytes) {
  std::string held, text;
  AppendUtf8(bytes, Utf8Repair::kMaximalPart, held, text);
  FlushUtf8(Utf8Repair::kMaximalPart, held, text);
  return text;
}

// Blocks of a fixed length from `at` on that stand as they are, for the compiler to make vectors of; their end.
size_t PlainBlocks(std::string_view text, size_t at, uint64_t& high) {
  constexpr size_t kBlock = 64;
  for (; at + kBlock <= text.size(); at += kBlock) {
    const auto* block = reinterpret_cast<const unsigned char*>(text.data()) + at;
    unsigned char escaped = 0, bits = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      const unsigned char c = block[i];
      escaped |= static_cast<unsigned char>((c < 0x20) | (c == '"') | (c == '\\'));
      bits |= c;
    }
    if (escaped != 0) break;
    high |= bits;
  }
  return at;
}

// From `at` on, how many bytes stand as they are. `high` gets a high bit where one of them has it: UTF-8 to be looked
// at.
size_t PlainBytes(std::string_view text, size_t at, uint64_t& high) {
  constexpr uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;
  const auto zero_byte = [](uint64_t word) { return (word - kOnes) & ~word & kHighs; };  // high bit of the first one
  const size_t begin = at;
  at = PlainBlocks(text, at, high);
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    const uint64_t control = (word - 0x20 * kOnes) & ~word & kHighs;
    if ((control | zero_byte(word ^ ('"' * kOnes)) | zero_byte(word ^ ('\\' * kOnes))) != 0) break;
    high |= word;
  }
  for (; at < text.size(); ++at) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x20 || c == '"' || c == '\\') break;
    high |= c;
  }
  return at - begin;
}

}  // namespace

void AppendJsonString(std::string_view text, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  const size_t begin = out.size();
  out.push_back('"');
  uint64_t high = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t plain = PlainBytes(text, i, high);
    out.append(text, i, plain);
    i += plain;
    if (i == text.size()) break;
    const auto c = static_cast<unsigned char>(text[i]);
    out.push_back('\\');
    switch (c) {
      case '"': out.push_back('"'); break;
      case '\\': out.push_back('\\'); break;
      case '\n': out.push_back('n'); break;
      case '\r': out.push_back('r'); break;
      case '\t': out.push_back('t'); break;
      default:
        out.append("u00");
        out.push_back(kHex[c >> 4]);
        out.push_back(kHex[c & 15]);
    }
  }
  if ((high & 0x8080808080808080) != 0 && !IsUtf8(text)) {
    out.resize(begin);
    return AppendJsonString(Repaired(text), out);
  }
  out.push_back('"');
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Comma();
  AppendJsonString(key, out_);
  out_.push_back(':');
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  Comma();
  AppendJsonString(value, out_);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  Comma();
  out_.append(std::to_string(value));
  return *this;
}

JsonWriter& JsonWriter::Uint(uint64_t value) {
  Comma();
  out_.append(std::to_string(value));
  return *this;
}

JsonWriter& JsonWriter::Number(double value) {
  Comma();
  AppendFloating(value, out_);
  return *this;
}

JsonWriter& JsonWriter::Float(float value) {
  Comma();
  AppendFloating(value, out_);
  return *this;
}

JsonWriter& JsonWriter::Raw(std::string_view json) {
  Comma();
  out_.append(json);
  return *this;
}

}  // namespace baton::router
