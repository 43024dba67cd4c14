// The emulated cuBLASLt is as unkind as the library may be: a right program is right, and each bug that is planted into
// it is noticed.
#include "kernels/runtime/emulated_cublas_lt.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {
namespace {

const CublasLtApi& lt = EmulatedCublasLt();
constexpr uint64_t kSeeds = 24;
constexpr int kM = 5, kN = 24, kK = 32;
constexpr size_t kWorkspace = 1 << 16;

uint16_t ToHalf(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

/// What a program can do wrong.
struct Wrong {
  bool rows_of_another = false;   ///< an algorithm that was proposed for another number of rows
  bool little_workspace = false;  ///< less than the algorithm needs
  bool odd_pointer = false;       ///< less aligned than was said
  bool says_no_alignment = false;
  bool not_transposed = false;
  bool no_event = false;      ///< another stream reads the product without waiting for it
  bool reused_early = false;  ///< another stream overwrites what is multiplied
};

/// One product and its descriptors; out [kM, kN] f32 and += where `adds`.
class Program {
 public:
  explicit Program(const Wrong& wrong, bool adds = false) : wrong_(wrong), adds_(adds) {
    Fill(w_, kN * kK, 1);
    Fill(x_, kM * kK, 2);
    std::vector<float> before(kM * kN, adds ? 3.0f : std::nanf(""));
    stream_.Upload(out_.data(), before.data(), before.size() * sizeof(float));
    lt.create(&handle_);
    lt.create_operation(&operation_, kLtComputeF32, kLtF32);
    const int32_t transposed = wrong.not_transposed ? kLtAsItIs : kLtTransposed, as_it_is = kLtAsItIs;
    EXPECT_EQ(lt.set_operation(operation_, kLtTransposeA, &transposed, sizeof(transposed)), kLtSuccess);
    EXPECT_EQ(lt.set_operation(operation_, kLtTransposeB, &as_it_is, sizeof(as_it_is)), kLtSuccess);
    lt.create_layout(&a_, kLtBf16, kK, kN, kK);
    lt.create_layout(&b_, kLtBf16, kK, kM, kK);
    lt.create_layout(&d_, kLtF32, kN, kM, kN);
    lt.create_preference(&preference_);
    const uint64_t workspace = kWorkspace;
    const uint32_t alignment = 16;
    EXPECT_EQ(lt.set_preference(preference_, kLtMostWorkspaceBytes, &workspace, sizeof(workspace)), kLtSuccess);
    if (wrong.says_no_alignment) return;
    for (int matrix = kLtAlignmentA; matrix <= kLtAlignmentD; ++matrix)
      EXPECT_EQ(lt.set_preference(preference_, matrix, &alignment, sizeof(alignment)), kLtSuccess);
  }
  ~Program() {
    stream_.Synchronize();
    lt.destroy_operation(operation_);
    for (LtLayout* layout : {a_, b_, d_}) lt.destroy_layout(layout);
    lt.destroy_preference(preference_);
    lt.destroy(handle_);
  }

  /// What `multiply` answers.
  int Multiply() {
    LtProposal proposal;
    int count = 0;
    LtLayout* asked = b_;
    LtLayout* asked_out = d_;
    if (wrong_.rows_of_another) {
      lt.create_layout(&asked, kLtBf16, kK, kM + 1, kK);
      lt.create_layout(&asked_out, kLtF32, kN, kM + 1, kN);
    }
    const int proposed =
        lt.propose(handle_, operation_, a_, asked, asked_out, asked_out, preference_, 1, &proposal, &count);
    if (wrong_.rows_of_another) lt.destroy_layout(asked), lt.destroy_layout(asked_out);
    if (proposed != kLtSuccess || count != 1) return kLtNotSupported;
    const float alpha = 1, beta = adds_ ? 1.0f : 0.0f;
    const size_t workspace = wrong_.little_workspace ? proposal.workspace_bytes - 1 : kWorkspace;
    const char* const x = static_cast<const char*>(x_.data()) + (wrong_.odd_pointer ? 8 : 0);
    return lt.multiply(handle_, operation_, &alpha, w_.data(), a_, x, b_, &beta, out_.data(), d_, out_.data(), d_,
                       &proposal.algorithm, workspace_.data(), workspace, &stream_);
  }
  /// Multiplies, and another stream copies the product. Empty: it is right.
  std::string Run() {
    Stream other;
    Memory copy(out_.bytes()), host(out_.bytes(), MemoryKind::kShared);
    if (const int result = Multiply(); result != kLtSuccess) return "refused";
    Event done;
    stream_.Record(done);
    if (!wrong_.no_event) other.Wait(done);
    if (wrong_.reused_early) other.FillAsync(x_.data(), 0, x_.bytes());
    other.CopyAsync(host.data(), out_.data(), out_.bytes());
    if (const std::string error = other.Synchronize() + stream_.Synchronize(); !error.empty()) return error;
    return Check(static_cast<const float*>(host.data()));
  }
  Stream& stream() { return stream_; }
  std::string Check(const float* got) const {
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < kN; ++n) {
        double want = adds_ ? 3 : 0;
        for (int k = 0; k < kK; ++k) want += Value(1, n * kK + k) * Value(2, m * kK + k);
        if (!(std::abs(got[m * kN + n] - want) < 1e-3)) return "wrong";
      }
    }
    return {};
  }
  const Memory& out() const { return out_; }

