#include "tests/fuzz/text_mutator.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

/// libFuzzer's own: changes bytes.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace baton::fuzz {
namespace {

using Json = nlohmann::ordered_json;
using Random = std::minstd_rand;

size_t Below(size_t count, Random& random) { return random() % count; }

template <class List>
const auto& OneOf(const List& list, Random& random) {
  return list[Below(std::size(list), random)];
}

/// Parts of tokenizers, and values that no part expects.
constexpr std::string_view kValues[] = {
    R"(null)",
    R"(true)",
    R"(0)",
    R"(-1)",
    R"(1)",
    R"(255)",
    R"(65536)",
    R"(4294967295)",
    R"(4294967296)",
    R"(16777215)",
    R"(1e308)",
    R"(-0.0)",
    R"(1.5)",
    R"("")",
    R"([])",
    R"({})",
    R"("a")",
    R"("▁")",
    R"(" ")",
    R"("<0x00>")",
    R"("<0xFF>")",
    R"("<s>")",
    R"("\u0000")",
    R"("\ud7ff")",
    R"("First")",
    R"("always")",
    R"("never")",
    R"("Isolated")",
    R"("Removed")",
    R"("MergedWithNext")",
    R"("Contiguous")",
    R"("BPE")",
    R"("Unigram")",
    R"("WordPiece")",
    R"("WordLevel")",
    R"("(a|aa)+$")",
    R"("(?<=a+)b")",
    R"("\\p{L}{1,9999}")",
    R"("((((((((a*)*)*)*)*)*)*)*")",
    R"("[")",
    R"("\\")",
    R"("(?i:x")",
    R"("|")",
    R"("AAAA")",
    R"("////")",
    R"({"Regex":"(a*)*b"})",
    R"({"Regex":""})",
    R"({"Regex":"|x"})",
    R"({"String":""})",
    R"({"String":"l"})",
    R"({"type":"Replace","pattern":{"String":"l"},"content":"lllll"})",
    R"({"type":"Replace","pattern":{"Regex":"|"},"content":"xyz"})",
    R"({"type":"Prepend","prepend":"▁▁▁"})",
    R"({"type":"Precompiled","precompiled_charsmap":"AAQAAAAgAAA="})",
    R"({"type":"NFKC"})",
    R"({"type":"Precompiled","precompiled_charsmap":"/////w=="})",
    R"({"type":"StripAccents"})",
    R"({"type":"Strip","strip_left":true,"strip_right":true})",
    R"({"type":"Lowercase"})",
    R"({"type":"Nmt"})",
    R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})",
    R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false})",
    R"({"type":"Split","pattern":{"Regex":"\\s+|"},"behavior":"MergedWithPrevious","invert":true})",
    R"({"type":"Punctuation","behavior":"Contiguous"})",
    R"({"type":"Digits","individual_digits":true})",
    R"({"type":"FixedLength","length":0})",
    R"({"type":"UnicodeScripts"})",
    R"({"type":"WhitespaceSplit"})",
    R"({"type":"CharDelimiterSplit","delimiter":"l"})",
    R"({"type":"Sequence","pretokenizers":[]})",
    R"({"type":"Sequence","normalizers":[]})",
    R"({"type":"Sequence","decoders":[]})",
    R"({"type":"Sequence","processors":[]})",
    R"({"type":"ByteFallback"})",
    R"({"type":"Fuse"})",
    R"({"type":"Strip","content":"l","start":99,"stop":99})",
    R"({"type":"WordPiece","prefix":"","cleanup":true})",
    R"({"type":"CTC","pad_token":"","word_delimiter_token":"","cleanup":true})",
    R"({"type":"BPEDecoder","suffix":""})",
    R"({"type":"RobertaProcessing","sep":["a",9],"cls":["b",99999],
                 "trim_offsets":true,"add_prefix_space":true})",
    R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}}],"pair":[],
                 "special_tokens":{"x":{"id":"x","ids":[1,4294967295],"tokens":["x","y"]}}})",
    R"({"id":0,"content":"","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":true})",
    R"({"id":4000000000,"content":"zz","special":false,"normalized":false})",
    R"({"type":"Unigram","unk_id":7,"vocab":[["a",-1.0],["",0.0]],"byte_fallback":true})",
    R"({"type":"BPE","dropout":1.5,"unk_token":"q","fuse_unk":true,"byte_fallback":true,"ignore_merges":true,
                 "vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]})",
    R"({"type":"WordLevel","vocab":{"a":4294967295},"unk_token":"b"})",
    R"({"direction":"Left","max_length":0,"strategy":"LongestFirst","stride":9})",
    R"({"strategy":{"Fixed":4000000000},"direction":"Left","pad_to_multiple_of":0,"pad_id":0,"pad_type_id":0,
                 "pad_token":""})",
};

