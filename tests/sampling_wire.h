// Each side's part of SamplingParams against the descriptor: a field that proto/sampling_codec.h, the router's
// SamplingOptions or the engine's SamplingParams lacks is a failed test.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "proto/sampling_codec.h"

namespace baton {

/// Every field of SamplingParams with a value of its own, none of them the default of any side.
inline v1::SamplingParams EverySamplingField() {
  using Descriptor = google::protobuf::FieldDescriptor;
  v1::SamplingParams params;
  const google::protobuf::Reflection& r = *params.GetReflection();
  for (int i = 0; i < params.GetDescriptor()->field_count(); ++i) {
    const Descriptor* field = params.GetDescriptor()->field(i);
    const int value = 100 + field->number();
    if (field->is_map()) {
      google::protobuf::Message* entry = r.AddMessage(&params, field);
      const google::protobuf::Reflection& e = *entry->GetReflection();
      e.SetInt32(entry, field->message_type()->field(0), value);
      e.SetFloat(entry, field->message_type()->field(1), static_cast<float>(-value));
    } else if (field->is_repeated()) {
      r.AddInt32(&params, field, value);
      r.AddInt32(&params, field, -value);
    } else {
      switch (field->cpp_type()) {
        case Descriptor::CPPTYPE_FLOAT: r.SetFloat(&params, field, static_cast<float>(value)); break;
        case Descriptor::CPPTYPE_INT32: r.SetInt32(&params, field, value); break;
        case Descriptor::CPPTYPE_UINT64: r.SetUInt64(&params, field, static_cast<uint64_t>(value)); break;
        case Descriptor::CPPTYPE_BOOL: r.SetBool(&params, field, true); break;
        case Descriptor::CPPTYPE_MESSAGE:
          EXPECT_EQ(field->name(), "grammar");
          params.mutable_grammar()->set_kind(v1::Grammar::KIND_LARK);
          params.mutable_grammar()->set_text(R"(start: "a")");
          break;
        default: ADD_FAILURE() << field->name() << " has a type that this test does not know";
      }
    }
  }
  return params;
}

/// Counts what VisitSamplingWire visits.
struct SamplingFieldCounter {
  int& fields;
  void Number(auto, auto, auto, auto) { ++fields; }
  void Map(auto, auto, auto) { ++fields; }
  void List(auto, auto, auto) { ++fields; }
  void Grammar(auto, auto, auto, auto) { ++fields; }
};

/// Every field goes into `Options` and comes back as it was.
template <class Options>
void ExpectEverySamplingFieldIsCarried() {
  const v1::SamplingParams all = EverySamplingField();
  int fields = 0;
  VisitSamplingWire<Options>(SamplingFieldCounter{fields});
  EXPECT_EQ(fields, v1::SamplingParams::descriptor()->field_count());
  Options options;
  DecodeSamplingFields(all, options);
  v1::SamplingParams again;
  EncodeSamplingFields(options, again);
  EXPECT_EQ(again.DebugString(), all.DebugString());
}

}  // namespace baton
