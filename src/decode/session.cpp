#include "decode/session.h"

#include "core/error.h"
#include "decode/scheduler.h"

namespace mr::decode {

Generated Session::generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                            const OnText& on_text) {
    MR_CHECK(engine_.model().tokenizer != nullptr, "generation needs a tokenizer");
    if (options.max_tokens <= 0) return {};
    Scheduler scheduler(engine_, options.recorder);
    const Scheduler::Id id = scheduler.add({prompt.begin(), prompt.end()}, options, on_text);
    while (scheduler.step()) {
    }
    return *scheduler.take(id);
}

}  // namespace mr::decode
