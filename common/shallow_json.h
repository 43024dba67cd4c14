// JSON that another program wrote. A parser goes as deep as the text, but copying, printing and comparing call
// themselves once a level: a text of brackets alone would end the program. Threads: any.
#pragma once

#include <string_view>

#include "common/json.h"

namespace baton {

/// Deeper than anything that is read here.
inline constexpr int kMostJsonDepth = 128;

/// Discarded (is_discarded()): no JSON, or arrays and objects in each other more than `most_depth` deep.
template <class Json = nlohmann::json>
Json ShallowJson(std::string_view text, int most_depth = kMostJsonDepth) {
  bool deep = false;
  const typename Json::parser_callback_t look = [&deep, most_depth](int depth, typename Json::parse_event_t event,
                                                                    Json&) {
    const bool begins = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    deep = deep || (begins && depth >= most_depth);
    return !deep;
  };
  Json json = Json::parse(text, look, /*allow_exceptions=*/false);
  return deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace baton
