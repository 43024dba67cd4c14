// What an EndpointSlice says of the port on which its workers serve gRPC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "router/discovery/slice_book.h"

namespace baton::router {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string SliceWithPort(const std::string& host, const std::string& port) {
  return StrCat(R"({"metadata":{"name":"s1","resourceVersion":"2"},"endpoints":[{"addresses":[")", host,
                R"("]}],"ports":[{"name":"grpc","port":)", port, "}]}");
}
std::string ModifiedTo(const std::string& slice) { return StrCat(R"({"type":"MODIFIED","object":)", slice, "}"); }
std::string ListOf(const std::string& slice) {
  return StrCat(R"({"metadata":{"resourceVersion":"3"},"items":[)", slice, "]}");
}
std::string Known(const SliceBook& book) {
  std::string out;
  for (const Endpoint& endpoint : book.endpoints()) out += endpoint.address + " ";
  return out;
}
std::string TroubleOf(const SliceBook& book) { return std::string(book.Trouble().message()); }

const std::string kNoPorts[] = {"0",    "65536", "-1",     "7000.5", "\"7000\"",
                                "null", "true",  "[7000]", "1e+99",  "99999999999999999999999"};

TEST(SlicePort, OneThatIsNoneIsNamedAndTheOneOfBeforeStays) {
  for (const std::string& port : kNoPorts) {
    SliceBook book("grpc");
    book.BeginList();
    ASSERT_TRUE(book.Page(ListOf(SliceWithPort("10.0.0.1", "7000"))).ok());
    EXPECT_TRUE(book.Trouble().ok());
    ASSERT_TRUE(book.Event(ModifiedTo(SliceWithPort("10.0.0.2", port))).ok()) << port;
    EXPECT_EQ(Known(book), "10.0.0.2:7000 ") << port;
    EXPECT_THAT(TroubleOf(book), HasSubstr("EndpointSlice s1 has a port named \"grpc\" whose number is "));
    if (port.size() < 7) {
      EXPECT_THAT(TroubleOf(book), HasSubstr(StrCat(port, ", not in [1, 65535]: it stays 7000")));
    }
    book.BeginList();
    ASSERT_TRUE(book.Page(ListOf(SliceWithPort("10.0.0.3", port))).ok()) << port;
    EXPECT_EQ(Known(book), "10.0.0.3:7000 ") << port;
    ASSERT_TRUE(book.Event(ModifiedTo(SliceWithPort("10.0.0.3", "7001"))).ok());
    EXPECT_EQ(Known(book), "10.0.0.3:7001 ");
    EXPECT_TRUE(book.Trouble().ok());
  }
}

TEST(SlicePort, OneThatWasNeverAnotherBringsNobody) {
  for (const std::string& port : kNoPorts) {
    SliceBook book("grpc");
    book.BeginList();
    ASSERT_TRUE(book.Page(ListOf(SliceWithPort("10.0.0.1", port))).ok());
    EXPECT_EQ(Known(book), "") << port;
    EXPECT_THAT(TroubleOf(book), HasSubstr("not in [1, 65535]"));
    EXPECT_THAT(TroubleOf(book), Not(HasSubstr("stays")));
  }
}

TEST(SlicePort, WhatIsSaidOfItHasALength) {
  SliceBook book("grpc");
  book.BeginList();
  ASSERT_TRUE(book.Page(ListOf(SliceWithPort("10.0.0.1", StrCat("\"", std::string(1 << 20, 'x'), "\"")))).ok());
  EXPECT_LT(TroubleOf(book).size(), 300u);
}

}  // namespace
}  // namespace baton::router
