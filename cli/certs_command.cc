// `baton certs`: a private authority and what it answers for, for a trial of TLS. A second run renews the certificates
// and keeps the authority, so that processes which believe it need nothing new.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "common/errno_text.h"
#include "common/prefix_hash.h"
#include "common/status.h"
#include "common/tls/certs.h"
#include "common/tls/identity.h"
#include "common/whole_file.h"

namespace baton::cli {
namespace {

constexpr int64_t kDay = 24 * 3600;
constexpr int64_t kAuthorityDays = 10 * 365;
constexpr int64_t kClockSkewSeconds = 300;  // clocks of other machines may be behind
constexpr int kMostDays = 10 * 365;

struct CertsFlags {
  std::string dir;
  std::vector<std::string> hosts;
  int days = 365;
};

absl::Status MakeDirectory(const std::string& dir) {
  if (mkdir(dir.c_str(), 0700) == 0 || (errno == EEXIST && std::filesystem::is_directory(dir))) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("cannot make the directory ", dir, ": ", ErrnoText()));
}

// The key is there first: a certificate without its key would stop the next run.
void Add(const std::string& dir, const std::string& name, const tls::CertAndKey& made, std::vector<NewFile>& files) {
  files.push_back({StrCat(dir, "/", name, ".key"), made.KeyPem(), 0600});
  files.push_back({StrCat(dir, "/", name, ".crt"), made.CertificatePem(), 0644});
}

absl::StatusOr<tls::CertAndKey> Authority(const std::string& dir, int64_t now, std::vector<NewFile>& files) {
  const std::string cert = dir + "/ca.crt", key = dir + "/ca.key";
  if (std::filesystem::exists(cert)) {
    BATON_ASSIGN_OR_RETURN(tls::CertAndKey kept, tls::ReadAuthority(cert, key));
    if (tls::NotAfter(kept.certificate.get()) > now) return kept;
    return absl::FailedPreconditionError(StrCat(cert, ": the authority expired at ",
                                                tls::UtcText(tls::NotAfter(kept.certificate.get())),
                                                "; remove it and its key, and give every process the new one"));
  }
  BATON_ASSIGN_OR_RETURN(const HashKey random, HashKey::Random());  // two trials are told apart by name
  tls::CertAndKey made = tls::MakeAuthority(
      {"Baton trial CA " + random.Hex().substr(0, 8), {}, now - kClockSkewSeconds, now + kAuthorityDays * kDay});
  Add(dir, "ca", made, files);
  return made;
}

absl::Status Certs(const CertsFlags& flags) {
  if (flags.days < 1 || flags.days > kMostDays) {
    return absl::InvalidArgumentError(StrCat("--days ", flags.days, ": must be from 1 to ", kMostDays));
  }
  std::vector<std::string> hosts = {"baton-worker", "localhost", "127.0.0.1", "::1"};
  for (const std::string& host : flags.hosts) {
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  const int64_t now = tls::WallSeconds();
  BATON_RETURN_IF_ERROR(MakeDirectory(flags.dir));
  std::vector<NewFile> files;  // all of them or none: a key whose certificate found no room would stop who has both
  BATON_ASSIGN_OR_RETURN(const tls::CertAndKey authority, Authority(flags.dir, now, files));
  const int64_t end = std::min(now + flags.days * kDay, tls::NotAfter(authority.certificate.get()));
  BATON_ASSIGN_OR_RETURN(const tls::CertAndKey server,
                         tls::MakeCertificate(authority, {"baton-worker", hosts, now - kClockSkewSeconds, end}));
  BATON_ASSIGN_OR_RETURN(const tls::CertAndKey client,
                         tls::MakeCertificate(authority, {"baton-client", {}, now - kClockSkewSeconds, end}));
  Add(flags.dir, "server", server, files);
  Add(flags.dir, "client", client, files);
  if (const std::string secret = flags.dir + "/cluster-secret"; !std::filesystem::exists(secret)) {
    BATON_ASSIGN_OR_RETURN(const HashKey random, HashKey::Random());
    files.push_back({secret, random.Hex(), 0600});
  }
  BATON_RETURN_IF_ERROR(WriteWhole(files));
  const std::string dir = std::filesystem::absolute(flags.dir).lexically_normal().string();
  std::printf("%s/ca.crt      %s\n", dir.c_str(), tls::Describe(authority.certificate.get()).c_str());
  std::printf("%s/server.crt  for %s, valid until %s\n", dir.c_str(), tls::NamesOf(server.certificate.get()).c_str(),
              tls::UtcText(end).c_str());
  std::printf("%s/client.crt  for clients\n", dir.c_str());
  std::printf(
      "Routers, workers and `baton serve`:\n  --tls-cert %s/server.crt --tls-key %s/server.key --tls-ca %s/ca.crt\n"
      "Routers and workers, what they prove to each other that they know:\n  --cluster-secret-file %s/cluster-secret\n",
      dir.c_str(), dir.c_str(), dir.c_str(), dir.c_str());
  std::printf("Keep ca.key away from the machines that serve. Running processes take renewed files by themselves.\n");
  return absl::OkStatus();
}

}  // namespace

Runner AddCerts(CLI::App& app) {
  auto flags = std::make_shared<CertsFlags>();
  app.add_option("dir,--dir", flags->dir, "where the files are, or will be")->required();
  app.add_option("--host", flags->hosts, "DNS names and IP addresses of the machines (repeatable), beside localhost");
  app.add_option("--days", flags->days, "how long the certificates are valid")->capture_default_str();
  return [flags] {
    const absl::Status status = Certs(*flags);
    if (status.ok()) return static_cast<int>(kExitOk);
    return absl::IsInvalidArgument(status) ? FailUsage(status) : Fail(status);
  };
}

}  // namespace baton::cli
