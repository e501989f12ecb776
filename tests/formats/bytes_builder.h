// Builds small files by hand, valid or not.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace mr::formats {

class Bytes {
  public:
    template <typename T>
    Bytes& put(T value) {
        char raw[sizeof(T)];
        std::memcpy(raw, &value, sizeof(T));
        data_.append(raw, sizeof(T));
        return *this;
    }
    Bytes& u8(std::uint8_t v) { return put(v); }
    Bytes& u32(std::uint32_t v) { return put(v); }
    Bytes& i32(std::int32_t v) { return put(v); }
    Bytes& u64(std::uint64_t v) { return put(v); }
    Bytes& f32(float v) { return put(v); }
    Bytes& raw(std::string_view text) {
        data_.append(text);
        return *this;
    }
    Bytes& zeros(std::size_t count) {
        data_.append(count, '\0');
        return *this;
    }
    Bytes& pad_to(std::size_t alignment) {
        return zeros((alignment - data_.size() % alignment) % alignment);
    }

    const std::string& data() const { return data_; }

  private:
    std::string data_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The folder of real weights and tokenizers, which may be absent.
inline std::string test_data() {
    const char* set = std::getenv("MILLRACE_DATA");
    return set && *set ? set : MR_TEST_DATA;
}

// The input error that `act` throws; a test failure if it does not.
template <typename Act>
std::string input_error(Act&& act) {
    try {
        act();
    } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::input);
        return e.what();
    } catch (const std::exception& e) {
        ADD_FAILURE() << "not an mr::Error: " << e.what();
        return {};
    }
    ADD_FAILURE() << "no error";
    return {};
}

#define EXPECT_HAS(text, part)                      \
    EXPECT_NE((text).find(part), std::string::npos) \
        << "\"" << (text) << "\" lacks \"" << (part) << '"'

}  // namespace mr::formats
