// Turns the words that encode.py writes into items: joins dims, finds operands that may overlap.
#include "decode.h"

#include <cstring>
#include <memory>

#include "loans.h"
#include "one_hot.h"
#include "strips.h"

bool same_coefs(const Operand& a, const Operand& b) {
    return a.ncoefs == b.ncoefs && !std::memcmp(a.place, b.place, sizeof(i64) * a.ncoefs) &&
           !std::memcmp(a.coef, b.coef, sizeof(i64) * a.ncoefs);
}

namespace {

// Gives 0 behind the end.
struct Reader {
    const i64 *at, *end;
    bool broken = false;

    i64 next() {
        if (at < end) return *at++;
        broken = true;
        return 0;
    }

    // How many things of at least one word each follow, at most `most`.
    i64 next_count(i64 most) {
        const i64 count = next();
        if (count >= 0 && count <= most && count <= end - at) return count;
        broken = true;
        return 0;
    }
};

Operand read_operand(Reader& words) {
    Operand o{};
    o.base = words.next(), o.type = words.next(), o.offset = words.next();
    o.lane = words.next(), o.lane_dim = int(words.next());
    o.ncoefs = int(words.next_count(MAX_DIMS));
    for (int c = 0; c < o.ncoefs; ++c) o.place[c] = words.next(), o.coef[c] = words.next();
    o.ndims = int(words.next_count(MAX_DIMS));
    for (int d = 0; d < o.ndims; ++d) o.count[d] = words.next(), o.stride[d] = words.next();
    return o;
}

void read_item(Reader& words, Item& item) {
    const i64 any = words.end - words.at;
    item.kind = Kind(words.next());
    item.number = words.next();
    item.results = int(words.next());
    for (i64 n = words.next_count(any); n > 0; --n) item.params.push_back(words.next());
    for (i64 n = words.next_count(any); n > 0; --n) {
        Operation operation{};
        operation.step = Step(words.next()), operation.operand = int(words.next());
        operation.reverse = words.next() != 0, operation.bits = uint32_t(words.next());
        item.operations.push_back(operation);
    }
    for (i64 n = words.next_count(MAX_OPERANDS); n > 0; --n) item.operands.push_back(read_operand(words));
}

// How many items the words are, at most.
size_t count_items(Reader words) {
    size_t count = 0;
    const auto skip = [&](i64 each) {
        const i64 n = words.next_count(words.end - words.at);
        words.at += n * each < words.end - words.at ? n * each : words.end - words.at;
    };
    for (; words.at < words.end && !words.broken; ++count) {
        for (int k = 0; k < 3; ++k) words.next();
        skip(1), skip(4);
        for (i64 n = words.next_count(MAX_OPERANDS); n > 0; --n) {
            for (int k = 0; k < 5; ++k) words.next();
            skip(2), skip(2);
        }
    }
    return count;
}

// The dims [first, last) of some operands, which agree in their counts.
Nest join(const std::vector<const Operand*>& operands, int first, int last) {
    Nest nest{};
    auto stride = [&](size_t o, int d) -> i64& { return nest.stride[o][d]; };
    int n = 0;
    for (int d = first; d < last; ++d) {
        const i64 count = operands[0]->count[d];
        if (count == 1) continue;
        bool joins = n > 0;
        for (size_t o = 0; o < operands.size() && joins; ++o)
            joins = stride(o, n - 1) == count * operands[o]->stride[d];
        if (joins) --n, nest.count[n] *= count;
        else nest.count[n] = count;
        for (size_t o = 0; o < operands.size(); ++o) stride(o, n) = operands[o]->stride[d];
        ++n;
    }
    if (n == 0) {
        nest.count[0] = 1;
        for (size_t o = 0; o < operands.size(); ++o) stride(o, 0) = operands[o]->type == RAW8 ? 8 : size_of(operands[o]->type);
        n = 1;
    }
    nest.ndims = n;
    nest.inner = nest.count[n - 1];
    nest.rows = 1;
    for (int d = 0; d + 1 < n; ++d) nest.rows *= nest.count[d];
    return nest;
}

bool same_pattern(const Operand& a, const Operand& b) {
    if (a.ndims != b.ndims || a.lane != b.lane || a.origin != b.origin || size_of(int(a.type)) != size_of(int(b.type)))
        return false;
    for (int d = 0; d < a.ndims; ++d)
        if (a.count[d] != b.count[d] || (a.count[d] > 1 && a.stride[d] != b.stride[d])) return false;
    return true;
}

void find_overlaps(Item& item) {
    const int n = int(item.operands.size());
    for (int a = 0; a < n; ++a) {
        if (!is_written(item, size_t(a))) continue;
        for (int b = 0; b < n; ++b) {
            if (a == b || (b < a && is_written(item, size_t(b)))) continue;
            const Operand &x = item.operands[a], &y = item.operands[b];
            if (x.base != y.base || x.base < 0) continue;
            if (x.lanes && (x.lane >= y.lane + y.lanes || y.lane >= x.lane + x.lanes)) continue;
            if (!same_coefs(x, y)) item.overlaps.push_back({a, b});
            else if (overlap(item, a, b, x.offset, y.offset)) item.overlapped = true;
        }
    }
}

// False when the dims turn out not to be what kernels need.
bool join_item(Item& item) {
    std::vector<const Operand*> all;
    for (const Operand& operand : item.operands) all.push_back(&operand);
    switch (item.kind) {
        case MAP: case COPY: case SELECT: case BITS: case INTEGER:
            item.nest = join(all, 0, all[0]->ndims);
            break;
        case ACCUMULATE:
            item.nest = join(all, 0, all[0]->ndims);
            // the sum's stride is 0 but over partitions, so partitions are the outermost dim, if there are several
            item.params.push_back(item.nest.rows / all[0]->count[0]);
            return item.nest.rows % all[0]->count[0] == 0;
        case REDUCE:  // params: negate, outer dims
            item.nest = join(all, 0, int(item.params[1]));
            item.inside = join({all[1]}, int(item.params[1]), all[1]->ndims);
            break;
        case SCAN:  // the start has the partitions only
            item.nest = join(all, 0, 1);
            item.inside = join({all[0], all[1], all[2]}, 1, all[0]->ndims);
            break;
        case LOAD:
            item.inside = join({all[0]}, 1, all[0]->ndims);
            break;
        case MULTIPLY: {
            item.nest = join({all[0]}, 1, all[0]->ndims);
            item.inside = join({all[1]}, 1, all[1]->ndims);
            const Nest& nest = item.nest;
            if (nest.rows == 1 && (nest.inner == 1 || nest.stride[0][0] == 4)) break;
            char* none = nullptr;
            Rows rows(nest, 1, &none, 0);
            for (i64 row = 0; row < nest.rows; ++row, rows.next())
                for (i64 i = 0; i < nest.inner; ++i) item.columns.push_back((rows.at[0] - none) + i * rows.step(0));
            break;
        }
        case GATHER: case SCATTER:
            item.nest = join({all[0], all[1]}, 1, all[0]->ndims);
            break;
        default:
            break;
    }
    return true;
}

// Whether an item writes all bytes between the first and the last one of its result's partitions, whatever they were.
bool is_whole(const Item& item) {
    if (item.kind == MULTIPLY) return !item.params[0] && item.columns.empty();
    const bool all = item.kind == MAP || item.kind == COPY || item.kind == BITS || item.kind == INTEGER || item.kind == ACCUMULATE;
    const bool column = item.nest.ndims == 1 && item.nest.inner == item.operands[0].lanes && item.operands[0].lane_dim == 0;
    if (!all || !(item.lanes.count || column)) return false;
    const Operand& result = item.operands[0];
    const Nest free = join({&result}, 1, result.ndims);
    return free.ndims == 1 && (free.inner == 1 || free.stride[0][0] == size_of(int(result.type)));
}

// Whether an item takes one element of each operand, at places that no register decides.
bool is_single(const Item& item) {
    if (item.kind != MAP && item.kind != COPY && item.kind != BITS && item.kind != INTEGER && item.kind != REG_LOAD) return false;
    for (const Operand& operand : item.operands)
        if (operand.ncoefs) return false;
    return (item.kind == REG_LOAD || item.nest.rows * item.nest.inner == 1) && !item.overlapped;
}

// Whether one operand fits nowhere in its memory, whatever the registers say.
bool is_outside(const Item& item) {
    for (const Operand& operand : item.operands)
        if (operand.base >= 0 && operand.high < operand.low) return true;
    return false;
}

bool are_bound(Item& item, const Limits& limits) {
    for (Operand& operand : item.operands)
        if (!bound(operand, limits)) return false;
    return item.results <= int(item.operands.size());
}

// Whether the chain of a MAP or ACCUMULATE reads and writes f32 elements where they lie, or one for a row.
bool is_plain(const Item& item) {
    if ((item.kind != MAP && item.kind != ACCUMULATE) || !item.nest.ndims) return false;
    const size_t chain = item.operands.size() - (item.kind == ACCUMULATE);
    for (size_t o = 0; o < chain; ++o) {
        const i64 stride = item.nest.stride[o][item.nest.ndims - 1];
        if (item.operands[o].type != F32 || item.operands[o].base < 0 || (stride != 4 && (o == 0 || stride != 0))) return false;
    }
    return true;
}

// Checks and completes an item; false when kernels must not be given it.
bool prepare(Item& item, const Limits& limits) {
    if (!are_bound(item, limits)) return false;
    if (!is_sound(item, limits) || is_outside(item)) return false;
    find_overlaps(item);
    if (!join_item(item)) return false;
    const Nest &nest = item.nest, &inside = item.inside;
    item.lanes = lanes_of(item);
    item.home = item.nest;
    item.whole = is_whole(item);
    item.plain = is_plain(item);
    item.single = is_single(item);
    item.one_hot = can_be_one_hot(item);
    item.lendable = can_be_lent(item);
    if (item.kind == LOAD || item.kind == MULTIPLY) item.pitch = item.operands.back().stride[0];
    item.effort = 64;
    if (nest.ndims) item.effort += nest.rows * nest.inner * (inside.ndims ? inside.rows * inside.inner : 1) / 16;
    if (item.kind == GATHER || item.kind == SCATTER) item.effort += (item.effort - 64) * item.operands[2].count[0];
    if (item.kind == GROUP_GATHER || item.kind == GROUP_SCATTER) item.effort += item.operands[2].lanes * item.operands[2].count[1];
    if (item.kind == SELECT_SCATTER) {  // every window is looked at, every element looks for windows
        i64 taps = 1, elements = item.operands[0].lanes;
        for (size_t p = 2; p < item.params.size(); p += 2) taps *= item.params[p];
        for (int d = 1; d < item.operands[0].ndims; ++d) elements *= item.operands[0].count[d];
        item.effort += elements * taps;
    }
    return true;
}

}  // namespace

