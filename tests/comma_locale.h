// A locale that writes 0.6 as "0,6", for as long as this object lives. Numbers in files must not
// depend on it. A machine may have none: then the test skips.
#pragma once

#include <gtest/gtest.h>

#include <clocale>
#include <cstring>
#include <string>

namespace mr::test {

class CommaLocale {
  public:
    CommaLocale() : before_(std::setlocale(LC_ALL, nullptr)) {
        for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8",
                                 "es_ES.UTF-8", "pl_PL.UTF-8", "ru_RU.UTF-8"}) {
            if (!std::setlocale(LC_ALL, name)) continue;
            if (std::strcmp(std::localeconv()->decimal_point, ",") == 0) {
                there_ = true;
                return;
            }
        }
    }
    ~CommaLocale() { std::setlocale(LC_ALL, before_.c_str()); }
    CommaLocale(const CommaLocale&) = delete;
    CommaLocale& operator=(const CommaLocale&) = delete;

    bool there() const { return there_; }

  private:
    std::string before_;
    bool there_ = false;
};

}  // namespace mr::test

#define MR_NEED_COMMAS(locale) \
    if (!(locale).there()) GTEST_SKIP() << "no locale with decimal commas is installed"
