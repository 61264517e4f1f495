#include "pieces.h"

#include "strips.h"

namespace {

const i64 LEAST_PIECE = 256;  // elements: finding those of fewer takes longer than what is gained
const i64 MOST_PIECE = 2048;

i64 columns_of(const Nest& nest) { return nest.inner * (nest.ndims == 3 ? nest.count[1] : 1); }

bool is_elementwise(const Item& item) {
    const bool known = item.kind == MAP || item.kind == COPY || item.kind == SELECT || item.kind == BITS || item.kind == INTEGER;
    return known && (item.nest.ndims == 2 || item.nest.ndims == 3);
}

// What an operand touches of the first partition. `all`: bytes from the first element to the one behind the last, if all
// are equally far apart, else 0.
struct Row {
    const char *from, *to;
    i64 step, all, size;
    bool written;
};

Row row_of(const Item& item, size_t o, const char* start) {
    const Nest& nest = item.nest;
    const int d = nest.ndims - 1;
    const i64 step = nest.stride[o][d], size = size_of(int(item.operands[o].type));
    i64 below = 0, above = 0;
    for (int dim = 1; dim <= d; ++dim) {
        const i64 reach = (nest.count[dim] - 1) * nest.stride[o][dim];
        (reach < 0 ? below : above) += reach;
    }
    const bool even = step > 0 && (d == 1 || nest.stride[o][1] == nest.inner * step);
    return {start + below, start + above + size, step, even ? step * columns_of(nest) : 0, size, is_written(item, o)};
}

// Whether a piece of one row meets the same piece of the other one alone, where they meet.
bool keep_to_pieces(const Row& a, const Row& b) {
    if (a.to <= b.from || b.to <= a.from) return true;
    const Row &first = a.from <= b.from ? a : b, &second = a.from <= b.from ? b : a;
    return a.all && a.all == b.all && (second.from - first.from) + second.size <= second.step && first.size <= first.step;
}

// Whether each piece of the items depends on the same piece alone.
bool are_apart(Item* const* items, char* const (*start)[MAX_OPERANDS], int count) {
    Row rows[MOST_IN_STRIPS * MAX_OPERANDS];
    int item_of[MOST_IN_STRIPS * MAX_OPERANDS], found = 0;
    for (int k = 0; k < count; ++k)
        for (size_t o = 0; o < items[k]->operands.size(); ++o)
            if (items[k]->operands[o].base >= 0) item_of[found] = k, rows[found++] = row_of(*items[k], o, start[k][o]);
    for (int a = 0; a < found; ++a)
        for (int b = 0; rows[a].written && b < found; ++b)
            if (item_of[a] != item_of[b] && !keep_to_pieces(rows[a], rows[b])) return false;
    return true;
}

}  // namespace

i64 column_at(const Nest& nest, size_t operand, i64 column) {
    const i64* stride = nest.stride[operand];
    if (nest.ndims == 2) return column * stride[1];
    return column / nest.inner * stride[1] + column % nest.inner * stride[2];
}

void cut(Nest& nest, i64 pieces) {
    const i64 columns = columns_of(nest) / pieces;
    for (auto& stride : nest.stride) stride[1] = stride[nest.ndims - 1];
    nest.ndims = 2, nest.rows = nest.count[0], nest.count[1] = nest.inner = columns;
}

i64 pieces_of(Item* const* items, char* const (*start)[MAX_OPERANDS], int count, i64 kept, i64 room) {
    if (!kept) return 1;  // long rows are copied faster than short ones
    i64 most = 0;
    for (int k = 0; k < count; ++k) {
        const Item& item = *items[k];
        if (!is_elementwise(item) || item.lanes.first != items[0]->lanes.first || item.lanes.count != items[0]->lanes.count) return 1;
        const i64 columns = columns_of(item.nest);
        most = columns > most ? columns : most;
    }
    i64 pieces = (most + MOST_PIECE - 1) / MOST_PIECE;
    if (pieces * room < kept) pieces = (kept + room - 1) / room;
    const auto fits = [&](const Nest& nest) {
        const i64 columns = columns_of(nest);
        return columns % pieces == 0 && nest.inner % (columns / pieces) == 0;
    };
    for (; pieces * LEAST_PIECE <= most; ++pieces) {
        bool all = true;
        for (int k = 0; k < count && all; ++k) all = fits(items[k]->nest);
        if (all) return pieces == 1 || are_apart(items, start, count) ? pieces : 1;
    }
    return 1;
}
