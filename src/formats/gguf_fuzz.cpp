// Any bytes must give a file whose every value and tensor can be read, or an input error.
#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "formats/gguf.h"

namespace {

template <typename Get>
void ask(Get&& get) {
    try {
        get();
    } catch (const mr::Error&) {  // the wrong type
    }
}

// The first and the last byte of every tensor lie in the file.
unsigned touch(const mr::formats::FileTensor& tensor) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.view.data);
    return tensor.view.bytes() ? bytes[0] + 0u + bytes[tensor.view.bytes() - 1] : 0u;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using mr::formats::GgufFile;
    try {
        const GgufFile file =
            GgufFile::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz.gguf");
        volatile unsigned sink = 0;
        for (const std::string& key : file.keys()) {
            ask([&] { file.get_uint(key); });
            ask([&] { file.get_int(key); });
            ask([&] { file.get_float(key); });
            ask([&] { file.get_bool(key); });
            ask([&] { file.get_string(key); });
            ask([&] {
                if (const auto strings = file.get_strings(key)) {
                    for (const auto text : *strings) {
                        if (!text.empty()) sink = sink + static_cast<unsigned char>(text.back());
                    }
                }
            });
            ask([&] { file.get_floats(key); });
            ask([&] { file.get_ints(key); });
        }
        for (const auto& tensor : file.tensors()) {
            sink = sink + touch(tensor) + (file.find_tensor(tensor.name) == &tensor ? 0u : 1u);
        }
    } catch (const mr::Error&) {
    }
    return 0;
}
