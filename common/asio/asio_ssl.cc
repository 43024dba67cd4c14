// The part of Boost.Asio that needs OpenSSL, compiled once.
#include <boost/asio/ssl/impl/src.hpp>
