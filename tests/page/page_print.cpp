// Prints the program's copy of the chat page, for quick_test.py: page, policy or tag.
#include <cstdio>
#include <string_view>

#include "serve/page/page.h"

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "page";
    const std::string_view text = what == "policy" ? mr::serve::page_policy()
                                  : what == "tag"  ? mr::serve::page_tag()
                                                   : mr::serve::page();
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
