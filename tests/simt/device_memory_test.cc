// The emulated device's memory: closed to the host, short, and out of a kernel's reach where it is the host's.
#include "kernels/simt/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <future>
#include <thread>

#include "kernels/runtime/device_refusal.h"
#include "kernels/runtime/emulated_device.h"
#include "tests/simt/grids.h"

namespace baton::simt_test {
namespace {

using testing::HasSubstr;

PX_KERNEL void Double(const float* in, float* out) {
  px::Store(out + px::ThreadX(), 2.0f * px::Load(in + px::ThreadX()));
}
constexpr gpu::LaunchConfig kOneWarp{.grid = {1}, .block = {32}};
constexpr size_t kBytes = 32 * sizeof(float);

TEST(DeviceMemory, KernelsAndCopiesReachItAndTheHostDoesNot) {
  gpu::Memory in(kBytes), out(kBytes);
  const std::vector<float> values(32, 3.0f);
  std::vector<float> got(32);
  gpu::Stream stream;
  stream.Upload(in.data(), values.data(), kBytes);
  gpu::Launch(stream, kOneWarp, &Double, static_cast<const float*>(in.data()), static_cast<float*>(out.data()));
  stream.CopyAsync(got.data(), out.data(), kBytes);
  ASSERT_EQ(stream.Synchronize(), "");
  EXPECT_EQ(got, std::vector<float>(32, 6.0f));
  EXPECT_DEATH(got[0] = *static_cast<volatile float*>(out.data()), "");
  EXPECT_DEATH(*static_cast<volatile float*>(in.data()) = got[0], "");
}

PX_KERNEL void StoreAt(float* out) { px::Store(out, 1.0f); }

TEST(DeviceMemory, AKernelThatFaultsLeavesItOpenToTheWorkAroundIt) {
  gpu::Memory memory(kBytes);
  const simt::DeviceMemoryOpened work;
  EXPECT_THAT(RunKernel({}, kOneWarp, &StoreAt, reinterpret_cast<float*>(size_t{64})), HasSubstr("unmapped memory"));
  auto* const first = static_cast<volatile unsigned char*>(memory.data());
  *first = 7;
  EXPECT_EQ(*first, 7);
}

TEST(DeviceMemory, WorkOpensItToNoOtherThread) {
  const int key = pkey_alloc(0, 0);
  if (key < 0) GTEST_SKIP() << "this machine has no protection keys: work opens device memory to the process";
  pkey_free(key);
  gpu::Memory memory(kBytes);
  auto* const first = static_cast<volatile unsigned char*>(memory.data());
  std::promise<void> open;
  std::promise<void> over;
  std::thread work([&] {
    const simt::DeviceMemoryOpened opened;
    *first = 7;
    open.set_value();
    over.get_future().wait();
  });
  open.get_future().wait();
  EXPECT_DEATH(*first = 8, "");
  over.set_value();
  work.join();
}

TEST(DeviceMemory, PinnedMemoryIsOpenToBoth) {
  Array<float> in(std::vector<float>(32, 3.0f)), out(32);
  gpu::Stream stream;
  gpu::Launch(stream, kOneWarp, &Double, in.data(), out.data());
  ASSERT_EQ(stream.Synchronize(), "");
  EXPECT_EQ(out[31], 6.0f);
}

class HeldKernels : public testing::Test {
 protected:
  HeldKernels() { simt::HoldKernelsToDeviceMemory(true); }
  ~HeldKernels() override { simt::HoldKernelsToDeviceMemory(false); }
};

TEST_F(HeldKernels, AnAddressOfTheHostFailsTheKernelThatIsGivenIt) {
  gpu::Memory device(kBytes);
  Array<float> pinned(32);
  std::vector<float> host(32, 1.0f);
  auto* on_device = static_cast<float*>(device.data());
  EXPECT_THAT(RunKernel({}, kOneWarp, &Double, static_cast<const float*>(host.data()), on_device),
              HasSubstr("global access of memory that is not the device's"));
  EXPECT_THAT(RunKernel({}, kOneWarp, &Double, static_cast<const float*>(on_device), host.data()),
              HasSubstr("global access of memory that is not the device's"));
  EXPECT_EQ(RunKernel({}, kOneWarp, &Double, static_cast<const float*>(on_device), pinned.data()), "");
}

TEST_F(HeldKernels, MemoryThatWasFreedIsNotTheDevicesAnyMore) {
  gpu::Memory out(kBytes);
  float* gone = nullptr;
  {
    gpu::Memory freed(kBytes);
    gone = static_cast<float*>(freed.data());
    ASSERT_EQ(RunKernel({}, kOneWarp, &Double, static_cast<const float*>(gone), static_cast<float*>(out.data())), "");
  }
  EXPECT_THAT(RunKernel({}, kOneWarp, &Double, static_cast<const float*>(gone), static_cast<float*>(out.data())),
              HasSubstr("not the device's"));
}

TEST(DeviceMemory, WhatIsTakenIsNoLongerFree) {
  const size_t before = gpu::CurrentDevice().free_bytes;
  {
    const gpu::Memory taken(size_t{1} << 20);
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, before - (size_t{1} << 20));
    const gpu::Memory pinned(size_t{1} << 20, gpu::MemoryKind::kShared);
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, before - (size_t{1} << 20));
  }
  EXPECT_EQ(gpu::CurrentDevice().free_bytes, before);
}