namespace {

// The bytes that an operand touches lie in windows that begin at `start`, modulo `period`.
struct Window {
    i64 start, length;
};

Window window_of(const Operand& o, i64 offset, i64 period) {
    i64 below = 0, above = size_of(int(o.type));
    for (int d = 0; d < o.ndims; ++d) {
        if (d == o.lane_dim || o.stride[d] % period == 0) continue;
        const i64 reach = (o.count[d] - 1) * o.stride[d];
        (reach < 0 ? below : above) += reach;
    }
    return {offset + below, above - below};
}

// Whether the operands interleave, like the halves of rows, without a common byte: it is enough that their windows are
// apart modulo the length of a row.
bool interleave(const Operand& x, const Operand& y, i64 offset_x, i64 offset_y) {
    for (int d = 0; d < x.ndims; ++d) {
        const i64 period = x.stride[d] < 0 ? -x.stride[d] : x.stride[d];
        if (d == x.lane_dim || x.count[d] == 1 || period == 0) continue;
        const Window a = window_of(x, offset_x, period), b = window_of(y, offset_y, period);
        const i64 apart = ((b.start - a.start) % period + period) % period;
        if (a.length <= apart && b.length <= period - apart) return true;
    }
    return false;
}

}  // namespace

bool overlap(const Item& item, int a, int b, i64 offset_a, i64 offset_b) {
    const Operand &x = item.operands[a], &y = item.operands[b];
    if (offset_a + x.above + size_of(int(x.type)) <= offset_b + y.below) return false;
    if (offset_b + y.above + size_of(int(y.type)) <= offset_a + x.below) return false;
    if (item.elementwise && offset_a == offset_b && same_pattern(x, y)) return false;
    return !interleave(x, y, offset_a, offset_b);
}

