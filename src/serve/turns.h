// A queue for each client, taken from in turn.
#pragma once

#include <algorithm>
#include <deque>
#include <list>
#include <string>
#include <utility>

namespace mr::serve {

// A client with many entries delays another by no more than one of them for each client. Only put()
// allocates.
template <class T>
class Turns {
  public:
    void put(const std::string& client, T one) {
        const auto own = std::find_if(queues_.begin(), queues_.end(),
                                      [&](const Queue& queue) { return queue.client == client; });
        if (own != queues_.end()) {
            own->waiting.push_back(std::move(one));
            return;
        }
        Queue queue{client, {}};
        queue.waiting.push_back(std::move(one));
        queues_.push_back(std::move(queue));
    }
    // The next client's first. There must be one.
    T take() {
        Queue& next = queues_.front();
        T one = std::move(next.waiting.front());
        next.waiting.pop_front();
        if (next.waiting.empty()) {
            queues_.pop_front();
        } else {
            queues_.splice(queues_.end(), queues_, queues_.begin());
        }
        return one;
    }
    void erase(const T& one) {
        for (Queue& queue : queues_) std::erase(queue.waiting, one);
        queues_.remove_if([](const Queue& queue) { return queue.waiting.empty(); });
    }
    bool empty() const { return queues_.empty(); }
    void clear() { queues_.clear(); }

  private:
    struct Queue {
        std::string client;
        std::deque<T> waiting;
    };
    std::list<Queue> queues_;  // none is empty; the first is next
};

}  // namespace mr::serve
