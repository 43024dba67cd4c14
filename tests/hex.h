// Bytes as hexadecimal text, for tests that name the bytes of a format.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace baton {

/// "4241ff": two digits a byte, no spaces.
inline std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return text;
}
inline std::string Hex(std::span<const std::byte> bytes) {
  return Hex(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

/// `text` without its spaces: as Hex writes it.
inline std::string Digits(std::string_view text) {
  std::string digits(text);
  std::erase(digits, ' ');
  return digits;
}

/// The bytes that `spaced` stands for.
inline std::string Unhex(std::string_view spaced) {
  const std::string text = Digits(spaced);
  EXPECT_EQ(text.size() % 2, 0u) << text;
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

}  // namespace baton