Code* decode(const i64* words, i64 count, const Limits& limits) {
    std::unique_ptr<Code> code(new Code);
    Reader reader{words, words + count};
    std::vector<i64> open;
    code->items.reserve(count_items(reader));
    while (reader.at < reader.end) {
        code->items.emplace_back();
        Item& item = code->items.back();
        read_item(reader, item);
        if (reader.broken) return nullptr;
        item.elementwise = item.kind == MAP || item.kind == ACCUMULATE || item.kind == COPY || item.kind == SELECT || item.kind == BITS ||
                           item.kind == INTEGER || item.kind == SCAN;
        item.overlapped = false;
        item.effort = 64;
        const i64 index = i64(code->items.size()) - 1;
        if (item.kind == LOOP || item.kind == WHILE || item.kind == BRANCH) {
            if (!is_sound(item, limits)) return nullptr;
            open.push_back(index);
            if (item.kind == BRANCH) item.columns.push_back(index + 1);
            for (size_t p = item.kind == LOOP ? 2 : item.kind == WHILE ? 3 : 2; p < item.params.size(); ++p) {
                if (item.params[p] >= code->slots) code->slots = item.params[p] + 1;
                if (item.kind == LOOP) break;
            }
        } else if (item.kind == ELSE) {
            if (open.empty() || code->items[size_t(open.back())].kind != BRANCH) return nullptr;
            item.jump = open.back();
            code->items[size_t(open.back())].columns.push_back(index + 1);
        } else if (item.kind == END) {
            if (open.empty()) return nullptr;
            Item& start = code->items[size_t(open.back())];
            if (start.kind == BRANCH && i64(start.columns.size()) != start.params[0]) return nullptr;
            item.jump = open.back();
            start.jump = index;
            open.pop_back();
        } else if (item.kind == FALLBACK ? !are_bound(item, limits) : !prepare(item, limits)) {
            if (item.kind == LOAD || item.kind == MULTIPLY) return nullptr;
            item.kind = FALLBACK;
            item.operands.clear();
        }
    }
    i64 run = 0;
    bool worth = false;
    for (size_t k = code->items.size(); k-- > 0;) {
        Item& item = code->items[k];
        run = item.lanes.count ? run + 1 : 0;
        worth = item.lanes.count && (worth || is_long(item));
        item.strips = worth && run > 1 ? run : 0;
    }
    return open.empty() ? code.release() : nullptr;
}