const std::vector<Json>& Values() {
  static const std::vector<Json> values = [] {
    std::vector<Json> out;
    for (const std::string_view text : kValues) out.push_back(Json::parse(text));
    out.emplace_back(std::string(5000, 'a'));
    return out;
  }();
  return values;
}

/// Pieces of Jinja, each of which may stand anywhere.
constexpr std::string_view kPieces[] = {
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if m.content is string %}",
    "{% else %}",
    "{% endif %}",
    "{% set x = 'a' * 100000 %}",
    "{% set ns = namespace(a=0, s='') %}",
    "{% set ns.s = ns.s + m.content %}",
    "{% macro f(n) %}{{ f(n - 1) if n else 'x' }}{% endmacro %}",
    "{{ f(100) }}",
    "{{ f(100000) }}",
    "{% generation %}",
    "{% endgeneration %}",
    "{%- break %}",
    "{%- continue %}",
    "{{ m | tojson }}",
    "{{ m['content'] }}",
    "{{ messages | tojson(indent=4) }}",
    "{{ x | replace('a', x) }}",
    "{{ x.split('a') | join(x) }}",
    "{{ x[::-1] }}",
    "{{ x[-99999999999:99999999999:2] }}",
    "{{ range(1000000) | list | length }}",
    "{{ 'x' * 999999999999 }}",
    "{{ [messages] * 100000 }}",
    "{{ '%s%09999999d' | format(x, 1) }}",
    "{{ '{:>999999}'.format(x) }}",
    "{{ strftime_now('%Y-%m-%d %A %9999d %%%') }}",
    "{{ raise_exception('no: ' ~ m) }}",
    "{{ x | indent(99999) }}",
    "{{ messages | map(attribute='role') | list | sort | unique | join(',') }}",
    "{{ loop.index0 % 2 }}",
    "{{ loop(messages) }}",
    "{% for a, b in m.items() recursive %}",
    "{{ x | upper | lower | title | capitalize }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ -9223372036854775808 // -1 }}",
    "{{ 1 % 0 }}",
    "{{ 1e308 * 10 }}",
    "{{ 2 ** 9999 }}",
    "{{ x.center(99999999) }}",
    "{{ x.zfill(9999999999) }}",
    "{{ m.get('tool_calls', [])[0].function.arguments | items }}",
    "{{ caller() }}",
    "{% call f(3) %}",
    "{% endcall %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{% set y %}",
    "{% endset %}",
    "{% raw %}",
    "{% endraw %}",
    "{# ",
    " #}",
    "{%- ",
    " -%}",
    "{{ ",
    " }}",
    "((((((((",
    "))))))))",
    "[[[[[[[[",
    "]]]]]]]]",
    " and not ",
    " is defined ",
    " in ",
    " ~ ",
    " + ",
    " if true else ",
    "|",
    ".",
    "'",
    "\"",
    "\\",
    "{% with a = messages %}",
    "{% endwith %}",
    "{% autoescape true %}",
    "{% endautoescape %}",
    "{% import 'x' as y %}",
    "{% block b %}",
    "{% endblock %}",
    "{{ self.b() }}",
    "{{ x | batch(0) | list }}",
    "{{ x | slice(0) | list }}",
    "{{ messages | groupby('role') }}",
    "{{ dict(a=1) | dictsort(reverse=true) }}",
    "{{ 0.1 | round(99) }}",
    "{{ x | int }}",
    "{{ '\\u0000\\ud83d' | length }}",
    "{{ cycler(1, 2).next() }}",
    "{{ joiner(x)() }}",
    "{{ debug() }}",
};

