#include "engine/model/config/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace baton::engine {
namespace {

constexpr double kMaxContext = 1 << 30;

// One stretch of wavelengths stays, one is divided by the factor, between them it slides (Llama 3.1).
void Llama3(JsonFields& in, std::vector<double>& freq) {
  const double factor = in.FloatOr("factor", 8, 1, 1e6);
  const double low = in.FloatOr("low_freq_factor", 1, 1e-6, 1e6);
  const double high = in.FloatOr("high_freq_factor", 4, 1e-6, 1e6);
  const double context = static_cast<double>(in.Int("original_max_position_embeddings", 1, 1 << 30));
  if (high <= low) in.Fail(StrCat("rope: high_freq_factor ", high, " is not above low_freq_factor ", low));
  for (double& f : freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    const double smooth = std::clamp((context / wavelength - low) / (high - low), 0.0, 1.0);
    f = (1 - smooth) * f / factor + smooth * f;
  }
}

double YarnScale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

// High frequencies stay, low ones are interpolated, a linear ramp over dimensions between them (arXiv:2309.00071).
float Yarn(JsonFields& in, double theta, int dim, int max_positions, std::vector<double>& freq) {
  const double context = in.FloatOr("original_max_position_embeddings", max_positions, 1, kMaxContext);
  const double factor = in.FloatOr("factor", max_positions / context, 1e-3, 1e6);
  const double beta_fast = in.FloatOr("beta_fast", 32, 1e-6, 1e6), beta_slow = in.FloatOr("beta_slow", 1, 1e-6, 1e6);
  const bool truncate = in.BoolOr("truncate", true);
  auto dimension = [&](double rotations) {
    return dim * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = dimension(beta_fast), high = dimension(beta_slow);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < freq.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    freq[i] = freq[i] / factor * interpolated + freq[i] * (1 - interpolated);
  }
  const double mscale = in.FloatOr("mscale", 0, 0, 1e6), all = in.FloatOr("mscale_all_dim", 0, 0, 1e6);
  const double natural =
      mscale != 0 && all != 0 ? YarnScale(factor, mscale) / YarnScale(factor, all) : YarnScale(factor, 1);
  return static_cast<float>(in.FloatOr("attention_factor", natural, 1e-6, 1e6));
}

// The object that holds rope type and scaling, or null: plain rope.
const nlohmann::json* Scaling(JsonFields& in, const RopeFields& fields) {
  const nlohmann::json* parameters = in.Object("rope_parameters");
  if (parameters == nullptr) return fields.scaled ? in.Object("rope_scaling") : nullptr;
  const auto nested = parameters->find(std::string(fields.layer_type));
  return !fields.layer_type.empty() && nested != parameters->end() && nested->is_object() ? &*nested : parameters;
}

void DivideByFactors(JsonFields& in, const nlohmann::json& factors, std::vector<double>& freq) {
  if (!factors.is_array() || factors.size() != freq.size()) {
    in.Fail(StrCat("rope frequency factors: ", factors.size(), " instead of ", freq.size()));
    return;
  }
  for (size_t i = 0; i < freq.size(); ++i) {
    const double factor = factors[i].is_number() ? factors[i].get<double>() : 0;
    if (!(factor > 0 && factor < 1e9)) return in.Fail(StrCat("rope frequency factor ", i, " is ", factor));
    freq[i] /= factor;
  }
}

}  // namespace

kernels::RopeParams ReadRope(JsonFields& in, const RopeFields& fields) {
  static const nlohmann::json kNone = nlohmann::json::object();
  const nlohmann::json* scaling = Scaling(in, fields);
  JsonFields rope(scaling != nullptr ? *scaling : kNone, StrCat(in.where(), ": rope scaling"));
  const double theta =
      rope.FloatOr("rope_theta", in.FloatOr(fields.theta_key, fields.theta, 1 + 1e-6, 1e12), 1 + 1e-6, 1e12);
  const double partial = rope.FloatOr("partial_rotary_factor", in.FloatOr("partial_rotary_factor", 1, 0, 1), 0, 1);
  const std::string type = rope.StringOr("rope_type", rope.StringOr("type", "default"));

  kernels::RopeParams out;
  out.rotary_dim = static_cast<int>(fields.head_dim * partial);
  if (out.rotary_dim < 2 || out.rotary_dim % 2 != 0)
    in.Fail(StrCat("rope: rotary dimension ", out.rotary_dim, " is not even"));
  std::vector<double> freq;
  for (int i = 0; i + 1 < out.rotary_dim; i += 2)
    freq.push_back(std::pow(theta, -static_cast<double>(i) / out.rotary_dim));
  if (type == "linear") {
    const double factor = rope.FloatOr("factor", 1, 1e-3, 1e6);
    for (double& f : freq) f /= factor;
  } else if (type == "llama3") {
    Llama3(rope, freq);
  } else if (type == "yarn") {
    out.attention_factor = Yarn(rope, theta, out.rotary_dim, fields.max_position_embeddings, freq);
  } else if (type != "default") {
    rope.Fail(StrCat("rope type ", Quoted(type), " is not supported (default, linear, llama3, yarn are)"));
  }
  if (rope.Has("freq_factors")) DivideByFactors(rope, (*scaling)["freq_factors"], freq);
  in.Adopt(rope);
  out.inv_freq.assign(freq.begin(), freq.end());
  return out;
}

}  // namespace baton::engine
