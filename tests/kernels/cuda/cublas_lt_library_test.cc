// The functions of a real cuBLASLt, where there is one: BATON_CUBLASLT_LIBRARY=/path/to/libcublasLt.so.13, or as a
// worker finds it. It says its version, and takes descriptions of products, without a GPU; what it makes of them with
// one, no test here knows.
#include "kernels/cuda/host/cublas_lt_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace baton::cuda {
namespace {

class CublasLtLibrary : public testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("BATON_CUBLASLT_LIBRARY");
    auto api = given != nullptr ? LoadCublasLt(given) : FindCublasLt();
    if (given == nullptr && absl::IsNotFound(api.status())) GTEST_SKIP() << api.status();
    ASSERT_TRUE(api.ok()) << api.status();
    lt_ = *api;
  }
  gpu::CublasLtApi lt_{};
};

TEST_F(CublasLtLibrary, HasEveryFunctionAndSaysItsVersion) {
  EXPECT_GE(lt_.get_version(), 120000u);
  EXPECT_THAT(lt_.error_text(gpu::kLtInvalidValue), testing::HasSubstr("value"));
}

// Sizes and numbers of attributes are those of its headers: it refuses a value of another size, and another number.
TEST_F(CublasLtLibrary, TakesTheDescriptionOfAProduct) {
  gpu::LtOperation* operation = nullptr;
  ASSERT_EQ(lt_.create_operation(&operation, gpu::kLtComputeF32, gpu::kLtF32), gpu::kLtSuccess);
  for (const int attribute : {gpu::kLtTransposeA, gpu::kLtTransposeB}) {
    const int32_t value = gpu::kLtTransposed;
    EXPECT_EQ(lt_.set_operation(operation, attribute, &value, sizeof(value)), gpu::kLtSuccess);
    EXPECT_EQ(lt_.set_operation(operation, attribute, &value, 1), gpu::kLtInvalidValue);
  }
  const uint32_t adds_bias = gpu::kLtAddsBias;
  EXPECT_EQ(lt_.set_operation(operation, gpu::kLtEpilogue, &adds_bias, sizeof(adds_bias)), gpu::kLtSuccess);
  for (const int attribute : {gpu::kLtBiasPointer, gpu::kLtScalesOfA, gpu::kLtScalesOfB}) {
    const void* const somewhere = operation;
    EXPECT_EQ(lt_.set_operation(operation, attribute, &somewhere, sizeof(somewhere)), gpu::kLtSuccess);
    EXPECT_EQ(lt_.set_operation(operation, attribute, &adds_bias, sizeof(adds_bias)), gpu::kLtInvalidValue);
  }
  const int32_t bf16 = gpu::kLtBf16;
  EXPECT_EQ(lt_.set_operation(operation, gpu::kLtBiasType, &bf16, sizeof(bf16)), gpu::kLtSuccess);
  for (const int attribute : {gpu::kLtScaleModeA, gpu::kLtScaleModeB}) {
    if (lt_.get_version() < gpu::kLtOwnScales) break;
    for (const int32_t mode : {gpu::kLtOneScale, gpu::kLtScaleOfColumn, gpu::kLtScaleOf128, gpu::kLtScaleOfBlock})
      EXPECT_EQ(lt_.set_operation(operation, attribute, &mode, sizeof(mode)), gpu::kLtSuccess);
    const uint64_t wide = 0;
    EXPECT_EQ(lt_.set_operation(operation, attribute, &wide, sizeof(wide)), gpu::kLtInvalidValue);
  }
  gpu::LtPreference* preference = nullptr;
  ASSERT_EQ(lt_.create_preference(&preference), gpu::kLtSuccess);
  const uint64_t bytes = 32 << 20;
  EXPECT_EQ(lt_.set_preference(preference, gpu::kLtMostWorkspaceBytes, &bytes, sizeof(bytes)), gpu::kLtSuccess);
  for (int attribute = gpu::kLtAlignmentA; attribute <= gpu::kLtAlignmentD; ++attribute) {
    const uint32_t alignment = 16;
    EXPECT_EQ(lt_.set_preference(preference, attribute, &alignment, sizeof(alignment)), gpu::kLtSuccess);
    EXPECT_EQ(lt_.set_preference(preference, attribute, &bytes, sizeof(bytes)), gpu::kLtInvalidValue);
  }
  for (const int type : {gpu::kLtF32, gpu::kLtBf16, gpu::kLtE4m3}) {
    gpu::LtLayout* layout = nullptr;
    ASSERT_EQ(lt_.create_layout(&layout, type, 4096, 17, 4096), gpu::kLtSuccess);
    EXPECT_EQ(lt_.destroy_layout(layout), gpu::kLtSuccess);
  }
  EXPECT_EQ(lt_.destroy_preference(preference), gpu::kLtSuccess);
  EXPECT_EQ(lt_.destroy_operation(operation), gpu::kLtSuccess);
}

TEST_F(CublasLtLibrary, GivesNoHandleWithoutAGpu) {
  gpu::LtHandle* handle = nullptr;
  const int result = lt_.create(&handle);
  if (result == gpu::kLtSuccess) GTEST_SKIP() << "there is a GPU: " << lt_.destroy(handle);
  EXPECT_EQ(result, gpu::kLtNotInitialized);
}

TEST(CublasLtThatIsNotThere, IsNamed) {
  const absl::Status status = LoadCublasLt("/nowhere/libcublasLt.so.13").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/nowhere/libcublasLt.so.13"));
}

TEST(CublasLtThatIsNotThere, IsAnotherLibraryThatLacksIt) {
  const absl::Status status = LoadCublasLt("libc.so.6").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(status.message(), "libc.so.6 has no cublasLtGetVersion");
}

// The wheels of CUDA 13 and of CUDA 12 have other folders; the rest of the look-up is NCCL's (cuda_nccl_library_test).
TEST(CublasLtOfAPython, IsTheNewestThatItsWheelsHold) {
  const auto root = std::filesystem::path(testing::TempDir()) / "cublas_lt_of_a_python";
  std::filesystem::remove_all(root);
  const auto put = [&](const std::string& file) {
    std::filesystem::create_directories((root / file).parent_path());
    std::ofstream(root / file) << "anything";
  };
  const std::string packages = "venv/lib/python3.12/site-packages/nvidia/", path = (root / "venv/bin").string();
  put("venv/bin/python3");
  EXPECT_EQ(CublasLtOfPython(path), "");
  for (const char* library : {"cublas/lib/libcublasLt.so.12", "cu13/lib/libcublasLt.so.13"}) {
    put(packages + library);
    EXPECT_EQ(CublasLtOfPython(path), (root / packages / library).string());
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace baton::cuda
