#include "pooling.h"

#include <limits>

#include "indexing.h"

#define LEVEL pooling  // elements, one by one: the same on every processor
#include "level_elements.h"

using namespace pooling;

namespace {

const int BOUNDS = 5;        // x low, x high, window low, window high, y start
const int DIMS = MAX_DIMS - 1;  // free dims at most

// An element as what it is computed in: f32, or an integer.
void load(int type, const char* at, float& value) { read(type, &value, at, 0, 1); }
void load(int type, const char* at, i64& value) { value = element(type, at); }

void store(int type, char* at, float value) { write(type, at, 0, &value, 1); }
void store(int type, char* at, i64 value) { std::memcpy(at, &value, size_t(size_of(type))); }

// As the type of an integer has it.
float wrapped(int, float value) { return value; }
i64 wrapped(int type, i64 value) {
    char bytes[8];
    i64 result;
    store(type, bytes, value);
    load(type, bytes, result);
    return result;
}

template <class V>
bool keeps(Step step, V best, V next) {
    return step == GREATER_EQUAL ? best >= next : step == GREATER ? best > next : step == LESS_EQUAL ? best <= next : best < next;
}

float combine(Step step, float x, float y) {
    return one_nan(step == ADD ? x + y : step == MULTIPLY_ ? x * y : step == MAX ? maximum(x, y) : minimum(x, y));
}
i64 combine(Step step, i64 x, i64 y) {
    if (step == ADD) return x + y;
    if (step == MULTIPLY_) return i64(uint64_t(x) * uint64_t(y));
    return step == MAX ? (x > y ? x : y) : x < y ? x : y;
}

// Goes to the next place of so many dims, the last one first; false, and back at 0, after the last place.
template <class Count>
bool advance(i64* place, int dims, Count count) {
    for (int d = dims - 1; d >= 0; --d) {
        if (++place[d] < count(d)) return true;
        place[d] = 0;
    }
    return false;
}

// One partition.
template <class V>
struct Partition {
    const Item& item;
    char *y, *x, *source;
    i64 bounds[DIMS * BOUNDS];
    int free;
    V first, absent;

    i64 count(int operand, int dim) const { return item.operands[size_t(operand)].count[dim + 1]; }
    i64 stride(int operand, int dim) const { return item.operands[size_t(operand)].stride[dim + 1]; }
    i64 size(int dim) const { return item.params[size_t(2 + 2 * dim)]; }
    i64 step(int dim) const { return item.params[size_t(3 + 2 * dim)]; }

    // Which element of the window counts, or -1.
    int chosen(const i64* window) const {
        const bool lowest = item.params[1] != 0;
        const int type = int(item.operands[1].type);
        bool known = false;
        V best{};
        int found = -1, number = 0;
        for (int d = 0; d < free; ++d)
            if (window[d] < bounds[d * BOUNDS + 2] || window[d] >= bounds[d * BOUNDS + 3]) return -1;
        i64 tap[DIMS] = {};
        do {
            bool inside = true;
            const char* at = x;
            for (int d = 0; d < free; ++d) {
                const i64 place = window[d] * step(d) + tap[d];
                inside &= place >= bounds[d * BOUNDS] && place < bounds[d * BOUNDS + 1];
                at += place * stride(1, d);
            }
            if (inside || lowest) {
                V value = absent;
                if (inside) load(type, at, value);
                if (!known || !keeps(item.operations[0].step, best, value)) best = value, found = number, known = true;
            }
            ++number;
        } while (advance(tap, free, [&](int d) { return size(d); }));
        return found;
    }

    void run(i64 y_start[DIMS]) {
        const Operand &out = item.operands[0], &given = item.operands[2];
        const int type = int(given.type);
        i64 taps = 1, at[DIMS] = {};
        for (int d = 0; d < free; ++d) taps *= size(d);
        std::vector<int> place;  // of the element that counts in each window
        do place.push_back(chosen(at));
        while (advance(at, free, [&](int d) { return count(2, d); }));
        // each element of y takes the windows that chose it, those of later taps first
        do {
            V total = first;
            i64 tap[DIMS];
            for (int d = 0; d < free; ++d) tap[d] = size(d) - 1;
            for (i64 number = taps - 1; number >= 0; --number) {
                i64 window = 0;
                bool exists = true;
                const char* from = source;
                for (int d = 0; d < free; ++d) {
                    const i64 reach = at[d] + y_start[d] - tap[d], own = reach / step(d);
                    exists &= reach >= 0 && reach % step(d) == 0 && own < count(2, d);
                    window = window * count(2, d) + own;
                    from += own * stride(2, d);
                }
                if (exists && place[size_t(window)] == number) {
                    V value;
                    load(type, from, value);
                    total = wrapped(type, combine(item.operations[1].step, total, value));
                }
                for (int d = free - 1; d >= 0 && --tap[d] < 0; --d) tap[d] = size(d) - 1;
            }
            char* to = y;
            for (int d = 0; d < free; ++d) to += at[d] * stride(0, d);
            store(int(out.type), to, total);
        } while (advance(at, free, [&](int d) { return count(0, d); }));
    }
};

// The bounds of one partition.
void read_bounds(const Operand& operand, const char* at, i64* to) {
    i64 place[MAX_DIMS] = {};
    do {
        const char* from = at;
        for (int d = 1; d < operand.ndims; ++d) from += place[d - 1] * operand.stride[d];
        *to++ = get<int32_t>(from);
    } while (advance(place, operand.ndims - 1, [&](int d) { return operand.count[d + 1]; }));
}

template <class V>
void select(const Item& item, char* const* start, i64 lane, V first, V absent) {
    const Operand &y = item.operands[0], &x = item.operands[1], &source = item.operands[2], &bounds = item.operands[3];
    char* const at[] = {start[0] + lane * y.stride[0], start[1] + lane * x.stride[0], start[2] + lane * source.stride[0]};
    Partition<V> partition{item, at[0], at[1], at[2], {}, y.ndims - 1, first, absent};
    i64 start_of_y[DIMS], of_first[DIMS * BOUNDS];
    read_bounds(bounds, start[3], of_first);  // the part of y is the same in all partitions
    for (int d = 0; d < partition.free; ++d) start_of_y[d] = of_first[d * BOUNDS + 4];
    read_bounds(bounds, start[3] + lane * bounds.stride[0], partition.bounds);
    partition.run(start_of_y);
}

}  // namespace

void select_scatter(const Item& item, char* const* start, i64 first, i64 last) {
    const i64 type = item.operands[1].type, value = item.params[0];
    const bool whole = type >= U8 && type <= PRED;
    for (i64 lane = first; lane < last; ++lane) {
        if (whole) select<i64>(item, start, lane, value, 0);
        else select<float>(item, start, lane, float_of(uint32_t(value)), -std::numeric_limits<float>::infinity());
    }
}
