#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/linear/cublaslt_library.cuh"
#include "ops/linear/train_product.h"

namespace mr::cuda {

#ifdef MR_HAS_CUBLASLT
namespace {

using cublaslt::check;
using cublaslt::data_type;
using cublaslt::library;

// The alignment in bytes that all rows of a matrix have, at most 16.
std::uint32_t alignment(const void* data, std::int64_t stride, DType type) {
    const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(data) |
                                dtype_bytes(type, static_cast<std::size_t>(stride)) | 16;
    return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// The key by which algorithms are chosen.
struct Key {
    std::int64_t rows, cols, sum, a_stride, b_stride, out_stride;
    std::uint32_t a_align, b_align, c_align, out_align;
    DType out_type;
    bool a_transposed, b_transposed, bias, c;
    auto operator<=>(const Key&) const = default;
};

Key key_of(const TrainProduct& p) {
    const std::uint32_t out_align = alignment(p.out, p.out_stride, p.out_type);
    return {p.rows,
            p.cols,
            p.sum,
            p.a_stride,
            p.b_stride,
            p.out_stride,
            alignment(p.a, p.a_stride, DType::bf16),
            alignment(p.b, p.b_stride, DType::bf16),
            p.c ? alignment(p.c, p.out_stride, p.out_type) : out_align,
            out_align,
            p.out_type,
            p.a_transposed,
            p.b_transposed,
            p.bias != nullptr,
            p.c != nullptr};
}

// The library is column-major: a matrix [rows, cols] here is cols x rows there. So
//   Out (cols x rows) = op(B) (cols x sum) · op(A) (sum x rows),
// where a matrix that is transposed here is untransposed for the library, and vice versa.
class Problem {
  public:
    explicit Problem(const TrainProduct& p) {
        check(library().cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "descriptor");
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (p.bias) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
            set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                static_cast<std::int32_t>(data_type(p.out_type)));
        }
        layout(b, DType::bf16, p.b_transposed ? p.sum : p.cols, p.b_transposed ? p.cols : p.sum,
               p.b_stride);
        layout(a, DType::bf16, p.a_transposed ? p.rows : p.sum, p.a_transposed ? p.sum : p.rows,
               p.a_stride);
        layout(out, p.out_type, p.cols, p.rows, p.out_stride);
    }
    ~Problem() {
        for (cublasLtMatrixLayout_t each : {a, b, out}) {
            if (each) library().cublasLtMatrixLayoutDestroy(each);
        }
        if (desc_) library().cublasLtMatmulDescDestroy(desc_);
    }
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    cublasLtMatmulDesc_t desc() const { return desc_; }
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, out = nullptr;

  private:
    template <typename T>
    void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
        check(library().cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof value),
              "attribute of the product");
    }
    static void layout(cublasLtMatrixLayout_t& to, DType type, std::int64_t rows, std::int64_t cols,
                       std::int64_t stride) {
        check(library().cublasLtMatrixLayoutCreate(&to, data_type(type),
                                                   static_cast<std::uint64_t>(rows),
                                                   static_cast<std::uint64_t>(cols), stride),
              "layout");
    }
    cublasLtMatmulDesc_t desc_ = nullptr;
};

struct Preference {
    cublasLtMatmulPreference_t raw = nullptr;
    explicit Preference(const Key& key) {
        check(library().cublasLtMatmulPreferenceCreate(&raw), "preference");
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kTrainWorkspace});
        // Split-k: the partial sums go to the workspace, and a separate step adds them.
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_align);
    }
    ~Preference() {
        if (raw) library().cublasLtMatmulPreferenceDestroy(raw);
    }
    Preference(const Preference&) = delete;
    Preference& operator=(const Preference&) = delete;
    template <typename T>
    void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
        check(library().cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof value),
              "attribute of the preference");
    }
};

template <typename T>
T config_of(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    T value{};
    std::size_t written = 0;
    library().cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof value,
                                                   &written);
    return value;
}

struct Choice {
    cublasLtMatmulAlgo_t algo;
    std::size_t workspace;
    float waves;  // how many times its tiles fill the GPU
};

