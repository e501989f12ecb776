// usage: hello MODEL [TOKENIZER]: a story from a model, in ten lines.
#include <millrace/millrace.h>

#include <iostream>

int main(int argc, char** argv) try {
    millrace::Model model = millrace::Model::load(argc > 1 ? argv[1] : "model.gguf",
                                                  {.tokenizer = argc > 2 ? argv[2] : ""});
    model.generate("Once upon a time", {.max_tokens = 60, .temperature = 0},
                   [](std::string_view text) { return !!(std::cout << text << std::flush); });
    std::cout << "\n";
} catch (const millrace::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
}
