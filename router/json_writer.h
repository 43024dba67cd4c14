// JsonWriter: appends JSON to a string, commas included. For output only; key order is the order of the calls, so that
// answers can be compared byte for byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::router {

/// Appends `text` as a JSON string: control characters, quotes and backslashes are escaped, malformed UTF-8 becomes
/// U+FFFD.
void AppendJsonString(std::string_view text, std::string& out);

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view key);
  JsonWriter& String(std::string_view value);
  JsonWriter& Int(int64_t value);
  JsonWriter& Uint(uint64_t value);
  JsonWriter& Number(double value);  ///< shortest text that reads back as the same double; -inf, inf, NaN: ±9999
  JsonWriter& Float(float value);    ///< the same for a float
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  JsonWriter& Raw(std::string_view json);  ///< a value that is JSON already

  /// Key and value at once; an empty string can be wanted, so absence is NullIfEmpty.
  JsonWriter& Field(std::string_view key, std::string_view value) { return Key(key).String(value); }
  JsonWriter& Field(std::string_view key, const char* value) { return Key(key).String(value); }
  JsonWriter& Field(std::string_view key, int64_t value) { return Key(key).Int(value); }
  JsonWriter& Field(std::string_view key, int32_t value) { return Key(key).Int(value); }
  JsonWriter& Field(std::string_view key, uint32_t value) { return Key(key).Int(value); }
  JsonWriter& Field(std::string_view key, double value) { return Key(key).Number(value); }
  JsonWriter& Field(std::string_view key, bool value) { return Key(key).Bool(value); }
  JsonWriter& NullField(std::string_view key) { return Key(key).Null(); }
  JsonWriter& NullIfEmpty(std::string_view key, std::string_view value) {
    return value.empty() ? NullField(key) : Field(key, value);
  }

 private:
  JsonWriter& Open(char c) {
    Comma();
    out_.push_back(c);
    comma_ = false;
    return *this;
  }
  JsonWriter& Close(char c) {
    out_.push_back(c);
    comma_ = true;
    return *this;
  }
  void Comma() {
    if (comma_) out_.push_back(',');
    comma_ = true;
  }

  std::string& out_;
  bool comma_ = false;
};

}  // namespace baton::router
