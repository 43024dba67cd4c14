#include "cli/vllm_flags.h"

#include <array>

namespace baton::cli {
namespace {

constexpr std::string_view kLora = "there are no LoRA adapters: serve the merged weights";
constexpr std::string_view kPrompt = "there are no prompt adapters";
constexpr std::string_view kGuess = "there is no speculative decoding";
constexpr std::string_view kMedia = "models take text only";
constexpr std::string_view kHub = "models are folders or files on this machine: fetch the revision that is meant";
constexpr std::string_view kCode = "no code of a model or a plugin is loaded";
constexpr std::string_view kGraph =
    "--cuda-graph-sizes says which steps a GPU replays; nothing is compiled at run time";
constexpr std::string_view kReplicas =
    "--both N starts N workers behind one router, each with its own copy of the model";

using enum Values;
constexpr std::array kFlags = std::to_array<VllmFlag>({
    // Always so here, or under another name.
    {"enable-chunked-prefill", kNone, "", "true", "prompts are always computed in chunks"},
    {"num-gpu-blocks-override", kOne, "", "", "--kv-cache-memory says how many bytes KV takes"},
    {"use-v2-block-manager", kNone, "", "*", "there is one block manager"},
    {"disable-log-stats", kNone, "", "*", "statistics are metrics, not log lines"},
    {"disable-log-requests", kNone, "no-log-requests", "", ""},
    {"disable-uvicorn-access-log", kNone, "no-log-requests", "", ""},
    {"enable-log-requests", kNone, "log-requests", "", ""},
    {"tokenizer-pool-size", kOne, "tokenizer-threads", "", ""},
    {"tokenizer-pool-type", kOne, "", "ray", "texts are tokenized by threads of the router"},
    {"tokenizer-pool-extra-config", kOne, "", "", "texts are tokenized by threads of the router"},
    {"preemption-mode", kOne, "", "recompute", "a preempted sequence is computed again: there is no swap space"},
    {"max-parallel-loading-workers", kOne, "", "*", "weights are mapped, not copied"},
    {"disable-async-output-proc", kNone, "", "", "answers are always sent beside the next step"},
    {"num-scheduler-steps", kOne, "", "1", "each step is scheduled"},
    {"multi-step-stream-outputs", kNone, "", "*", "each step is streamed; --stream-interval gathers tokens"},
    {"scheduler-delay-factor", kOne, "", "0 0.0", "a prompt is never held back for others"},
    {"disable-sliding-window", kNone, "", "", "a model's window is a part of it: without it the answers are wrong"},
    // What a model says of itself.
    {"tokenizer-mode", kOne, "", "auto hf", "every tokenizer is read in one way, which is what auto chooses there"},
    {"tokenizer-revision", kOne, "", "", kHub},
    {"config-format", kOne, "", "auto hf", "config.json or a GGUF file's metadata is read"},
    {"model-impl", kOne, "", "auto vllm", "every model runs on Baton's own decoder"},
    {"revision", kOne, "", "", kHub},
    {"code-revision", kOne, "", "", kHub},
    {"download-dir", kOne, "", "", kHub},
    {"ignore-patterns", kMany, "", "*", "nothing is downloaded"},
    {"show-hidden-metrics-for-version", kOne, "", "*", "no metric is hidden"},
    // Not there.
    {"quantization", kOne, "", "None none gguf awq awq_marlin gptq gptq_marlin compressed-tensors",
     "the checkpoint says how it is quantized (AWQ, GPTQ, FP8, compressed-tensors, GGUF); floats are not quantized"},
    {"calculate-kv-scales", kNone, "", "", "KV in fp8 has the checkpoint's scales, or 1"},
    {"swap-space", kOne, "", "0 0.0 4 4.0", "there is no swap space: a preempted sequence is computed again"},
    {"cpu-offload-gb", kOne, "", "0 0.0", "weights stay where they are computed"},
    {"enable-lora", kNone, "", "", kLora},
    {"max-loras", kOne, "", "", kLora},
    {"max-lora-rank", kOne, "", "", kLora},
    {"max-cpu-loras", kOne, "", "", kLora},
    {"lora-dtype", kOne, "", "", kLora},
    {"lora-extra-vocab-size", kOne, "", "", kLora},
    {"long-lora-scaling-factors", kOne, "", "", kLora},
    {"fully-sharded-loras", kNone, "", "", kLora},
    {"enable-lora-bias", kNone, "", "", kLora},
    {"enable-prompt-adapter", kNone, "", "", kPrompt},
    {"max-prompt-adapters", kOne, "", "", kPrompt},
    {"max-prompt-adapter-token", kOne, "", "", kPrompt},
    {"speculative-model", kOne, "", "", kGuess},
    {"speculative-model-quantization", kOne, "", "", kGuess},
    {"num-speculative-tokens", kOne, "", "", kGuess},
    {"speculative-disable-mqa-scorer", kNone, "", "", kGuess},
    {"speculative-draft-tensor-parallel-size", kOne, "", "", kGuess},
    {"speculative-max-model-len", kOne, "", "", kGuess},
    {"speculative-disable-by-batch-size", kOne, "", "", kGuess},
    {"ngram-prompt-lookup-max", kOne, "", "", kGuess},
    {"ngram-prompt-lookup-min", kOne, "", "", kGuess},
    {"spec-decoding-acceptance-method", kOne, "", "", kGuess},
    {"typical-acceptance-sampler-posterior-threshold", kOne, "", "", kGuess},
    {"typical-acceptance-sampler-posterior-alpha", kOne, "", "", kGuess},
    {"disable-logprobs-during-spec-decoding", kNone, "", "", kGuess},
    {"num-lookahead-slots", kOne, "", "0", kGuess},
    {"guided-decoding-backend", kOne, "", "auto guidance", "grammars are compiled by llguidance"},
    {"logits-processor-pattern", kOne, "", "", kCode},
    {"task", kOne, "", "auto generate", "models generate text; they embed, score and transcribe nothing"},
    {"override-pooler-config", kOne, "", "", "models generate text; nothing is pooled"},
    {"limit-mm-per-prompt", kOne, "", "", kMedia},
    {"mm-processor-kwargs", kOne, "", "", kMedia},
    {"disable-mm-preprocessor-cache", kNone, "", "", kMedia},
    {"allowed-local-media-path", kOne, "", "", kMedia},
    {"max-seq-len-to-capture", kOne, "", "*", kGraph},
    {"compilation-config", kOne, "", "0 1 2 3", kGraph},
    {"disable-custom-all-reduce", kNone, "", "*", "ranks add up in one fixed order, by Baton's own code"},
    {"kv-transfer-config", kOne, "", "", "--prefill and --decode make a cluster whose workers hand KV over"},
    {"enable-sleep-mode", kNone, "", "", "a worker does not sleep: stop it"},
    {"collect-detailed-traces", kOne, "", "*", "a trace has a span for each stage of a request"},
    // Other worlds.
    {"trust-remote-code", kNone, "", "", kCode},
    {"ray-workers-use-nsight", kNone, "", "", "there is no Ray here"},
    {"override-neuron-config", kOne, "", "", "Neuron devices are not served"},
    {"worker-cls", kOne, "", "auto", kCode},
    {"scheduler-cls", kOne, "", "", kCode},
    {"model-loader-extra-config", kOne, "", "{}", "weights are read by Baton's own loader"},
    {"qlora-adapter-name-or-path", kOne, "", "", kLora},
    {"additional-config", kOne, "", "{}", "it is for other platforms"},
    // Of its HTTP server, and younger than its usage text.
    {"enable-auto-tool-choice", kNone, "", "*",
     "a model may call whatever a request offers; --tool-call-parser says how"},
    {"enable-reasoning", kNone, "", "*",
     "thoughts are told apart where the chat template shows them (--reasoning-parser)"},
    {"enable-prompt-tokens-details", kNone, "", "*", "usage always says how many tokens were cached"},
    {"enable-request-id-headers", kNone, "", "*", "every answer has X-Request-Id"},
    {"enable-server-load-tracking", kNone, "", "*", "/metrics has the load"},
    {"enable-ssl-refresh", kNone, "", "*", "certificates are read again when their files change"},
    {"enable-log-outputs", kNone, "", "", "texts are never logged"},
    {"max-log-len", kOne, "", "*", "texts are never logged"},
    {"uvicorn-log-level", kOne, "", "*", "--log-level says what is logged"},
    {"chat-template-content-format", kOne, "", "auto string", "a message's parts of text are joined to one string"},
    {"response-role", kOne, "", "assistant", "an answer's role is always assistant"},
    {"return-tokens-as-token-ids", kNone, "", "", "a request asks for that itself, by a field of this name"},
    {"ssl-certfile", kOne, "http-tls-cert", "", ""},
    {"ssl-keyfile", kOne, "http-tls-key", "", ""},
    {"ssl-ca-certs", kOne, "", "", "--tls-client-ca FILE asks every client for a certificate of these authorities"},
    {"ssl-cert-reqs", kOne, "", "0", "--tls-client-ca FILE asks every client for a certificate"},
    {"root-path", kOne, "", "", "answers have no paths in them: let the proxy cut the prefix off"},
    {"uds", kOne, "", "", "there are no Unix sockets: --host and --port"},
    {"middleware", kMany, "", "", kCode},
    {"tool-parser-plugin", kOne, "", "", kCode},
    {"reasoning-parser-plugin", kOne, "", "", kCode},
    {"logits-processors", kMany, "", "", kCode},
    {"allow-credentials", kNone, "", "", "no cookies are read: clients send an Authorization header"},
    {"allowed-methods", kOne, "", "* [\"*\"]", "pages may use every method that there is"},
    {"allowed-headers", kOne, "", "* [\"*\"]", "pages may send every header"},
    {"disable-fastapi-docs", kNone, "", "", "/openapi.json is a fixed document without secrets"},
    {"disable-frontend-multiprocessing", kNone, "", "*", "the router is a process of its own"},
    {"api-server-count", kOne, "", "1", "one router has as many threads as --http-threads says"},
    {"headless", kNone, "", "", "`baton worker` is a worker without a router"},
    {"lora-modules", kMany, "", "", kLora},
    {"prompt-adapters", kMany, "", "", kPrompt},
    {"speculative-config", kOne, "", "", kGuess},
    {"kv-cache-memory-bytes", kOne, "kv-cache-memory", "", ""},
    {"data-parallel-size", kOne, "", "1", kReplicas},
    {"data-parallel-size-local", kOne, "", "1", kReplicas},
    {"data-parallel-backend", kOne, "", "mp", kReplicas},
    {"enable-expert-parallel", kNone, "", "", "experts are not spread over ranks"},
    {"attention-backend", kOne, "", "*", "kernels are Baton's own"},
    {"cudagraph-capture-sizes", kMany, "", "*", kGraph},
    {"max-cudagraph-capture-size", kOne, "", "*", kGraph},
    {"prefix-caching-hash-algo", kOne, "", "*", "prefixes are hashed with a key (--hash-key-file)"},
    {"structured-outputs-config", kOne, "", "{}", "grammars are compiled by llguidance"},
    {"runner", kOne, "", "auto generate", "models generate text; they embed, score and transcribe nothing"},
    {"convert", kOne, "", "auto none", "models generate text; they embed, score and transcribe nothing"},
    {"hf-token", kOne, "", "", kHub},
});

constexpr std::string_view kCounted = "nothing is tokenized here: lengths are those that the server counted";
constexpr std::string_view kDrawn = "--html FILE draws tokens per second over time, and how times are distributed";

constexpr std::string_view kFetched = "nothing is fetched: --dataset-name custom takes any prompts as JSON lines";

// Flags of its load generator that `baton bench` does not have.
constexpr std::array kBenchFlags = std::to_array<VllmFlag>({
    {"tokenizer", kOne, "", "*", kCounted},
    {"tokenizer-mode", kOne, "", "*", kCounted},
    {"skip-tokenizer-init", kNone, "", "*", kCounted},
    {"trust-remote-code", kNone, "", "*", "no code of a model is loaded"},
    {"use-beam-search", kNone, "", "", "--extra-body '{\"use_beam_search\": true, \"n\": 4}' asks for it"},
    {"logprobs", kOne, "", "", "--extra-body '{\"logprobs\": 5}' asks for them"},
    {"chat-template-kwargs", kOne, "", "", "--extra-body '{\"chat_template_kwargs\": {…}}' passes them on"},
    {"probe-request-rate", kOne, "", "0 0.0", "no probes are sent beside the load"},
    {"profile", kNone, "", "", "Baton has no /start_profile: the report has the server's stages"},
    {"plot-timeline", kNone, "", "", kDrawn},
    {"timeline-itl-thresholds", kMany, "", "", kDrawn},
    {"plot-dataset-stats", kNone, "", "", kDrawn},
    {"lora-modules", kMany, "", "", kLora},
    {"lora-assignment", kOne, "", "", kLora},
    // Of its datasets.
    {"no-oversample", kNone, "", "*", "a file with fewer requests is sent as it is: none is asked twice"},
    {"disable-shuffle", kNone, "", "*", "requests come in the order of the file"},
    {"skip-chat-template", kNone, "", "*", "prompts are sent as they are; chats get their template from the server"},
    {"no-stream", kNone, "", "*", "it is of files that are fetched; answers are always streamed"},
    {"enable-multimodal-chat", kNone, "", "", kMedia},
    {"custom-ensure-client-side-data", kNone, "", "", kMedia},
    {"random-batch-size", kOne, "", "1", "a request has one prompt"},
    {"no-reranker", kNone, "", "*", "nothing is reranked"},
    {"random-mm-base-items-per-request", kOne, "", "", kMedia},
    {"random-mm-num-mm-items-range-ratio", kOne, "", "", kMedia},
    {"random-mm-limit-mm-per-prompt", kOne, "", "", kMedia},
    {"random-mm-bucket-config", kOne, "", "", kMedia},
    {"asr-max-audio-len-sec", kOne, "", "", kMedia},
    {"asr-min-audio-len-sec", kOne, "", "", kMedia},
    {"hf-subset", kOne, "", "", kFetched},
    {"hf-split", kOne, "", "", kFetched},
    {"hf-name", kOne, "", "", kFetched},
    {"hf-output-len", kOne, "", "", kFetched},
    {"bfcl-categories", kMany, "", "", kFetched},
    {"blazedit-min-distance", kOne, "", "", kFetched},
    {"blazedit-max-distance", kOne, "", "", kFetched},
    {"spec-bench-output-len", kOne, "", "", kFetched},
    {"spec-bench-category", kOne, "", "", kFetched},
    {"speed-bench-dataset-subset", kOne, "", "", kFetched},
    {"speed-bench-output-len", kOne, "", "", kFetched},
    {"speed-bench-category", kOne, "", "", kFetched},
});

}  // namespace

std::span<const VllmFlag> VllmFlags() { return kFlags; }
std::span<const VllmFlag> VllmBenchFlags() { return kBenchFlags; }

}  // namespace baton::cli
