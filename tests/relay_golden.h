// The bytes between routers and workers (proto/worker.proto), for tests of both ends: what the one must write, the
// other must read. Put together by hand from the .proto files, field by field, never by the code under test. A change
// here is another protocol: routers and workers of two builds would misread each other.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace baton::golden {

/// SamplingParams, every field but prompt_logprobs set.
inline constexpr const char* kSampling =
    "0d0000003f"              // temperature 0.5
    "1007"                    // top_k 7
    "1d0000803e"              // top_p 0.25
    "250000003e"              // min_p 0.125
    "2d0000c03f"              // repetition_penalty 1.5
    "35000080bf"              // presence_penalty -1
    "3d00000040"              // frequency_penalty 2
    "4207080915000040c0"      // logit_bias 9: -3
    "4a020102"                // allowed_token_ids
    "520303ac02"              // stop_token_ids
    "5801"                    // ignore_eos
    "6001"                    // min_tokens 1
    "681e"                    // max_tokens 30
    "7090e4d0b287d3aeeefe01"  // seed
    "7802"                    // n 2
    "800102";                 // logprobs 2

inline constexpr const char* kAttachHead =
    "0a090a0372233210031804"                        // key: "r#2", attempt 3, epoch 4
    "1005"                                          // attach_gen 5
    "1a0154"                                        // ticket: "T"
    "22140500000006000000000010002800000029000000"  // token ids 5, 6, 2^20, 40, 41
    "2803"                                          // prompt_len 3
    "3002"                                          // output_len_so_far 2
    "3a48";                                         // sampling: 72 bytes, see kSampling

inline constexpr const char* kAttachTail =
    "42020203"          // eos 2, 3
    "4a0408011007"      // first: choice 1 drew 7
    "4a06080210082801"  // first: choice 2 drew 8 and ended
    "508004"            // credit_tokens 512
    "58dc0b"            // deadline_ms 1500
    "6007"              // priority -4
    "6a0674656e616e74"  // cache_salt "tenant"
    "720102"            // choices 2
    "7806"              // position 6
    "8001a01f";         // lease_ms 4000

/// An Attach of one migrated choice, after a handoff.
inline std::string Attach() { return absl::StrCat(kAttachHead, kSampling, kAttachTail); }

/// A WatchRequest, and one of a router that knows of no quiet interval.
inline constexpr const char* kWatch =
    "0a02"
    "7231"     // router_id "r1"
    "1064"     // load_interval_ms 100
    "18d804";  // quiet_interval_ms 600
inline constexpr const char* kWatchOfOldRouter =
    "0a02"
    "7231"     // router_id "r1"
    "10fa01";  // load_interval_ms 250

/// A ReserveRequest.
inline constexpr const char* kReserve =
    "0a050a01721003"                // key
    "1003"                          // prompt_len 3
    "2802"                          // choices 2
    "30c413"                        // expiry_ms 2500
    "3a0674656e616e74"              // cache_salt
    "420c050000000600000000001000"  // token ids 5, 6, 2^20
    "50a01f";                       // lease_ms 4000

/// A Ticket: in ReserveReply and Attach.
inline constexpr const char* kTicket =
    "08ef9baf8589cf959a12"                   // id
    "120b696e6361726e6174696f6e"             // incarnation
    "190300000000000000210400000000000000";  // secret

/// A ReserveReply.
inline constexpr const char* kReserved =
    "0a2908ef9baf8589cf959a12120b696e6361726e6174696f6e190300000000000000210400000000000000"  // ticket
    "1a4c0a2e0a0200021002188004220f08011207666c6f617433321804204022100802120862666c6f617431361804204028200a1a0a01011001"
    "2211080312086670385f65346d33180120c0042810"  // kv_layout
    "220468657265"                                // landing_address
    "2a03746370"                                  // transport
    "3010"                                        // cached_tokens 16
    "38c413"                                      // expiry_ms 2500
    "48808040"                                    // slot_bytes
    "5040"                                        // piece_tokens 64
    "5802"                                        // tensor_parallel_size 2
    "62020003";                                   // stage_layers 0, 3

inline constexpr const char* kPrefillHead =
    "0a070a017210031804"  // key: epoch 4
    "129501";             // the grant: 149 bytes

inline constexpr const char* kPrefillRest =
    "1a0c050000000600000000001000"  // token ids
    "2003"                          // prompt_len 3
    "3248";                         // sampling: 72 bytes

inline constexpr const char* kPrefillTail =
    "3a020203"          // eos 2, 3
    "40dc0b"            // deadline_ms 1500
    "4807"              // priority -4
    "520674656e616e74"  // cache_salt
    "58a01f";           // lease_ms 4000

/// A PrefillRequest for that grant.
inline std::string PrefillRequest() {
  return absl::StrCat(kPrefillHead, kReserved, kPrefillRest, kSampling, kPrefillTail);
}

/// A CancelRequest.
inline constexpr const char* kCancelLeg =
    "0a070a017210031804"  // key
    "1801";               // asks_again

/// A RelayCancel.
inline constexpr const char* kCancelAttached =
    "0a03722332"  // leg
    "1005"        // attach_gen 5
    "1800";       // choice 0, which is said

/// A Credit.
inline constexpr const char* kCredit =
    "0a03722332"  // leg
    "1005"        // attach_gen 5
    "1802"        // choice 2
    "208002";     // tokens 256

/// A Renewal.
inline constexpr const char* kRenewal =
    "0a070a017210031804"  // key
    "1005";               // attach_gen 5

/// The last RelayEntry of a choice, without request id and attach_gen.
inline constexpr const char* kEntry =
    "1802"                                                                    // choice 2
    "2006"                                                                    // position 6
    "2a0328ac02"                                                              // token ids 40, 300
    "32210a09082815000000bf18011209082815000000bf180112090809150000c0bf1802"  // logprobs of 40
    "320c0a0a08ac0215000080be1801"                                            // logprobs of 300
    "3801"                                                                    // finish: stop
    "40ac02"                                                                  // stop_token_id 300
    "6a1b09000000000000f03f110000000000000040310000000000001040";             // timings

/// A RelayEntry of a choice that ends since no token is allowed any more.
inline constexpr const char* kNothingAllowedEntry =
    "1801"                                                        // choice 1
    "2003"                                                        // position 3
    "3801"                                                        // finish: stop
    "6a1b09000000000000f03f110000000000000040310000000000001040"  // timings
    "7001";                                                       // nothing_allowed

/// The last PrefillReply of a leg whose only choice may not even begin.
inline constexpr const char* kNothingAllowedLeg =
    "120428013801"  // first token of choice 0: finish: stop, nothing_allowed
    "1a00"          // usage
    "2200"          // timings
    "3801";         // last

/// A RelayEntry that ends a choice with an error.
inline constexpr const char* kErrorEntry =
    ""                                                             // choice 0
    "2003"                                                         // position 3
    "3804"                                                         // finish: error
    "4a08080412046c617465"                                         // error
    "6a1b09000000000000f03f110000000000000040310000000000001040";  // timings

/// PromptLogprobs of one position.
inline constexpr const char* kScores =
    "0a210a09082815000000bf18011209082815000000bf180112090809150000c0bf1802";  // one position

}  // namespace baton::golden
