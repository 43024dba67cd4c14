#include "common/json.h"

namespace nlohmann::detail {

template class serializer<json>;
template class serializer<ordered_json>;
template class lexer<json, baton::JsonOfString>;
template class lexer<json, baton::JsonOfView>;
template class lexer<ordered_json, baton::JsonOfString>;
template class lexer<ordered_json, baton::JsonOfView>;
template class parser<json, baton::JsonOfString>;
template class parser<json, baton::JsonOfView>;
template class parser<ordered_json, baton::JsonOfString>;
template class parser<ordered_json, baton::JsonOfView>;

}  // namespace nlohmann::detail
