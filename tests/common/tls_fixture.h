// Certificates for tests: an authority and what it answers for, as files of a directory that the test owns.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/tls/certs.h"
#include "common/tls/identity.h"
#include "common/tls/live_identity.h"
#include "common/tls/peer_tls.h"
#include "common/whole_file.h"

namespace baton::tls {

inline constexpr int64_t kTestDay = 24 * 3600;

class CertDir {
 public:
  CertDir() {
    std::string name = ::testing::TempDir() + "baton-tls-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  ~CertDir() { std::filesystem::remove_all(dir_); }
  CertDir(const CertDir&) = delete;
  CertDir& operator=(const CertDir&) = delete;

  std::string path(const std::string& file) const { return (dir_ / file).string(); }

  void Write(const std::string& file, const std::string& text) const {
    ASSERT_TRUE(WriteWhole({{path(file), text, 0600}}).ok()) << file;
  }

  /// NAME.crt, NAME.key of `authority`, beside ca.crt, as files of an identity. Days count from now on.
  TlsFiles Make(const CertAndKey& authority, const std::string& name, std::vector<std::string> hosts,
                int64_t from_days = -1, int64_t until_days = 30) const {
    const int64_t now = WallSeconds();
    auto made =
        MakeCertificate(authority, {name, std::move(hosts), now + from_days * kTestDay, now + until_days * kTestDay});
    EXPECT_TRUE(made.ok()) << made.status();
    Write(name + ".crt", made->CertificatePem());
    Write(name + ".key", made->KeyPem());
    Write("ca.crt", authority.CertificatePem());
    return {path(name + ".crt"), path(name + ".key"), path("ca.crt")};
  }

 private:
  std::filesystem::path dir_;
};

inline CertAndKey TestAuthority(const std::string& name) {
  const int64_t now = WallSeconds();
  return MakeAuthority({name, {}, now - 100 * kTestDay, now + 100 * kTestDay});
}

inline std::shared_ptr<const Identity> MustLoad(const TlsFiles& files) {
  auto loaded = Identity::Load(files, WallSeconds());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *loaded : nullptr;
}

/// What all processes of a test show and believe: the first one makes the files, its children find them.
inline std::shared_ptr<const PeerTls> TestPeerTls(std::shared_ptr<KernelTls> kernel = nullptr) {
  constexpr const char* kVariable = "BATON_TEST_CERTS";
  static std::unique_ptr<CertDir> made;
  if (getenv(kVariable) == nullptr) {  // NOLINT(concurrency-mt-unsafe): one thread
    made = std::make_unique<CertDir>();
    made->Make(TestAuthority("test authority"), "peer", {"baton-worker"});
    setenv(kVariable, made->path("").c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
  }
  const std::string dir = getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): one thread
  auto live = LiveIdentity::Open({dir + "peer.crt", dir + "peer.key", dir + "ca.crt"});
  EXPECT_TRUE(live.ok()) << live.status();
  return std::make_shared<const PeerTls>(*std::move(live), "baton-worker", std::move(kernel));
}

}  // namespace baton::tls
