#include "common/tls/grpc_credentials.h"

#include <fcntl.h>
#include <grpc/support/log.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/pem.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <utility>

#include "common/errno_text.h"
#include "common/grpc/error_lines.h"
#include "common/log.h"
#include "common/status.h"

namespace baton::tls {
namespace {

namespace ge = grpc::experimental;

constexpr unsigned kRefreshSeconds = 1;

// A file that lives in memory; what opens its path reads the text of the last Put, whole.
class MemoryFile {
 public:
  MemoryFile() = default;
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  absl::Status Put(const std::string& text) {
    const int fresh = memfd_create("baton-tls", MFD_CLOEXEC);
    const bool written = fresh >= 0 && write(fresh, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                         (fd_ < 0 || dup3(fresh, fd_, O_CLOEXEC) >= 0);
    const int error = errno;
    if (fd_ < 0 && written) {
      fd_ = fresh;
    } else if (fresh >= 0) {
      close(fresh);
    }
    return written ? absl::OkStatus()
                   : absl::UnavailableError(StrCat("cannot keep a file in memory: ", ErrnoText(error)));
  }
  std::string path() const { return StrCat("/proc/self/fd/", fd_); }

 private:
  int fd_ = -1;
};

CertificatePtr ReadCertificate(BIO* bio) { return CertificatePtr(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr)); }

// What gRPC says of handshakes that failed, while a GrpcTls is there; gRPC has one log function for the process.
std::mutex log_mutex;
Refusals* log_to = nullptr;
std::string log_port = "grpc";  // the one that this process serves

// OpenSSL's words of the handshake that broke last on this thread, which may be one that we began.
thread_local std::string broken;

/// `text`: of gRPC, of a connection that it had accepted and that came to nothing. What the Verifier refused it has
/// counted.
void NoteBroken(std::string_view text, const std::string& openssl) {
  const auto says = [](std::string_view all, std::string_view words) { return all.find(words) != all.npos; };
  if (says(text, "Custom verification check failed") || says(text, "hutdown")) return;
  Refusal why = Refusal::kHandshake;
  std::string_view message = says(text, "imed out") ? "no TLS handshake in time" : "it left during the TLS handshake";
  if (says(text, "TSI_")) {
    const bool plain = says(openssl, "wrong version number") || says(openssl, "http request");
    const bool none = says(openssl, "peer did not return a certificate");
    why = plain ? Refusal::kPlaintext : none ? Refusal::kNoCertificate : Refusal::kHandshake;
    message = plain             ? "plain text came to a TLS port"
              : none            ? "it shows no certificate (--tls-cert, --tls-key)"
              : openssl.empty() ? text
                                : std::string_view(openssl);
  }
  std::lock_guard lock(log_mutex);
  if (log_to != nullptr) log_to->Note(log_port, why, "", message);
}

void TakeGrpcLog(gpr_log_func_args* line) {
  const std::string_view text(line->message);
  // gRPC looks for a certificate by the name that a client sends, which of its own clients is the address that they
  // dialled. A port here has one certificate, and who dials judges it (CheckPeer): nothing is wrong, whatever he sends.
  if (text.starts_with("No match found for server name")) return;
  if (text.starts_with("Handshake failed")) {
    broken = text;
    return;
  }
  if (text.starts_with("Handshaking failed")) return NoteBroken(text, std::exchange(broken, ""));
  if (line->severity == GPR_LOG_SEVERITY_ERROR) net::LogGrpcError(text);
}

}  // namespace

// Lives as long as any credentials do.
struct GrpcTls::Shared {
  Shared(LiveIdentity& live_identity, Refusals& all) : live(live_identity), refusals(all) {}
  LiveIdentity& live;
  Refusals& refusals;
  MemoryFile pair, authorities;
  std::shared_ptr<ge::FileWatcherCertificateProvider> provider;

  absl::Status Put(const Identity& identity) {
    if (identity.has_certificate()) BATON_RETURN_IF_ERROR(pair.Put(identity.cert_and_key_pem()));
    if (identity.has_authority()) BATON_RETURN_IF_ERROR(authorities.Put(identity.ca_pem()));
    return absl::OkStatus();
  }
};

namespace {

// One for a port, or for what one channel dials.
template <class Shared>
class Verifier final : public ge::ExternalCertificateVerifier {
 public:
  Verifier(std::shared_ptr<Shared> shared, PeerRole peer, std::string port, std::vector<std::string> names)
      : shared_(std::move(shared)), peer_(peer), port_(std::move(port)), names_(std::move(names)) {}

