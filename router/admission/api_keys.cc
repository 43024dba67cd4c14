#include "router/admission/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::router {

namespace {

constexpr std::string_view kScheme = "Bearer ";

}  // namespace

ApiKeys::Digest ApiKeys::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::vector<std::string>& keys, const std::string& file) {
  ApiKeys out;
  for (const std::string& key : keys) {
    if (key.empty()) return absl::InvalidArgumentError("--api-key: an empty key");
    out.digests_.push_back(DigestOf(key));
  }
  if (file.empty()) return out;
  std::ifstream in(file);
  if (!in) return absl::NotFoundError(StrCat("--api-key-file: cannot read ", file));
  std::string line;
  while (std::getline(in, line)) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    if (!line.empty() && line[0] != '#') out.digests_.push_back(DigestOf(line));
  }
  if (out.digests_.empty()) return absl::InvalidArgumentError(StrCat("--api-key-file: ", file, " has no key"));
  return out;
}

std::string ApiKeys::SaltOf(std::string_view authorization, const std::string& client_salt) const {
  if (digests_.size() < 2) return client_salt;
  const Digest key = DigestOf(authorization.substr(std::min(authorization.size(), kScheme.size())));
  std::string text = "baton prefix cache ";
  text.append(reinterpret_cast<const char*>(key.data()), key.size());
  text += client_salt;
  const Digest salt = DigestOf(text);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(salt.data()), salt.size() / 2));
}

bool ApiKeys::Allows(std::string_view authorization) const {
  if (open()) return true;
  if (!absl::StartsWithIgnoreCase(AbslView(authorization), AbslView(kScheme))) return false;
  const Digest given = DigestOf(authorization.substr(kScheme.size()));
  int matches = 0;
  for (const Digest& digest : digests_) matches |= CRYPTO_memcmp(digest.data(), given.data(), given.size()) == 0;
  return matches != 0;
}

}  // namespace baton::router
