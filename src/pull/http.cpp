#include "pull/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "cli/terminal.h"
#include "core/error.h"
#include "millrace/millrace.h"

namespace mr::pull {
namespace {

constexpr int kMostRedirects = 10;
constexpr long kConnectSeconds = 30, kSilentSeconds = 30;

// Scheme, host and port of an address; all empty if it is none.
struct Origin {
    std::string scheme, host, port;
    bool operator==(const Origin&) const = default;
};

std::string part_of(CURLU* url, CURLUPart part, unsigned flags = 0) {
    char* text = nullptr;
    if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return {};
    std::string out = text;
    curl_free(text);
    return out;
}

Origin origin_of(const std::string& address) {
    const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> url(curl_url(), curl_url_cleanup);
    if (!url || curl_url_set(url.get(), CURLUPART_URL, address.c_str(), 0) != CURLUE_OK) return {};
    Origin out{part_of(url.get(), CURLUPART_SCHEME), part_of(url.get(), CURLUPART_HOST),
               part_of(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT)};
    for (char& c : out.host) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

bool is_redirect(long status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string trimmed(std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
        text.remove_prefix(1);
    }
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
        text.remove_suffix(1);
    }
    return std::string(text);
}

// One line of an answer's head.
void read_header(Answer& answer, std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string name(line.substr(0, colon));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const std::pair<const char*, std::string*> known[] = {
        {"etag", &answer.etag},
        {"x-linked-etag", &answer.linked_etag},
        {"x-linked-size", &answer.linked_size},
        {"x-repo-commit", &answer.commit},
        {"x-error-code", &answer.error_code},
        {"x-error-message", &answer.error_message},
        {"content-range", &answer.content_range}};
    for (const auto& [key, to] : known) {
        if (name == key) *to = trimmed(line.substr(colon + 1));
    }
    if (name == "content-length") {
        const std::string digits = trimmed(line.substr(colon + 1));
        std::from_chars(digits.data(), digits.data() + digits.size(), answer.length);
    }
}

// With the port where it is not the usual one.
std::string shown_host(const Origin& origin) {
    return origin.host + (origin.port == "443" ? "" : ":" + origin.port);
}

// Where libcurl's callbacks put what they get. An exception may not pass through libcurl.
struct Transfer {
    CURL* curl;
    const Http::Stream* stream;
    const Http::Idle* idle;
    std::string host;
    bool answered = false;
    Answer answer{};
    std::exception_ptr thrown{};
};

extern "C" std::size_t take_header(char* data, std::size_t one, std::size_t count, void* to) {
    auto& transfer = *static_cast<Transfer*>(to);
    const std::string_view line(data, one * count);
    try {
        if (line.starts_with("HTTP/")) transfer.answer = {};  // after 100 Continue
        read_header(transfer.answer, line);
    } catch (...) {
        transfer.thrown = std::current_exception();
        return 0;
    }
    return one * count;
}

extern "C" std::size_t take_body(char* data, std::size_t one, std::size_t count, void* to) {
    auto& transfer = *static_cast<Transfer*>(to);
    const std::string_view bytes(data, one * count);
    try {
        Answer& answer = transfer.answer;
        transfer.answered = true;
        curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &answer.status);
        if (*transfer.stream && (answer.status == 200 || answer.status == 206)) {
            (*transfer.stream)(answer, bytes);
        } else if (answer.body.size() + bytes.size() > kMostBody) {
            throw TransportError("the answer is too large", false);
        } else {
            answer.body += bytes;
        }
    } catch (...) {
        transfer.thrown = std::current_exception();
        return 0;
    }
    return bytes.size();
}

extern "C" int take_progress(void* to, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& transfer = *static_cast<Transfer*>(to);
    try {
        (*transfer.idle)((transfer.answered ? "waiting for " : "asking ") + transfer.host);
    } catch (...) {
        transfer.thrown = std::current_exception();
        return 1;
    }
    return cli::InterruptGuard::pending() ? 1 : 0;
}

// The answer of a request that is repeated while the hub is busy.
template <class Request>
Answer patiently(const Http& http, const Request& request) {
    for (int tries = 0;; ++tries) {
        Answer answer = request();
        const auto least = static_cast<double>(answer.retry_after);
        if (!answer.busy() || !http.wait(tries, least, "the hub is busy")) return answer;
    }
}

[[noreturn]] void refuse_transport(CURLcode code, const Origin& asked, const char* more) {
    const std::string host = shown_host(asked);
    const std::string detail = *more ? more : curl_easy_strerror(code);
    switch (code) {
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_ISSUER_ERROR:
            throw TransportError(
                fmt::format("the certificate of {} is not trusted: {}; if its authority is your "
                            "own, name its certificate with --ca FILE or SSL_CERT_FILE",
                            host, detail),
                false);
        case CURLE_COULDNT_RESOLVE_HOST:
            throw TransportError(fmt::format("there is no host {}: check the name and the network, "
                                             "or set HTTPS_PROXY",
                                             asked.host),
                                 true);
        case CURLE_COULDNT_RESOLVE_PROXY:
            throw TransportError(
                fmt::format("the proxy is not known: {}; check HTTPS_PROXY and ALL_PROXY", detail),
                true);
        case CURLE_UNSUPPORTED_PROTOCOL:
        case CURLE_URL_MALFORMAT:
            throw TransportError(fmt::format("{}: {}", host, detail), false);
        default:
            throw TransportError(fmt::format("{}: {}", host, detail), true);
    }
}

}  // namespace

struct Http::Curl {
    CURL* easy = curl_easy_init();
    char more[CURL_ERROR_SIZE] = "";  // what libcurl says about an error

    Curl() = default;
    Curl(const Curl&) = delete;
    Curl& operator=(const Curl&) = delete;
    ~Curl() { curl_easy_cleanup(easy); }
};

