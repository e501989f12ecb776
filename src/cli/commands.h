// The commands, one file each. A command adds itself to the parser; when it is the one that was
// called, it leaves what to do in `action`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace mr::cli {

using Action = std::function<int()>;  // gives the exit code

void add_run(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_profile(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_bench_attention(CLI::App& bench, Action& action);  // bench attention
void add_train(CLI::App& app, Action& action);
void add_data(CLI::App& app, Action& action);
void add_tokenizer(CLI::App& app, Action& action);
void add_data_check(CLI::App& data, Action& action);  // data check

// What `bench` has besides (bench_*.cpp); `bench` is the command they belong to.
void add_bench_attention(CLI::App& bench, Action& action);
void add_bench_gemm(CLI::App& bench, Action& action);
void add_bench_ladder(CLI::App& bench, Action& action);
void add_bench_norm(CLI::App& bench, Action& action);
void add_bench_sample(CLI::App& bench, Action& action);
void add_bench_train(CLI::App& bench, Action& action);

}  // namespace mr::cli
