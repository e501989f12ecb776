// The deterministic states of a network, made as text reaches them.
//
// A state is a list of configurations: a position in the network, and the stack of rules to return
// to. Stacks and lists are interned and numbered, so a state is a number too, and "the state after
// this byte" is a table lookup once it has been computed.
//
// Every configuration can be completed (Network::need), so none depends on another: lists are cut
// at kMostConfigs, which may allow less, but never anything wrong.
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
    // kDead if the byte is not allowed.
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
    // The number of its configurations.
    std::size_t width(Id state) const { return sets_[state].count; }

    // How many characters of a string may follow, in any order and spelling: a number or
    // kUnbounded. `only`: nothing else may follow but the end of the string.
    struct Room {
        std::uint32_t characters = 0;
        bool only = false;
    };
    Room room(Id state) const;

    // Whether to replace the store. Checked between uses; one use may exceed the limits a little.
    bool full() const { return sets_.size() > kMostSets || frames_.size() > kMostFrames; }
    // The state of this store that corresponds to `state` of another store of the same network.
    Id take(const Store& other, Id state);
    std::size_t size() const { return sets_.size(); }
    std::size_t memory() const;  // bytes, approximately

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
    // Where to continue when a rule ends. Frame 0 is the bottom.
    struct Frame {
        StateId state;
        std::uint32_t count;  // repetitions read so far; kCalled for a call
        std::uint32_t parent;
        std::uint32_t height;
    };
    struct Set {
        std::uint32_t first, count;  // range in configs_
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

    // The set under construction.
    std::vector<Config> made_;
    bool made_complete_ = false;
    std::vector<Item> work_;
    struct Slot {
        Item item;
        std::uint32_t turn;
    };
    static constexpr std::size_t kSlots = 4096;
    std::vector<Slot> slots_;  // hash set of the items of the current turn
    std::uint32_t turn_ = 0;
    std::size_t items_ = 0;
};

// Whether the whole text belongs to the network's language.
bool matches(const Network& network, std::string_view text);

}  // namespace mr::text::grammar
