// The experiments, a folder each. An experiment adds its command to the parser, as those of
// millrace do (cli/commands.h).
#pragma once

#include "cli/commands.h"

namespace mr::cli {

void add_attention(const Command& lab, Action& action);
void add_comm(const Command& lab, Action& action);
void add_compare(const Command& lab, Action& action);  // of runs that were kept
void add_context(const Command& lab, Action& action);
void add_fusion(const Command& lab, Action& action);
void add_gemm(const Command& lab, Action& action);
void add_ladder(const Command& lab, Action& action);
void add_norms(const Command& lab, Action& action);
void add_overlap(const Command& lab, Action& action);
void add_precision(const Command& lab, Action& action);
void add_sampler(const Command& lab, Action& action);
void add_story(const Command& lab, Action& action);
void add_streams(const Command& lab, Action& action);

}  // namespace mr::cli