  bool Verify(ge::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* result) override {
    const grpc::string_ref leaf_pem = request->peer_cert(), chain_pem = request->peer_cert_full_chain();
    const BioPtr leaf_bio(BIO_new_mem_buf(leaf_pem.data(), static_cast<int>(leaf_pem.size())));
    const BioPtr chain_bio(BIO_new_mem_buf(chain_pem.data(), static_cast<int>(chain_pem.size())));
    const CertificatePtr leaf = leaf_bio ? ReadCertificate(leaf_bio.get()) : nullptr;
    const CertificatesPtr others(sk_X509_new_null());
    while (CertificatePtr one = chain_bio ? ReadCertificate(chain_bio.get()) : nullptr) {
      sk_X509_push(others.get(), one.release());
    }
    OpenSslError();
    const PeerCheck check = CheckPeer(leaf.get(), others.get(), *shared_->live.now(), names_, peer_, WallSeconds());
    if (check.refusal && peer_ == PeerRole::kClient) shared_->refusals.Note(port_, *check.refusal, "", check.message);
    *result = check.refusal ? grpc::Status(grpc::StatusCode::UNAUTHENTICATED, check.message) : grpc::Status::OK;
    return true;  // decided here and now
  }
  void Cancel(ge::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<Shared> shared_;
  const PeerRole peer_;
  const std::string port_;
  const std::vector<std::string> names_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcTls>> GrpcTls::Make(LiveIdentity& live, Refusals& refusals) {
  auto shared = std::make_shared<Shared>(live, refusals);
  const auto identity = live.now();
  BATON_RETURN_IF_ERROR(shared->Put(*identity));
  const std::string pair = identity->has_certificate() ? shared->pair.path() : "";
  const std::string authorities = identity->has_authority() ? shared->authorities.path() : "";
  shared->provider = std::make_shared<ge::FileWatcherCertificateProvider>(pair, pair, authorities, kRefreshSeconds);
  live.OnChange([weak = std::weak_ptr<Shared>(shared)](const std::shared_ptr<const Identity>& now) {
    const auto alive = weak.lock();
    if (!alive) return;
    if (absl::Status status = alive->Put(*now); !status.ok()) LogError("TLS: {}", View(status.message()));
  });
  return std::unique_ptr<GrpcTls>(new GrpcTls(std::move(shared)));
}

GrpcTls::GrpcTls(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
  std::lock_guard lock(log_mutex);
  log_to = &shared_->refusals;
  net::SetGrpcLog(TakeGrpcLog);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);  // that a handshake came to nothing it says there
}

GrpcTls::~GrpcTls() {
  std::lock_guard lock(log_mutex);
  if (log_to == &shared_->refusals) log_to = nullptr;
}

std::shared_ptr<grpc::ServerCredentials> GrpcTls::ForServer(const std::string& port, bool ask_client) {
  {
    std::lock_guard lock(log_mutex);
    log_port = port;
  }
  ge::TlsServerCredentialsOptions options(shared_->provider);
  options.watch_identity_key_cert_pairs();
  options.set_check_call_host(false);
  if (ask_client) {
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
    options.set_certificate_verifier(ge::ExternalCertificateVerifier::Create<Verifier<Shared>>(
        shared_, PeerRole::kClient, port, std::vector<std::string>{}));
  }
  return ge::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> GrpcTls::ForClient(std::vector<std::string> names) {
  ge::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(shared_->provider);
  options.watch_root_certs();
  if (shared_->live.now()->has_certificate()) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);  // Verifier does
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      ge::ExternalCertificateVerifier::Create<Verifier<Shared>>(shared_, PeerRole::kServer, "", std::move(names)));
  return ge::TlsCredentials(options);
}

std::string ExplainGrpc(const std::string& message, bool with_tls) {
  const auto says = [&](std::string_view words) { return message.find(words) != message.npos; };
  if (const size_t at = message.find("Custom verification check failed with error: "); at != message.npos) {
    return StrCat("TLS: ", message.substr(message.find("error: ", at) + 7));
  }
  if (with_tls && says("wrong version number")) return StrCat("TLS: that port speaks plain text; ", message);
  if (with_tls && (says("Socket closed") || says("Connection reset") || says("Broken pipe")))
    return StrCat("it closed the connection; its log says whether it refused our certificate; ", message);
  if (!with_tls && (says("Socket closed") || says("Connection reset")))
    return StrCat("it closed the connection; does that port speak TLS (--tls-cert, --tls-key, --tls-ca)? ", message);
  return message;
}

}  // namespace baton::tls
