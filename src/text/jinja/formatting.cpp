// String formatting: "%s" % x, "{}".format(x) and strftime.
#include <fmt/format.h>
#include <locale.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/context.h"
#include "text/jinja/text_ops.h"

namespace mr::text::jinja {
namespace {

constexpr int kWidest = 1000;  // widest field, in characters

// One conversion of a % format: flags, width, precision and letter.
struct Place {
    bool left = false, zero = false, plus = false;
    int width = 0, precision = -1;
    char letter = 0;
};

void put_padded(Context& context, const Place& place, const MarkedText& piece, bool zeros,
                MarkedText& out) {
    context.budget.make(piece.size());
    const Align align = place.left ? Align::left : zeros ? Align::behind_sign : Align::right;
    out.append(padded(context.budget, piece, place.width, align,
                      MarkedText(zeros && !place.left ? "0" : " ")));
}

// At most `precision` characters, if there is one.
MarkedText cut(Context& context, MarkedText piece, int precision) {
    if (precision < 0) return piece;
    const CharIndex chars(context.budget, piece);
    return piece.slice(
        0, chars.byte(std::min<std::size_t>(chars.count(), static_cast<std::size_t>(precision))));
}

int read_small(std::string_view text, std::size_t& i) {
    int out = 0;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') {
        out = out * 10 + (text[i++] - '0');
        if (out > kWidest) throw Failure{"formats a value wider than " + std::to_string(kWidest)};
    }
    return out;
}

Place read_place(std::string_view text, std::size_t& i) {
    Place place;
    for (; i < text.size(); ++i) {
        if (text[i] == '-')
            place.left = true;
        else if (text[i] == '0')
            place.zero = true;
        else if (text[i] == '+')
            place.plus = true;
        else
            break;
    }
    place.width = read_small(text, i);
    if (i < text.size() && text[i] == '.') {
        ++i;
        place.precision = read_small(text, i);
    }
    if (i >= text.size()) throw Failure{"a format ends inside of a place"};
    place.letter = text[i++];
    return place;
}

MarkedText formatted_number(Context& context, const Place& place, const Value& value) {
    if (!is_number(need_defined(value))) {
        throw Failure{"formats " + std::string(value.type_name()) + " as a number"};
    }
    const int precision = place.precision < 0 ? 6 : place.precision;
    const double number = number_of(value);
    std::int64_t room = 0;
    const std::int64_t* exact = integer_of(value, room);
    std::string out;
    std::int64_t digits = 0;  // at least
    switch (place.letter) {
        case 'd':
        case 'i':
        case 'x':
        case 'X':
        case 'o': {
            if (!exact && (place.letter == 'd' || place.letter == 'i') &&
                std::abs(number) < 9.2e18) {
                room = static_cast<std::int64_t>(number);
                exact = &room;
            }
            if (!exact) throw Failure{"formats a float as an integer"};
            out = place.letter == 'x'   ? fmt::format("{:x}", *exact)
                  : place.letter == 'X' ? fmt::format("{:X}", *exact)
                  : place.letter == 'o' ? fmt::format("{:o}", *exact)
                                        : std::to_string(*exact);
            digits = place.precision + (*exact < 0 || place.plus ? 1 : 0);
            break;
        }
        case 'e':
            out = fmt::format("{:.{}e}", number, precision);
            break;
        case 'g':
            out = fmt::format("{:.{}g}", number, precision);
            break;
        case 'F':
            out = fmt::format("{:.{}F}", number, precision);
            break;
        default:
            out = fmt::format("{:.{}f}", number, precision);
    }
    if (place.plus && out.front() != '-') out.insert(0, 1, '+');
    return padded(context.budget, MarkedText(std::move(out)), digits, Align::behind_sign,
                  MarkedText("0"));
}

}  // namespace

