// millrace-lab: the experiments that the engine grew from, repeated on this machine.
#include "lab/experiments.h"

namespace mr::cli {
namespace {

void add_experiments(const Command& lab, Action& action) {
    add_ladder(lab, action);
    add_fusion(lab, action);
    add_context(lab, action);
    add_sampler(lab, action);
    add_attention(lab, action);
    add_precision(lab, action);
    add_streams(lab, action);
    add_overlap(lab, action);
    add_comm(lab, action);
    add_norms(lab, action);
    add_gemm(lab, action);
    add_story(lab, action);
    add_compare(lab, action);
}

constexpr Program kLab = {
    .name = "millrace-lab",
    .about =
        "Millrace's laboratory: experiments that each answer one question, repeated on this "
        "machine.",
    .examples =
        "Examples:\n"
        "  millrace-lab ladder random:stories-42m      from one product on the GPU to all\n"
        "  millrace-lab streams                        copies and kernels that overlap\n"
        "  millrace-lab story write --out stories.txt  texts of known probability\n"
        "'millrace-lab EXPERIMENT --help' says more; docs/learn has a lesson for most.",
    .add = add_experiments,
};

}  // namespace
}  // namespace mr::cli

int main(int argc, char** argv) { return mr::cli::run_program(mr::cli::kLab, argc, argv); }
