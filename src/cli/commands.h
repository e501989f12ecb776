// The commands, one file each. A command adds itself to the parser; if it is called, it stores what
// to do in `action`.
#pragma once

#include <functional>

#include "cli/parser.h"

namespace mr::cli {

// The program: parses, calls, prints, and returns the exit code. main() only calls this, so that a
// test can wrap the program (tests/cli/faulty.cpp).
int program(int argc, char** argv);

using Action = std::function<int()>;  // returns the exit code

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
void add_completion(const Command& app, Action& action);   // and man, which the build calls
void add_data_check(const Command& data, Action& action);  // data check

// Subcommands of `bench` (bench/*.cpp).
void add_bench_attention(const Command& bench, Action& action);
void add_bench_batch(const Command& bench, Action& action);
void add_bench_comm(const Command& bench, Action& action);
void add_bench_context(const Command& bench, Action& action);
void add_bench_diffusion(const Command& bench, Action& action);
void add_bench_fusion(const Command& bench, Action& action);
void add_bench_gemm(const Command& bench, Action& action);
void add_bench_ladder(const Command& bench, Action& action);
void add_bench_norm(const Command& bench, Action& action);
void add_bench_overlap(const Command& bench, Action& action);
void add_bench_precision(const Command& bench, Action& action);
void add_bench_sample(const Command& bench, Action& action);
void add_bench_serve(const Command& bench, Action& action);
void add_bench_streams(const Command& bench, Action& action);
void add_bench_train(const Command& bench, Action& action);

}  // namespace mr::cli
