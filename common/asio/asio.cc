// Boost.Asio and Boost.Beast, compiled once instead of with every source that includes them.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
