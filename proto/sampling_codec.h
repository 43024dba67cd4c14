// The fields of SamplingParams and the members that hold them, once, for the router's plain values and the engine's:
// both give a member the name of its field. A test of each side counts the descriptor's fields. Threads: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/types.pb.h"

namespace baton {

/// Calls visit.Number(member, has, get, set) for each optional field, visit.Map(member, get, mutable) and
/// visit.List(member, get, mutable) and visit.Grammar(member, has, get, mutable) for the others. `Options`:
/// router::SamplingOptions or engine::SamplingParams.
template <class Options, class Visit>
void VisitSamplingWire(Visit&& visit) {
#define BATON_NUMBER(field) visit.Number(&Options::field, &P::has_##field, &P::field, &P::set_##field)
#define BATON_OTHER(kind, field) \
  visit.kind(&Options::field, [](const P& p) -> auto& { return p.field(); }, [](P& p) { return p.mutable_##field(); })
  using P = v1::SamplingParams;
  BATON_NUMBER(temperature);
  BATON_NUMBER(top_k);
  BATON_NUMBER(top_p);
  BATON_NUMBER(min_p);
  BATON_NUMBER(repetition_penalty);
  BATON_NUMBER(presence_penalty);
  BATON_NUMBER(frequency_penalty);
  BATON_OTHER(Map, logit_bias);
  BATON_OTHER(List, allowed_token_ids);
  BATON_OTHER(List, stop_token_ids);
  BATON_NUMBER(ignore_eos);
  BATON_NUMBER(min_tokens);
  BATON_NUMBER(max_tokens);
  BATON_NUMBER(seed);
  BATON_NUMBER(n);
  BATON_NUMBER(logprobs);
  BATON_NUMBER(prompt_logprobs);
  BATON_OTHER(List, bad_words);
  BATON_NUMBER(use_beam_search);
  BATON_NUMBER(best_of);
  BATON_NUMBER(length_penalty);
  BATON_NUMBER(early_stopping);
  visit.Grammar(&Options::grammar, &P::has_grammar, &P::grammar, &P::mutable_grammar);
#undef BATON_NUMBER
#undef BATON_OTHER
}

/// What an absent field leaves as it is.
template <class Options>
struct SamplingDecoder {
  const v1::SamplingParams& in;
  Options& out;
  void Number(auto member, auto has, auto get, auto) {
    if ((in.*has)()) out.*member = (in.*get)();
  }
  /// Sorted: a protobuf map has no order, and bits must not depend on it.
  void Map(auto member, auto get, auto) {
    (out.*member).assign(get(in).begin(), get(in).end());
    std::sort((out.*member).begin(), (out.*member).end());
  }
  void List(auto member, auto get, auto) { (out.*member).assign(get(in).begin(), get(in).end()); }
  template <class Text>  // of a kind, and shared: text/grammar_kind.h
  void Grammar(std::shared_ptr<const Text> Options::* member, auto has, auto get, auto) {
    if (!(in.*has)()) return;
    const v1::Grammar& given = (in.*get)();
    out.*member = std::make_shared<const Text>(Text{static_cast<decltype(Text::kind)>(given.kind()), given.text()});
  }
};

/// Leaves out what is std::nullopt.
template <class Options>
struct SamplingEncoder {
  const Options& in;
  v1::SamplingParams& out;
  template <class T>
  void Number(std::optional<T> Options::* member, auto, auto, auto set) {
    if (in.*member) (out.*set)(*(in.*member));
  }
  template <class T>
  void Number(T Options::* member, auto, auto, auto set) {
    (out.*set)(in.*member);
  }
  void Map(auto member, auto, auto get) {
    for (const auto& [key, value] : in.*member) (*get(out))[key] = value;
  }
  void List(auto member, auto, auto get) { get(out)->Add((in.*member).begin(), (in.*member).end()); }
  void Grammar(auto member, auto, auto, auto get) {
    if (!(in.*member)) return;
    (out.*get)()->set_kind(static_cast<v1::Grammar::Kind>((in.*member)->kind));
    (out.*get)()->set_text((in.*member)->text);
  }
};

template <class Options>
void DecodeSamplingFields(const v1::SamplingParams& in, Options& out) {
  VisitSamplingWire<Options>(SamplingDecoder<Options>{in, out});
}

template <class Options>
void EncodeSamplingFields(const Options& in, v1::SamplingParams& out) {
  VisitSamplingWire<Options>(SamplingEncoder<Options>{in, out});
}

}  // namespace baton
