// The one-pass backward's kernels for f16.
#include "ops/attention/flash/backward/wgmma.cuh"

namespace mr::cuda::flash {

void backward_on_warp_groups_f16(const Context& ctx, const BackwardArgs& args) {
    switch (backward_dim(args.p.head_dim)) {
        case 64:
            return start_backward<__half, 64>(ctx, args);
        case 80:
            return start_backward<__half, 80>(ctx, args);
        case 96:
            return start_backward<__half, 96>(ctx, args);
        default:
            return start_backward<__half, 128>(ctx, args);
    }
}

}  // namespace mr::cuda::flash
