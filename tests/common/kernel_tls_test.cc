// What the kernel encrypts in our place, and when it does not.
#include <gmock/gmock.h>

#include "tests/common/kernel_tls_fake.h"
#include "tests/common/tls_fixture.h"
#include "tests/common/tls_stream_pair.h"
#include "tests/hex.h"

namespace baton::tls {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const SSL_CIPHER* CipherOf(uint8_t id) {
  static const ContextPtr context(SSL_CTX_new(TLS_method()));
  static const SessionPtr session(SSL_new(context.get()));
  const unsigned char on_wire[] = {0x13, id};
  return SSL_CIPHER_find(session.get(), on_wire);
}

// ---- keys

TEST(WriteKeyTest, FollowsFromItsSecretAsInTheRfcsExample) {
  // RFC 8448, section 3: what the server writes application data under.
  const auto key = WriteKey::Of(
      CipherOf(1),
      Unhex("a1 1a f9 f0 55 31 f8 56 ad 47 11 6b 45 a9 50 32 82 04 b4 f4 4b fb 6b 3a 4b 4f 1f 3f cb 63 16 43"));
  ASSERT_TRUE(key);
  EXPECT_EQ(key->key, Unhex("9f 02 28 3b 6c 9c 07 ef c2 6b b9 f2 ac 92 e3 56"));
  EXPECT_EQ(key->iv, Unhex("cf 78 2b 88 dd 83 54 9a ad f1 e9 84"));
}

TEST(WriteKeyTest, IsOfAnotherLengthForAnotherCipherAndNoneForAnOldOne) {
  EXPECT_EQ(WriteKey::Of(CipherOf(2), std::string(48, 's'))->key.size(), 32u);
  EXPECT_EQ(WriteKey::Of(CipherOf(3), std::string(32, 's'))->key.size(), 32u);
  EXPECT_FALSE(WriteKey::Of(CipherOf(2), std::string(32, 's'))) << "a secret of another hash";
  EXPECT_FALSE(WriteKey::Of(nullptr, std::string(32, 's')));
}

// ---- connections

class KernelTlsTest : public ::testing::Test {
 protected:
  /// Both ends have `kernel`; their contexts are made ready by `shape`.
  template <class Shape>
  void Meet(std::shared_ptr<KernelTls> kernel, Shape&& shape, bool by_tcp = false) {
    const auto tls = TestPeerTls(std::move(kernel));
    const auto dials = tls->ForDialling("127.0.0.1").value(), dialled = tls->ForDialled().value();
    shape(dialled->get());
    pair.emplace(dials, dialled, by_tcp);
    pair->also = [this] { fake->Turn(); };
    pair->Meet();
    pair->here->Flush().IgnoreError(), pair->there->Flush().IgnoreError();
  }
  void Meet(std::shared_ptr<KernelTls> kernel, bool by_tcp = false) {
    Meet(std::move(kernel), [](SSL_CTX*) {}, by_tcp);
  }
  /// Says `bytes` one way, and then the other.
  void Exchange(const std::string& bytes) {
    pair->to_here.clear(), pair->to_there.clear();
    size_t up = 0, down = 0;
    pair->Until([&] {
      if (up < bytes.size()) up += Pair::Say(*pair->here, std::string_view(bytes).substr(up));
      if (down < bytes.size()) down += Pair::Say(*pair->there, std::string_view(bytes).substr(down));
      return pair->to_here.size() >= bytes.size() && pair->to_there.size() >= bytes.size();
    });
    EXPECT_TRUE(pair->to_here == bytes && pair->to_there == bytes) << pair->here_status << pair->there_status;
  }

