#include "common/tls/traffic_secret.h"

#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/provider.h>

#include "common/check.h"

namespace baton::tls {
namespace {

constexpr const char* kProvider = "baton-secrets";
constexpr const char* kOfOurs = "?provider=baton-secrets";  // where there is such an algorithm

struct Hearer {
  std::string_view label;
  SecretHeard::Hears hears = nullptr;
  void* whose = nullptr;
};
thread_local Hearer hearer;

/// Which does the work: what this process has without ours.
EVP_KDF* OthersKdf() {
  static EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_TLS1_3_KDF, nullptr);
  return kdf;
}

EVP_KDF_CTX* Inner(void* context) { return static_cast<EVP_KDF_CTX*>(context); }

void* NewKdf(void* /*provider*/) { return EVP_KDF_CTX_new(OthersKdf()); }
void* CopyKdf(void* context) { return EVP_KDF_CTX_dup(Inner(context)); }
void FreeKdf(void* context) { EVP_KDF_CTX_free(Inner(context)); }
void ResetKdf(void* context) { EVP_KDF_CTX_reset(Inner(context)); }
int SetKdf(void* context, const OSSL_PARAM* params) { return EVP_KDF_CTX_set_params(Inner(context), params); }
int GetKdf(void* context, OSSL_PARAM* params) { return EVP_KDF_CTX_get_params(Inner(context), params); }

int Derive(void* context, unsigned char* to, size_t bytes, const OSSL_PARAM* params) {
  const int derived = EVP_KDF_derive(Inner(context), to, bytes, params);
  if (derived != 1 || hearer.hears == nullptr || params == nullptr) return derived;
  const OSSL_PARAM* const label = OSSL_PARAM_locate_const(params, OSSL_KDF_PARAM_LABEL);
  if (label != nullptr && std::string_view(static_cast<const char*>(label->data), label->data_size) == hearer.label)
    hearer.hears(hearer.whose, {reinterpret_cast<const char*>(to), bytes});
  return derived;
}

template <class F>
OSSL_DISPATCH Entry(int number, F* function) {
  return {number, reinterpret_cast<void (*)()>(function)};
}

const OSSL_ALGORITHM* AlgorithmsOf(void* /*provider*/, int operation, int* changes) {
  static const OSSL_DISPATCH kFunctions[] = {
      Entry(OSSL_FUNC_KDF_NEWCTX, NewKdf),         Entry(OSSL_FUNC_KDF_DUPCTX, CopyKdf),
      Entry(OSSL_FUNC_KDF_FREECTX, FreeKdf),       Entry(OSSL_FUNC_KDF_RESET, ResetKdf),
      Entry(OSSL_FUNC_KDF_DERIVE, Derive),         Entry(OSSL_FUNC_KDF_SET_CTX_PARAMS, SetKdf),
      Entry(OSSL_FUNC_KDF_GET_CTX_PARAMS, GetKdf), {0, nullptr}};
  static const OSSL_ALGORITHM kKdfs[] = {
      {OSSL_KDF_NAME_TLS1_3_KDF, "provider=baton-secrets", kFunctions, "OpenSSL's, whose results are heard"},
      {nullptr, nullptr, nullptr, nullptr}};
  *changes = 0;
  return operation == OSSL_OP_KDF ? kKdfs : nullptr;
}

int BeginProvider(const OSSL_CORE_HANDLE* core, const OSSL_DISPATCH* /*ours*/, const OSSL_DISPATCH** functions,
                  void** state) {
  static const OSSL_DISPATCH kFunctions[] = {Entry(OSSL_FUNC_PROVIDER_QUERY_OPERATION, AlgorithmsOf), {0, nullptr}};
  *functions = kFunctions;
  *state = const_cast<OSSL_CORE_HANDLE*>(core);
  return 1;
}

/// False: OpenSSL takes none. Beside its own, which it goes on to load by itself.
bool HaveProvider() {
  static const bool have = OthersKdf() != nullptr &&
                           OSSL_PROVIDER_add_builtin(nullptr, kProvider, BeginProvider) == 1 &&
                           OSSL_PROVIDER_try_load(nullptr, kProvider, /*retain_fallbacks=*/1) != nullptr;
  return have;
}

}  // namespace

ContextPtr ContextWithSecrets() {
  return ContextPtr(HaveProvider() ? SSL_CTX_new_ex(nullptr, kOfOurs, TLS_method()) : SSL_CTX_new(TLS_method()));
}

SecretHeard::SecretHeard(End end, Hears hears, void* whose) {
  BATON_CHECK(hearer.hears == nullptr);
  hearer = {end == End::kServer ? "s ap traffic" : "c ap traffic", hears, whose};
}
SecretHeard::~SecretHeard() { hearer = {}; }

}  // namespace baton::tls
