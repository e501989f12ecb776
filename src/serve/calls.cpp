#include "serve/calls.h"

#include <utility>

namespace mr::serve {

using Kind = CallPart::Kind;

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
        state_ = State::text;
    }
    return out;
}

void CallReader::read(char c, std::vector<CallPart>& out) {
    switch (state_) {
        case State::start:
            if (c != '{' && c != '[') {
                state_ = State::text;
                return read_text(c, out);
            }
            state_ = State::between;
            [[fallthrough]];
        case State::between:
            if (calls_ == 0 || c == '{') held_ += c;
            if (c != '{') return;
            state_ = State::header;
            strings_ = 0;
            name_.clear();
            return;
        case State::text:
            return read_text(c, out);
        case State::header:
            held_ += c;
            return read_header(c, out);
        case State::arguments:
            return read_arguments(c, out);
    }
}

// The first byte of a tag occurs only once in it (network_of_tools).
void CallReader::read_text(char c, std::vector<CallPart>& out) {
    if (!form_.tagged()) return add(out, Kind::text, {&c, 1});
    if (c != form_.open[held_.size()]) {
        if (!held_.empty()) add(out, Kind::text, std::exchange(held_, {}));
        if (c != form_.open[0]) return add(out, Kind::text, {&c, 1});
    }
    held_ += c;
    if (held_ == form_.open) state_ = State::between;
}

// The second string is the name, and the arguments begin after the third. None has an escape.
void CallReader::read_header(char c, std::vector<CallPart>& out) {
    if (c == '"') {
        quoted_ = !quoted_;
        if (quoted_) ++strings_;
    } else if (quoted_) {
        if (strings_ == 2) name_ += c;
    } else if (c == '{' && strings_ == 3) {
        add(out, Kind::call, name_);
        held_.clear();
        ++calls_;
        state_ = State::arguments;
        depth_ = 0;
        read_arguments(c, out);
    }
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
