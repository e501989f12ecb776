#include "model/row_order.h"

namespace mr::model {

RowOrder reordered_rows(const ModelSpec& spec, Role role) {
    switch (role) {
        case Role::q:
        case Role::k:
        case Role::q_bias:
        case Role::k_bias:
        case Role::q_norm:
        case Role::k_norm:
            return {spec.head_dim, spec.rope.rotary};
        default:
            return {spec.head_dim, 0};
    }
}

}  // namespace mr::model
