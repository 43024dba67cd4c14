#include "router/request/retry_budget.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "tests/router/hand_event_loop.h"

namespace baton::router {
namespace {

class RetryBudgetTest : public ::testing::Test {
 protected:
  /// Waits, and notes `number` when its turn has come.
  void Wait(RetryBudget& budget, int number) {
    budget.Wait(loop_, [this, number](RetryBudget::Share share) {
      came_.push_back(number);
      held_.push_back(std::move(share));
    });
  }
  HandEventLoop loop_;
  Admission admission_{1000, 1000};
  std::vector<int> came_;
  std::deque<RetryBudget::Share> held_;
};

TEST_F(RetryBudgetTest, ARequestThatFindsNoShareWaitsItsTurnAndNobodyOvertakes) {
  RetryBudget budget(0, 2, admission_);
  auto first = budget.TryTake(), second = budget.TryTake();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(budget.TryTake());
  Wait(budget, 1), Wait(budget, 2), Wait(budget, 3);
  loop_.Run();
  EXPECT_TRUE(came_.empty());
  first->Release();
  EXPECT_FALSE(budget.TryTake()) << "it is the first waiter's";
  loop_.Run();
  EXPECT_EQ(came_, (std::vector<int>{1}));
  held_.pop_front();
  second.reset();
  loop_.Run();
  EXPECT_EQ(came_, (std::vector<int>{1, 2, 3}));
  held_.clear();
  EXPECT_EQ(budget.taken(), 0);
}

TEST_F(RetryBudgetTest, AShareThatBecomesFreeByMoreRequestsIsTheWaitersToo) {
  RetryBudget budget(0.5, 1, admission_);
  auto first = budget.TryTake();
  Wait(budget, 1);
  std::vector<AdmissionHold> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(std::get<AdmissionHold>(admission_.Enter({}, {})));
  EXPECT_FALSE(budget.TryTake()) << "two shares now, and one waits for the second";
  first->Release();
  loop_.Run();
  EXPECT_EQ(came_, (std::vector<int>{1}));
  held_.clear();
}

TEST_F(RetryBudgetTest, AShareThatNobodyLooksAtComesBack) {
  RetryBudget budget(0, 1, admission_);
  auto first = budget.TryTake();
  budget.Wait(loop_, [](RetryBudget::Share) {});  // the request has ended meanwhile
  Wait(budget, 2);
  first.reset();
  loop_.Run();
  EXPECT_EQ(came_, (std::vector<int>{2}));
  held_.clear();
}

TEST_F(RetryBudgetTest, TheLimitIsAShareOfTheRequestsThatRun) {
  RetryBudget budget(0.5, 1, admission_);
  std::vector<AdmissionHold> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(std::get<AdmissionHold>(admission_.Enter({}, {})));
  std::vector<RetryBudget::Share> shares;
  while (auto share = budget.TryTake()) shares.push_back(*std::move(share));
  EXPECT_EQ(shares.size(), 4u);
}

}  // namespace
}  // namespace baton::router
