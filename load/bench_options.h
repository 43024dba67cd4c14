// What `baton bench` is told: the names are those of `vllm bench serve`, so that a command line of it works here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config_fields.h"

namespace baton::load {

struct BenchOptions {
  std::string backend = "openai", endpoint, base_url, host = "127.0.0.1", model, tokenizer, served_model_name, api_key;
  int port = 8000;
  std::vector<std::string> header;
  int64_t request_timeout_ms = 600'000;
  int ready_check_timeout_sec = 0;
  std::string tls_ca, tls_cert, tls_key;
  bool insecure = false;
  std::vector<std::string> compare;
  std::string serve_args;

  std::string dataset_name = "random", dataset_path;
  int64_t num_prompts = 1000;
  uint64_t seed = 0;
  int64_t input_len = 0, output_len = 0;
  int64_t random_input_len = 1024, random_output_len = 128, random_prefix_len = 0, random_vocab_size = 0;
  std::string random_range_ratio = "0";  ///< ParseRangeRatio reads it
  int64_t prefix_repetition_prefix_len = 256, prefix_repetition_suffix_len = 256, prefix_repetition_num_prefixes = 10;
  int64_t prefix_repetition_output_len = 128;
  int64_t sonnet_input_len = 550, sonnet_output_len = 150, sonnet_prefix_len = 200;
  int64_t sharegpt_output_len = 0, custom_output_len = 0, trace_block_size = 0;
  int64_t timed_trace_chunk_hash_size = 16;
  double timed_trace_sec_multiplier = 1;
  std::string timed_trace_label_timestamp = "timestamp", timed_trace_label_input_length = "input_length";
  std::string timed_trace_label_output_length = "output_length", timed_trace_label_hash_ids = "hash_ids";
  double trace_speed = 1;
  bool self_timed = true;
  bool any_trace = false;  ///< of `baton sim` and `plan`: --trace; its first line says whether it is mooncake or azure

  std::string request_rate = "inf", max_concurrency = "0";  ///< lists: PointsOf reads them
  double burstiness = 1;
  int num_runs = 1;
  std::string ramp_up_strategy = "none";
  double ramp_up_start_rps = 0, ramp_up_end_rps = 0;
  int64_t num_warmups = 0;
  bool real_time = true;

  std::optional<bool> ignore_eos;  ///< IgnoresEos says what it is
  std::string temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty, repetition_penalty, extra_body;

  std::vector<std::string> kill, at;
  std::string admin_url, start_at;

