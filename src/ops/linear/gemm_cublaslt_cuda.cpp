#include "ops/linear/gemm_cublaslt.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/cuda/device.h"
#include "core/error.h"
#include "ops/linear/cublaslt_library.cuh"

namespace mr::cuda::cublaslt {

std::string Algorithm::str() const {
    return "algorithm " + std::to_string(id) + ", tile " + std::to_string(tile) + ", stages " +
           std::to_string(stages) + ", cluster " + std::to_string(cluster) + ", inner " +
           std::to_string(inner) + ", swizzle " + std::to_string(swizzle) + ", custom " +
           std::to_string(custom) + ", workspace " + std::to_string(workspace);
}

#ifdef MR_HAS_CUBLASLT
namespace {

// The library is column-major: a matrix [tokens, n] here is n x tokens there. So
//   D (n x tokens) = W (k x n)ᵀ · X (k x tokens) (+ C, n x tokens).
class Problem {
  public:
    Problem(const Key& key, std::int64_t tokens, const void* bias) {
        const Library& lib = library();
        check(lib.cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
        const cublasOperation_t transposed = CUBLAS_OP_T;
        set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
        if (key.bias) {
            const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
            const auto type = static_cast<std::int32_t>(data_type(key.out));
            set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
        }
        layout(w_, key.in, key.k, key.n);
        layout(x_, key.in, key.k, tokens);
        layout(out_, key.out, key.n, tokens);
    }
    ~Problem() {
        const Library& lib = library();
        for (cublasLtMatrixLayout_t each : {w_, x_, out_}) {
            if (each) lib.cublasLtMatrixLayoutDestroy(each);
        }
        if (desc_) lib.cublasLtMatmulDescDestroy(desc_);
    }
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    cublasLtMatmulDesc_t desc() const { return desc_; }
    cublasLtMatrixLayout_t w() const { return w_; }
    cublasLtMatrixLayout_t x() const { return x_; }
    cublasLtMatrixLayout_t out() const { return out_; }

  private:
    template <typename T>
    void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
        check(library().cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof value),
              "attribute of the product");
    }
    static void layout(cublasLtMatrixLayout_t& to, DType type, std::int64_t rows,
                       std::int64_t cols) {
        check(library().cublasLtMatrixLayoutCreate(&to, data_type(type),
                                                   static_cast<std::uint64_t>(rows),
                                                   static_cast<std::uint64_t>(cols), rows),
              "layout");
    }

    cublasLtMatmulDesc_t desc_ = nullptr;
    cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
};

// The limits of a search for algorithms (cublasLtMatmulPreference_t).
class Preference {
  public:
    explicit Preference(const Key& key) {
        check(library().cublasLtMatmulPreferenceCreate(&preference_), "preference");
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspace});
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
        const auto align = static_cast<std::uint32_t>(kAlign);
        const auto out_align = static_cast<std::uint32_t>(key.out_align());
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_align);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_align);
    }
    ~Preference() {
        if (preference_) library().cublasLtMatmulPreferenceDestroy(preference_);
    }
    Preference(const Preference&) = delete;
    Preference& operator=(const Preference&) = delete;
    cublasLtMatmulPreference_t get() const { return preference_; }

  private:
    template <typename T>
    void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
        check(library().cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value,
                                                             sizeof value),
              "attribute of the preference");
    }
    cublasLtMatmulPreference_t preference_ = nullptr;
};

template <typename T>
T config(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    T value{};
    std::size_t written = 0;
    // A library version that does not know an attribute does not use it.
    if (library().cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof value,
                                                       &written) != CUBLAS_STATUS_SUCCESS) {
        return T{};
    }
    return value;
}

// Whether one thread block computes the whole sum over k of an element.
bool whole_sums(const cublasLtMatmulAlgo_t& algo) {
    return config<std::int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1 &&
           config<std::uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
               CUBLASLT_REDUCTION_SCHEME_NONE;
}

// f32 stays f32: excludes algorithms that convert inputs to TF32 or to pieces of bf16. The compute
// type already demands that, but the environment can override it.
bool true_f32(const cublasLtMatmulAlgo_t& algo) {
    std::uint64_t flags = 0;
    std::size_t written = 0;
    return library().cublasLtMatmulAlgoCapGetAttribute(
               &algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof flags, &written) !=
               CUBLAS_STATUS_SUCCESS ||
           !(flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK);
}

Algorithm describe(const cublasLtMatmulAlgo_t& algo) {
    Algorithm out;
    static_assert(sizeof algo.data == sizeof out.opaque);
    std::copy(std::begin(algo.data), std::end(algo.data), out.opaque.begin());
    const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
        return static_cast<int>(config<std::uint32_t>(algo, attribute));
    };
    out.id = get(CUBLASLT_ALGO_CONFIG_ID);
    out.tile = get(CUBLASLT_ALGO_CONFIG_TILE_ID);
    out.stages = get(CUBLASLT_ALGO_CONFIG_STAGES_ID);
    out.swizzle = get(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
    out.custom = get(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
    out.inner = config<std::uint16_t>(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
    out.cluster = config<std::uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
    return out;
}

// For addresses not known yet: one with the least alignment they may have.
const void* stand_in() { return reinterpret_cast<const void*>(kAlign); }

// The largest workspace the algorithm needs for these
// token counts; none if it rejects one of them.
std::optional<std::size_t> takes_all(const Key& key, const cublasLtMatmulAlgo_t& algo,
                                     std::span<const std::int64_t> counts) {
    std::size_t most = 0;
    for (const std::int64_t tokens : counts) {
        const Problem problem(key, tokens, stand_in());
        cublasLtMatmulHeuristicResult_t result{};
        const cublasStatus_t status = library().cublasLtMatmulAlgoCheck(
            library().handle, problem.desc(), problem.w(), problem.x(), problem.out(),
            problem.out(), &algo, &result);
        if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspace) {
            return std::nullopt;
        }
        most = std::max(most, result.workspaceSize);
    }
    return most;
}

}  // namespace

