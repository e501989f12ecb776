// A model in several GGUF files is the model in one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "formats/gguf.h"
#include "formats/gguf_writer.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model/names.h"
#include "temp_folder.h"

namespace mr::model {
namespace {

struct SplitPart {
    std::size_t first, last;  // tensors of the whole file
    std::uint32_t number;     // split.no
};

// Parts as llama.cpp's gguf-split writes them: the metadata in the first.
void write_split(const formats::GgufFile& whole, const std::string& stem,
                 const std::vector<SplitPart>& parts, std::int32_t tensors) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
        formats::GgufWriter writer(
            fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, parts.size()));
        if (i == 0) {
            for (const std::string& key : whole.keys()) writer.copy(whole, key);
        }
        writer.set_u32("split.no", parts[i].number);
        writer.set_u32("split.count", static_cast<std::uint32_t>(parts.size()));
        writer.set_i32("split.tensors.count", tensors);
        for (std::size_t at = parts[i].first; at < parts[i].last; ++at) {
            const formats::FileTensor& tensor = whole.tensors()[at];
            writer.declare(tensor.name, tensor.view.dtype, tensor.view.shape);
        }
        for (std::size_t at = parts[i].first; at < parts[i].last; ++at) {
            writer.write(whole.tensors()[at].view.data, whole.tensors()[at].view.bytes());
        }
        writer.finish();
    }
}

TEST(SplitGguf, IsTheSameModel) {
    const test::TempFolder folder;
    TinyGguf tiny;
    tiny.tensors["output.weight"] = {DType::q8_0, {40, 256}};  // untied, and in the last part
    tiny.write(folder / "whole.gguf");
    const auto whole = formats::GgufFile::open(folder / "whole.gguf");
    const std::size_t count = whole.tensors().size();
    // The first part may be metadata alone.
    write_split(whole, folder / "parts", {{0, 0, 0}, {0, 5, 1}, {5, count, 2}},
                static_cast<std::int32_t>(count));
    const Model one = load_model(folder / "whole.gguf");
    const Model many = load_model(folder / "parts-00001-of-00003.gguf");
    EXPECT_FALSE(many.spec.tied_embeddings);
    for (const RoleAt at : roles_of(one.spec)) {
        const Tensor &a = role_slot(one.weights, at), &b = role_slot(many.weights, at);
        ASSERT_EQ(a.dtype, b.dtype);
        ASSERT_EQ(a.bytes(), b.bytes());
        EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << static_cast<int>(at.role);
    }
}

TEST(SplitGguf, RefusesWhatDoesNotBelongTogether) {
    const test::TempFolder folder;
    TinyGguf().write(folder / "whole.gguf");
    const auto whole = formats::GgufFile::open(folder / "whole.gguf");
    const std::size_t count = whole.tensors().size();
    const auto all = static_cast<std::int32_t>(count);
    const auto refusal = [&](const std::string& name) -> std::string {
        try {
            load_model(folder / name);
        } catch (const Error& error) {
            return error.what();
        }
        return "none";
    };
    const auto has = [](const std::string& text, const char* words) {
        return text.find(words) != std::string::npos ? "" : text;
    };
    write_split(whole, folder / "a", {{0, 5, 0}, {5, count, 1}}, all);
    EXPECT_EQ(has(refusal("a-00002-of-00002.gguf"), "not the first"), "");
    std::filesystem::rename(folder / "a-00001-of-00002.gguf", folder / "renamed.gguf");
    EXPECT_EQ(has(refusal("renamed.gguf"), "-00001-of-00002.gguf"), "");
    write_split(whole, folder / "gone", {{0, 5, 0}, {5, count, 1}}, all);
    std::filesystem::remove(folder / "gone-00002-of-00002.gguf");
    EXPECT_EQ(
        has(refusal("gone-00001-of-00002.gguf"), "gone-00002-of-00002.gguf: cannot be opened"), "");
    write_split(whole, folder / "order", {{0, 3, 0}, {3, 5, 2}, {5, count, 1}}, all);
    EXPECT_EQ(has(refusal("order-00001-of-00003.gguf"), "is not part 2 of 3"), "");
    write_split(whole, folder / "twice", {{0, 6, 0}, {5, count, 1}}, all);
    EXPECT_EQ(has(refusal("twice-00001-of-00002.gguf"), "which another part has"), "");
    write_split(whole, folder / "few", {{0, 5, 0}, {6, count, 1}}, all);
    EXPECT_EQ(has(refusal("few-00001-of-00002.gguf"), "and should have"), "");
}

}  // namespace
}  // namespace mr::model
