#include "serve/delivery.h"

#include <iterator>
#include <new>
#include <utility>

#include "core/out_of_memory.h"
#include "core/start_thread.h"
#include "serve/desk.h"

namespace mr::serve {
namespace {

constexpr std::size_t kMostItems = 1 << 16;  // tokens waiting here at most

}  // namespace

Delivery::Delivery() {
    thread_ = start_thread([this] { work(); }, "to send answers");
}

Delivery::~Delivery() {
    flush();
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    there_.notify_one();
    thread_.join();
}

void Delivery::token(const std::shared_ptr<Sink>& sink, int choice, std::int32_t id,
                     const decode::DrawnLogprobs* logprobs) {
    Item& item = put_.emplace_back();
    item.sink = sink;
    item.choice = choice;
    item.id = id;
    if (logprobs) item.logprobs = std::make_unique<decode::DrawnLogprobs>(*logprobs);
}

void Delivery::text(const std::shared_ptr<Sink>& sink, int choice, std::string_view piece) {
    if (put_.empty() || put_.back().sink != sink || put_.back().choice != choice) {
        Item& item = put_.emplace_back();
        item.sink = sink;
        item.choice = choice;
    }
    put_.back().text += piece;
}

void Delivery::call(std::function<void()> what) { put_.emplace_back().call = std::move(what); }

void Delivery::flush() {
    if (put_.empty()) return;
    {
        std::unique_lock lock(mutex_);
        gone_.wait(lock, [&] { return queue_.size() < kMostItems; });
        if (queue_.empty()) {
            queue_.swap(put_);
        } else {
            queue_.insert(queue_.end(), std::make_move_iterator(put_.begin()),
                          std::make_move_iterator(put_.end()));
        }
    }
    put_.clear();
    there_.notify_one();
}

void Delivery::flush_and_wait() {
    flush();
    std::unique_lock lock(mutex_);
    gone_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void Delivery::work() {
    std::vector<Item> items;
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            busy_ = false;
            if (queue_.empty()) gone_.notify_all();
            there_.wait(lock, [&] { return leaving_ || !queue_.empty(); });
            if (queue_.empty()) return;
            items.swap(queue_);
            busy_ = true;
        }
        gone_.notify_all();
        for (const Item& item : items) deliver(item);
        items.clear();
    }
}

// An error ends only its own request: nothing may end this thread.
void Delivery::deliver(const Item& item) try {
    if (item.call) return item.call();
    if (item.id >= 0) item.sink->token(item.choice, item.id, item.logprobs.get());
    if (!item.text.empty()) item.sink->text(item.choice, item.text);
} catch (const std::exception& error) {
    const bool memory = dynamic_cast<const std::bad_alloc*>(&error);
    if (memory) hold_back_memory_again();
    if (!item.sink) return;  // without an answer its connection ends
    try {
        item.sink->failed(
            Failure::of(500, "server_error", memory ? "out of memory" : error.what()));
    } catch (const std::exception&) {
    }
}

}  // namespace mr::serve
