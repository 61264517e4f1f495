#include "pooling.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "indexing.h"

#define LEVEL pooling  // elements, one by one: the same on every processor
#include "level_elements.h"

using namespace pooling;

namespace {

const int BOUNDS = 5;        // x low, x high, window low, window high, y start
const int DIMS = MAX_DIMS - 1;  // free dims at most

// As the type of an integer has it.
float wrapped(int, float value) { return value; }
i64 wrapped(int type, i64 value) {
    char bytes[8];
    std::memcpy(bytes, &value, sizeof bytes);
    return element(type, bytes);
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

// A row of elements as what they are computed in.
void load_row(int type, const char* at, i64 stride, float* to, i64 n) { read(type, to, at, stride, int(n)); }
void load_row(int type, const char* at, i64 stride, i64* to, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] = element(type, at + i * stride);
}

void store_row(int type, char* at, i64 stride, const float* from, i64 n) { write(type, at, stride, from, int(n)); }
void store_row(int type, char* at, i64 stride, const i64* from, i64 n) {
    for (i64 i = 0; i < n; ++i) std::memcpy(at + i * stride, from + i, size_t(size_of(type)));
}

// The first of numbers `step` apart, from 0 on, that is `low` at least.
i64 first_from(i64 low, i64 step) { return low <= 0 ? 0 : (low + step - 1) / step; }

// Windows of a row take `value` at tap `number` where what they have does not keep its place.
template <class V, class K>
void take(V* best, int32_t* found, const V* value, int32_t number, i64 n, K keeps) {
    EACH {
        const bool takes = (found[i] < 0) | !keeps(best[i], value[i]);
        best[i] = takes ? value[i] : best[i];
        found[i] = takes ? number : found[i];
    }
}
template <class V>
void take_by(Step step, V* best, int32_t* found, const V* value, int32_t number, i64 n) {
    if (step == GREATER_EQUAL) take(best, found, value, number, n, [](V x, V y) { return x >= y; });
    else if (step == GREATER) take(best, found, value, number, n, [](V x, V y) { return x > y; });
    else if (step == LESS_EQUAL) take(best, found, value, number, n, [](V x, V y) { return x <= y; });
    else take(best, found, value, number, n, [](V x, V y) { return x < y; });
}

// One partition: windows row by row, each row tap by tap, so that neighbours are computed together.
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

    // Calls `visit` with the number of each row of an operand's last dim, and the row's place.
    template <class F>
    void rows(int operand, F visit) const {
        i64 place[DIMS] = {}, number = 0;
        do visit(number++, place);
        while (advance(place, free - 1, [&](int d) { return count(operand, d); }));
    }

    // Which element of each window counts, or -1.
    void choose(std::vector<int32_t>& found) const {
        const bool lowest = item.params[1] != 0;
        const int type = int(item.operands[1].type), last = free - 1;
        const i64 n = count(2, last), low = std::min(n, std::max<i64>(0, bounds[last * BOUNDS + 2]));
        const i64 high = std::min(n, bounds[last * BOUNDS + 3]);
        std::vector<V> of_row(size_t(2 * n), V{});
        V *best = of_row.data(), *value = best + n;
        rows(2, [&](i64 row, const i64* window) {
            for (int d = 0; d < last; ++d)
                if (window[d] < bounds[d * BOUNDS + 2] || window[d] >= bounds[d * BOUNDS + 3]) return;
            int32_t* own = found.data() + row * n;
            int32_t number = 0;
            i64 tap[DIMS] = {};
            do {
                bool inside = true;
                const char* at = x + tap[last] * stride(1, last);
                for (int d = 0; d < last; ++d) {
                    const i64 place = window[d] * step(d) + tap[d];
                    inside &= place >= bounds[d * BOUNDS] && place < bounds[d * BOUNDS + 1];
                    at += place * stride(1, d);
                }
                i64 from = std::max(low, first_from(bounds[last * BOUNDS] - tap[last], step(last)));
                i64 to = std::min(high, first_from(bounds[last * BOUNDS + 1] - tap[last], step(last)));
                if (!inside || from >= to) from = to = low;
                const i64 next = step(last) * stride(1, last);
                if (from < to) load_row(type, at + from * next, next, value + from, to - from);
                if (lowest && low < high) {
                    std::fill(value + low, value + from, absent);
                    std::fill(value + to, value + high, absent);
                    from = low, to = high;
                }
                take_by(item.operations[0].step, best + from, own + from, value + from, number, to - from);
                ++number;
            } while (advance(tap, free, [&](int d) { return size(d); }));
        });
    }

    // Each element of y takes the windows that chose it, those of later taps first.
    template <class C>
    void scatter(const std::vector<int32_t>& found, const i64* y_start, C combined) const {
        const int last = free - 1, type = int(item.operands[2].type);
        const i64 n = count(2, last), m = count(0, last), s = step(last);
        i64 elements = m, taps = 1, tap[DIMS];
        for (int d = 0; d < free; ++d) taps *= size(d), tap[d] = size(d) - 1, elements *= d < last ? count(0, d) : 1;
        std::vector<V> total(size_t(elements), first), given(found.size());
        rows(2, [&](i64 row, const i64* window) {
            const char* from = source;
            for (int d = 0; d < last; ++d) from += window[d] * stride(2, d);
            load_row(type, from, stride(2, last), &given[size_t(row * n)], n);
        });
        for (i64 number = taps - 1; number >= 0; --number) {
            const i64 shift = tap[last] - y_start[last];  // y's place of window 0
            const i64 low = std::min(n, first_from(-shift, s)), high = std::min(n, first_from(m - shift, s));
            rows(2, [&](i64 row, const i64* window) {
                i64 line = 0;
                for (int d = 0; d < last; ++d) {
                    const i64 place = window[d] * step(d) + tap[d] - y_start[d];
                    if (place < 0 || place >= count(0, d)) return;
                    line = line * count(0, d) + place;
                }
                for (i64 w = low; w < high; ++w)
                    if (found[size_t(row * n + w)] == number) {
                        V& sum = total[size_t(line * m + w * s + shift)];
                        sum = wrapped(type, combined(sum, given[size_t(row * n + w)]));
                    }
            });
            for (int d = last; d >= 0 && --tap[d] < 0; --d) tap[d] = size(d) - 1;
        }
        rows(0, [&](i64 row, const i64* place) {
            char* to = y;
            for (int d = 0; d < last; ++d) to += place[d] * stride(0, d);
            store_row(int(item.operands[0].type), to, stride(0, last), &total[size_t(row * m)], m);
        });
    }

    void run(const i64* y_start) const {
        i64 windows = 1;
        for (int d = 0; d < free; ++d) windows *= count(2, d);
        std::vector<int32_t> found(size_t(windows), -1);
        choose(found);
        const Step step = item.operations[1].step;
        scatter(found, y_start, [step](V x, V y) { return combine(step, x, y); });
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