Http::Http(HttpOptions options, Idle idle) : options_(std::move(options)), idle_(std::move(idle)) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    curl_ = std::make_unique<Curl>();
    MR_CHECK(curl_->easy, "libcurl starts");
    while (options_.hub.ends_with('/')) options_.hub.pop_back();
    const Origin hub = origin_of(options_.hub);
    if ((hub.scheme != "https" && hub.scheme != "http") || hub.host.empty() ||
        options_.hub.find_first_of("?#@ ") != std::string::npos) {
        throw Error::usage({.field = "--hub",
                            .value = options_.hub,
                            .problem = "is not the address of a hub",
                            .remedy = "give https://HOST, or unset HF_ENDPOINT"});
    }
}

Http::~Http() { curl_.reset(); }

bool Http::withholds_token() const {
    return has_token() && origin_of(options_.hub).scheme != "https";
}

std::string Http::escaped(std::string_view part) {
    char* text = curl_easy_escape(nullptr, part.data(), static_cast<int>(part.size()));
    std::string out = text ? text : "";
    curl_free(text);
    return out;
}

Answer Http::perform(const std::string& url, const std::vector<std::string>& headers,
                     bool head_only, const Stream& stream, std::string& redirect) {
    CURL* const easy = curl_->easy;
    curl_easy_reset(easy);  // keeps connections
    const Origin asked = origin_of(url);
    const bool encrypted = origin_of(options_.hub).scheme == "https";
    if (asked.scheme != "https" && (encrypted || asked.scheme != "http")) {
        throw TransportError(fmt::format("a redirect leads to {}, which is not HTTPS", url), false);
    }
    curl_slist* list = nullptr;
    for (const std::string& header : headers) list = curl_slist_append(list, header.c_str());
    if (has_token() && encrypted && asked == origin_of(options_.hub)) {
        const std::string header = "Authorization: Bearer " + options_.token;
        list = curl_slist_append(list, header.c_str());
    }
    const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> owned(list,
                                                                            curl_slist_free_all);
    Transfer transfer{easy, &stream, &idle_, shown_host(asked)};
    curl_->more[0] = 0;
    const std::string agent = fmt::format("millrace/{}", millrace::version());
    curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, encrypted ? "https" : "http,https");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(easy, CURLOPT_HEADEROPT, static_cast<long>(CURLHEADER_SEPARATE));
    curl_easy_setopt(easy, CURLOPT_USERAGENT, agent.c_str());
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_NOBODY, head_only ? 1L : 0L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, curl_->more);
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, take_progress);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, &transfer);
    if (!options_.ca.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, options_.ca.c_str());
    if (!options_.ca_folder.empty()) {
        curl_easy_setopt(easy, CURLOPT_CAPATH, options_.ca_folder.c_str());
    }
    const CURLcode code = curl_easy_perform(easy);
    if (transfer.thrown) std::rethrow_exception(transfer.thrown);
    if (cli::InterruptGuard::pending()) throw cli::Interrupted{};
    if (code != CURLE_OK) refuse_transport(code, asked, curl_->more);
    Answer& answer = transfer.answer;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer.status);
    curl_off_t wait = 0;
    curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &wait);
    answer.retry_after = static_cast<long>(wait);
    answer.url = url;
    char* to = nullptr;
    curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &to);
    redirect = is_redirect(answer.status) && to ? to : "";
    return std::move(transfer.answer);
}

bool Http::wait(int tries, double least, std::string_view why) const {
    constexpr double kLongest = 60;
    if (tries >= options_.patience.most) return false;
    const double own = options_.patience.first * static_cast<double>(1 << std::min(tries, 5));
    using Clock = std::chrono::steady_clock;
    const auto end =
        Clock::now() + std::chrono::duration<double>(std::min(kLongest, std::max(own, least)));
    while (true) {
        if (cli::InterruptGuard::pending()) throw cli::Interrupted{};
        const double left = std::chrono::duration<double>(end - Clock::now()).count();
        if (left <= 0) return true;
        idle_(fmt::format("waiting {:.0f} s: {}", std::ceil(left), why));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

Answer Http::get(const std::string& url, const std::vector<std::string>& headers,
                 const Stream& stream) {
    return patiently(*this, [&] { return follow(url, headers, stream); });
}

Answer Http::head(const std::string& url) {
    return patiently(*this, [&] { return follow_head(url); });
}

Answer Http::follow(const std::string& url, const std::vector<std::string>& headers,
                    const Stream& stream) {
    std::string at = url, next;
    Answer first;
    for (int hop = 0; hop <= kMostRedirects; ++hop) {
        Answer answer = perform(at, headers, false, stream, next);
        if (first.linked_etag.empty()) {
            first.linked_etag = answer.linked_etag;
            first.linked_size = answer.linked_size;
        }
        if (first.commit.empty()) first.commit = answer.commit;
        if (next.empty()) {
            answer.linked_etag = first.linked_etag;
            answer.linked_size = first.linked_size;
            answer.commit = first.commit;
            return answer;
        }
        at = std::exchange(next, {});
    }
    throw TransportError(fmt::format("{}: more than {} redirects", url, kMostRedirects), false);
}

Answer Http::follow_head(const std::string& url) {
    std::string at = url, next;
    for (int hop = 0; hop <= kMostRedirects; ++hop) {
        Answer answer = perform(at, {"Accept-Encoding: identity"}, true, {}, next);
        const bool here = !next.empty() && origin_of(next) == origin_of(options_.hub);
        if (!here || !answer.linked_etag.empty()) return answer;
        at = std::exchange(next, {});
    }
    throw TransportError(fmt::format("{}: more than {} redirects", url, kMostRedirects), false);
}

}  // namespace mr::pull
