// Part of every program that mold before 2.4 links (cmake/fast_build.cmake): thread-local variables of so large an
// alignment begin where the section behind them does. With a smaller one they may lie in the page before, which no
// segment maps, and the program does not start: "cannot apply additional memory protection after relocation"
// (https://github.com/rui314/mold/issues/1151).
namespace {

alignas(64) [[gnu::used]] thread_local char aligned;

}  // namespace
