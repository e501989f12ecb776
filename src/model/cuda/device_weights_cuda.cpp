#include "model/cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/cuda/device_kernels.h"
#include "model/cuda/device_reader.h"
#include "ops/linear/tile_layout.h"

namespace mr::model {
namespace {

using cuda::DeviceArena;
using cuda::Event;
using cuda::PinnedBuffer;
using cuda::Stream;

// Chunks in flight: a ring of pinned buffers, each with a staging area on the device for chunks
// that are repacked there. Copies run on one stream and repacking on another, and each waits only
// for the data it needs.
class Conveyor {
  public:
    Conveyor(std::size_t bytes, int chunks, Ledger* ledger)
        : chunk_(bytes / static_cast<std::size_t>(chunks)),
          pinned_(bytes),
          staging_("loading", bytes),
          ledger_(ledger) {
        for (int i = 0; i < chunks; ++i) ring_.emplace_back();
        work_ctx_.cuda = &work_;
        work_ctx_.dependent_launch = false;
    }
    ~Conveyor() {  // nothing may still use the buffers when they are freed
        try {
            finish();
        } catch (const Error&) {  // the waiting call reports it
        }
    }
    Conveyor(const Conveyor&) = delete;
    Conveyor& operator=(const Conveyor&) = delete;

    std::size_t chunk_bytes() const { return chunk_; }
    const Context& work() const { return work_ctx_; }
    std::byte* staging() const { return staging_.data(); }

    // The next pinned buffer, once its last content has been sent.
    std::byte* next() {
        at_ = (at_ + 1) % ring_.size();
        ring_[at_].sent.synchronize();
        return pinned_.data() + at_ * chunk_;
    }
    // Sends the buffer straight to its destination.
    void send(std::byte* to, std::size_t bytes) {
        copy_.to_device(to, pinned_.data() + at_ * chunk_, bytes, ledger_);
        copy_.record(ring_[at_].sent);
    }
    // Sends the buffer to be repacked: use(staging address) launches on work().
    template <typename Use>
    void send_through(std::size_t bytes, Use&& use) {
        std::byte* slot = staging_.data() + at_ * chunk_;
        copy_.wait(ring_[at_].used);  // the slot's last repacking
        copy_.to_device(slot, pinned_.data() + at_ * chunk_, bytes, ledger_);
        copy_.record(ring_[at_].sent);
        work_.wait(ring_[at_].sent);
        use(slot);
        work_.record(ring_[at_].used);
    }
    void finish() {
        copy_.synchronize();
        work_.synchronize();
    }

  private:
    struct Slot {
        Event sent;  // the pinned buffer has been read
        Event used;  // the staging area has been read
    };
    std::size_t chunk_;
    PinnedBuffer pinned_;
    DeviceArena staging_;
    std::vector<Slot> ring_;
    Stream copy_, work_;
    Context work_ctx_;
    Ledger* ledger_;
    std::size_t at_ = 0;
};

class Loader {
  public:
    Loader(const Model& model, ThreadPool& pool, Ledger* ledger, const Progress& progress,
           const DeviceLoadOptions& options)
        : model_(model),
          pool_(pool),
          progress_(progress),
          reader_(model.weights,
                  options.through_map ? WeightReader::Through::map : WeightReader::Through::file) {
        require_room(options);
        out_ = std::make_shared<DeviceWeights>();
        const DTypeOf types = types_of(model);
        out_->bytes = device_weight_bytes(model.spec, types);
        out_->memory = DeviceArena("weights", out_->bytes);
        base_ = static_cast<std::byte*>(out_->memory.alloc(out_->bytes));
        DeviceViews views =
            device_views(model.spec, types, reinterpret_cast<std::uintptr_t>(base_));
        out_->weights = std::move(views.weights);
        out_->layers = std::move(views.layers);
        vector_bytes_ = views.vector_bytes;
        conveyor_.emplace(device_loading_bytes(model, options), std::max(options.chunks, 1),
                          ledger);
    }

    std::shared_ptr<const DeviceWeights> run() {
        send_vectors();
        const std::vector<RoleAt> roles = roles_of(model_.spec);
        for (std::size_t i = 0; i < roles.size(); ++i) {
            if (!is_matrix(roles[i].role)) continue;
            if (model_.deferred) {
                make_matrix(roles[i], i);
            } else {
                send_matrix(roles[i]);
            }
        }
        conveyor_->finish();
        conveyor_.reset();
        if (progress_) progress_(kWhat, out_->bytes, out_->bytes);
        return out_;
    }

  private:
    void require_room(const DeviceLoadOptions& options) const {
        DeviceNeeds needs;
        needs.weights = device_weight_bytes(model_);
        needs.plan.add("weights", needs.weights);
        needs.plan.add("buffers while loading", device_loading_bytes(model_, options));
        require_device_memory(needs, model_.spec, cuda::require_device().free_bytes);
    }

