#include "pull/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "core/error.h"

namespace mr::pull {

struct Digest::State {
    EVP_MD_CTX* context = EVP_MD_CTX_new();

    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(const char* algorithm) : state_(std::make_shared<State>()) {
    const EVP_MD* kind = EVP_get_digestbyname(algorithm);
    MR_CHECK(state_->context && kind && EVP_DigestInit_ex(state_->context, kind, nullptr) == 1,
             "OpenSSL has the hash");
}

Digest Digest::sha256() { return Digest("SHA256"); }

Digest Digest::git_blob(std::uint64_t size) {
    Digest out("SHA1");
    const std::string head = fmt::format("blob {}", size);
    out.add({head.c_str(), head.size() + 1});  // with the zero
    return out;
}

void Digest::add(std::string_view bytes) {
    MR_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "OpenSSL hashes");
}

std::string Digest::hex() const {
    const State copy;
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    MR_CHECK(EVP_MD_CTX_copy_ex(copy.context, state_->context) == 1 &&
                 EVP_DigestFinal_ex(copy.context, raw, &length) == 1,
             "OpenSSL hashes");
    std::string out;
    for (unsigned i = 0; i < length; ++i) out += fmt::format("{:02x}", raw[i]);
    return out;
}

}  // namespace mr::pull
