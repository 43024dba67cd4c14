#include "common/trust/cluster_secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/errno_text.h"
#include "common/random_word.h"
#include "common/status.h"

namespace baton::trust {
namespace {

constexpr size_t kLeast = 32, kMost = 4096;

void AppendLength(std::string& out, uint64_t length) {
  for (int byte = 0; byte < 8; ++byte) out += static_cast<char>(length >> (8 * byte));
}

}  // namespace

bool Same(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

absl::StatusOr<std::shared_ptr<const ClusterSecret>> ClusterSecret::Read(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(StrCat("--cluster-secret-file ", file, ": ", ErrnoText()));
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat facts{};
  if (fstat(fd, &facts) == 0 && (facts.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    const char* what = (facts.st_mode & S_IROTH) != 0 ? "read" : "written";
    return absl::FailedPreconditionError(
        StrCat("--cluster-secret-file ", file, " may be ", what, " by everybody on this machine: chmod o-rw"));
  }
  std::string text(kMost + 64, '\0');
  const ssize_t bytes = read(fd, text.data(), text.size());
  if (bytes < 0) return absl::NotFoundError(StrCat("--cluster-secret-file ", file, ": ", ErrnoText()));
  text.resize(static_cast<size_t>(bytes));
  auto secret = Of(std::move(text));
  if (secret.ok()) return secret;
  return absl::Status(secret.status().code(),
                      StrCat("--cluster-secret-file ", file, ": ", std::string(secret.status().message())));
}

absl::StatusOr<std::shared_ptr<const ClusterSecret>> ClusterSecret::Of(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  if (text.size() < kLeast || text.size() > kMost) {
    return absl::InvalidArgumentError(
        StrCat("a cluster secret of ", text.size(), " bytes, it must have ", kLeast, " to ", kMost));
  }
  return std::shared_ptr<const ClusterSecret>(new ClusterSecret(std::move(text)));
}

std::string ClusterSecret::NewText() {
  std::string text;
  for (int word = 0; word < 4; ++word) absl::StrAppend(&text, absl::Hex(RandomWord(), absl::kZeroPad16));
  return text;
}

ClusterSecret::~ClusterSecret() { OPENSSL_cleanse(text_.data(), text_.size()); }

Proof ClusterSecret::Prove(std::string_view label, std::initializer_list<std::string_view> parts) const {
  std::string proven;
  AppendLength(proven, label.size());
  proven += label;
  for (const std::string_view part : parts) {
    AppendLength(proven, part.size());
    proven += part;
  }
  Proof proof{};
  unsigned length = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
           reinterpret_cast<const unsigned char*>(proven.data()), proven.size(), proof.data(), &length);
  BATON_CHECK(made != nullptr && length == proof.size(), "HMAC-SHA256 gave ", length, " bytes");
  return proof;
}

}  // namespace baton::trust