  std::string verify = "none", label, percentile_metrics = "ttft,tpot,itl", metric_percentiles = "99";
  std::vector<std::string> goodput, metadata;
  std::string request_id_prefix = "bench-", result_dir, result_filename;
  std::string html;
  std::vector<std::string> merge, save_as;
  bool save_result = false, save_detailed = false, append_result = false, disable_tqdm = false;
};

template <class Visitor>
void VisitServerFields(BenchOptions& c, Visitor&& field) {
  field("backend", c.backend, "", "whose answers are read",
        OneOf({{"openai", "/v1/completions"},
               {"vllm", "the same"},
               {"openai-chat", "/v1/chat/completions"},
               {"baton-grpc", "Baton's gRPC port, texts or ids"},
               {"baton-grpc-chat", "the same, chats"}}));
  field("endpoint", c.endpoint, "path", "where requests go, if not where the backend says");
  field("base-url", c.base_url, "url",
        "the server, http(s)://host:port, or grpc(s)://host:port of Baton; else --host and --port");
  field("host", c.host, "", "the server's host");
  field("port", c.port, "", "the server's port; over gRPC the next one", Range(1, 65535));
  field("model", c.model, "", "model name (default: the first of /v1/models)");
  field("tokenizer", c.tokenizer, "",
        "put into the result as tokenizer_id (default: the model): the server counts tokens");
  field("served-model-name", c.served_model_name, "", "what requests call the model, if not --model");
  field("api-key", c.api_key, "", "sent as a bearer token; else what OPENAI_API_KEY says");
  field("header", c.header, "name=value", "another header of every request");
  field("request-timeout-ms", c.request_timeout_ms, "ms", "an answer that takes longer is a failure",
        Range(1, 31'536'000'000));
  field("tls-ca", c.tls_ca, "file", "of https: whose certificates are believed; else the system's authorities");
  field("tls-cert", c.tls_cert, "file", "of https: our certificate, where the server asks for one");
  field("tls-key", c.tls_key, "file", "its key");
  field("insecure", c.insecure, "", "of https: any certificate is believed");
  field("compare", c.compare, "name=url",
        "in place of --base-url: several servers, in turn, side by side; or layouts of clusters that are started here: "
        "both,pd or 2:1");
  field("serve-args", c.serve_args, "flags", "of baton serve, for the clusters that --compare starts");
  field("ready-check-timeout-sec", c.ready_check_timeout_sec, "s",
        "how long to wait until the server answers a request", Range(0, 86400));
}

template <class Visitor>
void VisitDatasetFields(BenchOptions& c, Visitor&& field) {
  field(
      "dataset-name", c.dataset_name, "", "where prompts come from",
      OneOf({{"random"},
             {"prefix_repetition"},
             {"sonnet", "made verse: lines that all prompts share, then lines of their own"},
             {"sharegpt", "conversations, JSON"},
             {"custom", "JSON lines with prompt or messages, and output_tokens"},
             {"mooncake", "JSON lines with timestamp, input_length, output_length, hash_ids"},
             {"timed_trace", "JSON lines of the fields that --timed-trace-label-… name, in seconds; or ts, il, ol, bh"},
             {"azure", "CSV: TIMESTAMP,ContextTokens,GeneratedTokens"}}));
  field("dataset-path", c.dataset_path, "file", "of sharegpt, custom and the traces");
  field("num-prompts", c.num_prompts, "requests", "how many; of a trace, at most", Range(1, 10'000'000));
  field("seed", c.seed, "", "of prompts, arrivals and the requests' own seeds");
  field("input-len", c.input_len, "tokens", "prompt length of random, prefix_repetition and sonnet", AtLeast(0));
  field("output-len", c.output_len, "tokens", "answer length of every dataset; 0: the dataset's", AtLeast(0));
  field("random-input-len", c.random_input_len, "tokens", "prompt length", AtLeast(1));
  field("random-output-len", c.random_output_len, "tokens", "answer length", AtLeast(1));
  field("random-range-ratio", c.random_range_ratio, "",
        "lengths are drawn from length·(1 ± this); {\"input\": 0.5, \"output\": 0.1} for one each");
  field("random-prefix-len", c.random_prefix_len, "tokens", "the same beginning of every prompt", AtLeast(0));
  field("random-vocab-size", c.random_vocab_size, "ids",
        "completions: prompts are ids below this, with exact lengths; 0: English words, about a token each",
        AtLeast(0));
  field("prefix-repetition-prefix-len", c.prefix_repetition_prefix_len, "tokens", "shared beginning", AtLeast(1));
  field("prefix-repetition-suffix-len", c.prefix_repetition_suffix_len, "tokens", "own end", AtLeast(1));
  field("prefix-repetition-num-prefixes", c.prefix_repetition_num_prefixes, "", "how many beginnings", AtLeast(1));
  field("prefix-repetition-output-len", c.prefix_repetition_output_len, "tokens", "answer length", AtLeast(1));
  field("sonnet-input-len", c.sonnet_input_len, "tokens", "prompt length", AtLeast(1));
  field("sonnet-output-len", c.sonnet_output_len, "tokens", "answer length", AtLeast(1));
  field("sonnet-prefix-len", c.sonnet_prefix_len, "tokens", "of the lines that all share", AtLeast(0));
  field("sharegpt-output-len", c.sharegpt_output_len, "tokens", "0: about the length of the file's answer", AtLeast(0));
  field("custom-output-len", c.custom_output_len, "tokens",
        "of every answer, whatever its line says; -1: each line must say; 0: 256 where one does not", AtLeast(-1));
  field("trace-block-size", c.trace_block_size, "tokens",
        "per hash; 0: 512 of mooncake's hash_ids, 1024 of bh, --timed-trace-chunk-hash-size of timed_trace",
        AtLeast(0));
  field("timed-trace-chunk-hash-size", c.timed_trace_chunk_hash_size, "tokens", "of timed_trace, per hash", AtLeast(1));
  field("timed-trace-sec-multiplier", c.timed_trace_sec_multiplier, "s",
        "that a timestamp of timed_trace counts in; 0.001 where it is in milliseconds", Range(1e-9, 1e6));
  field("timed-trace-label-timestamp", c.timed_trace_label_timestamp, "", "of timed_trace: the field of the time",
        NotEmpty("a field"));
  field("timed-trace-label-input-length", c.timed_trace_label_input_length, "", "of the prompt's tokens",
        NotEmpty("a field"));
  field("timed-trace-label-output-length", c.timed_trace_label_output_length, "", "of the answer's tokens",
        NotEmpty("a field"));
  field("timed-trace-label-hash-ids", c.timed_trace_label_hash_ids, "", "of the hashes of the prompt's blocks",
        NotEmpty("a field"));
  field("trace-speed", c.trace_speed, "", "2: twice as fast as it was recorded", AtLeast(1e-6));
  field("self-timed", c.self_timed, "", "a trace's requests come at their own times, not at --request-rate");
}

template <class Visitor>
void VisitLoadFields(BenchOptions& c, Visitor&& field) {
  field("request-rate", c.request_rate, "1/s", "arrivals; inf: all at once; several with commas: one run each");
  field("burstiness", c.burstiness, "", "1: Poisson; less: in bursts; more: even", AtLeast(1e-3));
  field("max-concurrency", c.max_concurrency, "requests",
        "most at a time, others wait; 0: no limit; several with commas: one run each");
  field("num-runs", c.num_runs, "", "how often each load is measured; the table shows medians and spread",
        Range(1, 1000));
  field("ramp-up-strategy", c.ramp_up_strategy, "", "the rate grows over the run",
        OneOf({{"none"}, {"linear"}, {"exponential"}}));
  field("ramp-up-start-rps", c.ramp_up_start_rps, "1/s", "rate of the first request", AtLeast(0));
  field("ramp-up-end-rps", c.ramp_up_end_rps, "1/s", "rate of the last request", AtLeast(0));
  field("num-warmups", c.num_warmups, "requests", "sent before, not counted", AtLeast(0));
  field("real-time", c.real_time, "",
        "requests leave when they are due before other processes run (SCHED_RR), where the system allows it");
  field("start-at", c.start_at, "time", "when to begin: seconds since 1970, so that several generators begin together");
  field("kill", c.kill, "worker@time",
        "SIGKILL a worker of this host while measuring: decode@30s, prefill-1@500ms; by the list of --admin-url");
  field("at", c.at, "time=command", "run a command while measuring: 30s=kubectl delete pod decode-0");
  field("admin-url", c.admin_url, "url",
        "of --kill: the router's admin port (default: --port + 2, as `baton serve` has it)");
  field("ignore-eos", c.ignore_eos, "", "answers end at their length only (default: of random and the traces)");
  field("temperature", c.temperature, "", "not sent if not given, as are all of these");
  field("top-p", c.top_p, "", "");
  field("top-k", c.top_k, "", "");
  field("min-p", c.min_p, "", "");
  field("frequency-penalty", c.frequency_penalty, "", "");
  field("presence-penalty", c.presence_penalty, "", "");
  field("repetition-penalty", c.repetition_penalty, "", "");
  field("extra-body", c.extra_body, "json", "object of more fields of every request");
  field("request-id-prefix", c.request_id_prefix, "", "X-Request-Id is this and a number");
  field("verify", c.verify, "", "identical: every answer is asked for again, alone, and must have the same bytes",
        OneOf({{"none"}, {"identical"}}));
}

template <class Visitor>
void VisitResultFields(BenchOptions& c, Visitor&& field) {
  field("goodput", c.goodput, "key:ms", "what a good request keeps: ttft, tpot, e2el");
  field("percentile-metrics", c.percentile_metrics, "",
        "which are printed: ttft, ttst, tpot, itl, e2el, client_queue_time, e2el_including_client_queue");
  field("metric-percentiles", c.metric_percentiles, "", "such as 50,90,99");
  field("label", c.label, "", "of the run, in the result and its file name");
  field("metadata", c.metadata, "key=value", "put into the result");
  field("save-result", c.save_result, "", "write the result as JSON");
  field("save-detailed", c.save_detailed, "", "with every request's figures");
  field("append-result", c.append_result, "", "append to the file");
  field("result-dir", c.result_dir, "folder", "where the file goes");
  field("result-filename", c.result_filename, "file", "default: label, rate, model and time");
  field("save-as", c.save_as, "format=path",
        "also as another tool's: guidellm=FILE, sglang=FILE, inference-perf=FOLDER");
  field("html", c.html, "file", "write everything as one page that needs no network");
  field("merge", c.merge, "files", "measure nothing: make one report of several generators' --save-detailed files");
  field("disable-tqdm", c.disable_tqdm, "", "no progress line");
}

template <class Visitor>
void VisitFields(BenchOptions& c, Visitor&& field) {
  VisitServerFields(c, field);
  VisitDatasetFields(c, field);
  VisitLoadFields(c, field);
  VisitResultFields(c, field);
}

/// Whether the server is asked over Baton's gRPC API by --backend; a URL can say so too.
inline bool IsGrpc(const BenchOptions& options) { return options.backend.starts_with("baton-grpc"); }
/// Whether requests are chats: by --endpoint, or by --backend where that is not given.
inline bool IsChat(const BenchOptions& options) {
  return options.endpoint.empty() ? options.backend.ends_with("-chat") : options.endpoint.ends_with("chat/completions");
}
/// Whether answers are as long as their prompt asks, as `vllm bench serve` has it of made prompts and of traces.
inline bool IgnoresEos(const BenchOptions& options) {
  const std::string& name = options.dataset_name;
  return options.ignore_eos.value_or(name == "random" || name == "mooncake" || name == "timed_trace" ||
                                     name == "azure");
}
/// Whether requests come when a trace says.
inline bool KeepsOwnTimes(const BenchOptions& options) {
  const std::string& name = options.dataset_name;
  return options.self_timed && (name == "mooncake" || name == "timed_trace" || name == "azure");
}
inline std::string PathOf(const BenchOptions& options) {
  if (!options.endpoint.empty()) return options.endpoint;
  return IsChat(options) ? "/v1/chat/completions" : "/v1/completions";
}

}  // namespace baton::load
