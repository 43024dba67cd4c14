// A backend that is loaded at run time: it works through the interface alone, and what cannot be loaded says why.
#include "kernels/plugin/device_plugin.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cmath>

#include "common/log.h"

namespace baton::kernels {
namespace {

// The emulated GPU's has the log in it, too, and both are of one library.
TEST(DevicePlugin, LeavesTheLogThatOtherThreadsWriteTo) {
  SetLogName("decode-0");
  const auto before = spdlog::default_logger();
  ASSERT_TRUE(LoadDeviceOps(EMULATED_PLUGIN, {}).ok());
  EXPECT_EQ(spdlog::default_logger(), before);
}

TEST(DevicePlugin, ComputesThroughTheInterface) {
  OpsOrError ops = LoadDeviceOps(EMULATED_PLUGIN, {});
  ASSERT_TRUE(ops.ok()) << ops.status();
  EXPECT_EQ((*ops)->traits().isa, "emulated");
  EXPECT_EQ((*ops)->traits().kv, DType::kBF16);
  std::vector<float> x{3, 4, 0, 0, 0, 0, 0, 0}, weight(8, 1.0f), got(8);
  const size_t bytes = x.size() * sizeof(float);
  auto dx = (*ops)->Allocate(bytes), dw = (*ops)->Allocate(bytes), out = (*ops)->Allocate(bytes);
  ASSERT_TRUE(dx.ok() && dw.ok() && out.ok());
  (*ops)->CopyToDevice((*dx)->data(), x.data(), bytes);
  (*ops)->CopyToDevice((*dw)->data(), weight.data(), bytes);
  (*ops)->RmsNorm(Tensor((*dx)->data(), DType::kF32, {1, 8}), static_cast<const float*>((*dw)->data()), 0, 0,
                  Tensor((*out)->data(), DType::kF32, {1, 8}));
  (*ops)->CopyToHost(got.data(), (*out)->data(), bytes);
  EXPECT_NEAR(got[0], 3 / std::sqrt(25.0f / 8), 1e-5);
  EXPECT_NEAR(got[1], 4 / std::sqrt(25.0f / 8), 1e-5);
}

TEST(DevicePlugin, SpeedAtAnyOrderHasAnotherNumericsVersion) {
  OpsOrError exact = LoadDeviceOps(EMULATED_PLUGIN, {}),
             fast = LoadDeviceOps(EMULATED_PLUGIN, {.deterministic = false});
  ASSERT_TRUE(exact.ok() && fast.ok());
  EXPECT_NE((*exact)->traits().kernel_version, (*fast)->traits().kernel_version);
}

TEST(DevicePlugin, WhatIsNotThereIsNamed) {
  const absl::Status status = LoadDeviceOps("/nowhere/libbaton_cuda.so", {}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/nowhere/libbaton_cuda.so"));
  EXPECT_THAT(DefaultCudaPlugin(), testing::EndsWith("/libbaton_cuda.so"));
}

TEST(DevicePlugin, ALibraryThatIsNoPluginIsRefused) {
  const absl::Status status = LoadDeviceOps("libm.so.6", {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST(DevicePlugin, AnotherVersionIsRefused) {
  void* library = dlopen(EMULATED_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* make = reinterpret_cast<MakeDeviceOps*>(dlsym(library, "baton_make_device_ops"));
  ASSERT_NE(make, nullptr);
  OpsOrError ops = absl::UnknownError("");
  make(kPluginVersion + 1, {}, &ops);
  EXPECT_TRUE(absl::IsFailedPrecondition(ops.status())) << ops.status();
}

TEST(DevicePlugin, AKvTypeTheDeviceLacksIsRefused) {
  EXPECT_TRUE(absl::IsFailedPrecondition(LoadDeviceOps(EMULATED_PLUGIN, {.kv_dtype = DType::kF32}).status()));
}

}  // namespace
}  // namespace baton::kernels