// The library's preferences for exactly this product, the same in every run.
std::vector<Choice> choose(const Key& key, const Problem& problem) {
    const Preference preference(key);
    std::array<cublasLtMatmulHeuristicResult_t, kTrainCandidates> results{};
    int count = 0;
    const cublasStatus_t status = library().cublasLtMatmulAlgoGetHeuristic(
        library().handle, problem.desc(), problem.b, problem.a, problem.out, problem.out,
        preference.raw, static_cast<int>(results.size()), results.data(), &count);
    std::vector<Choice> found;
    if (status != CUBLAS_STATUS_SUCCESS) return found;  // the library does not support the product
    for (int i = 0; i < count; ++i) {
        const cublasLtMatmulHeuristicResult_t& each = results[static_cast<std::size_t>(i)];
        const auto scheme =
            config_of<std::uint32_t>(each.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
        if (each.state == CUBLAS_STATUS_SUCCESS && each.workspaceSize <= kTrainWorkspace &&
            (scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
             scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) {
            found.push_back({each.algo, each.workspaceSize, each.wavesCount});
        }
    }
    return found;
}

cublasStatus_t run(const Context& ctx, const TrainProduct& p, const Problem& problem,
                   const Choice& choice, std::span<std::byte> workspace) {
    const float one = 1, beta = p.c ? 1 : 0;
    return library().cublasLtMatmul(library().handle, problem.desc(), &one, p.b, problem.b, p.a,
                                    problem.a, &beta, p.c ? p.c : p.out, problem.out, p.out,
                                    problem.out, &choice.algo, workspace.data(), choice.workspace,
                                    ctx.cuda->raw());
}

// A digest of all bits of the output and their positions: an integer sum, which does not depend on
// the order. Unit is as wide as an element.
template <typename Unit>
__global__ void __launch_bounds__(256)
    digest(unsigned long long* to, const Unit* out, std::int64_t rows, std::int64_t cols,
           std::int64_t stride) {
    wait_for_previous();
    const auto step = static_cast<std::int64_t>(gridDim.x) * 256;
    unsigned long long sum = 0;
    for (std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x; i < rows * cols;
         i += step) {
        const std::int64_t row = i / cols;
        unsigned long long x =
            static_cast<unsigned long long>(i) << 32 |
            static_cast<unsigned long long>(out[row * stride + (i - row * cols)]);
        x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
        x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
        sum += x ^ (x >> 33);
    }
    atomicAdd(to, sum);
}

}  // namespace

unsigned long long product_digest(const Context& ctx, const TrainProduct& p,
                                  std::span<std::byte> workspace) {
    auto* to = reinterpret_cast<unsigned long long*>(workspace.data());  // free now
    ctx.cuda->fill(to, 0, sizeof *to);
    const auto start = [&](auto unit) {
        using Unit = decltype(unit);
        launch(ctx, dim3(1024), dim3(256), 0, digest<Unit>, to, static_cast<const Unit*>(p.out),
               p.rows, p.cols, p.out_stride);
    };
    if (p.out_type == DType::f32) {
        start(unsigned{});
    } else {
        start(static_cast<unsigned short>(0));
    }
    unsigned long long value = 0;
    ctx.cuda->to_host(&value, to, sizeof value, nullptr);
    ctx.cuda->synchronize();
    return value;
}

namespace {

// The fastest algorithm with the bits of the first.
std::size_t fastest(const Context& ctx, const TrainProduct& p, const Problem& problem,
                    const std::vector<Choice>& choices, std::span<std::byte> workspace) {
    constexpr int kRuns = 4;
    std::size_t best = 0;
    double best_seconds = 0;
    unsigned long long first = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) {
        if (run(ctx, p, problem, choices[i], workspace) != CUBLAS_STATUS_SUCCESS) continue;
        const unsigned long long bits = product_digest(ctx, p, workspace);
        if (i == 0) first = bits;
        if (bits != first) continue;
        const Event begin(true), end(true);
        ctx.cuda->record(begin);
        for (int r = 0; r < kRuns; ++r) run(ctx, p, problem, choices[i], workspace);
        ctx.cuda->record(end);
        end.synchronize();
        const double seconds = end.seconds_since(begin);
        if (i == 0 || seconds < 0.98 * best_seconds) {  // smaller gains are noise
            best = i;
            best_seconds = seconds;
        }
    }
    return best;
}

// The fewest output elements for timing: among so many rounded sums another order of summation
// shows.
constexpr std::int64_t kLeastTimed = std::int64_t{1} << 20;

struct Known {
    std::vector<Choice> choices;  // in the library's order of preference
    bool timed = false;
    std::size_t best = 0;
};

}  // namespace

std::string library_product_name(const TrainProduct& p, int which) {
    if (!library()) return "";
    const std::vector<Choice> choices = choose(key_of(p), Problem(p));
    if (static_cast<std::size_t>(which) >= choices.size()) return "";
    const cublasLtMatmulAlgo_t& algo = choices[static_cast<std::size_t>(which)].algo;
    const auto number = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
        return std::to_string(config_of<std::uint32_t>(algo, attribute));
    };
    return "algorithm " + number(CUBLASLT_ALGO_CONFIG_ID) + " tile " +
           number(CUBLASLT_ALGO_CONFIG_TILE_ID) + " cluster " +
           std::to_string(config_of<std::uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)) +
           " split " + number(CUBLASLT_ALGO_CONFIG_SPLITK_NUM) + " custom " +
           number(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) + " waves " +
           std::to_string(choices[static_cast<std::size_t>(which)].waves).substr(0, 5);
}

bool library_product(const Context& ctx, const TrainProduct& p, std::span<std::byte> workspace,
                     int which) {
    if (this_gpu().sm < 80 || !library()) return false;  // older GPUs have no bf16
    MR_CHECK(workspace.size() >= kTrainWorkspace, "the workspace was planned");
    static std::mutex mutex;
    static std::map<Key, Known> all;  // never erased: addresses stay valid
    const Key key = key_of(p);
    const Problem problem(p);
    const std::lock_guard lock(mutex);
    auto at = all.find(key);
    if (at == all.end()) at = all.emplace(key, Known{choose(key, problem)}).first;
    Known& known = at->second;
    if (which == kTimed && !known.timed && known.choices.size() > 1 && p.c != p.out &&
        p.rows * p.cols >= kLeastTimed) {
        known.best = fastest(ctx, p, problem, known.choices, workspace);
        known.timed = true;
    }
    const std::size_t index = which == kTimed ? known.best : static_cast<std::size_t>(which);
    if (index >= known.choices.size()) return false;
    check(run(ctx, p, problem, known.choices[index], workspace), "product of training");
    return true;
}

#else  // built without cublasLt.h

bool library_product(const Context&, const TrainProduct&, std::span<std::byte>, int) {
    return false;
}
std::string library_product_name(const TrainProduct&, int) { return ""; }
unsigned long long product_digest(const Context&, const TrainProduct&, std::span<std::byte>) {
    return 0;
}

#endif

}  // namespace mr::cuda
