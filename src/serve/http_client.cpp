// Who a client is: by its address, and behind a proxy that the server trusts by what it forwards.
#include <algorithm>
#include <boost/asio/ip/address.hpp>

#include "core/error.h"
#include "serve/http.h"

namespace mr::serve {
namespace {

namespace asio_ip = boost::asio::ip;

// As written in a header: with a port, and an IPv6 address in brackets. Not one: the address
// 0.0.0.0.
std::optional<asio_ip::address> address_in(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    if (text.starts_with('[')) {
        text = text.substr(1, text.find(']') - 1);
    } else if (std::count(text.begin(), text.end(), ':') == 1) {
        text = text.substr(0, text.find(':'));
    }
    boost::system::error_code unknown;
    asio_ip::address at = asio_ip::make_address(std::string(text), unknown);
    if (unknown) return std::nullopt;
    if (at.is_v6() && at.to_v6().is_v4_mapped()) {
        at = asio_ip::make_address_v4(asio_ip::v4_mapped, at.to_v6());
    }
    return at;
}

}  // namespace

HttpClient http_client(const std::string& address) {
    std::optional<asio_ip::address> at = address_in(address);
    if (!at) return {address, false};
    const bool loopback = at->is_loopback();
    // All hosts of a link have the same first 64 bits of a link-local address.
    if (at->is_v6() && !loopback && !at->to_v6().is_link_local()) {
        asio_ip::address_v6::bytes_type bytes = at->to_v6().to_bytes();
        std::fill(bytes.begin() + 8, bytes.end(), std::uint8_t{0});
        at = asio_ip::address_v6(bytes);
    }
    return {at->to_string(), loopback};
}

std::vector<std::string> proxy_addresses(const std::vector<std::string>& named) {
    std::vector<std::string> out;
    for (const std::string& name : named) {
        const auto at = address_in(name == "localhost" ? "127.0.0.1" : name);
        if (!at || name.find_first_of("[] \t") != std::string::npos ||
            (at->is_v4() && name.find(':') != std::string::npos && !name.starts_with("::ffff:"))) {
            throw Error::usage({.field = "--trusted-proxy",
                                .value = name,
                                .problem = "is not an address",
                                .remedy = "give the address from which the proxy connects, such as "
                                          "127.0.0.1 or ::1, without a port"});
        }
        out.push_back(at->to_string());
    }
    return out;
}

bool is_proxy(const std::vector<std::string>& proxies, const std::string& peer) {
    if (proxies.empty()) return false;
    const auto at = address_in(peer);
    return at && std::find(proxies.begin(), proxies.end(), at->to_string()) != proxies.end();
}

// Each proxy adds the address that it was called from at the end. What is before the first address
// that no trusted proxy has was sent by the client, who may write anything.
std::string forwarded_client(const std::vector<std::string>& proxies, const std::string& peer,
                             const Headers& headers) {
    std::string client = peer;
    if (!is_proxy(proxies, peer)) return client;
    for (auto header = headers.rbegin(); header != headers.rend(); ++header) {
        if (header->first != "x-forwarded-for") continue;
        std::string_view list = header->second;
        for (bool more = true; more;) {
            const std::size_t comma = list.rfind(',');
            more = comma != std::string_view::npos;
            const auto at = address_in(more ? list.substr(comma + 1) : list);
            if (!at) return client;
            client = at->to_string();
            if (!is_proxy(proxies, client)) return client;
            if (more) list = list.substr(0, comma);
        }
    }
    return client;
}

}  // namespace mr::serve