TEST(DeviceMemory, MoreThanIsFreeIsRefused) {
  const size_t total = gpu::CurrentDevice().total_bytes;
  gpu::SetEmulatedBytes(size_t{1} << 20);
  {
    const gpu::Memory fits(size_t{768} << 10), not_beside_it(size_t{512} << 10);
    EXPECT_NE(fits.data(), nullptr);
    EXPECT_EQ(not_beside_it.data(), nullptr);
  }
  EXPECT_NE(gpu::Memory(size_t{512} << 10).data(), nullptr);
  gpu::SetEmulatedBytes(total);
}

TEST(DeviceMemory, AGraphThatDoesNotFitIsNotHeld) {
  const size_t total = gpu::CurrentDevice().total_bytes, free = gpu::CurrentDevice().free_bytes;
  gpu::SetEmulatedBytes(total - free + (size_t{1} << 20));
  gpu::SetEmulatedGraphBytes(size_t{600} << 10);
  gpu::Stream stream;
  auto record = [&] {
    stream.BeginCapture();
    return stream.EndCapture();
  };
  {
    const gpu::Graph fits = record();
    EXPECT_TRUE(fits.held());
    EXPECT_EQ(gpu::CurrentDevice().free_bytes, size_t{424} << 10);
    const gpu::Graph not_beside_it = record();
    EXPECT_FALSE(not_beside_it.held());
    EXPECT_DEATH(stream.Replay(not_beside_it), "did not fit");
    EXPECT_EQ(gpu::Memory(size_t{500} << 10).data(), nullptr);
    stream.Replay(fits);
    EXPECT_EQ(stream.Synchronize(), "");
  }
  EXPECT_TRUE(record().held());
  gpu::SetEmulatedGraphBytes(0);
  gpu::SetEmulatedBytes(total);
}

TEST(DeviceMemory, TheAllocationThatATestNamesFails) {
  gpu::FailAllocation(2);
  const gpu::Memory first(16), second(16), third(16);
  EXPECT_NE(first.data(), nullptr);
  EXPECT_EQ(second.data(), nullptr);
  EXPECT_NE(third.data(), nullptr);
  EXPECT_EQ(gpu::AllocationCount(), 3);
  gpu::FailAllocation(0);
}

TEST(Capture, TakesNoUploadAndNoMemory) {
  gpu::Memory memory(kBytes);
  const float value = 1.0f;
  gpu::Stream stream;
  stream.BeginCapture();
  EXPECT_DEATH(stream.Upload(memory.data(), &value, sizeof(value)), "Upload while capturing");
  EXPECT_DEATH(gpu::Memory{kBytes}, "allocated while a stream of this thread captures");
  stream.EndCapture();
  EXPECT_NE(gpu::Memory(kBytes).data(), nullptr);
}

TEST(Capture, WaitsForNoEventFromOutsideAndNobodyForOneFromWithin) {
  gpu::Stream stream, other;
  gpu::Event outside, within;
  stream.Record(outside);
  stream.BeginCapture();
  EXPECT_DEATH(stream.Wait(outside), "across the border of a capture");
  stream.Record(within);
  stream.Wait(within);
  EXPECT_DEATH(other.Wait(within), "across the border of a capture");
  EXPECT_EQ(outside.Synchronize(), "");
  stream.EndCapture();
  EXPECT_THAT(within.Synchronize(), HasSubstr("recorded in a capture"));
  EXPECT_DEATH(stream.Wait(within), "across the border of a capture");
  stream.Wait(outside);
  stream.Record(within);
  EXPECT_EQ(within.Synchronize(), "");
}

TEST(Capture, CopiesFromNoVector) {
  gpu::Memory memory(kBytes), pinned(kBytes, gpu::MemoryKind::kShared);
  const std::vector<float> values(32, 3.0f);
  gpu::Stream stream;
  simt::HoldKernelsToDeviceMemory(true);
  stream.BeginCapture();
  stream.CopyAsync(memory.data(), pinned.data(), kBytes);
  EXPECT_DEATH(stream.CopyAsync(memory.data(), values.data(), kBytes), "no Memory owns");
  stream.EndCapture();
  stream.CopyAsync(memory.data(), values.data(), kBytes);
  EXPECT_EQ(stream.Synchronize(), "");
  simt::HoldKernelsToDeviceMemory(false);
}

TEST(Capture, IsSpoiledByWaitingForItsStream) {
  EXPECT_DEATH(
      {
        gpu::Stream stream;
        stream.BeginCapture();
        if (stream.Synchronize().empty()) std::_Exit(0);  // no death: the test fails
        stream.EndCapture();
      },
      "waited for, while it captured");
}

TEST(DriverRefusal, IsOfWhatIsOlderThanTheMajorVersion) {
  for (const int driver : {13000, 13020, 14010}) EXPECT_EQ(gpu::DriverRefusal(driver, 13000), "") << driver;
  EXPECT_EQ(gpu::DriverRefusal(12090, 13020),
            "the NVIDIA driver is too old: it is for CUDA 12.9, this program was built with CUDA 13.2, which needs a "
            "driver for 13.0 or later");
  EXPECT_THAT(gpu::DriverRefusal(0, 13000), HasSubstr("there is no NVIDIA driver"));
}

}  // namespace
}  // namespace baton::simt_test