MarkedText percent_format(Context& context, const MarkedText& format, const Value& values) {
    const List* list = values.as_list() && values.as_list()->tuple ? values.as_list() : nullptr;
    std::size_t next = 0;
    const auto take = [&]() -> const Value& {
        const std::size_t count = list ? list->items.size() : 1;
        if (next >= count) throw Failure{"a format has more places than values"};
        ++next;
        return list ? list->items[next - 1] : values;
    };
    const std::string& text = format.bytes();
    context.budget.make(text.size());
    MarkedText out;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t percent = std::min(text.find('%', i), text.size());
        out.append(format, i, percent);
        if (percent == text.size()) break;
        i = percent + 1;
        if (i < text.size() && text[i] == '(') throw Failure{"formats by name are not supported"};
        const Place place = read_place(text, i);
        switch (place.letter) {
            case '%':
                out.append(format, percent, percent + 1);
                break;
            case 's':
            case 'r': {
                MarkedText piece;
                if (place.letter == 's') {
                    write_text(context.budget, take(), piece);
                } else {
                    write_repr(context.budget, take(), piece);
                }
                put_padded(context, place, cut(context, std::move(piece), place.precision), false,
                           out);
                break;
            }
            case 'd':
            case 'i':
            case 'x':
            case 'X':
            case 'o':
            case 'e':
            case 'f':
            case 'F':
            case 'g':
                put_padded(context, place, formatted_number(context, place, take()), place.zero,
                           out);
                break;
            default:
                throw Failure{std::string("the format %") + place.letter + " is not supported"};
        }
    }
    if (list && next < list->items.size()) throw Failure{"a format has fewer places than values"};
    if (!list && next == 0 && !values.as_map()) {
        throw Failure{"a format has fewer places than values"};
    }
    return out;
}

MarkedText brace_format(Context& context, const MarkedText& format, const Args& args) {
    const std::string& text = format.bytes();
    context.budget.make(text.size());
    MarkedText out;
    std::size_t next = 0;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t brace = std::min(text.find_first_of("{}", i), text.size());
        out.append(format, i, brace);
        if (brace == text.size()) break;
        if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
            out.append(format, brace, brace + 1);
            i = brace + 2;
            continue;
        }
        const std::size_t end = text.find('}', brace);
        if (text[brace] == '}' || end == std::string::npos)
            throw Failure{"a format has an odd brace"};
        const std::string name = text.substr(brace + 1, end - brace - 1);
        const Value* value = nullptr;
        const bool number = name.find_first_not_of("0123456789") == std::string::npos;
        if (number && name.size() < 6) {
            const std::size_t index = name.empty() ? next++ : std::stoul(name);
            if (index < args.positional.size()) value = &args.positional[index];
        }
        for (const auto& [key, held] : args.named) {
            if (key == name) value = &held;
        }
        if (!value) throw Failure{"a format has no value for {" + name + "}"};
        write_text(context.budget, *value, out);
        i = end + 1;
    }
    return out;
}

std::string format_time(std::string_view format, const std::tm& time) {
    constexpr std::string_view kKnown = "aAbBcdHIjmMpSUwWxXyYZzeDFTRhnt%";
    std::string out;
    for (std::size_t i = 0; i < format.size(); ++i) {
        if (format[i] != '%') {
            out += format[i];
            continue;
        }
        std::string one = "%";
        if (++i < format.size() && (format[i] == '-' || format[i] == '_')) one += format[i++];
        if (i >= format.size() || kKnown.find(format[i]) == std::string_view::npos) {
            throw Failure{"strftime_now does not know " +
                          (i < format.size() ? one + format[i] : one)};
        }
        one += format[i];
        // English, and so the same tokens, whatever the locale.
        static const locale_t kEnglish = ::newlocale(LC_ALL_MASK, "C", nullptr);
        char buffer[128];
        out.append(buffer, ::strftime_l(buffer, sizeof buffer, one.c_str(), &time, kEnglish));
    }
    return out;
}

}  // namespace mr::text::jinja
