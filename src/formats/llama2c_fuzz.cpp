// Any bytes must give a file whose every tensor can be read, or an input error.
#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "formats/llama2c.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using mr::formats::Llama2cFile;
    try {
        const Llama2cFile file =
            Llama2cFile::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz.bin");
        volatile unsigned sink = 0;
        for (const auto& tensor : file.tensors()) {
            const auto* bytes = static_cast<const unsigned char*>(tensor.view.data);
            const std::size_t count = tensor.view.bytes();
            if (count) sink = sink + bytes[0] + bytes[count - 1];
        }
    } catch (const mr::Error&) {
    }
    return 0;
}
