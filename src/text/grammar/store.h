// The deterministic states of a network, made as text reaches them.
//
// A state is a list of configurations: where in the network a reading may be, and the stack of
// rules to come back to. Stacks are kept once and named by a number, and so are lists, so a state
// is a number too, and "the state after this byte" is a look into a table once it was asked for.
//
// Every configuration can be completed (Network::need), so none has to be kept for another's sake:
// lists are cut at kMostConfigs, and what is allowed then is less, but never wrong.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/network.h"

namespace mr::text::grammar {

inline constexpr std::size_t kMostConfigs = 256;

class Store {
  public:
    using Id = std::uint16_t;
    static constexpr Id kDead = 0;

    explicit Store(const Network& network);

    Id start() const { return start_; }
    // kDead where the byte is not allowed.
    Id next(Id state, std::uint8_t byte) {
        const Id known = rows_[state][byte];
        return known != kUnknown ? known : make_next(state, byte);
    }
    Id next(Id state, std::string_view text) {
        for (std::size_t i = 0; i < text.size() && state != kDead; ++i) {
            state = next(state, static_cast<std::uint8_t>(text[i]));
        }
        return state;
    }
    bool complete(Id state) const { return sets_[state].complete; }
    // Whether any byte may follow.
    bool open(Id state) const { return sets_[state].count > 0; }
    // Its configurations.
    std::size_t width(Id state) const { return sets_[state].count; }

    // How many characters of a string may follow in whatever order and spelling: kUnbounded, or a
    // number. `only`: and nothing else but the string's end.
    struct Room {
        std::uint32_t characters = 0;
        bool only = false;
    };
    Room room(Id state) const;

    // Time for a fresh one: asked between two uses, so that one use may make a few more.
    bool full() const { return sets_.size() > kMostSets || frames_.size() > kMostFrames; }
    // The state of this store that is `state` of another over the same network.
    Id take(const Store& other, Id state);
    std::size_t size() const { return sets_.size(); }
    std::size_t memory() const;  // bytes, about

  private:
    static constexpr Id kUnknown = 0xFFFF;
    static constexpr std::uint32_t kCalled = ~std::uint32_t{0};
    static constexpr std::size_t kMostSets = 8192;
    static constexpr std::size_t kMostFrames = std::size_t{1} << 18;

    struct Config {
        StateId state;
        std::uint32_t stack;
        bool operator==(const Config&) const = default;
    };
    // Where to go on when a rule ends. Frame 0 is the bottom.
    struct Frame {
        StateId state;
        std::uint32_t count;  // of a repeat: what was read before; kCalled of a call
        std::uint32_t parent;
        std::uint32_t height;
    };
    struct Set {
        std::uint32_t first, count;  // in configs_
        bool complete;
    };
    struct Item {
        StateId state;
        std::uint32_t stack, count;
    };

    Id make_next(Id state, std::uint8_t byte);
    std::uint32_t push(StateId state, std::uint32_t count, std::uint32_t parent);
    bool seen(const Item& item);
    void close(Item from);
    Id intern();

    const Network& network_;
    std::vector<Frame> frames_;
    std::unordered_multimap<std::uint64_t, std::uint32_t> frame_ids_;
    std::vector<Config> configs_;
    std::vector<Set> sets_;
    std::vector<std::array<Id, 256>> rows_;
    std::unordered_multimap<std::uint64_t, Id> set_ids_;
    Id start_ = kDead;

    // The set in the making.
    std::vector<Config> made_;
    bool made_complete_ = false;
    std::vector<Item> work_;
    struct Slot {
        Item item;
        std::uint32_t turn;
    };
    static constexpr std::size_t kSlots = 4096;
    std::vector<Slot> slots_;  // a hash set of the items of this turn
    std::uint32_t turn_ = 0;
    std::size_t items_ = 0;
};

// Whether the whole text is one of the network's.
bool matches(const Network& network, std::string_view text);

}  // namespace mr::text::grammar
