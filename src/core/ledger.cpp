#include "core/ledger.h"

#include <chrono>

namespace mr {

const char* op_name(OpKind kind) {
    switch (kind) {
        case OpKind::embedding:
            return "embedding";
        case OpKind::linear:
            return "linear";
        case OpKind::norm:
            return "norm";
        case OpKind::rope:
            return "rope";
        case OpKind::kv_write:
            return "kv_write";
        case OpKind::attention:
            return "attention";
        case OpKind::activation:
            return "activation";
        case OpKind::add:
            return "add";
        case OpKind::lm_head:
            return "lm_head";
        case OpKind::loss:
            return "loss";
        case OpKind::sample:
            return "sample";
        case OpKind::check:
            return "check";
        case OpKind::optimizer:
            return "optimizer";
        case OpKind::kCount:
            break;
    }
    return "?";
}

Moment Moment::now() {
    const auto passed = std::chrono::steady_clock::now().time_since_epoch();
    return {std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count()};
}

OpRecord& OpRecord::operator+=(const OpRecord& other) {
    calls += other.calls;
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    flops += other.flops;
    seconds += other.seconds;
    int8_flops += other.int8_flops;
    return *this;
}

OpRecord OpRecord::operator-(const OpRecord& earlier) const {
    return {calls - earlier.calls,
            bytes_read - earlier.bytes_read,
            bytes_written - earlier.bytes_written,
            flops - earlier.flops,
            seconds - earlier.seconds,
            int8_flops - earlier.int8_flops};
}

CopyRecord& CopyRecord::operator+=(const CopyRecord& other) {
    calls += other.calls;
    bytes += other.bytes;
    seconds += other.seconds;
    return *this;
}

CopyRecord CopyRecord::operator-(const CopyRecord& earlier) const {
    return {calls - earlier.calls, bytes - earlier.bytes, seconds - earlier.seconds};
}

void Ledger::add(const Ledger& other) {
    for (std::size_t i = 0; i < kOps; ++i) ops_[i] += other.ops_[i];
    to_device_ += other.to_device_;
    to_host_ += other.to_host_;
}

OpRecord Ledger::total() const {
    OpRecord sum;
    for (const OpRecord& record : ops_) sum += record;
    return sum;
}

void Ledger::log_stage(OpKind kind, const char* name, const OpRecord& record, Moment start) {
    log_->stages.push_back(
        {kind, name ? name : op_name(kind), layer_, record, start.seconds_since(log_->start)});
}

Ledger Ledger::since(const Ledger& earlier) const {
    Ledger out;
    for (std::size_t i = 0; i < kOps; ++i) out.ops_[i] = ops_[i] - earlier.ops_[i];
    out.to_device_ = to_device_ - earlier.to_device_;
    out.to_host_ = to_host_ - earlier.to_host_;
    return out;
}

}  // namespace mr
