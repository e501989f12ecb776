// The one-pass backward's kernels for bf16.
#include "ops/attention/flash/backward/wgmma.cuh"

namespace mr::cuda::flash {

void backward_on_warp_groups_bf16(const Context& ctx, const BackwardArgs& args) {
    switch (backward_dim(args.p.head_dim)) {
        case 64:
            return start_backward<bf16, 64>(ctx, args);
        case 80:
            return start_backward<bf16, 80>(ctx, args);
        case 96:
            return start_backward<bf16, 96>(ctx, args);
        default:
            return start_backward<bf16, 128>(ctx, args);
    }
}

}  // namespace mr::cuda::flash
