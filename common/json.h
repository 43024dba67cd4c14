// nlohmann's JSON. Its parser and its printer are compiled once, in json.cc, instead of with every source that reads or
// writes JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace baton {

/// What json::parse reads from a std::string, and from a std::string_view or text between quotes.
using JsonOfString = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
using JsonOfView = nlohmann::detail::iterator_input_adapter<const char*>;

}  // namespace baton

namespace nlohmann::detail {

extern template class serializer<json>;
extern template class serializer<ordered_json>;
extern template class lexer<json, baton::JsonOfString>;
extern template class lexer<json, baton::JsonOfView>;
extern template class lexer<ordered_json, baton::JsonOfString>;
extern template class lexer<ordered_json, baton::JsonOfView>;
extern template class parser<json, baton::JsonOfString>;
extern template class parser<json, baton::JsonOfView>;
extern template class parser<ordered_json, baton::JsonOfString>;
extern template class parser<ordered_json, baton::JsonOfView>;

}  // namespace nlohmann::detail