std::string about() { return library().about; }
bool available() { return static_cast<bool>(library()); }

std::vector<Algorithm> algorithms(const Key& key, int enough, std::int64_t tokens) {
    std::vector<Algorithm> found;
    if (!available()) return found;
    constexpr int kMost = 32;
    constexpr std::array<std::int64_t, 12> kAny{1,   2,   8,    33,   65,   127,
                                                128, 300, 1000, 2048, 4095, 16384};
    const std::array<std::int64_t, 4> few{1, tokens / 2 + 1, tokens - 1, tokens};
    const std::span<const std::int64_t> counts =
        tokens < kManyTokens ? std::span<const std::int64_t>(few) : kAny;
    const Problem problem(key, tokens, stand_in());
    const Preference preference(key);
    std::array<cublasLtMatmulHeuristicResult_t, kMost> results{};
    int count = 0;
    const cublasStatus_t status = library().cublasLtMatmulAlgoGetHeuristic(
        library().handle, problem.desc(), problem.w(), problem.x(), problem.out(), problem.out(),
        preference.get(), kMost, results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return found;
    check(status, "search of algorithms");
    for (int i = 0; i < count; ++i) {
        const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
        if (result.state != CUBLAS_STATUS_SUCCESS || !whole_sums(result.algo)) continue;
        if (key.in == DType::f32 && !true_f32(result.algo)) continue;
        const std::optional<std::size_t> workspace = takes_all(key, result.algo, counts);
        if (!workspace) continue;
        found.push_back(describe(result.algo));
        found.back().workspace = *workspace;
        if (*workspace <= kNoSums && --enough <= 0) break;
    }
    // Partial sums need a workspace, so an algorithm with almost none has no partial sums,
    // regardless of its attributes.
    std::stable_partition(found.begin(), found.end(),
                          [](const Algorithm& each) { return each.workspace <= kNoSums; });
    return found;
}

bool takes(const Key& key, const Algorithm& algorithm, std::int64_t tokens) {
    cublasLtMatmulAlgo_t algo{};
    std::copy(algorithm.opaque.begin(), algorithm.opaque.end(), std::begin(algo.data));
    const std::optional<std::size_t> workspace = takes_all(key, algo, {&tokens, 1});
    return workspace && *workspace <= kNoSums;
}

namespace {

struct Choice {
    std::optional<Algorithm> any;                              // for every number of tokens
    std::array<std::optional<Algorithm>, kSteps.size()> step;  // up to kSteps[i]
    bool searched = false;
};
class Choices {
  public:
    // With the lock held. Entries are never erased, so addresses stay valid.
    Choice& of(const Key& key) {
        auto at = choices_.find(key);
        if (at == choices_.end()) {
            Choice choice;
            const std::vector<Algorithm> found = algorithms(key, 1);
            if (!found.empty()) choice.any = found.front();
            at = choices_.emplace(key, choice).first;
        }
        return at->second;
    }
    std::mutex mutex;

  private:
    std::map<Key, Choice> choices_;
};
Choices& choices() {
    static Choices all;
    return all;
}

}  // namespace

const Algorithm* algorithm(const Key& key, std::int64_t tokens) {
    const std::lock_guard lock(choices().mutex);
    const Choice& choice = choices().of(key);
    if (!choice.any) return nullptr;
    const auto at =
        static_cast<std::size_t>(std::ranges::lower_bound(kSteps, tokens) - kSteps.begin());
    return &(at < kSteps.size() && choice.step[at] ? *choice.step[at] : *choice.any);
}

void adopt(const Key& key, std::size_t step, const Algorithm& algorithm) {
    const std::lock_guard lock(choices().mutex);
    Choice& choice = choices().of(key);
    if (!choice.step[step]) choice.step[step] = algorithm;  // another thread may be using the first
}

bool begin_search(const Key& key) {
    const std::lock_guard lock(choices().mutex);
    return !std::exchange(choices().of(key).searched, true);
}

void matmul(const Context& ctx, const Key& key, const Algorithm& algorithm, std::int64_t tokens,
            void* out, const void* x, const void* w, const void* bias, const void* c,
            std::span<std::byte> workspace) {
    MR_CHECK(workspace.size() >= algorithm.workspace, "the workspace was planned");
    const Problem problem(key, tokens, bias);
    cublasLtMatmulAlgo_t algo{};
    std::copy(algorithm.opaque.begin(), algorithm.opaque.end(), std::begin(algo.data));
    const float one = 1, beta = c ? 1 : 0;
    check(
        library().cublasLtMatmul(library().handle, problem.desc(), &one, w, problem.w(), x,
                                 problem.x(), &beta, c ? c : out, problem.out(), out, problem.out(),
                                 &algo, workspace.data(), algorithm.workspace, ctx.cuda->raw()),
        "product");
}

#else  // built without cublasLt.h

std::string about() { return "built without cublasLt.h"; }
bool available() { return false; }
std::vector<Algorithm> algorithms(const Key&, int, std::int64_t) { return {}; }
const Algorithm* algorithm(const Key&, std::int64_t) { return nullptr; }
bool takes(const Key&, const Algorithm&, std::int64_t) { return false; }
void adopt(const Key&, std::size_t, const Algorithm&) {}
bool begin_search(const Key&) { return false; }
void matmul(const Context&, const Key&, const Algorithm&, std::int64_t, void*, const void*,
            const void*, const void*, const void*, std::span<std::byte>) {
    MR_CHECK(false, "there is an algorithm");
}

#endif

}  // namespace mr::cuda::cublaslt