    void tell(std::uint64_t bytes) {
        done_ += bytes;
        if (progress_) progress_(kWhat, std::min(done_, out_->bytes), out_->bytes);
    }

    // Norms and biases in their final layout, gaps zeroed, in as few copies as there are chunks.
    void send_vectors() {
        std::vector<std::byte> image(vector_bytes_);
        for (RoleAt at : roles_of(model_.spec)) {
            if (is_matrix(at.role)) continue;
            const Tensor& from = role_slot(model_.weights, at);
            const Tensor& to = role_slot(out_->weights, at);
            MR_CHECK(from && from.shape == to.shape && from.dtype == DType::f32,
                     "norms and biases are f32, on the host");
            const RowOrder order = row_order(model_.spec, at.role);
            std::byte* place = image.data() + (static_cast<std::byte*>(to.data) - base_);
            for (std::int64_t i = 0; i < to.dim(0); ++i) {
                std::memcpy(place + 4 * i, from.f32() + order.source(i), 4);
            }
        }
        for (std::size_t at = 0; at < image.size(); at += conveyor_->chunk_bytes()) {
            const std::size_t bytes = std::min(conveyor_->chunk_bytes(), image.size() - at);
            std::memcpy(conveyor_->next(), image.data() + at, bytes);
            conveyor_->send(base_ + at, bytes);
            tell(bytes);
        }
    }

    // Rows per chunk: whole tiles if there are tiles.
    std::int64_t chunk_rows(const Tensor& from, const Tensor& to) const {
        MR_CHECK(from.row_bytes() > 0, "a matrix has columns");
        const auto rows = static_cast<std::int64_t>(conveyor_->chunk_bytes() / from.row_bytes());
        return ops::is_tiled(to.dtype) ? rows / ops::kTileRows * ops::kTileRows : rows;
    }
    static std::byte* place_of(const Tensor& to, std::int64_t row) {
        return static_cast<std::byte*>(to.data) + device_matrix_bytes(to.dtype, row, to.dim(1));
    }

    void send_matrix(RoleAt at) {
        const Tensor& from = role_slot(model_.weights, at);
        const Tensor& to = role_slot(out_->weights, at);
        MR_CHECK(from.shape == to.shape, "a weight has the shape of its role");
        const RowOrder order = row_order(model_.spec, at.role);
        const std::int64_t step = chunk_rows(from, to);
        for (std::int64_t row = 0; row < to.dim(0); row += step) {
            const std::int64_t rows = std::min(step, to.dim(0) - row);
            const std::size_t bytes = static_cast<std::size_t>(rows) * from.row_bytes();
            reader_.read(pool_, from, order, row, rows, conveyor_->next());
            if (ops::is_tiled(to.dtype)) {
                conveyor_->send_through(bytes, [&](const std::byte* staged) {
                    repack_tiles(conveyor_->work(), to.dtype, place_of(to, row), staged, rows,
                                 to.dim(1));
                });
            } else {
                conveyor_->send(place_of(to, row), bytes);
            }
            tell(device_matrix_bytes(to.dtype, rows, to.dim(1)));
        }
    }

    // On one stream: a made chunk is repacked before the staging area is written again.
    void make_matrix(RoleAt at, std::size_t index) {
        const Tensor& from = role_slot(model_.weights, at);
        const Tensor& to = role_slot(out_->weights, at);
        const RowOrder order = row_order(model_.spec, at.role);
        const RandomRows matrix(from.dtype, from.dim(1), *model_.deferred, index);
        const Context& ctx = conveyor_->work();
        if (!ops::is_tiled(to.dtype)) {
            make_random_rows(ctx, place_of(to, 0), matrix, order, 0, to.dim(0));
        } else {
            const std::int64_t step = chunk_rows(from, to);
            for (std::int64_t row = 0; row < to.dim(0); row += step) {
                const std::int64_t rows = std::min(step, to.dim(0) - row);
                make_random_rows(ctx, conveyor_->staging(), matrix, order, row, rows);
                repack_tiles(ctx, to.dtype, place_of(to, row), conveyor_->staging(), rows,
                             to.dim(1));
            }
        }
        tell(device_matrix_bytes(to.dtype, to.dim(0), to.dim(1)));
    }

    static constexpr const char* kWhat = "weights to the GPU";

    const Model& model_;
    ThreadPool& pool_;
    const Progress& progress_;
    WeightReader reader_;
    std::shared_ptr<DeviceWeights> out_;
    std::byte* base_ = nullptr;
    std::uint64_t vector_bytes_ = 0;
    std::uint64_t done_ = 0;
    // Last member: its destructor waits for the device before the memory it writes to is freed.
    std::optional<Conveyor> conveyor_;
};

}  // namespace

std::shared_ptr<const DeviceWeights> load_to_device(const Model& model, ThreadPool& pool,
                                                    Ledger* ledger, const Progress& progress,
                                                    const DeviceLoadOptions& options) {
    return Loader(model, pool, ledger, progress, options).run();
}

}  // namespace mr::model
