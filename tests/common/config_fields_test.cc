#include "common/config_fields.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(ParseQuantity, KnowsDecimalAndBinarySuffixes) {
  EXPECT_EQ(*ParseQuantity("4096"), 4096);
  EXPECT_EQ(*ParseQuantity("32k"), 32000);
  EXPECT_EQ(*ParseQuantity("32K"), 32768);
  EXPECT_EQ(*ParseQuantity("1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(*ParseQuantity("2m"), 2000000);
  EXPECT_EQ(*ParseQuantity("-1"), -1);
  EXPECT_EQ(*ParseQuantity("9223372036854775807"), INT64_MAX);
}

TEST(ParseQuantity, RefusesWhatIsNotAWholeNumber) {
  for (const char* bad :
       {"", "k", "1.5", "12x", "1e3", "0x10", "99999999999999999999", "many", "9223372036854775807K"}) {
    EXPECT_FALSE(ParseQuantity(bad).ok()) << bad;
  }
}

struct Sample {
  int32_t port = 1;
  int64_t bytes = 64;
  double share = 0.5;
  std::string mode = "auto";
  std::string model = "m";
  std::vector<std::string> names;
};

template <class Visitor>
void VisitFields(Sample& c, Visitor&& field) {
  field("port", c.port, "", "", Range(0, 65535));
  field("bytes", c.bytes, "", "", MultipleOf(64, 64, int64_t{1} << 50));
  field("share", c.share, "", "", Range(0, 1));
  field("mode", c.mode, "", "", OneOf({{"auto"}, {"dummy", "random"}, {"none"}}));
  field("model", c.model, "", "", NotEmpty("a file"));
  field("names", c.names, "", "", OneOf({{"a"}, {"b"}}));
}

TEST(CheckFields, NamesTheFlagItsValueAndWhatItMayBe) {
  const auto why = [](auto member, auto value) {
    Sample c;
    EXPECT_TRUE(CheckFields(c).ok()) << CheckFields(c);
    c.*member = value;
    const absl::Status status = CheckFields(c);
    return std::string(status.message());
  };
  EXPECT_EQ(why(&Sample::port, 65536), "--port 65536: must be 0…65535");
  EXPECT_EQ(why(&Sample::bytes, 96), "--bytes 96: must be a multiple of 64, 64…1125899906842624");
  EXPECT_EQ(why(&Sample::bytes, int64_t{64} + (int64_t{1} << 50)),
            "--bytes 1125899906842688: must be a multiple of 64, 64…1125899906842624");
  EXPECT_EQ(why(&Sample::share, 1.5), "--share 1.5: must be 0…1");
  EXPECT_EQ(why(&Sample::share, 0.0 / 0.0), "--share nan: must be 0…1");
  EXPECT_EQ(why(&Sample::mode, "yes"), "--mode yes: must be auto, dummy or none");
  EXPECT_EQ(why(&Sample::model, ""), "--model is missing: a file");
  EXPECT_EQ(why(&Sample::names, std::vector<std::string>{"a", "c"}), "--names c: must be a or b");
}

TEST(FieldRule, SaysWhatItTakesForHelp) {
  EXPECT_EQ(Range(0.5, 2).help, "0.5…2");
  EXPECT_EQ(AtLeast(1000).help, "≥ 1000");
  EXPECT_EQ(PowerOfTwo(1, 256).help, "a power of two, 1…256");
  EXPECT_EQ(OneOf({{"auto"}, {"dummy", "random"}}).help, "auto | dummy: random");
  EXPECT_EQ(NotEmpty("a file").help, "");
}

}  // namespace
}  // namespace baton
