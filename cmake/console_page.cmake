# Makes the console's page of its files and writes it as C++: cmake -DFOLDER=… -DOUT=… -P console_page.cmake.
# A line of page.html that is {{NAME}} stands for the file NAME beside it.
file(READ ${FOLDER}/page.html page)
string(REGEX MATCHALL "{{[a-z_.]+}}" names "${page}")
foreach(name IN LISTS names)
  string(REGEX REPLACE "[{}]" "" file ${name})
  file(READ ${FOLDER}/${file} text)
  string(REPLACE "${name}" "${text}" page "${page}")
endforeach()
file(WRITE ${OUT}.html "${page}")
file(READ ${OUT}.html bytes HEX)
string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
string(REGEX REPLACE "((........){16})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "// Generated of router/console/.
#include \"router/http/console_page.h\"

namespace baton::router {
namespace {
constexpr char kBytes[] = {
${bytes}};
}  // namespace
const std::string_view kConsolePage(kBytes, sizeof kBytes);
}  // namespace baton::router
")
