// What a command shows as a page: tables and figures as data. The page itself is one static file
// (observe/page/) that holds them as JSON and draws them; it needs no network and no library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/arena.h"
#include "observe/roofline.h"

namespace mr::observe {

// How the numbers of a column are written.
enum class Unit {
    plain,    // text, or a number as it is
    seconds,  // "1.25 ms"
    bytes,    // decimal: "1.2 MB"
    memory,   // binary: "1.00 MiB"
    figure,   // three figures
    count,    // "32.8M"
    fixed4,   // "3.1416"
    factor,   // "2.50x"
    percent,  // of a fraction: "49.2%"
    share,    // ... with a bar
};

// Text, a number, or nothing.
struct Cell {
    Cell() = default;
    Cell(std::string text) : value(std::move(text)) {}
    Cell(const char* text) : value(std::string(text)) {}
    template <typename T>
    requires std::is_arithmetic_v<T> Cell(T number) : value(static_cast<double>(number)) {}

    std::variant<std::monostate, std::string, double> value;
};

struct Table {
    struct Column {
        std::string name;
        Unit unit = Unit::plain;
    };
    struct Row {
        std::vector<Cell> cells;
        bool sum = false;  // in bold
    };
    std::string title;
    std::vector<Column> columns;
    std::vector<Row> rows{};
    std::vector<std::string> notes{};  // below it
    bool keys = false;                 // the first cell of a row names a colour of the figures
};

// Curves over a common axis.
struct Chart {
    struct Curve {
        std::string name;
        std::vector<std::pair<double, double>> points{};  // by rising x; not finite: a gap
        bool dots = false;                                // few points that each count: marked
    };
    struct Level {
        std::string name;
        double y = 0;
    };
    std::string title{}, x_name{};
    std::vector<Curve> curves{};
    std::vector<Level> levels{};  // dashed lines right across
    bool from_zero = false;       // the y axis begins at 0
    // Logarithmic where the values are positive and spread over more than a factor of four.
    bool may_be_log = false;
    std::vector<std::string> notes{};
};

// As many points as a curve is drawn with. Of a longer one, equal shares of its points are drawn as
// their mean, above a paler band from the least to the most of each.
inline constexpr std::size_t kMostCurvePoints = 400;

// What ran when: a row of bars for each track.
struct Timeline {
    struct Bar {
        std::string name;
        double begin = 0, seconds = 0;
        int layer = -1;
        std::uint64_t bytes = 0, flops = 0;
    };
    struct Track {
        std::string name;
        std::vector<Bar> bars{};
    };
    std::string title{};
    std::vector<Track> tracks{};
    double seconds = 0;  // what is in view at first; 0: all of it
    std::vector<std::string> notes{};
};

// Texts as they are, one under the other.
struct Texts {
    struct Part {
        std::string label, text;
    };
    std::string title;
    std::vector<Part> parts{};
};

// A row for each purpose, and the sum; `taken`: what the device says, 0: nothing.
Table plan_table(const MemoryPlan& plan, std::uint64_t taken = 0);

class Page {
  public:
    explicit Page(std::string title) : title_(std::move(title)) {}
    // Under the title.
    void add_line(std::string text) { lines_.push_back(std::move(text)); }
    // Sections, in the order in which they are shown. Those without a row, point or bar are left
    // out.
    void add(const Table& table);
    void add(const Chart& chart);
    void add(const Timeline& timeline);
    void add(const Texts& texts);
    void add(const Roofline& roofline);

    // {"title", "lines": [...], "sections": [{"kind", ...}, ...]}, with the fields of each kind
    // that tests/page/report_fields.json lists. Bytes that are no UTF-8 become U+FFFD.
    std::string json() const;
    // The file: the page with json() in it.
    std::string html() const;

  private:
    std::string title_;
    std::vector<std::string> lines_;
    std::vector<std::string> sections_;  // each as JSON
};

// Through core/output_file.h: whole or not at all. Replaces nothing but an earlier page.
void write_page(const std::string& path, const Page& page);

}  // namespace mr::observe
