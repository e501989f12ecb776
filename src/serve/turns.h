// A queue for each client, taken from in turn.
#pragma once

#include <algorithm>
#include <deque>
#include <iterator>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mr::serve {

// Between two turns of a client every other client has at most one. A client without entries has no
// place in the order: with its next ones it comes last.
template <class T>
class Turns {
  public:
    using Queue = std::deque<T>;

    // All of them; none if memory runs out.
    void put(const std::string& client, std::vector<T> some) {
        if (some.empty()) return;
        std::list<Client> fresh;
        auto own = find(client);
        if (own == clients_.end()) own = fresh.insert(fresh.end(), {client, {}});
        own->queue.insert(own->queue.end(), std::make_move_iterator(some.begin()),
                          std::make_move_iterator(some.end()));
        clients_.splice(clients_.end(), fresh);
        size_ += some.size();
    }

    // Of the next client that has an entry for which `takes` is true, the first such entry.
    template <class Takes>
    std::optional<T> take(Takes&& takes) {
        for (auto next = clients_.begin(); next != clients_.end(); ++next) {
            const auto one = std::find_if(next->queue.begin(), next->queue.end(), takes);
            if (one == next->queue.end()) continue;
            std::optional<T> out(std::move(*one));
            next->queue.erase(one);
            --size_;
            clients_.splice(clients_.end(), clients_, next);
            if (next->queue.empty()) clients_.erase(next);
            return out;
        }
        return std::nullopt;
    }
    std::optional<T> take() {
        return take([](const T&) { return true; });
    }

    // Of the longest queue that gives any, the latest gives(queue) entries.
    template <class Gives>
    std::vector<T> take_latest(Gives&& gives) {
        auto longest = clients_.end();
        std::size_t count = 0;
        for (auto at = clients_.begin(); at != clients_.end(); ++at) {
            if (longest != clients_.end() && at->queue.size() <= longest->queue.size()) continue;
            if (const std::size_t given = gives(std::as_const(at->queue)); given > 0) {
                longest = at;
                count = given;
            }
        }
        std::vector<T> out;
        if (count == 0) return out;
        out.reserve(count);  // throws before anything has changed
        const auto first = longest->queue.end() - static_cast<std::ptrdiff_t>(count);
        std::move(first, longest->queue.end(), std::back_inserter(out));
        longest->queue.erase(first, longest->queue.end());
        if (longest->queue.empty()) clients_.erase(longest);
        size_ -= count;
        return out;
    }

    // Erases the entries for which `gone` is true, and returns how many. If it throws, those before
    // are erased.
    template <class Gone>
    std::size_t erase_if(Gone&& gone) {
        const std::size_t before = size_;
        for (auto at = clients_.begin(); at != clients_.end();) {
            Queue& queue = at->queue;
            auto kept = queue.begin(), seen = kept;
            const auto drop = [&] {
                size_ -= static_cast<std::size_t>(seen - kept);
                queue.erase(kept, seen);
                at = queue.empty() ? clients_.erase(at) : std::next(at);
            };
            try {
                for (; seen != queue.end(); ++seen) {
                    if (!gone(*seen)) std::iter_swap(kept++, seen);
                }
            } catch (...) {
                drop();
                throw;
            }
            drop();
        }
        return before - size_;
    }

    std::size_t of(const std::string& client) {
        const auto own = find(client);
        return own == clients_.end() ? 0 : own->queue.size();
    }
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }

  private:
    struct Client {
        std::string name;
        Queue queue;
    };

    auto find(const std::string& client) {
        return std::find_if(clients_.begin(), clients_.end(),
                            [&](const Client& one) { return one.name == client; });
    }

    std::list<Client> clients_;  // no queue is empty; the first is next
    std::size_t size_ = 0;       // entries
};

}  // namespace mr::serve
