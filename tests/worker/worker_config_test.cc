#include "worker/worker_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config_edges.h"

namespace baton::worker {
namespace {

using testing::HasSubstr;

template <class T>
using Edges = std::vector<test::Edge<WorkerConfig, T>>;

WorkerConfig Good() {
  WorkerConfig c;
  c.model = "m";
  return c;
}

const Edges<int32_t> kIntegers = {
    {"port", &WorkerConfig::port, {0, 65535}, {-1, 65536}},
    {"status-port", &WorkerConfig::status_port, {-1, 65535}, {-2, 65536}},
    {"tensor-parallel-size", &WorkerConfig::tensor_parallel_size, {1, 256}, {-1, 0, 3, 512}},
    {"pipeline-parallel-size", &WorkerConfig::pipeline_parallel_size, {1, 3, 256}, {0, 257}},
    {"reduction-width", &WorkerConfig::reduction_width, {1, 256}, {-1, 0, 3, 512}},
    {"rank-timeout-ms", &WorkerConfig::rank_timeout_ms, {1000, 86400000}, {999, -1, 86400001}},
    {"rank-start-timeout-ms", &WorkerConfig::rank_start_timeout_ms, {1000, 86400000}, {999, -1, 86400001}},
    {"local-workers", &WorkerConfig::local_workers, {1}, {0}},
    {"block-size", &WorkerConfig::block_size, {16, 1024}, {-16, 0, 8, 24, 1040}},
    {"max-num-seqs", &WorkerConfig::max_num_seqs, {1, 65536}, {0, 65537}},
    {"max-num-batched-tokens", &WorkerConfig::max_num_batched_tokens, {1}, {0}},
    {"long-prefill-token-threshold", &WorkerConfig::long_prefill_token_threshold, {0, 1}, {-1}},
    {"max-num-partial-prefills", &WorkerConfig::max_num_partial_prefills, {0, 1}, {-1}},
    {"max-long-partial-prefills", &WorkerConfig::max_long_partial_prefills, {0}, {-1}},
    {"max-waiting-requests", &WorkerConfig::max_waiting_requests, {1}, {0}},
    {"threads", &WorkerConfig::threads, {0, 1024}, {-1, 1025}},
    {"landing-port", &WorkerConfig::landing_port, {0, 65535}, {-1, 65536}},
    {"landing-slots", &WorkerConfig::landing_slots, {2, 4096}, {1, 4097}},
    {"router-timeout-ms", &WorkerConfig::router_timeout_ms, {1000, 86400000}, {999, -1, 86400001}},
    {"shutdown-timeout-ms", &WorkerConfig::shutdown_timeout_ms, {0, 86400000}, {-1, 86400001}},
};

const Edges<int64_t> kLongIntegers = {
    {"max-model-len", &WorkerConfig::max_model_len, {0}, {-1}},
    {"kv-cache-memory", &WorkerConfig::kv_cache_memory, {0}, {-1}},
    {"max-waiting-tokens", &WorkerConfig::max_waiting_tokens, {1, int64_t{1} << 50}, {0, (int64_t{1} << 50) + 1}},
    {"landing-slot-bytes", &WorkerConfig::landing_slot_bytes, {0, 65536, 64 << 20}, {-1, 1, 65535, (64 << 20) + 1}},
};

const Edges<double> kNumbers = {
    {"max-step-ms", &WorkerConfig::max_step_ms, {0, 0.5, 86400000}, {-0.1, 86400001}},
    {"max-stall-ms", &WorkerConfig::max_stall_ms, {0, 0.5, 86400000}, {-0.1, 86400001}},
    {"rope-theta", &WorkerConfig::rope_theta, {0, 1e6}, {-1}},
    {"test-kv-fault-rate", &WorkerConfig::test_kv_fault_rate, {0, 1}, {-0.1, 1.1}},
};

const Edges<std::string> kTexts = {
    {"role", &WorkerConfig::role, {"both", "prefill", "decode"}, {"", "neither"}},
    {"worker-id",
     &WorkerConfig::worker_id,
     {"", "prefill-0", std::string(64, 'a')},
     {std::string(65, 'a'), "a b", "a\"", "a[", "a]", "a\n", "é"}},
    {"model", &WorkerConfig::model, {"x"}, {""}},
    {"load-format", &WorkerConfig::load_format, {"auto", "dummy"}, {"", "pt"}},
    {"dtype", &WorkerConfig::dtype, {"auto", "bfloat16", "float32"}, {"", "float16"}},
    {"cuda-graph-sizes",
     &WorkerConfig::cuda_graph_sizes,
     {"auto", "1", "8,4,1"},
     {"", "0", "1,", ",1", "1,,2", "x", "-1"}},
    {"device", &WorkerConfig::device, {"cpu", "cuda"}, {"", "tpu"}},
    {"distributed-executor-backend", &WorkerConfig::distributed_executor_backend, {"threads", "mp"}, {"", "ray"}},
    {"kv-cache-dtype",
     &WorkerConfig::kv_cache_dtype,
     {"auto", "bfloat16", "float32", "float16", "fp8", "fp8_e4m3"},
     {"", "int8", "fp8_e5m2"}},
    {"transport",
     &WorkerConfig::transport,
     {"auto", "ucx", "ucx-rdma", "shm", "ucx-shm", "ucx-tcp", "tcp"},
     {"", "pigeon"}},
    {"log-level", &WorkerConfig::log_level, {"debug", "info", "warning", "error"}, {"", "loud"}},
    {"log-format", &WorkerConfig::log_format, {"text", "json"}, {"", "xml"}},
};

TEST(WorkerConfig, EveryFieldTakesItsEdgesAndRefusesWhatLiesBehindThem) {
  ASSERT_TRUE(Good().Validate().ok()) << Good().Validate();
  std::set<std::string> tested;
  test::CheckEdges(Good(), kIntegers, tested);
  test::CheckEdges(Good(), kLongIntegers, tested);
  test::CheckEdges(Good(), kNumbers, tested);
  test::CheckEdges(Good(), kTexts, tested);
  EXPECT_EQ(tested.size(), 40u);
}

TEST(WorkerConfig, ALandingSlotIsAsLongAsTheDeviceWantsUnlessTheFlagSays) {
  WorkerConfig c = Good();
  c.role = "decode";
  EXPECT_EQ(c.LandingSlotBytes(), 1 << 20);
  c.device = "cuda:1";
  EXPECT_EQ(c.LandingSlotBytes(), 4 << 20);
  EXPECT_EQ(c.LentSlotBytes(), 4 << 20) << "a buffer is as long as a slot";
  c.landing_slot_bytes = 1 << 20;
  EXPECT_EQ(c.LandingSlotBytes(), 1 << 20);
  EXPECT_EQ(c.LentSlotBytes(), 1 << 20);
}

TEST(WorkerConfig, KvTlsNeedsCertificatesAndATransportThatEncrypts) {
  WorkerConfig c = Good();
  c.kv_tls = true;
  EXPECT_THAT(c.Validate().ToString(), HasSubstr("--kv-tls true: needs --tls-cert, --tls-key and --tls-ca"));
  c.tls_files = {.cert = "a.crt", .key = "a.key", .ca = "ca.crt"};
  EXPECT_TRUE(c.Validate().ok()) << c.Validate();
  c.transport = "ucx-tcp";
  EXPECT_THAT(c.Validate().ToString(), HasSubstr("--kv-tls true: is not for UCX and RDMA"));
  c.transport = "auto", c.require_rdma = true;
  EXPECT_FALSE(c.Validate().ok());
}

TEST(WorkerConfig, KvGoesByUcxOnLoopbackOrATrustedNetworkAndNeverUnderKvTls) {
  WorkerConfig c = Good();
  EXPECT_TRUE(c.kv_by_ucx());
  c.host = "10.0.0.1";
  EXPECT_FALSE(c.kv_by_ucx());
  c.insecure = true;
  EXPECT_TRUE(c.kv_by_ucx());
  c.insecure = false, c.kv_trusted_network = true;
  EXPECT_TRUE(c.kv_by_ucx());
  c.kv_tls = true;
  EXPECT_FALSE(c.kv_by_ucx());
}

TEST(WorkerConfig, WhatFieldsMayBeTogetherIsChecked) {
  const auto why = [](auto&& change) {
    WorkerConfig c = Good();
    c.device = "cuda";
    EXPECT_TRUE(c.Validate().ok()) << c.Validate();
    change(c);
    const absl::Status s = c.Validate();
    EXPECT_TRUE(absl::IsInvalidArgument(s)) << s;
    return std::string(s.message());
  };
  EXPECT_THAT(why([](auto& c) { c.dtype = "float32"; }), HasSubstr("--dtype float32"));
  EXPECT_THAT(why([](auto& c) { c.kv_cache_dtype = "float32"; }), HasSubstr("--kv-cache-dtype float32"));
  EXPECT_THAT(why([](auto& c) { c.kv_cache_dtype = "float16"; }), HasSubstr("--kv-cache-dtype float16"));
}

TEST(WorkerConfig, LimitsOfPartialPrefillsAndTheTokenizersFlagsFitEachOther) {
  const auto why = [](auto&& change) {
    WorkerConfig c = Good();
    change(c);
    return std::string(c.Validate().message());
  };
  EXPECT_EQ(why([](auto& c) { c.max_num_partial_prefills = c.max_long_partial_prefills = 1; }), "") << "as vLLM starts";
  EXPECT_EQ(why([](auto& c) {
              c.max_num_partial_prefills = 4;
              c.max_long_partial_prefills = 2;
            }),
            "");
  EXPECT_THAT(why([](auto& c) {
                c.max_num_partial_prefills = 2;
                c.max_long_partial_prefills = 3;
              }),
              HasSubstr("--max-long-partial-prefills 3: must be at most --max-num-partial-prefills 2"));
  EXPECT_THAT(why([](auto& c) { c.max_long_partial_prefills = 3; }), HasSubstr("--long-prefill-token-threshold"));
  EXPECT_THAT(why([](auto& c) {
                c.skip_tokenizer_init = true;
                c.tokenizer = "t";
              }),
              HasSubstr("leave one of them out"));
}

}  // namespace
}  // namespace baton::worker
