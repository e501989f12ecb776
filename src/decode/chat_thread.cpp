#include "decode/chat_thread.h"

#include <algorithm>
#include <utility>

namespace mr::decode {

// Whether `text` begins with the text written last and gives the same ids for it. The ranges may
// differ: a template writes "assistant" itself before an answer, and takes it from the message's
// role after it.
bool ChatThread::begins(const text::ChatText& text) const {
    const std::size_t size = text_.bytes.size();
    if (ids_.empty() || !text.bytes.starts_with(text_.bytes)) return false;
    std::size_t same = 0, i = 0;  // bytes up to the first change, between two ranges
    for (; i < text_.user.size() && i < text.user.size(); ++i) {
        const text::LiteralRange &was = text_.user[i], &is = text.user[i];
        if (was.begin != is.begin || was.end != is.end) break;
        same = was.end;
    }
    const text::ChatText was = text_.slice(same), is = text.slice(same, size);
    const auto equal = [](const text::LiteralRange& a, const text::LiteralRange& b) {
        return a.begin == b.begin && a.end == b.end;
    };
    return std::equal(was.user.begin(), was.user.end(), is.user.begin(), is.user.end(), equal) ||
           writer_.encode_rest(was, ids_.front()) == writer_.encode_rest(is, ids_.front());
}

// Returns the byte of `text` up to which the tokens of the last answer spell the same bytes.
// `tokens`: the first token that does not.
std::size_t ChatThread::end_of_answer(const text::ChatText& text, std::size_t& tokens) const {
    const std::size_t begin = text_.bytes.size();
    // An answer must not spell out special tokens of the template: the template's own text begins
    // at the first of them.
    std::size_t most = text.bytes.size();
    std::size_t own = begin;  // where bytes of the template begin
    for (auto range = text.user.begin();; ++range) {
        const std::size_t next = range == text.user.end() ? text.bytes.size() : range->begin;
        if (next > own) {
            const auto ids = tokenizer_.encode(std::string_view(text.bytes).substr(own, next - own),
                                               {.add_special = false, .after = ids_.back()});
            if (std::any_of(ids.begin(), ids.end(),
                            [&](std::int32_t id) { return tokenizer_.is_special(id); })) {
                most = own;
                break;
            }
        }
        if (range == text.user.end()) break;
        own = std::max(own, range->end);
    }
    std::size_t end = begin;
    for (tokens = written_; tokens < ids_.size(); ++tokens) {
        if (tokenizer_.is_special(ids_[tokens])) break;
        const std::string piece = tokenizer_.piece(ids_[tokens]);
        if (end + piece.size() > most || text.bytes.compare(end, piece.size(), piece) != 0) break;
        end += piece.size();
    }
    return end;
}

std::vector<std::int32_t> ChatThread::encode(const text::ChatText& text) const {
    if (!begins(text)) return writer_.encode(text);
    std::size_t tokens = 0;
    const std::size_t end = end_of_answer(text, tokens);
    std::vector<std::int32_t> ids(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(tokens));
    const std::vector<std::int32_t> rest = writer_.encode_rest(text.slice(end), ids.back());
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
}

void ChatThread::go_on(text::ChatText text, std::vector<std::int32_t> ids,
                       const std::vector<std::int32_t>& answer) {
    text_ = std::move(text);
    written_ = ids.size();
    ids_ = std::move(ids);
    ids_.insert(ids_.end(), answer.begin(), answer.end());
}

}  // namespace mr::decode
