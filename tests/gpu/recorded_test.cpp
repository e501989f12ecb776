// Recorded logits through the decode loop: every family in 16 bits, one token at a time, with the
// kernels and graphs of generation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "decode/loop.h"
#include "families.h"
#include "gpu/engines.h"
#include "model/io/convert.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::model {
namespace {

class GpuRecorded : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

// Logits of every token of `ids` in `rows` sequences that are decoded together: [token][row]. The
// first token is given in a pass; all others are drawn, from logits with only one choice, and fed
// to a step.
std::vector<std::vector<std::vector<float>>> stepped(Engine& engine,
                                                     std::span<const std::int32_t> ids, int rows) {
    const auto vocab = static_cast<std::size_t>(engine.model().spec.vocab);
    const auto count = static_cast<std::size_t>(rows);
    std::vector<SeqId> seqs;
    std::vector<BatchItem> items;
    for (int r = 0; r < rows; ++r) {
        seqs.push_back(engine.cache().open());
        items.push_back({seqs.back(), ids.first(1)});
    }
    // One buffer for the logits, which both passes and steps write.
    const Tensor logits = engine.submit(items);
    std::vector<std::vector<std::vector<float>>> out;
    const auto keep = [&] {
        const std::vector<float> all = test::values(engine, logits);
        out.emplace_back();
        for (std::size_t r = 0; r < count; ++r) {
            const auto row = all.begin() + static_cast<std::ptrdiff_t>(r * vocab);
            out.back().emplace_back(row, row + static_cast<std::ptrdiff_t>(vocab));
        }
    };
    keep();
    const cuda::Stream stream;
    cuda::DeviceArena memory("a choice of one", count * vocab * sizeof(float));
    const Tensor choice(memory.data(), DType::f32,
                        {static_cast<std::int64_t>(count), static_cast<std::int64_t>(vocab)});
    for (std::size_t t = 1; t < ids.size(); ++t) {
        std::vector<float> only(count * vocab, 0.0f);
        std::vector<decode::DecodeRow> draw(count);
        for (std::size_t r = 0; r < count; ++r) {
            only[r * vocab + static_cast<std::size_t>(ids[t])] = 10.0f;
            draw[r].seq = seqs[r];
            draw[r].params.temperature = 0;
            draw[r].most = 2;
        }
        stream.to_device(choice.data, only.data(), choice.bytes(), nullptr);
        stream.synchronize();
        decode::DecodeLoop loop(engine, choice, draw);
        const std::span<const ops::Sampled> drawn = loop.next();
        for (std::size_t r = 0; r < count; ++r) {
            EXPECT_EQ(drawn[r].id, ids[t]) << "token " << t << " row " << r;
        }
        loop.next();  // the drawn token is fed, and stays
        keep();
    }
    for (const SeqId seq : seqs) engine.cache().close(seq);
    return out;
}

// The error of rounded activations, as a share of the logits. In a layer seven of them are
// rounded: both normed inputs, q, k, v, attention's output and the MLP's; then the head's input.
// Each is off by at most epsilon(type), and by half of that in the mean square; they are
// independent, so their squares add up; and norms and softmax can amplify an error on its way to
// the logits, here by at most 4. (Rounded in the same places, the CPU's logits are off by 0.2 to
// 0.45 of this limit.)
double rounding_limit(const ModelSpec& spec, DType type) {
    return 4 * 0.5 * cuda::epsilon(type) * std::sqrt(7.0 * spec.layers + 1);
}

TEST_F(GpuRecorded, DecodeStepsHaveTheRecordedLogitsIn16Bits) {
    const test::TempFolder folder;
    for (const char* family : test::kFamilies) {
        const test::Expected expected = test::read_expected(test::reference(family));
        for (const DType type : {DType::bf16, DType::f16}) {
            SCOPED_TRACE(std::string(family) + " " + dtype_name(type));
            const std::string path = folder / (std::string(family) + dtype_name(type) + ".gguf");
            convert_model(test::reference(family), path, {.type = type});
            const ModelSpec spec = load_model(path).spec;
            EngineOptions options;
            options.context = spec.learned_positions ? spec.context : 64;
            options.max_logits = 64;
            // Both types hold the recorded models' weights exactly: the CPU, in f32 with the same
            // file, shows that nothing was lost.
            const auto cpu = test::open_on_cpu(path, options);
            ASSERT_LT(test::relative_rms(test::logits_of(*cpu, expected.ids, 64), expected.logits),
                      1e-5);
            const test::OnDevice loaded = test::load_on_device(path);
            // One row; and more than 8, which use other kernels.
            for (const int rows : {1, 12}) {
                for (const bool graph : {true, false}) {
                    options.max_sequences = rows;
                    options.context = spec.learned_positions ? spec.context : 64;
                    options.graph = graph;
                    const auto gpu = loaded.engine(options);
                    const auto got = stepped(*gpu, expected.ids, rows);
                    std::vector<float> one;
                    for (const auto& token : got) {
                        one.insert(one.end(), token[0].begin(), token[0].end());
                        for (const std::vector<float>& row : token) ASSERT_EQ(row, token[0]);
                    }
                    EXPECT_LT(test::relative_rms(one, expected.logits), rounding_limit(spec, type))
                        << "rows " << rows << " graph " << graph;
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::model
