// Reads any bytes as a GGUF file or a Hugging Face folder: either an input error, or a model in
// which every tensor has the shape that its spec asks for and lies in readable memory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "model/model.h"
#include "model/names.h"
#include "model_input.h"

namespace {

unsigned touch(const mr::Tensor& tensor) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.data);
    return bytes[0] + 0u + bytes[tensor.bytes() - 1];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace mr::model;
    static mr::test::ModelInput input;
    const std::string path = input.write({reinterpret_cast<const char*>(data), size});
    try {
        const Model model = load_model(path);
        volatile unsigned sink = 0;
        for (const RoleAt at : roles_of(model.spec)) {
            const mr::Tensor& tensor = role_slot(model.weights, at);
            if (!tensor || tensor.shape != role_shape(model.spec, at.role)) __builtin_trap();
            sink = sink + touch(tensor);
        }
        sink = sink + touch(model.weights.head);
        if (rope_frequencies(model.spec.rope).inv_freq.size() !=
            static_cast<std::size_t>(model.spec.rope.rotary) / 2) {
            __builtin_trap();
        }
        if (model.tokenizer && model.tokenizer->vocab_size() > model.spec.vocab) __builtin_trap();
        if (model.weights.bytes_per_token() == 0 || model.spec.parameters() == 0) __builtin_trap();
    } catch (const mr::Error& error) {
        // A file must not be able to trigger an internal check.
        if (error.kind() != mr::ErrorKind::input) __builtin_trap();
    }
    return 0;
}