 private:
  static float Value(int which, int i) { return static_cast<float>((i * 7 * which) % 13) / 4 - 1.5f; }
  void Fill(const Memory& to, int count, int which) {
    std::vector<uint16_t> halves;
    for (int i = 0; i < count; ++i) halves.push_back(ToHalf(Value(which, i)));
    stream_.Upload(to.data(), halves.data(), halves.size() * 2);
  }

  const Wrong wrong_;
  const bool adds_;
  Stream stream_;
  Memory w_{kN * kK * 2}, x_{kM * kK * 2 + 256}, out_{kM * kN * 4}, workspace_{kWorkspace};
  LtHandle* handle_ = nullptr;
  LtOperation* operation_ = nullptr;
  LtLayout *a_ = nullptr, *b_ = nullptr, *d_ = nullptr;
  LtPreference* preference_ = nullptr;
};

/// Of kSeeds schedules those that find something wrong.
int Noticed(const Wrong& wrong, bool adds = false) {
  int noticed = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const StreamsDrift drift(seed);
    noticed += !Program(wrong, adds).Run().empty();
  }
  return noticed;
}

TEST(EmulatedCublasLt, ARightProgramIsRightUnderEverySchedule) {
  EXPECT_EQ(Noticed({}), 0);
  EXPECT_EQ(Noticed({}, true), 0) << "added to what was there";
}

TEST(EmulatedCublasLt, WhatTheLibraryRefusesIsRefusedEveryTime) {
  EXPECT_EQ(Noticed({.rows_of_another = true}), static_cast<int>(kSeeds));
  EXPECT_EQ(Noticed({.little_workspace = true}), static_cast<int>(kSeeds));
  EXPECT_EQ(Noticed({.odd_pointer = true}), static_cast<int>(kSeeds));
  EXPECT_EQ(Noticed({.not_transposed = true}), static_cast<int>(kSeeds));
  EXPECT_EQ(Noticed({.says_no_alignment = true}), static_cast<int>(kSeeds)) << "256 bytes are expected";
}

TEST(EmulatedCublasLt, AProductThatIsReadOrWhoseInputsAreOverwrittenTooEarlyIsNoticedUnderSomeSchedule) {
  EXPECT_GT(Noticed({.no_event = true}), 0);
  EXPECT_GT(Noticed({.no_event = true, .reused_early = true}), 0);
}

TEST(EmulatedCublasLt, ARecordedProductIsMadeAtEachReplay) {
  Program program({});
  program.stream().Synchronize();
  program.stream().BeginCapture();
  ASSERT_EQ(program.Multiply(), kLtSuccess);
  const Graph graph = program.stream().EndCapture();
  Memory host(program.out().bytes(), MemoryKind::kShared);
  for (int i = 0; i < 2; ++i) {
    program.stream().FillAsync(program.out().data(), 0xFF, program.out().bytes());
    program.stream().Replay(graph);
    program.stream().CopyAsync(host.data(), program.out().data(), host.bytes());
    ASSERT_EQ(program.stream().Synchronize(), "");
    EXPECT_EQ(program.Check(static_cast<const float*>(host.data())), "") << "replay " << i;
  }
}

TEST(EmulatedCublasLt, MemoryOfTheHostEndsTheProcess) {
  const auto run = [] {
    HoldKernelsToDeviceMemory();
    Stream stream;
    LtHandle* handle = nullptr;
    LtOperation* operation = nullptr;
    LtLayout *a = nullptr, *d = nullptr;
    LtPreference* preference = nullptr;
    lt.create(&handle), lt.create_operation(&operation, kLtComputeF32, kLtF32), lt.create_preference(&preference);
    const int32_t transposed = kLtTransposed;
    lt.set_operation(operation, kLtTransposeA, &transposed, sizeof(transposed));
    lt.create_layout(&a, kLtBf16, 8, 8, 8), lt.create_layout(&d, kLtBf16, 8, 8, 8);
    LtProposal proposal;
    int count = 0;
    lt.propose(handle, operation, a, a, d, d, preference, 1, &proposal, &count);
    alignas(256) static uint16_t on_host[64];
    const Memory memory(4096);
    const float one = 1;
    lt.multiply(handle, operation, &one, memory.data(), a, on_host, a, &one, memory.data(), d, memory.data(), d,
                &proposal.algorithm, nullptr, 0, &stream);
    stream.Synchronize();
  };
  EXPECT_DEATH(run(), "memory that is not the device's");
}

}  // namespace
}  // namespace baton::gpu
