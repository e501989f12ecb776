#include "serve/calls.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace mr::serve {

using Kind = CallPart::Kind;

namespace {

constexpr std::size_t kMostNameLetters = 64;  // text/grammar/tools.h

// Whether `text` is {"name": "NAME", "arguments": { with or without the blanks; empty: it may
// become one.
std::optional<bool> is_call_head(std::string_view text, std::string& name) {
    bool short_of = false;
    const auto literal = [&](std::string_view word) {
        const std::string_view there = text.substr(0, word.size());
        if (there != word.substr(0, there.size())) return false;
        short_of = short_of || there.size() < word.size();
        text.remove_prefix(there.size());
        return true;
    };
    const auto blank = [&] { text.remove_prefix(text.starts_with(' ')); };
    if (!literal("{\"name\":")) return false;
    blank();
    if (!literal("\"")) return false;
    const std::size_t letters = std::min(text.find('"'), text.size());
    if (letters > kMostNameLetters) return false;
    name = text.substr(0, letters);
    text.remove_prefix(letters);
    if (!literal("\",")) return false;
    blank();
    if (!literal("\"arguments\":")) return false;
    blank();
    if (!literal("{")) return false;
    return short_of ? std::nullopt : std::optional(true);
}

}  // namespace

CallReader::CallReader(text::grammar::ToolForm form)
    : form_(std::move(form)), state_(form_.tagged() ? State::text : State::start) {}

// Merges adjacent parts of one kind.
void CallReader::add(std::vector<CallPart>& out, Kind kind, std::string_view bytes) {
    const bool joins = kind == Kind::text || kind == Kind::arguments;
    if (joins && !out.empty() && out.back().kind == kind) {
        out.back().bytes += bytes;
    } else {
        out.push_back({kind, std::string(bytes)});
    }
}

std::vector<CallPart> CallReader::read(std::string_view piece) {
    std::vector<CallPart> out;
    for (const char c : piece) read(c, out);
    return out;
}

std::vector<CallPart> CallReader::finish() {
    std::vector<CallPart> out;
    if (!held_.empty()) {
        add(out, Kind::text, std::exchange(held_, {}));
        state_ = State::free;
    }
    return out;
}

void CallReader::read(char c, std::vector<CallPart>& out) {
    switch (state_) {
        case State::start:
            state_ = c == '{' || c == '[' ? State::between : State::free;
            if (state_ == State::free) return add(out, Kind::text, {&c, 1});
            [[fallthrough]];
        case State::between:
            if (c == '{') {
                state_ = State::header;
                head_ = held_.size();
            } else if (calls_ == 0 && !form_.tagged() && !held_.empty()) {
                state_ = State::free;  // a list of something else
            }
            if (calls_ == 0 || c == '{') held_ += c;
            if (state_ == State::free) add(out, Kind::text, std::exchange(held_, {}));
            return;
        case State::free:
            return add(out, Kind::text, {&c, 1});
        case State::text:
            return read_text(c, out);
        case State::header:
            held_ += c;
            return read_header(out);
        case State::arguments:
            return read_arguments(c, out);
    }
}

// The first byte of a tag occurs only once in it (network_of_tools).
void CallReader::read_text(char c, std::vector<CallPart>& out) {
    if (c != form_.open[held_.size()]) {
        if (!held_.empty()) add(out, Kind::text, std::exchange(held_, {}));
        if (form_.formatted()) state_ = State::free;
        if (form_.formatted() || c != form_.open[0]) return add(out, Kind::text, {&c, 1});
    }
    held_ += c;
    if (held_ == form_.open) state_ = State::between;
}

void CallReader::read_header(std::vector<CallPart>& out) {
    std::string name;
    const auto call = is_call_head(std::string_view(held_).substr(head_), name);
    if (!call) return;
    const auto& names = form_.names;
    const bool known = names.empty() || std::find(names.begin(), names.end(), name) != names.end();
    if (!*call || !known) {
        state_ = State::free;
        return add(out, Kind::text, std::exchange(held_, {}));
    }
    add(out, Kind::call, name);
    held_.clear();
    ++calls_;
    state_ = State::arguments;
    depth_ = 0;
    read_arguments('{', out);
}

void CallReader::read_arguments(char c, std::vector<CallPart>& out) {
    add(out, Kind::arguments, {&c, 1});
    if (quoted_) {
        if (escaped_) {
            escaped_ = false;
        } else if (c == '\\') {
            escaped_ = true;
        } else if (c == '"') {
            quoted_ = false;
        }
        return;
    }
    if (c == '"') quoted_ = true;
    if (c == '{' || c == '[') ++depth_;
    if ((c == '}' || c == ']') && --depth_ == 0) {
        add(out, Kind::end, {});
        state_ = State::between;
    }
}

CalledText read_calls(const text::grammar::ToolForm& form, std::string_view text) {
    CallReader reader(form);
    std::vector<CallPart> parts = reader.read(text);
    CalledText out;
    out.whole = reader.called();
    for (CallPart& part : reader.finish()) parts.push_back(std::move(part));
    for (CallPart& part : parts) {
        switch (part.kind) {
            case Kind::text:
                (out.calls.empty() ? out.text : out.rest) += part.bytes;
                break;
            case Kind::call:
                out.calls.push_back({std::move(part.bytes), {}});
                break;
            case Kind::arguments:
                out.calls.back().arguments += part.bytes;
                break;
            case Kind::end:
                out.calls.back().whole = true;
                break;
        }
    }
    return out;
}

}  // namespace mr::serve
