// Many generations on one engine. Requests wait in order of arrival; an admitted request has
// reserved pages for its prompt and all tokens it may make, so none ever runs out. Where every
// layer has a window, the answer reuses the pages of the window in a ring, and so does a prompt
// for which there is no room otherwise. A pass takes one token of every sequence that decodes,
// and pieces of prompts beside them. The text of a request has the same bits as if it ran
// alone.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "decode/generate.h"
#include "decode/text_stream.h"
#include "model/engine.h"

namespace mr::decode {

class Scheduler {
  public:
    using Id = std::uint64_t;

    // `most`: requests that run together at most; 0: as many as the engine takes.
    explicit Scheduler(model::Engine& engine, observe::Recorder* recorder = nullptr, int most = 0);
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // Adds a request to continue `prompt`, which is the whole history: the part already in the
    // cache is not computed again. Throws Error (input) if the prompt is empty or does not fit into
    // the context, Error (usage) for sampling parameters out of range. `live`: the caller's own
    // sequence, which holds the beginning of the prompt, has room for all that follows and stays
    // open (live_sequence.h); -1: the request opens one.
    Id add(std::vector<std::int32_t> prompt, GenerateOptions options, OnText on_text = {},
           model::SeqId live = -1);
    // For a diffusion text: guesses are made by one host thread, from logits copied to the host, as
    // the first samplers did. The tokens are the same, but this text and those that share its
    // passes get them later. Used to measure what sampling on the device is worth.
    void guess_on_host(Id id);
    // Ends the request between two passes, at any stage.
    void cancel(Id id);
    // Runs one pass and delivers new tokens; false: no request is left. A scheduler whose step()
    // has thrown (a lost device, a NaN check, a listener) must be destroyed.
    bool step();
    // The result of a request that has ended; none before. Rethrows the error that ended it.
    std::optional<Generated> take(Id id);

    // Time of all passes so far: of prompts alone, and of passes that decode.
    struct Totals {
        Phase prefill, decode;
        std::int64_t passes = 0, mixed = 0;  // mixed: prompts beside rows that decode
        std::int64_t found = 0;              // prompt tokens that were in the cache already
    };
    const Totals& totals() const { return totals_; }
    std::size_t waiting() const { return waiting_.size(); }
    std::size_t running() const { return running_.size(); }

  private:
    struct Request;
    using RequestPtr = std::unique_ptr<Request>;

    void tell_prompts();
    void heed_cancellations();
    void admit();
    bool admit(Request& request);
    bool reserve(Request& request, std::optional<model::KvCache::PageCopy>& copy);
    Request* leader_of(const Request& request) const;
    void open_slot(Request& request);
    bool launch();
    Tensor submit(std::int64_t rows, bool guesses = false);
    std::int64_t pieces_beside(std::int64_t rows) const;
    void add_pieces(std::int64_t budget, std::int64_t room);
    bool score_piece();
    void score(Request& request, Tensor logits);
    void launched(Request& request, std::int64_t piece);
    void read();
    std::int64_t ahead_of(const Request& request) const;
    bool ends_text(const GenerateOptions& options, std::int32_t token) const;
    std::unique_ptr<ops::TokenFilter> filter_of(const Request& request);
    void read_one(Request& request);
    void take_token(Request& request, std::int32_t token);
    void deliver(Request& request, const std::string& text);
    void fail(Request& request, const Error& error);
    // Diffusion texts.
    void open_blocks(Request& request);
    bool launch_blocks();
    bool check_guesses(Request& request, std::span<const ops::Guess> guesses);
    void read_block(Request& request, std::span<const ops::Guess> guesses);
    bool fill_alone();
    void begin_blocks(Request& request);
    void read_filled(Request& request);
    void finish(Request& request, StopReason reason);
    void sweep();

    model::Engine& engine_;
    observe::Recorder* recorder_;
    std::size_t most_;  // requests that run together at most
    std::deque<RequestPtr> waiting_;
    std::vector<RequestPtr> running_;  // in the order of admission
    std::map<Id, std::pair<Generated, std::exception_ptr>> ended_;
    Id next_id_ = 1;
    std::optional<std::vector<std::int32_t>> model_ends_;  // its end tokens, once they are needed
    bool scored_ = false;           // the last pass computed a prompt's log-probabilities
    std::int64_t piece_limit_ = 0;  // prompt tokens in a pass where cancelling must be quick
    std::vector<model::BatchItem> items_;
    std::vector<std::pair<Request*, std::int64_t>> pieces_;  // of the pass: request and token count
    std::vector<Request*> filling_;                          // the pass computes their blocks
    std::vector<model::Place> places_;
    std::vector<ops::Guess> guesses_;
    std::vector<std::byte> host_scratch_;  // for guess_on_host()
    Totals totals_;
};

}  // namespace mr::decode
