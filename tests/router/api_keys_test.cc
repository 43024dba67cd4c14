#include "router/admission/api_keys.h"

#include <gtest/gtest.h>

#include <fstream>

namespace baton::router {
namespace {

std::string FileWith(const std::string& text) {
  const std::string path = testing::TempDir() + "/api_keys_test";
  std::ofstream(path) << text;
  return path;
}

TEST(ApiKeys, NoKeysIsOpen) {
  const auto keys = ApiKeys::Load({}, "");
  ASSERT_TRUE(keys.ok());
  EXPECT_TRUE(keys->open());
  EXPECT_TRUE(keys->Allows(""));
}

TEST(ApiKeys, OnlyAWholeKeyOfTheRightSchemePasses) {
  const auto keys = ApiKeys::Load({"alpha", "beta"}, FileWith("# comment\n\ngamma \r\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  for (const char* good : {"Bearer alpha", "Bearer beta", "Bearer gamma", "bearer alpha"})
    EXPECT_TRUE(keys->Allows(good)) << good;
  for (const char* bad : {"", "alpha", "Bearer", "Bearer ", "Bearer alph", "Bearer alphaa", "Bearer  alpha",
                          "Basic alpha", "Bearer # comment", "Bearer ALPHA"}) {
    EXPECT_FALSE(keys->Allows(bad)) << bad;
  }
}

TEST(ApiKeys, EachKeyHasACacheOfItsOwn) {
  const auto two = ApiKeys::Load({"alpha", "beta"}, ""), again = ApiKeys::Load({"beta", "gamma", "alpha"}, "");
  ASSERT_TRUE(two.ok() && again.ok());
  const std::string alpha = two->SaltOf("Bearer alpha", "");
  EXPECT_EQ(alpha.size(), 32u);
  EXPECT_EQ(alpha, two->SaltOf("bearer alpha", ""));
  EXPECT_EQ(alpha, again->SaltOf("Bearer alpha", "")) << "another router, of more keys";
  EXPECT_NE(alpha, two->SaltOf("Bearer beta", ""));
  EXPECT_NE(alpha, two->SaltOf("Bearer alpha", "mine"));
  EXPECT_NE(two->SaltOf("Bearer alpha", "mine"), two->SaltOf("Bearer beta", "mine"));
  for (const std::vector<std::string>& few : {std::vector<std::string>{}, {"alpha"}}) {
    const auto keys = ApiKeys::Load(few, "");
    EXPECT_EQ(keys->SaltOf("Bearer alpha", ""), "");
    EXPECT_EQ(keys->SaltOf("Bearer alpha", "mine"), "mine");
  }
}

TEST(ApiKeys, ABadListIsAnError) {
  EXPECT_EQ(ApiKeys::Load({""}, "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ApiKeys::Load({}, "/no/such/file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ApiKeys::Load({}, FileWith("# nothing\n")).status().code(), absl::StatusCode::kInvalidArgument)
      << "an empty file must not open the door";
}

}  // namespace
}  // namespace baton::router
