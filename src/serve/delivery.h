// What the engine's thread has made, on its way to those who wait for it. The engine's thread puts
// it down, and a thread of its own calls the sinks: JSON, the transport's locks and its wakeups
// take none of the engine's time.
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
    ~Delivery();  // after what was put down is delivered
    Delivery(const Delivery&) = delete;
    Delivery& operator=(const Delivery&) = delete;

    // One thread calls these; order is kept. Text that follows its token goes with it.
    void token(const std::shared_ptr<Sink>& sink, int choice, std::int32_t id,
               const decode::DrawnLogprobs* logprobs);
    void text(const std::shared_ptr<Sink>& sink, int choice, std::string_view piece);
    void call(std::function<void()> what);  // what comes seldom: ends and failures
    // Sends all that was put down. Waits where far too much is on its way.
    void flush();
    // Until all of it has arrived.
    void flush_and_wait();

  private:
    struct Item {
        std::shared_ptr<Sink> sink{};
        int choice = 0;
        std::int32_t id = -1;  // -1: text alone
        std::unique_ptr<decode::DrawnLogprobs> logprobs{};
        std::string text{};
        std::function<void()> call{};
    };

    void work();
    static void deliver(const Item& item);

    std::vector<Item> put_;  // by the engine's thread, and not flushed
    std::mutex mutex_;
    std::condition_variable there_, gone_;
    std::vector<Item> queue_;
    bool busy_ = false, leaving_ = false;
    std::thread thread_;
};

}  // namespace mr::serve
