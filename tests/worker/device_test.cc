// A worker that computes on a device: the model starts up on the plugin's Ops and answers what the CPU answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/process/start_up.h"

namespace baton::worker {
namespace {

WorkerConfig Config() {
  WorkerConfig c;
  c.model = "tests/data/tiny-llama";
  c.load_format = "dummy";
  c.threads = 1;
  c.max_num_seqs = 2;
  c.max_model_len = 64;
  c.max_num_batched_tokens = 16;
  return c;
}
WorkerConfig OnDevice() {
  WorkerConfig c = Config();
  c.device = "cuda";
  c.device_plugin = EMULATED_PLUGIN;
  c.kv_cache_memory = 1 << 20;  // a share of the emulated device's 8 GiB would be this host's memory
  return c;
}

/// Logits of the last of `tokens`, which follow `context` tokens of the same sequence.
std::vector<float> LastLogits(LoadedModel& loaded, const std::vector<int32_t>& tokens, int32_t context) {
  const int32_t n = static_cast<int32_t>(tokens.size());
  const std::vector<int32_t> row_start{0, n}, before{context}, rows{n - 1};
  const std::vector<int32_t> table{1, 0};
  engine::ForwardBatch batch{.tokens = tokens, .logit_rows = rows};
  for (size_t g = 0; g < loaded.model->kv_layout().groups.size(); ++g)
    batch.groups.push_back({.row_start = row_start, .context = before, .block_tables = table, .table_stride = 2});
  const std::atomic<bool> cancel{false};
  const auto logits = loaded.model->Forward(batch, loaded.memory->groups(), cancel).value();
  std::vector<float> out(static_cast<size_t>(logits.cols()));
  loaded.ops->CopyToHost(out.data(), logits.data, out.size() * sizeof(float));
  return out;
}

TEST(WorkerDevice, AnswersWhatTheCpuAnswers) {
  StartUpProgress progress;
  WorkerConfig exact = Config();
  exact.dtype = "float32";
  absl::StatusOr<LoadedModel> cpu = StartUp(exact, progress), device = StartUp(OnDevice(), progress);
  ASSERT_TRUE(cpu.ok() && device.ok()) << cpu.status() << device.status();
  EXPECT_EQ(device->ops->traits().isa, "emulated");
  EXPECT_NE(device->numerics_id, cpu->numerics_id);
  const std::vector<int32_t> prompt{5, 17, 3, 99, 42, 7, 256, 31, 8, 64, 12};
  std::vector<std::pair<std::vector<int32_t>, int32_t>> steps{{prompt, 0}, {{9}, 11}, {{77}, 12}};  // prefill, decode
  for (const auto& [tokens, context] : steps) {
    const std::vector<float> want = LastLogits(*cpu, tokens, context), got = LastLogits(*device, tokens, context);
    double squares = 0, errors = 0;
    for (size_t i = 0; i < want.size(); ++i)
      squares += double{want[i]} * want[i], errors += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    EXPECT_LT(std::sqrt(errors / squares), 3e-2) << "after " << context << " tokens";
  }
}

// Few rows run in the fused forms of Ops, many do not.
TEST(WorkerDevice, AStepOfFewRowsHasTheBitsOfAStepOfMany) {
  StartUpProgress progress;
  absl::StatusOr<LoadedModel> device = StartUp(OnDevice(), progress);
  ASSERT_TRUE(device.ok()) << device.status();
  const std::vector<int32_t> tokens{5, 17, 3, 99, 42, 7, 256, 31, 8, 64, 12, 9};
  ASSERT_LT(device->ops->traits().fused_rows, static_cast<int>(tokens.size()));
  const std::vector<float> want = LastLogits(*device, tokens, 0);
  for (size_t few : {1u, 3u, 8u}) {
    ASSERT_LE(static_cast<int>(few), device->ops->traits().fused_rows);
    const auto first = tokens.end() - static_cast<std::ptrdiff_t>(few);
    LastLogits(*device, {tokens.begin(), first}, 0);
    EXPECT_EQ(LastLogits(*device, {first, tokens.end()}, static_cast<int32_t>(tokens.size() - few)), want)
        << few << " rows";
  }
}

// The device has its own memory: KV takes a share of what weights and activations leave of it.
TEST(WorkerDevice, KvTakesAShareOfTheFreeDeviceMemory) {
  WorkerConfig c = OnDevice();
  c.kv_cache_memory = 0;
  c.gpu_memory_utilization = 0.01;
  StartUpProgress progress;
  absl::StatusOr<LoadedModel> device = StartUp(c, progress);
  ASSERT_TRUE(device.ok()) << device.status();
  const int64_t total = device->ops->device_memory()->total_bytes;
  EXPECT_LE(device->blocks.bytes, total / 100);
  EXPECT_GT(device->blocks.bytes, total / 101);
  EXPECT_LE(device->ops->device_memory()->free_bytes, total - device->blocks.bytes);
}

TEST(WorkerDevice, MoreKvThanIsFreeIsRefusedWithBothNumbers) {
  WorkerConfig c = OnDevice();
  c.kv_cache_memory = int64_t{9} << 30;
  StartUpProgress progress;
  const absl::Status status = StartUp(c, progress).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--kv-cache-memory 9663676416 (9.00 GiB)"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("of the GPU's 8589934592 are free"));
}

TEST(WorkerDevice, AGpuThatIsNotThereIsNamed) {
  WorkerConfig c = OnDevice();
  c.device = "cuda:8";
  StartUpProgress progress;
  const absl::Status status = StartUp(c, progress).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("number 8 is asked for, counted from 0; 8 are there"));
}

TEST(WorkerDevice, SpeedAtAnyOrderIsAnotherNumerics) {
  StartUpProgress progress;
  WorkerConfig fast = OnDevice();
  fast.deterministic = false;
  absl::StatusOr<LoadedModel> exact = StartUp(OnDevice(), progress), quick = StartUp(fast, progress);
  ASSERT_TRUE(exact.ok() && quick.ok()) << exact.status() << quick.status();
  EXPECT_NE(exact->numerics_id, quick->numerics_id);
}

TEST(WorkerDevice, DecodesAreRecordedAtTheStartUnlessEagerIsAskedFor) {
  StartUpProgress progress;
  for (const bool eager : {false, true}) {
    WorkerConfig c = OnDevice();
    c.max_num_seqs = 3;
    c.enforce_eager = eager;
    absl::StatusOr<LoadedModel> device = StartUp(c, progress);
    ASSERT_TRUE(device.ok()) << device.status();
    const kernels::DeviceWork start = device->ops->device_work();
    EXPECT_EQ(start.replays > 0, !eager);
    EXPECT_EQ(device->recorded_rows, eager ? std::vector<int32_t>{} : (std::vector<int32_t>{1, 2, 3}));
    LastLogits(*device, {5, 17, 3}, 0);
    EXPECT_EQ(device->ops->device_work().replays, start.replays) << "a prompt";
    const int64_t launches = device->ops->device_work().launches;
    LastLogits(*device, {9}, 3);
    EXPECT_EQ(device->ops->device_work().replays, start.replays + !eager);
    EXPECT_EQ(device->ops->device_work().launches > launches, eager);
  }
}

TEST(WorkerDevice, AGpuHasTheStepBehindUnlessThatIsSwitchedOff) {
  EXPECT_FALSE(Config().steps_ahead());
  EXPECT_TRUE(OnDevice().steps_ahead());
  for (const bool asked : {false, true}) {
    for (WorkerConfig c : {Config(), OnDevice()}) {
      c.async_scheduling = asked;
      EXPECT_EQ(c.steps_ahead(), asked);
    }
  }
}

TEST(WorkerDevice, SizesOfRecordedSteps) {
  WorkerConfig c = OnDevice();
  c.max_num_seqs = 6;
  using Rows = std::vector<int32_t>;
  EXPECT_EQ(c.RecordedRows(), (Rows{1, 2, 4, 6}));
  c.cuda_graph_sizes = "7,3,1,3";
  EXPECT_EQ(c.RecordedRows(), (Rows{1, 3})) << "none beyond --max-num-seqs";
  c.cuda_graph_sizes = "3,x";
  EXPECT_EQ(c.RecordedRows(), std::nullopt);
  c.enforce_eager = true;
  EXPECT_EQ(c.RecordedRows(), Rows{});
}

// It follows the layers of its steps, until it is one that decodes (baton flip).
TEST(WorkerDevice, APrefillWorkerRecordsWhatItHasWhenNobodyFollowsItsLayers) {
  WorkerConfig c = OnDevice();
  c.role = "prefill";
  StartUpProgress progress;
  absl::StatusOr<LoadedModel> device = StartUp(c, progress);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->ops->device_work().replays, 0);
  EXPECT_EQ(device->recorded_rows, std::vector<int32_t>{});
  LastLogits(*device, {5, 17, 3}, 0);
  LastLogits(*device, {9}, 3);
  EXPECT_EQ(device->ops->device_work().replays, 1);
}

