#include "model/cpu/repack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cpu.h"
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

bool owned(const Weights& weights, const Tensor& tensor) {
    for (const auto& arena : weights.arenas) {
        if (arena->holds(tensor.data)) return true;
    }
    return false;
}

}  // namespace

void repack_weights(Model& model, int threads, const Progress& progress) {
    Weights& weights = model.weights;
    std::vector<Tensor*> matrices;
    for (LayerWeights& w : weights.layers) {
        for (Tensor* tensor : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down}) {
            matrices.push_back(tensor);
        }
    }
    matrices.push_back(&weights.head);
    std::size_t planned = 0;
    std::erase_if(matrices, [&](const Tensor* tensor) {
        const bool stays =
            !*tensor || ops::linear_fastest_type(tensor->dtype, tensor->rows()) == tensor->dtype;
        if (!stays) planned += Arena::tensor_bytes(tensor->dtype, tensor->shape);
        return stays;
    });
    if (matrices.empty()) return;

    auto arena = std::make_shared<Arena>("repacked weights", planned);
    ThreadPool pool(threads > 0 ? threads : cpu_info().cores);
    for (Tensor* tensor : matrices) {
        const Tensor from = *tensor;
        *tensor = arena->tensor(ops::linear_fastest_type(from.dtype, from.rows()), from.shape);
        ops::linear_repack(pool, *tensor, from);
        weights.owned_bytes += from.bytes();
        if (from.data != weights.embedding.data) {  // tied: embedding rows are still read
            release(from);
            (owned(weights, from) ? weights.owned_bytes : weights.mapped_bytes) -= from.bytes();
        }
        if (progress) progress("rearranging weights", arena->used(), planned);
    }
    weights.arenas.push_back(std::move(arena));
}

}  // namespace mr::model
