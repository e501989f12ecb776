// Delivers what the engine's thread has made to the sinks of requests. The engine's thread queues
// items, and a separate thread calls the sinks: JSON, the transport's locks and its wakeups take no
// time of the engine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "decode/generate.h"

namespace mr::serve {

class Sink;

class Delivery {
  public:
    Delivery();
    ~Delivery();  // delivers all queued items first
    Delivery(const Delivery&) = delete;
    Delivery& operator=(const Delivery&) = delete;

    // For one calling thread; order is kept. Text that follows its token goes with it.
    void token(const std::shared_ptr<Sink>& sink, int choice, std::int32_t id,
               const decode::DrawnLogprobs* logprobs);
    void text(const std::shared_ptr<Sink>& sink, int choice, std::string_view piece);
    void call(std::function<void()> what);  // for rare events: ends and failures
    // Sends all queued items. Waits if far too many are pending.
    void flush();
    // Waits until all of them are delivered.
    void flush_and_wait();

  private:
    struct Item {
        std::shared_ptr<Sink> sink{};
        int choice = 0;
        std::int32_t id = -1;  // -1: only text
        std::unique_ptr<decode::DrawnLogprobs> logprobs{};
        std::string text{};
        std::function<void()> call{};
    };

    void work();
    static void deliver(const Item& item);

    std::vector<Item> put_;  // queued by the engine's thread, not flushed
    std::mutex mutex_;
    std::condition_variable there_, gone_;
    std::vector<Item> queue_;
    bool busy_ = false, leaving_ = false;
    std::thread thread_;
};

}  // namespace mr::serve
