#include "router/dialect/exact_json.h"

namespace baton::router {
namespace {

using OrderedJson = nlohmann::ordered_json;
using MakesValues = nlohmann::detail::json_sax_dom_parser<OrderedJson>;

/// Makes values as nlohmann::ordered_json::parse does, but for integers that it would make doubles of.
class MakesExactValues : public MakesValues {
 public:
  MakesExactValues(OrderedJson& out, int deepest) : MakesValues(out, /*allow_exceptions=*/false), left_(deepest) {}

  bool number_float(double value, const std::string& text) {
    if (text.find_first_of(".eE") != text.npos) return MakesValues::number_float(value, text);
    OrderedJson::binary_t digits({text.begin(), text.end()});
    return MakesValues::binary(digits);
  }
  bool start_object(size_t count) { return --left_ >= 0 && MakesValues::start_object(count); }
  bool start_array(size_t count) { return --left_ >= 0 && MakesValues::start_array(count); }
  bool end_object() {
    ++left_;
    return MakesValues::end_object();
  }
  bool end_array() {
    ++left_;
    return MakesValues::end_array();
  }

 private:
  int left_;
};

void AppendExact(const OrderedJson& json, std::string& out) {
  if (json.is_binary()) {
    out.append(json.get_binary().begin(), json.get_binary().end());
  } else if (json.is_object()) {
    out += '{';
    for (const auto& [key, value] : json.items()) {
      if (!out.ends_with('{')) out += ',';
      out += OrderedJson(key).dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + ":";
      AppendExact(value, out);
    }
    out += '}';
  } else if (json.is_array()) {
    out += '[';
    for (const OrderedJson& value : json) {
      if (!out.ends_with('[')) out += ',';
      AppendExact(value, out);
    }
    out += ']';
  } else {
    out += json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
}

}  // namespace

std::optional<OrderedJson> ParseExact(std::string_view text, int deepest) {
  OrderedJson json;
  MakesExactValues values(json, deepest);
  if (!OrderedJson::sax_parse(text, &values)) return std::nullopt;
  return json;
}

OrderedJson BigInteger(std::string_view digits) { return OrderedJson::binary({digits.begin(), digits.end()}); }

std::string ExactText(const OrderedJson& json) {
  std::string out;
  AppendExact(json, out);
  return out;
}

}  // namespace baton::router
