// Whether this program has a sanitizer. Known when it is linked, so that the same objects of tests
// run with the plain and with the sanitized library (cmake/fuzz.cmake).
#pragma once

extern "C" {
__attribute__((weak)) void __asan_init();
__attribute__((weak)) void __tsan_init();
}

namespace mr::test {

inline bool sanitized() { return &__asan_init != nullptr || &__tsan_init != nullptr; }

}  // namespace mr::test
