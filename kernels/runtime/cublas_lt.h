// The calls of cuBLASLt that Baton uses, as a table: the library's, found at run time (cuda/host/cublas_lt_library.h),
// or the emulator's (emulated_cublas_lt.h). Types and numbers are those of cublasLt.h, cublas_api.h and library_types.h
// of CUDA 12 and 13, of which nothing is needed to build.
//
// A stream is a cudaStream_t there and a gpu::Stream* here. Matrices are column-major: `rows` lie behind one another,
// and columns are `ld` elements apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::gpu {

struct LtHandle;      ///< of one device
struct LtOperation;   ///< what is multiplied, and how
struct LtLayout;      ///< of a matrix in memory
struct LtPreference;  ///< which algorithms may be chosen

/// Results, of which only these are told apart.
enum LtResult : int {
  kLtSuccess = 0,
  kLtNotInitialized = 1,
  kLtInvalidValue = 7,
  kLtNotSupported = 15,
};
/// Element types, what sums are in, and the transposition of an operand.
constexpr int kLtF32 = 0, kLtBf16 = 14, kLtE4m3 = 28, kLtComputeF32 = 68;
constexpr int32_t kLtAsItIs = 0, kLtTransposed = 1;

/// Attributes of an operation, int32_t each.
constexpr int kLtTransposeA = 3, kLtTransposeB = 4;
/// What follows a product: uint32_t; kLtAddsBias adds a vector [rows of d] to each column.
constexpr int kLtEpilogue = 7;
constexpr uint32_t kLtAddsBias = 4;
/// Where the bias is, const void*, and its type, int32_t. It is d's type, but bf16 where a and b are e4m3. A heuristic
/// sees the pointer's alignment.
constexpr int kLtBiasPointer = 8, kLtBiasType = 26;
/// Where the scales of a and b are, const void*, f32 on the device, and how they lie, int32_t. Of e4m3 only.
constexpr int kLtScalesOfA = 17, kLtScalesOfB = 18, kLtScaleModeA = 31, kLtScaleModeB = 32;
/// One for the matrix; or one for each column of a (transposed) and of b, both modes at once, from kLtOwnScales on; or
/// one for 128 inputs: of a column ([inputs / 128][columns]), or of 128 columns ([columns / 128][inputs / 128 rounded
/// up to 4]), not of both matrices. With one for 128 inputs both matrices have a multiple of four columns.
constexpr int32_t kLtOneScale = 0, kLtScaleOfColumn = 3, kLtScaleOf128 = 4, kLtScaleOfBlock = 5;
/// The first version that takes more than one scale, on sm_90.
constexpr size_t kLtOwnScales = 120900;
/// Attributes of a preference: uint64_t; then the least alignment of each matrix in bytes, uint32_t (256 where not
/// said).
constexpr int kLtMostWorkspaceBytes = 1;
constexpr int kLtAlignmentA = 5, kLtAlignmentB = 6, kLtAlignmentC = 7, kLtAlignmentD = 8;

struct LtAlgorithm {
  uint64_t data[8] = {};
};
/// What a heuristic proposes; valid where `state` is kLtSuccess.
struct LtProposal {
  LtAlgorithm algorithm;
  size_t workspace_bytes = 0;
  int state = kLtSuccess;
  float waves = 0;
  int reserved[4] = {};
};

struct CublasLtApi {
  /// 10,000 · major + 100 · minor + patch.
  size_t (*get_version)();
  const char* (*error_text)(int result);
  int (*create)(LtHandle** handle);
  int (*destroy)(LtHandle* handle);
  int (*create_operation)(LtOperation** operation, int compute, int scale_type);
  int (*destroy_operation)(LtOperation* operation);
  int (*set_operation)(LtOperation* operation, int attribute, const void* value, size_t bytes);
  int (*create_layout)(LtLayout** layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*destroy_layout)(LtLayout* layout);
  int (*create_preference)(LtPreference** preference);
  int (*destroy_preference)(LtPreference* preference);
  int (*set_preference)(LtPreference* preference, int attribute, const void* value, size_t bytes);
  /// Up to `asked` algorithms, the one that it thinks fastest first.
  int (*propose)(LtHandle* handle, LtOperation* operation, LtLayout* a, LtLayout* b, LtLayout* c, LtLayout* d,
                 LtPreference* preference, int asked, LtProposal* proposals, int* count);
  /// d = alpha · op(a) · op(b) + beta · c, with an algorithm that was proposed for these layouts. alpha and beta are
  /// the host's, and read at once.
  int (*multiply)(LtHandle* handle, LtOperation* operation, const void* alpha, const void* a, LtLayout* a_layout,
                  const void* b, LtLayout* b_layout, const void* beta, const void* c, LtLayout* c_layout, void* d,
                  LtLayout* d_layout, const LtAlgorithm* algorithm, void* workspace, size_t workspace_bytes,
                  void* stream);
};

}  // namespace baton::gpu