  const std::shared_ptr<FakeKernelTls> fake = std::make_shared<FakeKernelTls>();
  std::optional<Pair> pair;
};

TEST_F(KernelTlsTest, TakesAConnectionOfEachCipher) {
  for (const char* cipher : {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}) {
    SCOPED_TRACE(cipher);
    Meet(fake, [&](SSL_CTX* context) { ASSERT_EQ(SSL_CTX_set_ciphersuites(context, cipher), 1); });
    EXPECT_TRUE(pair->here->in_kernel() && pair->there->in_kernel());
    Exchange("between two kernels");
    Exchange(std::string(100'000, 'x'));
  }
  EXPECT_EQ(fake->taken, 6);
}

TEST_F(KernelTlsTest, OneEndMayHaveItAndTheOtherNot) {
  const auto with = TestPeerTls(fake), without = TestPeerTls();
  pair.emplace(with->ForDialling("127.0.0.1").value(), without->ForDialled().value());
  pair->also = [this] { fake->Turn(); };
  pair->Meet();
  EXPECT_TRUE(pair->here->in_kernel());
  EXPECT_FALSE(pair->there->in_kernel());
  Exchange(std::string(100'000, 'x'));
}

TEST_F(KernelTlsTest, AKeyThatIsUsedUpIsFollowedByAnotherThatThePeerKnows) {
  const auto soon = std::make_shared<FakeKernelTls>(50'000);
  Meet(soon);
  pair->also = [&] { soon->Turn(); };
  std::string bytes;
  for (int i = 0; i < 500'000; ++i) bytes += static_cast<char>(i * 7 + i / 251);
  Exchange(bytes);
  EXPECT_GE(soon->renewed, 2);
}

TEST_F(KernelTlsTest, AKernelThatTakesNoFurtherKeyEndsTheConnection) {
  const auto soon = std::make_shared<FakeKernelTls>(1000);
  soon->renews = absl::UnavailableError("no further key");
  Meet(soon);
  ASSERT_EQ(Pair::Say(*pair->here, std::string(1000, 'x')), 1000u);
  char more[] = "more";
  const iovec piece{more, 4};
  EXPECT_EQ(pair->here->Write({&piece, 1}).status().ToString(), "UNAVAILABLE: no further key");
}

TEST_F(KernelTlsTest, AKernelThatRefusesAConnectionLeavesItAsItWas) {
  fake->takes = absl::UnimplementedError("no");
  Meet(fake);
  EXPECT_FALSE(pair->here->in_kernel() || pair->there->in_kernel());
  Exchange(std::string(100'000, 'x'));
}

TEST_F(KernelTlsTest, OldTlsIsNoneOfItsBusiness) {
  Meet(fake, [](SSL_CTX* context) { ASSERT_EQ(SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION), 1); });
  EXPECT_FALSE(pair->here->in_kernel() || pair->there->in_kernel());
  Exchange(std::string(100'000, 'x'));
}

TEST_F(KernelTlsTest, ThisMachinesLeavesUnixSocketsAsTheyAre) {
  Meet(LinuxKernelTls());
  EXPECT_FALSE(pair->here->in_kernel() || pair->there->in_kernel());
  Exchange(std::string(100'000, 'x'));
}

TEST_F(KernelTlsTest, ThisMachinesTakesTcpOrLeavesItAsItIs) {
  const absl::Status probed = ProbeKernelTls(*LinuxKernelTls());
  if (probed.ok()) {
    Meet(LinuxKernelTls(), /*by_tcp=*/true);
    EXPECT_TRUE(pair->here->in_kernel() && pair->there->in_kernel());
    Exchange(std::string(1'000'000, 'x'));
  } else {
    Meet(std::make_shared<ShortKeys>(LinuxKernelTls(), uint64_t{32} << 30), /*by_tcp=*/true);
    Exchange(std::string(1'000'000, 'x'));
  }
}

TEST_F(KernelTlsTest, ThisMachinesTakesFurtherKeys) {
  const KernelTlsChoice choice = ChooseKernelTls(/*wanted=*/true);
  if (choice.kernel == nullptr) GTEST_SKIP() << choice.text;
  Meet(std::make_shared<ShortKeys>(choice.kernel, 50'000), /*by_tcp=*/true);
  std::string bytes;
  for (int i = 0; i < 500'000; ++i) bytes += static_cast<char>(i * 7 + i / 251);
  Exchange(bytes);
}

TEST_F(KernelTlsTest, APeerThatBreaksTheSessionEndsItAndNoAlertSpoilsTheConnection) {
  Meet(fake);
  Exchange("well so far");
  const std::string noise = std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'n');
  const int there_to_here = pair->socket_of(1);
  ASSERT_EQ(send(there_to_here, noise.data(), noise.size(), 0), static_cast<ssize_t>(noise.size()));
  pair->Until([&] { return !pair->here_status.ok(); });
  EXPECT_THAT(pair->here_status.ToString(), HasSubstr("the peer broke the TLS session"));
  ASSERT_EQ(Pair::Say(*pair->here, "is still read"), 13u);
  pair->Until([&] { return pair->to_there.ends_with("is still read"); });
}

// ---- the probe

TEST(ProbeKernelTlsTest, SaysWhatAKernelCannotDo) {
  FakeKernelTls kernel;
  EXPECT_TRUE(ProbeKernelTls(kernel).ok());
  EXPECT_EQ(kernel.taken, 1);
  EXPECT_EQ(kernel.renewed, 1);
  kernel.renews = absl::UnavailableError("Device or resource busy");
  EXPECT_EQ(
      ProbeKernelTls(kernel).message(),
      "it takes one key for a connection and none after it, as Linux does from 6.14 on (Device or resource busy)");
  kernel.takes = absl::UnimplementedError("its module tls is not there");
  EXPECT_EQ(ProbeKernelTls(kernel).message(), "its module tls is not there");
}

TEST(ProbeKernelTlsTest, TheAnswerDecidesWhoEncryptsAndTheLineSaysSo) {
  const auto kernel = std::make_shared<FakeKernelTls>();
  const KernelTlsChoice yes = ChooseKernelTls(kernel, absl::OkStatus());
  EXPECT_EQ(yes.kernel, kernel);
  EXPECT_EQ(yes.text, "the kernel encrypts what is sent by tcp (kTLS)");
  const KernelTlsChoice no = ChooseKernelTls(kernel, absl::UnimplementedError("its module tls is not there"));
  EXPECT_EQ(no.kernel, nullptr);
  EXPECT_EQ(no.text, "this process encrypts, not the kernel: its module tls is not there");
}

TEST(ProbeKernelTlsTest, ThisMachinesAnswersAndCanBeLeftOut) {
  const KernelTlsChoice here = ChooseKernelTls(/*wanted=*/true);
  EXPECT_THAT(here.text, AnyOf("the kernel encrypts what is sent by tcp (kTLS)",
                               StartsWith("this process encrypts, not the kernel: it")));
  EXPECT_EQ(here.kernel == nullptr, here.text.starts_with("this process"));
  const KernelTlsChoice unwanted = ChooseKernelTls(/*wanted=*/false);
  EXPECT_EQ(unwanted.kernel, nullptr);
  EXPECT_THAT(unwanted.text, HasSubstr("--no-kv-kernel-tls"));
}

}  // namespace
}  // namespace baton::tls
