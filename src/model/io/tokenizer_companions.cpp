#include "model/io/tokenizer_companions.h"

#include <system_error>

namespace mr::model {

std::vector<std::filesystem::path> tokenizer_companions(const std::filesystem::path& folder) {
    namespace fs = std::filesystem;
    std::vector<fs::path> out;
    for (const char* name : kTokenizerCompanions) {
        std::error_code code;
        const fs::path path = folder / name;
        const bool some = fs::is_regular_file(path, code) && fs::file_size(path, code) > 0;
        if (some && !code) out.push_back(path);
    }
    return out;
}

}  // namespace mr::model
