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

}  // namespace
}  // namespace baton
