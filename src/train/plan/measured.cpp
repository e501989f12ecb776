#include "train/plan/measured.h"

#include "core/error.h"
#include "formats/json.h"

namespace mr::plan {
namespace {

constexpr const char* kRemedy =
    "give what 'millrace bench train MODEL --device cuda --json' writes";

class Reader {
  public:
    Reader(formats::JsonValue root, const std::string& file) : root_(root), file_(file) {}

    std::string text(const char* key) const {
        const formats::JsonValue value = root_[key];
        if (!value.is_string()) fail(key, value, "is no text");
        return value.get<std::string>();
    }
    int whole(const char* key) const {
        const formats::JsonValue value = root_[key];
        if (!value.is_integer_in(1, 1 << 20)) fail(key, value, "must be a positive integer");
        return value.get<int>();
    }
    double positive(const char* key) const {
        const formats::JsonValue value = root_[key];
        if (!value.is_number() || !(value.get<double>() > 0)) fail(key, value, "is not above 0");
        return value.get<double>();
    }
    void require(const char* key, std::string_view word) const {
        const formats::JsonValue value = root_[key];
        if (!(value == word)) fail(key, value, "is not '" + std::string(word) + "'");
    }
    [[noreturn]] void fail(const char* key, formats::JsonValue value, std::string problem) const {
        throw Error::input({.file = file_,
                            .field = key,
                            .value = value.shown(60),
                            .problem = std::move(problem),
                            .remedy = kRemedy});
    }

  private:
    formats::JsonValue root_;
    const std::string& file_;
};

}  // namespace

Measured read_measured(std::string_view json, const std::string& file) {
    const formats::JsonDocument document = formats::JsonDocument::parse(json, file);
    const Reader read(document.root(), file);
    read.require("bench", "train");
    read.require("type", "bf16");
    read.require("objective", "ar");
    Measured out;
    out.model = read.text("model");
    out.device = read.text("device");
    out.batch = read.whole("batch");
    out.seq = read.whole("seq");
    out.accumulate = read.whole("accumulate");
    const auto recompute = model::recompute_of(read.text("recompute"));
    if (!recompute) read.fail("recompute", document.root()["recompute"], "is not known");
    out.recompute = *recompute;
    out.bf16_masters = read.text("masters") == "bf16";
    out.step_seconds = read.positive("ms_per_step") / 1e3;
    return out;
}

double pace_of(const Measured& measured, const ModelSpec& spec, const DeviceSpec& device) {
    ClusterSpec one;
    one.device = device;
    one.link_node = device.link_node;
    one.link_net = device.link_net;
    Job job;
    job.spec = spec;
    job.seq = measured.seq;
    job.batch = std::int64_t{measured.batch} * measured.accumulate;
    job.bf16_masters = measured.bf16_masters;
    job.exact = false;  // one rank adds into one buffer
    Layout layout;
    layout.micro_batches = measured.accumulate;
    layout.recompute = measured.recompute;
    return measured.step_seconds / cost_of(one, job, layout).step();
}

}  // namespace mr::plan
