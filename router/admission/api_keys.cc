#include "router/admission/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <fstream>

#include "absl/strings/match.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::router {

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

bool ApiKeys::Allows(std::string_view authorization) const {
  if (open()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(AbslView(authorization), AbslView(kScheme))) return false;
  const Digest given = DigestOf(authorization.substr(kScheme.size()));
  int matches = 0;
  for (const Digest& digest : digests_) matches |= CRYPTO_memcmp(digest.data(), given.data(), given.size()) == 0;
  return matches != 0;
}

}  // namespace baton::router