TEST(WorkerDevice, WithoutThePluginStartUpSaysWhatIsMissing) {
  WorkerConfig c = OnDevice();
  c.device_plugin = "/nowhere/libbaton_cuda.so";
  StartUpProgress progress;
  const absl::Status status = StartUp(c, progress).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/nowhere/libbaton_cuda.so"));
}

TEST(WorkerDevice, ADeviceComputesInBf16Only) {
  WorkerConfig c = OnDevice();
  c.dtype = "float32";
  EXPECT_THAT(std::string(c.Validate().message()), testing::HasSubstr("--dtype float32"));
  c = OnDevice();
  for (const char* device : {"tpu", "cuda:", "cuda:-1", "cuda:1x", "cuda0", "cuda:99999", "cuda:1,", "cuda:1,x"}) {
    c.device = device;
    EXPECT_THAT(std::string(c.Validate().message()), testing::HasSubstr(std::string("--device ") + device));
  }
  for (const char* device : {"cuda", "cuda:0", "cuda:15"}) {
    c.device = device;
    EXPECT_TRUE(c.Validate().ok()) << c.Validate();
  }
  c = Config();
  c.deterministic = false;
  EXPECT_THAT(std::string(c.Validate().message()), testing::HasSubstr("--deterministic false"));
}

TEST(WorkerDevice, EachRankOfAMachineHasAGpuOfItsOwn) {
  WorkerConfig c = OnDevice();
  c.tensor_parallel_size = 4;
  c.device = "cuda:2";
  EXPECT_EQ(c.CudaDeviceOf(0), 2);
  EXPECT_EQ(c.CudaDeviceOf(3), 5);
  c.device = "cuda:6,1,4,0";
  EXPECT_TRUE(c.Validate().ok()) << c.Validate();
  EXPECT_EQ(c.CudaDeviceOf(0), 6);
  EXPECT_EQ(c.CudaDeviceOf(2), 4);
  c.nnodes = 2, c.node_rank = 1, c.device = "cuda:6,1";  // ranks 2 and 3
  EXPECT_EQ(c.CudaDeviceOf(2), 6);
  EXPECT_EQ(c.CudaDeviceOf(3), 1);
  c = OnDevice();
  c.device = "cuda:6,1";
  EXPECT_THAT(std::string(c.Validate().message()),
              testing::HasSubstr("--device cuda:6,1: 2 GPUs for this machine's 1 ranks"));
}

}  // namespace
}  // namespace baton::worker
