// An open model: loaded once, with an engine on its own thread (worker.h). Its calls queue work
// there and return at once with a ticket.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/options.h"
#include "core/progress.h"
#include "decode/eval_diffusion.h"
#include "decode/profile.h"
#include "model/engine.h"
#include "options.h"
#include "text/chat_writer.h"
#include "worker.h"

namespace mr::python {

// Options of an evaluation, besides its text.
struct EvalAsked {
    std::string split;
    int limit = 0;
    bool ends = false;
    std::optional<int> bound;  // for diffusion models
    Options options;           // ... and their decoding
};

class Opened {
  public:
    // Loads as `millrace run` does. `sequences`: generations that run together at most.
    Opened(const cli::SharedOptions& shared, int sequences, const Progress& progress);

    const model::Model& model() const { return *model_; }
    const model::EngineOptions& engine_options() const { return engine_; }
    double load_seconds() const { return load_seconds_; }
    // Returns the worker: its destructor waits for the thread. Then release() frees the weights;
    // the tokenizer and info() stay.
    WorkerPtr close() { return std::move(worker_); }
    void release();
    bool open() const { return worker_ != nullptr; }
    // Whether tickets can end: not in a fork of the process that opened the model.
    bool here() const { return process_ == ::getpid(); }

    std::vector<std::int32_t> encode(std::string_view text, bool special) const;
    std::vector<std::int32_t> encode_prompt(std::string_view text) const;
    std::string decode(std::span<const std::int32_t> ids) const;
    // A conversation as ids, with the opening of an answer, and the stop strings of one.
    struct ChatPrompt {
        std::vector<std::int32_t> ids;
        std::vector<std::string> stops;
    };
    ChatPrompt chat_prompt(std::span<const text::ChatMessage> messages,
                           text::ChatOptions options) const;

    TicketPtr generate(std::vector<std::int32_t> prompt, const Options& options, bool streams);
    // `out`: f32 [ids, vocab]. Both must live until the ticket has ended.
    TicketPtr logits(std::span<const std::int32_t> ids, float* out);
    // The mean of the LM head's input over a text's tokens, or that of its last token. `out`: f32
    // [texts, dim].
    TicketPtr embed(std::vector<std::vector<std::int32_t>> texts, bool last, float* out);
    TicketPtr eval(std::string text, const EvalAsked& asked,
                   std::shared_ptr<decode::DiffusionEvalResult> result);
    TicketPtr profile(std::string prompt, const Options& options,
                      std::shared_ptr<decode::Profiled> result);

  private:
    Worker& worker();
    void make_room_for_block(const decode::GenerateOptions& wanted);
    void refuse_diffusion(const char* what) const;

    const pid_t process_ = ::getpid();
    std::shared_ptr<model::Model> model_;
    std::shared_ptr<const model::DeviceWeights> weights_;
    model::EngineOptions engine_;
    double load_seconds_ = 0;
    WorkerPtr worker_;
    int block_ = 0;  // block size that the engine has room for, now or when its turn comes
};

}  // namespace mr::python
