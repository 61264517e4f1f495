#include "strips.h"

#include "threads.h"

namespace {

const i64 STRIP_BYTES = 1 << 17;  // of all operands of one item: a part of what a processor's own cache holds
const i64 LONG_BYTES = 1 << 18;   // of all operands: from here on they do not stay in that cache from item to item
const i64 LEAST_LANES = 4;        // of a strip
const i64 LEAST_STRIPS = 8;       // that a thread takes at a time, where there are many

i64 lane_bytes(const Item& item) {
    i64 bytes = 0;
    for (const Operand& operand : item.operands) {
        if (operand.base < 0) continue;
        i64 count = 1;
        for (int d = 1; d < operand.ndims; ++d) count *= operand.stride[d] ? operand.count[d] : 1;
        bytes += count * size_of(int(operand.type));
    }
    return bytes;
}

struct Strips {
    const Kernels* kernels;
    Item* const* items;
    char* const (*start)[MAX_OPERANDS];
    int count;
    i64 lanes;
};

void run_item(const Kernels& kernels, const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    switch (item.kind) {
        case MAP: return kernels.map(item, start, first, last, w);
        case ACCUMULATE: return kernels.accumulate(item, start, first, last, w);
        case COPY: return kernels.copy(item.nest, size_of(int(item.operands[0].type)), start[0], start[1], first, last);
        case SELECT: return kernels.select(item, start, first, last, w);
        case BITS: return kernels.bits(item, start, first, last, w);
        case INTEGER: return kernels.integer(item, start, first, last, w);
        case REDUCE: return kernels.reduce(item, start, first, last, w);
        default: return kernels.scan(item, start, first, last, w);
    }
}

void call_strips(void* data, i64 first, i64 last, Workspace& workspace) {
    const Strips& job = *static_cast<Strips*>(data);
    for (i64 strip = first; strip < last; ++strip)
        for (int k = 0; k < job.count; ++k) {
            const Lanes& lanes = job.items[k]->lanes;
            i64 from = strip * job.lanes - lanes.first, to = from + job.lanes;
            from = from < 0 ? 0 : from, to = to > lanes.count ? lanes.count : to;
            if (from < to) run_item(*job.kernels, *job.items[k], job.start[k], from * lanes.units, to * lanes.units, workspace);
        }
}

}  // namespace

Lanes lanes_of(const Item& item) {
    const Nest& nest = item.nest;
    i64 units = nest.rows;
    switch (item.kind) {
        case MAP: case COPY: case SELECT: case BITS: case INTEGER: break;
        case REDUCE: case SCAN: units = nest.rows * nest.inner; break;
        case ACCUMULATE: units = nest.rows / item.params.back(); break;
        default: return {};
    }
    Lanes found{};
    for (const Operand& operand : item.operands) {
        if (operand.base < 0 || !operand.lanes) continue;
        const bool whole = operand.lane_dim == 0 && operand.count[0] == operand.lanes;
        if (!whole || (found.count && (found.first != operand.lane || found.count != operand.lanes))) return {};
        found.first = operand.lane, found.count = operand.lanes;
    }
    // partitions are the outermost dim, since they lie farther apart than their bytes reach
    if (found.count < 2 || item.operands[0].count[0] != found.count || units % found.count) return {};
    found.units = units / found.count;
    return found;
}

bool is_long(const Item& item) { return lane_bytes(item) * item.lanes.count >= LONG_BYTES; }

bool Outside::admits(const Item& item, const Place* places) const {
    for (size_t o = 0; o < item.operands.size(); ++o)
        for (int k = 0; k < count; ++k)
            if (item.operands[o].base >= 0 && (written[k] || is_written(item, o)) && places[o].meets(all[k])) return false;
    return true;
}

void Outside::add(const Item& item, const Place* places) {
    for (size_t o = 0; o < item.operands.size(); ++o)
        if (item.operands[o].base >= 0 && places[o].base < 0) all[count] = places[o], written[count++] = is_written(item, o);
}

void run_in_strips(const Kernels& kernels, Item* const* items, char* const (*start)[MAX_OPERANDS], int count) {
    i64 most = 1, end = 0;
    for (int k = 0; k < count; ++k) {
        const i64 bytes = lane_bytes(*items[k]), last = items[k]->lanes.first + items[k]->lanes.count;
        most = bytes > most ? bytes : most;
        end = last > end ? last : end;
    }
    i64 lanes = STRIP_BYTES / most;
    lanes = lanes < LEAST_LANES ? LEAST_LANES : lanes > end ? end : lanes;
    Strips job{&kernels, items, start, count, lanes};
    const i64 strips = (end + lanes - 1) / lanes;
    in_parallel(strips, strips / LEAST_STRIPS > 1 ? strips / LEAST_STRIPS : 1, call_strips, &job);
}
