// The commands, one file each. A command adds itself to the parser; if it is called, it stores what
// to do in `action`.
#pragma once

#include <functional>

#include "cli/parser.h"

namespace mr::cli {

using Action = std::function<int()>;  // returns the exit code

// A program: its name, and its commands.
struct Program {
    const char* name;
    const char* about;
    const char* examples;  // the end of its help
    void (*add)(const Command& app, Action& action);
};
// Parses, calls, prints, and returns the exit code.
int run_program(const Program& program, int argc, char** argv);
// `millrace`. main() only calls this, so that a test can wrap the program (tests/cli/faulty.cpp).
int program(int argc, char** argv);

void add_run(const Command& app, Action& action);
void add_chat(const Command& app, Action& action);
void add_serve(const Command& app, Action& action);
void add_profile(const Command& app, Action& action);
void add_info(const Command& app, Action& action);
void add_eval(const Command& app, Action& action);
void add_tokenize(const Command& app, Action& action);
void add_convert(const Command& app, Action& action);
void add_pull(const Command& app, Action& action);
void add_bench(const Command& app, Action& action);
void add_plan(const Command& app, Action& action);
void add_train(const Command& app, Action& action);
void add_data(const Command& app, Action& action);
void add_tokenizer(const Command& app, Action& action);
void add_completion(const Command& app, Action& action);  // and man, which the build calls

// Subcommands of `bench` (bench/*.cpp).
void add_bench_batch(const Command& bench, Action& action);
void add_bench_diffusion(const Command& bench, Action& action);
void add_bench_serve(const Command& bench, Action& action);
void add_bench_train(const Command& bench, Action& action);

}  // namespace mr::cli
