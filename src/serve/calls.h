// Parses the text of a model that may call tools as it arrives. Its grammar (text/grammar/tools.h)
// guarantees the form; the text may end anywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/tools.h"

namespace mr::serve {

struct CallPart {
    enum class Kind {
        text,
        call,       // a call begins; `bytes` is the tool's name
        arguments,  // a piece of the last call's arguments
        end,        // the last call ends
    };
    Kind kind = Kind::text;
    std::string bytes{};
};

class CallReader {
  public:
    explicit CallReader(text::grammar::ToolForm form = {});

    // Returns the parts that are certain by now: text that may still become a call is held back.
    std::vector<CallPart> read(std::string_view piece);
    // The text has ended: what was held back is plain text.
    std::vector<CallPart> finish();

    // There are calls, and none was cut off.
    bool called() const { return calls_ > 0 && state_ == State::between; }

  private:
    enum class State {
        start,      // before the first byte
        text,       // tagged form: text, or the beginning of a tag
        free,       // text up to the end
        between,    // before or after a call
        header,     // {"name": "...", "arguments":
        arguments,  // inside the arguments
    };
    void read(char c, std::vector<CallPart>& out);
    void read_text(char c, std::vector<CallPart>& out);
    void read_header(std::vector<CallPart>& out);
    void read_arguments(char c, std::vector<CallPart>& out);
    static void add(std::vector<CallPart>& out, CallPart::Kind kind, std::string_view bytes);

    text::grammar::ToolForm form_;
    State state_;
    std::string held_;      // text to return if it turns out to be no call
    std::size_t head_ = 0;  // where a call begins in it
    int calls_ = 0;
    int depth_ = 0;  // of lists and objects in the arguments
    bool quoted_ = false, escaped_ = false;
};

// A complete text.
struct CalledText {
    struct Call {
        std::string name, arguments;
        bool whole = false;
    };
    std::string text{};
    std::vector<Call> calls{};
    std::string rest{};  // behind the calls: of one more that was cut off before its arguments

    bool whole = false;  // there are calls, and none was cut off

    bool called() const { return whole; }
};
CalledText read_calls(const text::grammar::ToolForm& form, std::string_view text);

}  // namespace mr::serve
