#include "model/cpu/repack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/cpu.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "ops/linear/linear.h"

namespace mr::model {
namespace {

// Returns the pages that lie wholly inside to the system. A mapped file loses nothing; memory of
// our own loses its content, which is not read again.
void release(const Tensor& tensor) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
    const std::uintptr_t first = (begin + page - 1) / page * page;
    const std::uintptr_t last = (begin + tensor.bytes()) / page * page;
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

bool mapped(const Weights& weights, const Tensor& tensor) {
    for (const MappedFile& file : weights.files) {
        const std::span<const std::byte> bytes = file.bytes();
        if (tensor.data >= bytes.data() && tensor.data < bytes.data() + bytes.size()) return true;
    }
    return false;
}

// The matrices that ops::linear() reads faster in another layout.
std::vector<Tensor*> to_repack(Weights& weights) {
    std::vector<Tensor*> matrices;
    for (LayerWeights& w : weights.layers) {
        for (Tensor* tensor : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down}) {
            matrices.push_back(tensor);
        }
    }
    matrices.push_back(&weights.head);
    std::erase_if(matrices, [](const Tensor* tensor) {  // or the model has no such matrix
        return ops::linear_fastest_type(tensor->dtype, tensor->rows()) == tensor->dtype;
    });
    return matrices;
}

// Whether the original stays too: rows of a tied embedding are still read.
bool stays(const Model& model, const Tensor* matrix) {
    return model.spec.tied_embeddings && matrix == &model.weights.head;
}

// Counts a matrix in memory of our own, and no longer where it was.
void count_moved(Model& model, const Tensor* matrix, const Tensor& from) {
    Weights& weights = model.weights;
    weights.owned_bytes += from.bytes();
    if (stays(model, matrix)) return;
    (mapped(weights, from) ? weights.mapped_bytes : weights.owned_bytes) -= from.bytes();
}

}  // namespace

void repack_weights(Model& model, int threads, const Progress& progress) {
    const std::vector<Tensor*> matrices = to_repack(model.weights);
    if (matrices.empty()) return;
    std::size_t planned = 0;
    for (const Tensor* tensor : matrices) {
        planned += Arena::tensor_bytes(tensor->dtype, tensor->shape);
    }
    auto arena = std::make_shared<Arena>("repacked weights", planned);
    ThreadPool pool(threads > 0 ? threads : cpu_info().cores);
    for (Tensor* tensor : matrices) {
        const Tensor from = *tensor;
        *tensor = arena->tensor(ops::linear_fastest_type(from.dtype, from.rows()), from.shape);
        ops::linear_repack(pool, *tensor, from);
        count_moved(model, tensor, from);
        if (!stays(model, tensor)) release(from);
        if (progress) progress("rearranging weights", arena->used(), planned);
    }
    model.weights.arenas.push_back(std::move(arena));
}

void plan_repack(Model& model) {
    for (Tensor* tensor : to_repack(model.weights)) {
        const Tensor from = *tensor;
        *tensor = {nullptr, ops::linear_fastest_type(from.dtype, from.rows()), from.shape};
        count_moved(model, tensor, from);
    }
}

}  // namespace mr::model
