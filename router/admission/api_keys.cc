#include "router/admission/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/foreign_text.h"
#include "common/open_to_read.h"
#include "common/status.h"

namespace baton::router {

namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin a file of UTF-8 with it
constexpr size_t kMostNameBytes = 64;

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kMostNameBytes && std::ranges::all_of(text, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

struct Fields {
  std::string name;
  KeyAccount::Limits limits;
  std::set<std::string> said;
};

// One word behind a key. InvalidArgument says what it may be.
absl::Status ReadField(std::string_view field, Fields& out) {
  const size_t at = field.find('=');
  const std::string_view word = field.substr(0, at), value = field.substr(at + 1);
  int64_t number = 0;
  if (!out.said.insert(std::string(word)).second)
    return absl::InvalidArgumentError(StrCat("\"", Printable(word, 100), "\" is said twice"));
  const bool counts = absl::SimpleAtoi(AbslView(value), &number) && number > 0 && number <= int64_t{1} << 40;
  if (word == "name" && IsName(value)) {
    out.name = std::string(value);
  } else if (word == "requests-per-minute" && counts) {
    out.limits.requests_per_minute = number;
  } else if (word == "tokens-per-minute" && counts) {
    out.limits.tokens_per_minute = number;
  } else if (int32_t priority = 0; word == "priority" && absl::SimpleAtoi(AbslView(value), &priority)) {
    out.limits.priority = priority;
  } else {
    return absl::InvalidArgumentError(
        StrCat("\"", Printable(field, 100), "\" is none of name=NAME (letters, digits, . _ -), requests-per-minute=N, ",
               "tokens-per-minute=N (N > 0) and priority=N"));
  }
  return absl::OkStatus();
}

}  // namespace

ApiKeys::Digest ApiKeys::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

absl::Status ApiKeys::Add(std::string_view key, std::string name, const KeyAccount::Limits& limits) {
  if (key.empty()) return absl::InvalidArgumentError("an empty key");
  Key one{DigestOf(key), DigestOf(name.empty() ? key : StrCat("\nname ", name)), nullptr};
  if (const auto other = by_digest_.find(one.digest); other != by_digest_.end()) {
    const Key& same = keys_[other->second];
    if (same.salted_by == one.salted_by && same.account->limits() == limits) return absl::OkStatus();
    return absl::InvalidArgumentError("a key that stands before, with another name or other limits");
  }
  if (name.empty()) name = StrCat("key-", keys_.size() + 1);
  const auto [named, first] = account_named_.try_emplace(name, accounts_.size());
  if (first) accounts_.push_back(std::make_shared<KeyAccount>(name, limits));
  one.account = accounts_[named->second];
  if (one.account->limits() != limits) {
    return absl::InvalidArgumentError(
        StrCat("two keys are named ", name, " and have different limits; give both keys the same ones"));
  }
  by_digest_[one.digest] = keys_.size();
  keys_.push_back(std::move(one));
  return absl::OkStatus();
}

absl::Status ApiKeys::AddLine(std::string_view line) {
  Fields fields;
  while (true) {  // from the end: a key may have spaces
    const size_t space = line.find_last_of(" \t");
    if (space == std::string_view::npos || line.find('=', space) == std::string_view::npos) break;
    BATON_RETURN_IF_ERROR(ReadField(line.substr(space + 1), fields));
    line = View(absl::StripTrailingAsciiWhitespace(AbslView(line.substr(0, space))));
  }
  return Add(line, fields.name, fields.limits);
}

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::vector<std::string>& keys, const std::string& file) {
  ApiKeys out;
  for (const std::string& key : keys) {
    if (absl::Status status = out.Add(key, "", {}); !status.ok())
      return absl::InvalidArgumentError(StrCat("--api-key: ", status.message()));
  }
  if (file.empty()) return out;
  BATON_ASSIGN_OR_RETURN(std::ifstream in, OpenToRead(file, "--api-key-file"));
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    absl::StripTrailingAsciiWhitespace(&line);
    if (number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    if (line.empty() || line[0] == '#') continue;
    if (absl::Status status = out.AddLine(line); !status.ok())
      return absl::InvalidArgumentError(StrCat("--api-key-file: ", file, ":", number, ": ", status.message()));
  }
  if (out.keys_.empty()) return absl::InvalidArgumentError(StrCat("--api-key-file: ", file, " has no key"));
  return out;
}

const ApiKeys::Key* ApiKeys::Find(std::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(AbslView(authorization), AbslView(kScheme))) return nullptr;
  const Digest given = DigestOf(authorization.substr(kScheme.size()));
  const auto found = by_digest_.find(given);
  return found != by_digest_.end() ? &keys_[found->second] : nullptr;
}

KeyAccount* ApiKeys::AccountOf(std::string_view authorization) const {
  const Key* key = Find(authorization);
  return key != nullptr ? key->account.get() : nullptr;
}

std::vector<const KeyAccount*> ApiKeys::accounts() const {
  std::vector<const KeyAccount*> out;
  for (const auto& account : accounts_) out.push_back(account.get());
  return out;
}

std::string ApiKeys::SaltOf(std::string_view authorization, const std::string& client_salt) const {
  const Key* key = accounts_.size() < 2 ? nullptr : Find(authorization);
  if (key == nullptr) return client_salt;
  std::string text = "baton prefix cache ";
  text.append(reinterpret_cast<const char*>(key->salted_by.data()), key->salted_by.size());
  text += client_salt;
  const Digest salt = DigestOf(text);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(salt.data()), salt.size() / 2));
}

}  // namespace baton::router