void Collect(Json& node, std::vector<Json*>& out) {
  out.push_back(&node);
  if (!node.is_structured() || out.size() > 20000) return;
  for (Json& child : node) Collect(child, out);
}

void ChangeText(Json& node, Random& random) {
  auto text = node.get<std::string>();
  const size_t most = text.size() + 16;
  std::vector<uint8_t> bytes(text.begin(), text.end());
  bytes.resize(most);
  bytes.resize(LLVMFuzzerMutate(bytes.data(), text.size(), most));
  node = Below(4, random) == 0 ? text + text : std::string(bytes.begin(), bytes.end());
}

void ChangeStructure(Json& node, const Json& value, Random& random) {
  if (node.is_array()) {
    node.insert(node.begin() + static_cast<std::ptrdiff_t>(Below(node.size() + 1, random)), value);
    return;
  }
  std::vector<std::string> keys;
  for (const auto& [key, child] : node.items()) keys.push_back(key);
  const bool fresh = keys.empty() || Below(3, random) == 0;
  const std::string key = fresh ? "k" + std::to_string(random() % 3) : OneOf(keys, random);
  if (!fresh && Below(2, random) == 0) {
    node.erase(key);
  } else {
    node[key] = value;
  }
}

void ChangeNode(Json& whole, Random& random) {
  std::vector<Json*> nodes;
  Collect(whole, nodes);
  Json& node = *OneOf(nodes, random);
  const Json value = Below(3, random) == 0 ? *OneOf(nodes, random) : OneOf(Values(), random);
  switch (Below(3, random)) {
    case 0: node = value; return;
    case 1:
      if (node.is_string()) return ChangeText(node, random);
      if (node.is_number_integer()) {
        node = static_cast<int64_t>(node.get<uint64_t>() ^ (uint64_t{1} << Below(40, random)));
        return;
      }
      [[fallthrough]];
    default: node.is_structured() ? ChangeStructure(node, value, random) : void(node = value);
  }
}

/// The first file of an input; what is behind it stays. Empty: it is no JSON.
std::string ChangedTokenizer(std::string_view bytes, Random& random) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  Json whole = Json::parse(bytes.substr(0, end), nullptr, /*allow_exceptions=*/false);
  if (whole.is_discarded()) return {};
  for (size_t changes = 1 + Below(3, random); changes > 0; --changes) ChangeNode(whole, random);
  return whole.dump(-1, ' ', false, Json::error_handler_t::replace).append(bytes.substr(end));
}

std::string ChangedTemplate(std::string_view bytes, Random& random) {
  std::string out(bytes);
  for (size_t changes = 1 + Below(4, random); changes > 0; --changes) {
    // Most often between pieces: before or behind a tag.
    size_t at = Below(out.size() + 1, random);
    if (const size_t tag = out.find(Below(2, random) == 0 ? "{" : "}", at); tag != out.npos && Below(4, random) != 0)
      at = out[tag] == '{' ? tag : tag + 1;
    const size_t length = std::min(out.size() - at, 1 + Below(80, random));
    switch (Below(4, random)) {
      case 0: out.erase(at, length); break;
      case 1: out.insert(Below(out.size() + 1, random), out.substr(at, length)); break;
      default: out.insert(at, OneOf(kPieces, random)); break;
    }
  }
  return out;
}

}  // namespace

size_t MutateText(uint8_t* data, size_t size, size_t most, unsigned seed) {
  Random random(seed);
  if (size < 2 || Below(6, random) == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string changed = data[0] == kTemplate ? ChangedTemplate(bytes, random) : ChangedTokenizer(bytes, random);
  if (changed.empty() || changed.size() + 1 > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data + 1, changed.data(), changed.size());
  return changed.size() + 1;
}

}  // namespace baton::fuzz
