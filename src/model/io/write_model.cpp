#include "model/io/write_model.h"

#include <utility>

#include "core/output_file.h"
#include "model/io/convert_formats.h"
#include "model/io/convert_tensors.h"
#include "text/tokenizer_json_writer.h"

namespace mr::model {

void write_huggingface(const std::string& folder, const ModelSpec& spec, const Weights& weights,
                       const text::Tokenizer* tokenizer, const std::function<void()>& progress) {
    const auto read = [&](RoleAt at) { return RoleTensor{role_slot(weights, at), nullptr}; };
    write_huggingface(folder, spec, read, tokenizer, progress);
}

void write_huggingface(const std::string& folder, const ModelSpec& spec,
                       std::function<RoleTensor(RoleAt)> read, const text::Tokenizer* tokenizer,
                       const std::function<void()>& progress) {
    const auto called = [&] {
        if (progress) progress();
    };
    OutputFile config(folder + "/config.json");
    config.write(huggingface_config(spec, tokenizer, DType::f32, folder));
    config.commit();
    called();
    if (tokenizer) {
        if (const auto files = text::huggingface_tokenizer(tokenizer->data(), spec.family)) {
            OutputFile file(folder + "/tokenizer_config.json");
            file.write(files->config);
            file.commit();
            called();
        }
    }

    ConvertInput input;
    input.spec = spec;
    input.read = std::move(read);
    input.dtype = [](RoleAt) { return DType::f32; };
    const ConvertOptions options{.type = DType::f32};
    Converter converter(std::move(input), huggingface_dialect(spec.family), options);
    write_safetensors(folder + "/model.safetensors", converter, progress);
}

void require_huggingface_can_hold(const ModelSpec& spec, const std::string& file) {
    huggingface_config(spec, nullptr, DType::f32, file);
}

}  // namespace mr::model
