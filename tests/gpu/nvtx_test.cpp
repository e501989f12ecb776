// NVTX ranges as Nsight Systems would receive them: a statically linked injection takes its place.
// Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

// Only types: the functions are those of the library under test.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include "decode/prompt.h"
#include "decode/session.h"
#include "model/engine.h"
#include "support.h"

namespace {

std::vector<std::string>& heard() {
    static std::vector<std::string> ranges;
    return ranges;
}
int open_ranges = 0;

int NVTX_API push(const char* name) {
    heard().push_back(name);
    return open_ranges++;
}
int NVTX_API pop() { return --open_ranges; }

int NVTX_API attach(NvtxGetExportTableFunc_t table_of) {
    const auto* callbacks =
        static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table = nullptr;
    unsigned size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) {
        return 0;
    }
    *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
    *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
    return 1;
}

}  // namespace

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = attach;
}

namespace mr::decode {
namespace {

TEST(Nvtx, WhatTheHostDoesAreRangesThatAToolHears) {
    const auto model =
        std::make_shared<const model::Model>(model::load_model(test::bundled_model()));
    const std::unique_ptr<model::Engine> opened = model::make_engine(model, {});
    model::Engine& engine = *opened;
    Session session(engine);
    GenerateOptions options;
    options.max_tokens = 4;
    options.ignore_end = true;
    heard().clear();
    session.generate(encode_prompt(*model, "Once upon a time"), options,
                     [](std::string_view) { return true; });
    const auto times = [&](const char* name) {
        return std::count(heard().begin(), heard().end(), name);
    };
    EXPECT_EQ(times("prefill"), 1);  // and the first draw
    EXPECT_EQ(times("decode"), 3);
    EXPECT_GE(times("print"), 1);
    EXPECT_EQ(open_ranges, 0) << "what is begun is ended";
}

}  // namespace
}  // namespace mr::decode
