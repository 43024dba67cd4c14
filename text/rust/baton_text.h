// The C ABI of the Rust half of text/ (src/lib.rs keeps the same declarations).
//
// Handles are opaque and immutable: every function may be called from any thread. (A bt_matcher is not immutable: one
// thread at a time.) Input is (ptr, len) and is read only
// during the call. Buffers returned in bt_buf and bt_error are freed by the caller with bt_buf_free / bt_ids_free.
// No function unwinds: a panic becomes an error with code 13.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_tokenizer bt_tokenizer;
typedef struct bt_template bt_template;
typedef struct bt_vocabulary bt_vocabulary;
typedef struct bt_matcher bt_matcher;

typedef struct bt_str {
  const char* ptr;
  size_t len;
} bt_str;

typedef struct bt_buf {  // owned by the caller once returned
  uint8_t* ptr;
  size_t len;
} bt_buf;

typedef struct bt_ids {  // owned by the caller once returned
  int32_t* ptr;
  size_t len;
} bt_ids;

typedef struct bt_error {
  int32_t code;  // an absl status code; 0 = no error, and then no message
  bt_buf message;
} bt_error;

// BOS and EOS around a text. add_*: 1 yes, 0 no, -1 as tokenizer.json says.
typedef struct bt_affixes {
  int32_t add_bos;
  int32_t add_eos;
  bt_str bos;
  bt_str eos;
} bt_affixes;

// tokenizer.ggml.* of a GGUF file. scores, types, merges and charsmap may be empty.
typedef struct bt_gguf {
  bt_str model;
  bt_str pre;
  const bt_str* tokens;
  size_t token_count;
  const float* scores;   // [token_count] or null
  const int32_t* types;  // [token_count] or null
  const bt_str* merges;
  size_t merge_count;
  bt_str charsmap;
  int64_t unk_id;  // -1 = none
  int32_t add_space_prefix;
  int32_t remove_extra_whitespaces;  // unigram: spaces at the ends and runs of spaces
  bt_affixes affixes;
} bt_gguf;

// Views into the tokenizer, by token id. Token i's bytes are bytes[byte_ends[i-1] .. byte_ends[i]), with 0 for i = 0.
typedef struct bt_table {
  size_t count;
  const char* bytes;
  const uint64_t* byte_ends;
  const char* names;
  const uint64_t* name_ends;
  const uint8_t* special;
  const uint8_t* begins_piece;  // a text may be cut before every occurrence of the token, and its parts tokenized alone
  int32_t assembly;             // TextAssembly
  int32_t text_start;           // TextStart
} bt_table;

bt_tokenizer* bt_tokenizer_from_json(bt_str json, bt_str extra_tokens_json, const bt_affixes* affixes, bt_error* error);
bt_tokenizer* bt_tokenizer_from_gguf(const bt_gguf* gguf, bt_error* error);
void bt_tokenizer_free(bt_tokenizer* tokenizer);
bt_table bt_tokenizer_table(const bt_tokenizer* tokenizer);
int64_t bt_tokenizer_token_to_id(const bt_tokenizer* tokenizer, bt_str token);  // -1 = none
// A text of more than piece_bytes is read in pieces of so many bytes and a few more, where its ids are the same.
bt_ids bt_tokenizer_encode(const bt_tokenizer* tokenizer, bt_str text, int32_t add_special, int32_t parse_special,
                           size_t piece_bytes, bt_error* error);
// For TextAssembly::kWhole only: the crate's own decoder.
bt_buf bt_tokenizer_decode(const bt_tokenizer* tokenizer, const int32_t* ids, size_t count, bt_error* error);

typedef struct bt_render {
  bt_str messages_json;
  bt_str tools_json;   // empty = none
  bt_str kwargs_json;  // empty = none
  int32_t add_generation_prompt;
  int32_t continue_final_message;
  int64_t now_s;
} bt_render;

// tokens_json: an object of special token names and texts, {"bos_token": "<s>"}.
bt_template* bt_template_new(bt_str source, bt_str tokens_json, bt_error* error);
void bt_template_free(bt_template* tmpl);
bt_buf bt_template_render(const bt_template* tmpl, const bt_render* request, bt_error* error);

// size: ids that the model scores. eos: those that end a text. The tokenizer is read only during the call.
bt_vocabulary* bt_vocabulary_new(const bt_tokenizer* tokenizer, const int32_t* eos, size_t eos_count, size_t size,
                                 bt_error* error);
void bt_vocabulary_free(bt_vocabulary* vocabulary);
// What is wrong with a grammar's text, as far as it is seen in little time.
void bt_grammar_check_form(int32_t kind, bt_str text, bt_error* error);
// White space between the parts of a JSON text, as a regular expression; nobody's to free.
bt_str bt_json_space(void);
// What is wrong with a pattern that a client wants of it.
void bt_json_space_check(bt_str pattern, bt_error* error);
// A Lark grammar or GBNF as Lark rules, of which `name` is the one that it begins with.
bt_buf bt_rules_begun_by(bt_str name, bt_str text, bt_error* error);
// kind: GrammarKind of text/grammar.h. The vocabulary may be freed before its matchers.
bt_matcher* bt_matcher_new(const bt_vocabulary* vocabulary, int32_t kind, bt_str text, bt_error* error);
bt_matcher* bt_matcher_copy(const bt_matcher* matcher, bt_error* error);
void bt_matcher_free(bt_matcher* matcher);
// How many of the ids the grammar takes.
size_t bt_matcher_consume(bt_matcher* matcher, const int32_t* ids, size_t count, bt_error* error);
// mask: [words], one bit per id.
void bt_matcher_mask(bt_matcher* matcher, uint32_t* mask, size_t words, bt_error* error);
int32_t bt_matcher_may_end(bt_matcher* matcher);
int32_t bt_matcher_has_ended(const bt_matcher* matcher);
uint64_t bt_matcher_work(const bt_matcher* matcher);

void bt_buf_free(bt_buf buf);
void bt_ids_free(bt_ids ids);

#ifdef __cplusplus
}
#endif
