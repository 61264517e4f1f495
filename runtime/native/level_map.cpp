// Chains of f32 operations on elements: read, compute in blocks that stay in the nearest cache, write.
#include "level.h"
#include "level_folds.h"
#include "level_plain.h"
#include "level_rows.h"

namespace LEVEL {
namespace {

// Rows in a buffer, one after the other.
Lines buffered(float* buffer, const Stretches& s) { return {nullptr, buffer, s.length, false}; }

// The elements of an operand as f32: where they are, or in `buffer`, or one a row in `single`.
Lines fetch(const Item& item, int operand, const Stretches& s, float* buffer, float* single) {
    const i64 stride = s.step[operand];
    const int type = int(item.operands[operand].type);
    if (type == F32 && (stride == 4 || stride == 0)) return {&s.at[0][operand], nullptr, 0, stride == 0};
    if (stride == 0) {
        for (int k = 0; k < s.count; ++k) read(type, single + k, s.at[k][operand], 0, 1);
        return {nullptr, single, 1, true};
    }
    for (int k = 0; k < s.count; ++k) read(type, buffer + k * s.length, s.at[k][operand], stride, s.length);
    return buffered(buffer, s);
}

// Every element in its place.
void spread(const Lines& to, const Lines& from, const Stretches& s) {
    const int n = s.length;
    for (int k = 0; k < s.count; ++k) {
        float* d = to.row(k);
        const float *a = from.row(k), same = *a;
        if (d == a && !from.one) continue;
        if (from.one) EACH d[i] = same;
        else EACH d[i] = a[i];
    }
}

// Carries out the chain and leaves the result in `to`; first source is operand `source`.
void chain(const Item& item, int source, const Stretches& s, const Lines& to, Workspace& w) {
    const Lines own = buffered(w.a, s);
    Lines value = fetch(item, source, s, w.a, w.c);
    if (item.operations.empty()) return spread(to, value, s);
    const auto second = [&](const Operation& operation, float* buffer) -> Lines {
        if (operation.operand < 0) return {nullptr, const_cast<float*>(&operation.value), 0, true};
        return fetch(item, operation.operand, s, buffer, buffer);
    };
    for (size_t k = 0; k < item.operations.size(); ++k) {
        const Operation& operation = item.operations[k];
        const bool pair = k + 1 < item.operations.size() && !value.one && is_sum(operation) && is_sum(item.operations[k + 1]);
        k += pair;
        const bool last = k + 1 == item.operations.size();
        const Lines& target = last ? to : own;
        if (pair) {
            arithmetic_pair(&operation, target, value, second(operation, w.b), second(item.operations[k], w.c), s.count, s.length);
        } else if (operation.step < FIRST_UNARY) {
            const Lines other = second(operation, w.b);
            if (value.one && other.one) spread(own, value, s), value = own;
            const Lines &left = operation.reverse ? other : value, &right = operation.reverse ? value : other;
            arithmetic(operation.step, target, left, right, s.count, s.length);
        } else if (s.count == 1 && !value.one) {
            function(operation.step, target.row(0), value.row(0), s.length);
        } else {  // of rows, all of which a function takes together
            spread(own, value, s);
            const bool direct = !target.at && target.step == s.length;
            function(operation.step, direct ? target.base : w.a, w.a, s.count * s.length);
            if (!direct) spread(target, own, s);
        }
        value = target;
    }
}

template <class F>
void each_truth(char* d, const float* a, bool one_a, const float* b, bool one_b, i64 n, F f) {
    const float x = *a, y = *b;
    if (one_a && one_b) std::memset(d, f(x, y), size_t(n));
    else if (one_b) EACH d[i] = char(f(a[i], y));
    else if (one_a) EACH d[i] = char(f(x, b[i]));
    else EACH d[i] = char(f(a[i], b[i]));
}

// Whether an item is one comparison whose results are truth values side by side.
bool makes_truths(const Item& item) {
    if (item.operands[0].type != PRED || item.nest.stride[0][item.nest.ndims - 1] != 1 || item.operations.size() != 1) return false;
    return item.operations[0].step >= EQUAL && item.operations[0].step <= LESS;
}

void truths(const Item& item, const Stretches& s, Workspace& w) {
    const Operation& operation = item.operations[0];
    Lines value = fetch(item, 1, s, w.a, w.c), other{nullptr, const_cast<float*>(&operation.value), 0, true};
    if (operation.operand >= 0) other = fetch(item, operation.operand, s, w.b, w.b);
    const Lines &left = operation.reverse ? other : value, &right = operation.reverse ? value : other;
    for (int k = 0; k < s.count; ++k) {
        const auto make = [&](auto f) { each_truth(s.at[k][0], left.row(k), left.one, right.row(k), right.one, s.length, f); };
        switch (operation.step) {
            case EQUAL: make([](float x, float y) { return x == y; }); break;
            case NOT_EQUAL: make([](float x, float y) { return x != y; }); break;
            case GREATER_EQUAL: make([](float x, float y) { return x >= y; }); break;
            case GREATER: make([](float x, float y) { return x > y; }); break;
            case LESS_EQUAL: make([](float x, float y) { return x <= y; }); break;
            default: make([](float x, float y) { return x < y; });
        }
    }
}

}  // namespace

// Operands: result, first source, others. Rows of the nest.
void map(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    if (item.plain && (item.nest.inner >= LONG || last - first == 1))
        return each_row(item, start, first, last, [&](char* const* at) { whole_row(item, at, reinterpret_cast<float*>(at[0]), w); });
    const int type = int(item.operands[0].type);
    if (makes_truths(item)) return whole_blocks(item, start, first, last, w, [&](const Stretches& s) { truths(item, s, w); });
    whole_blocks(item, start, first, last, w, [&](const Stretches& s) {
        const bool cast = item.operations.empty() && item.operands[1].type == F32 && s.step[1] == 4;
        if (type == F32 && s.step[0] == 4) return chain(item, 1, s, {&s.at[0][0], nullptr, 0, false}, w);
        const Lines made = cast ? Lines{&s.at[0][1], nullptr, 0, false} : buffered(w.a, s);
        if (!cast) chain(item, 1, s, made, w);
        for (int k = 0; k < s.count; ++k) write(type, s.at[k][0], s.step[0], made.row(k), s.length);
    });
}

// As map, for operands of one element.
void map_of_one(const Item& item, char* const* start) {
    const auto element = [&](size_t o) {
        float x;
        const int type = int(item.operands[o].type);
        if (type == F32) return get<float>(start[o]);
        read(type, &x, start[o], 0, 1);
        return x;
    };
    float value = element(1);
    for (const Operation& operation : item.operations) {
        if (operation.step < FIRST_UNARY) {
            const float other = operation.operand >= 0 ? element(size_t(operation.operand)) : operation.value;
            const float x = operation.reverse ? other : value, y = operation.reverse ? value : other;
            if (with_two(operation.step, [&](auto f) { value = f(x, y); })) continue;
            float *left = const_cast<float*>(&x), *right = const_cast<float*>(&y);
            arithmetic(operation.step, {nullptr, &value, 0, false}, {nullptr, left, 0, false}, {nullptr, right, 0, false}, 1, 1);
        } else if (!with_one(operation.step, [&](auto f) { value = f(value); })) {
            const float x = value;
            function(operation.step, &value, &x, 1);
        }
    }
    const int type = int(item.operands[0].type);
    if (type == F32) put(start[0], value);
    else if (type == PRED) *start[0] = char(!(value == 0.f));
    else write(type, start[0], 0, &value, 1);
}

// The sums of `count` rows of n elements.
void add_rows(const float* const* rows, int count, i64 n, float* sums) {
    int k = 0;
    for (; n <= LEAF && k + 4 <= count; k += 4) leaves<4>(rows + k, n, sums + k);
    for (; k < count; ++k) sums[k] = pairwise(rows[k], n);
}

// `accumulate` where each partition has one short row.
void accumulate_short(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    const int type = int(item.operands[0].type), total = int(item.operands.size()) - 1;
    const bool direct = type == F32 && item.nest.stride[0][item.nest.ndims - 1] == 4 && !item.unused;
    blocks(item, start, first, last, [&](const Stretches& s) {
        const float* rows[BLOCK / 2];
        float sums[BLOCK / 2];
        const Lines made = direct ? Lines{&s.at[0][0], nullptr, 0, false} : buffered(w.row, s);
        chain(item, 1, s, made, w);
        for (int k = 0; k < s.count; ++k) rows[k] = made.row(k);
        for (int k = 0; !direct && !item.unused && k < s.count; ++k) write(type, s.at[k][0], s.step[0], rows[k], s.length);
        add_rows(rows, s.count, s.length, sums);
        for (int k = 0; k < s.count; ++k) put<float>(s.at[k][total], one_nan(0.f + sums[k]));
    });
}

// As map; the last operand gets each partition's sum. Units are partitions: params[0] rows of the nest each.
void accumulate(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    const int type = int(item.operands[0].type), total = int(item.operands.size()) - 1;
    const i64 stride = item.nest.stride[0][item.nest.ndims - 1], each = item.params[0];
    // rows that lie one after the other are added up where they are written, or read if that is all that is wanted of them
    const Nest& nest = item.nest;
    const bool one_row = each == 1, f32 = type == F32 && stride == 4, only = item.unused && item.operations.empty();
    const bool as_read = one_row && only && item.operands[1].type == F32 && nest.stride[1][nest.ndims - 1] == 4;
    const bool direct = one_row && f32 && !item.unused;
    if (one_row && !as_read && nest.ndims == 2 && nest.inner < LONG && last - first > 1) return accumulate_short(item, start, first, last, w);
    for (i64 lane = first; lane < last; ++lane) {
        const i64 far = nest.ndims > 1 ? lane : 0;
        const auto at = [&](int o) { return start[o] + far * nest.stride[o][0]; };
        const float* values = w.row;
        if (as_read) {
            values = reinterpret_cast<const float*>(at(1));
            if (lane + 1 < last) expect_next(item, 1, at(1), nest.stride[1][0], nest.inner * 4);
        } else {
            float* value = w.row;
            if (one_row && item.plain && (f32 || item.unused)) {
                char* row[MAX_OPERANDS];
                for (int o = 0; o < total; ++o) row[o] = at(o);
                whole_row(item, row, direct ? reinterpret_cast<float*>(row[0]) : value, w);
            } else blocks(item, start, lane * each, (lane + 1) * each, [&](const Stretches& s) {
                chain(item, 1, s, direct ? Lines{&s.at[0][0], nullptr, 0, false} : buffered(value, s), w);
                for (int k = 0; !direct && !item.unused && k < s.count; ++k) write(type, s.at[k][0], stride, value + k * s.length, s.length);
                value += s.count * s.length;
            });
            if (direct) values = reinterpret_cast<const float*>(at(0));
        }
        put<float>(at(total), one_nan(0.f + pairwise(values, each * nest.inner)));
    }
}

namespace {

const i64 FEW = 8;            // elements below which `pairwise` takes one after the other
const i64 SIDE_BY_SIDE = 16;  // results that are worth working on together

// Folds `count` results side by side, element by element: the bits of `reduce` for few elements, and of extremes. `from`
// is the first element of the first result, results' elements are `stride` bytes apart.
void fold_few(const Item& item, char* from, i64 stride, int count, Workspace& w) {
    const Nest& inside = item.inside;
    const int type = int(item.operands[1].type), n = count;
    const Step step = item.operations[0].step;
    Rows parts(inside, 1, &from, 0);
    bool first = true;
    for (i64 part = 0; part < inside.rows; ++part, parts.next())
        for (i64 k = 0; k < inside.inner; ++k, first = false) {
            read(type, first ? w.a : w.b, parts.at[0] + k * parts.step(0), stride, n);
            if (first) continue;
            if (step == ADD) EACH w.a[i] += w.b[i];
            else if (step == MAX) EACH w.a[i] = maximum(w.a[i], w.b[i]);
            else EACH w.a[i] = minimum(w.a[i], w.b[i]);
        }
    if (step == ADD) EACH w.a[i] = one_nan(0.f + w.a[i]);
    if (item.params[0]) EACH w.a[i] = -w.a[i];
}

const int ABREAST = 64;  // results whose sums are made side by side

// As `pairwise`, of n elements of each of `count` results, which lie side by side; a result's elements are `stride` bytes apart.
void pairwise_abreast(const char* from, i64 stride, i64 n, int count, float* total) {
    const auto row = [&](i64 element) { return reinterpret_cast<const float*>(from + element * stride); };
    const auto add_rest = [&](i64 first) {
        for (i64 e = first; e < n; ++e) {
            const float* x = row(e);
            _Pragma("GCC ivdep") for (int i = 0; i < count; ++i) total[i] += x[i];
        }
    };
    float r[8][ABREAST];
    if (n < 8) {
        for (int i = 0; i < count; ++i) total[i] = -0.f;
        return add_rest(0);
    }
    if (n > 128) {
        const i64 half = n / 2 - n / 2 % 8;
        pairwise_abreast(from, stride, half, count, r[0]);
        pairwise_abreast(from + half * stride, stride, n - half, count, r[1]);
        for (int i = 0; i < count; ++i) total[i] = r[0][i] + r[1][i];
        return;
    }
    for (int j = 0; j < 8; ++j) std::memcpy(r[j], row(j), size_t(count) * sizeof(float));
    for (i64 e = 8; e < n - n % 8; e += 8)
        for (int j = 0; j < 8; ++j) {
            const float* x = row(e + j);
            _Pragma("GCC ivdep") for (int i = 0; i < count; ++i) r[j][i] += x[i];
        }
    for (int i = 0; i < count; ++i)
        total[i] = ((r[0][i] + r[1][i]) + (r[2][i] + r[3][i])) + ((r[4][i] + r[5][i]) + (r[6][i] + r[7][i]));
    add_rest(n - n % 8);
}

}  // namespace

// Operands: result, source; the nest has the outer dims (its last one counts, too), `inside` those that are reduced.
// The one operation is add, max or min; params[0] tells whether the result is negated.
void reduce(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    const Nest &nest = item.nest, &inside = item.inside;
    const int type = int(item.operands[1].type);
    const i64 n = inside.rows * inside.inner, stride = inside.stride[0][inside.ndims - 1];
    const Step step = item.operations[0].step;
    Rows rows(nest, 2, start, first / nest.inner);
    i64 at = first % nest.inner;
    // sums of more go pairwise; extremes do not care, where neighbours are elements of other results
    const bool across = step != ADD && rows.step(1) == size_of(type) && stride != size_of(type);
    const bool few = (n < FEW || across) && nest.inner >= SIDE_BY_SIDE;
    for (i64 unit = first, count; few && unit < last; unit += count) {
        count = nest.inner - at < last - unit ? nest.inner - at : last - unit;
        count = count < BLOCK ? count : i64(BLOCK);
        fold_few(item, rows.at[1] + at * rows.step(1), rows.step(1), int(count), w);
        write(int(item.operands[0].type), rows.at[0] + at * rows.step(0), rows.step(0), w.a, int(count));
        at += count;
        if (at == nest.inner) at = 0, rows.next();
    }
    const bool abreast = !few && step == ADD && type == F32 && inside.rows == 1 && rows.step(1) == 4 && nest.inner >= SIDE_BY_SIDE;
    for (i64 unit = first, count; abreast && unit < last; unit += count) {
        count = nest.inner - at < last - unit ? nest.inner - at : last - unit;
        count = count < ABREAST ? count : i64(ABREAST);
        pairwise_abreast(rows.at[1] + at * 4, stride, n, int(count), w.a);
        for (i64 i = 0; i < count; ++i) w.a[i] = one_nan(0.f + w.a[i]);
        for (i64 i = 0; item.params[0] && i < count; ++i) w.a[i] = -w.a[i];
        write(int(item.operands[0].type), rows.at[0] + at * rows.step(0), rows.step(0), w.a, int(count));
        at += count;
        if (at == nest.inner) at = 0, rows.next();
    }
    const bool lie = inside.rows == 1 && type == F32 && (stride == 4 || n == 1);  // side by side, each result's for itself
    for (i64 unit = first, count; !few && !abreast && unit < last; unit += count) {
        count = !lie ? 1 : nest.inner - at < last - unit ? nest.inner - at : last - unit;
        count = count < BLOCK ? count : i64(BLOCK);
        char* source = rows.at[1] + at * rows.step(1);
        const char* values = source;
        if (!lie) {
            Rows parts(inside, 1, &source, 0);
            for (i64 part = 0; part < inside.rows; ++part, parts.next())
                read(type, w.row + part * inside.inner, parts.at[0], stride, int(inside.inner));
            values = reinterpret_cast<const char*>(w.row);
        }
        if (step == ADD) pairwise_rows(values, rows.step(1), count, n, w.a);
        for (i64 i = 0; i < count; ++i, values += rows.step(1)) {
            const float* row = reinterpret_cast<const float*>(values);
            w.a[i] = step == ADD ? one_nan(0.f + w.a[i]) : step == MAX ? extreme<true>(row, n) : extreme<false>(row, n);
            if (item.params[0]) w.a[i] = -w.a[i];
        }
        write(int(item.operands[0].type), rows.at[0] + at * rows.step(0), rows.step(0), w.a, int(count));
        at += count;
        if (at == nest.inner) at = 0, rows.next();
    }
}

// Operands: result, two sources, one start a partition; all are f32. Each element is op1(op0(a, the one before), b).
// Partitions are worked on side by side, since each of them is one chain.
template <class F>
inline void scan_with(const Item& item, char* const* start, i64 first, i64 last, F f) {
    const int TOGETHER = 8;
    const Nest &nest = item.nest, &inside = item.inside;
    for (i64 lane = first; lane < last; lane += TOGETHER) {
        const int count = int(last - lane < TOGETHER ? last - lane : TOGETHER);
        float state[TOGETHER] = {};
        char* at[3];
        for (int o = 0; o < 3; ++o) at[o] = start[o] + lane * nest.stride[o][0];
        for (int k = 0; k < count; ++k)
            state[k] = get<float>(start[3] + (lane + k) * nest.stride[3][0]);
        Rows rows(inside, 3, at, 0);
        for (i64 row = 0; row < inside.rows; ++row, rows.next()) {
            char* place[3] = {rows.at[0], rows.at[1], rows.at[2]};
            for (i64 i = 0; i < inside.inner; ++i) {
                for (int k = 0; k < count; ++k) {
                    const float a = get<float>(place[1] + k * nest.stride[1][0]);
                    const float b = get<float>(place[2] + k * nest.stride[2][0]);
                    state[k] = f(a, state[k], b);
                    put<float>(place[0] + k * nest.stride[0][0], one_nan(state[k]));
                }
                for (int o = 0; o < 3; ++o) place[o] += rows.step(o);
            }
        }
    }
}

void scan(const Item& item, char* const* start, i64 first, i64 last, Workspace&) {
    const auto both = [&](auto inner) {
        const auto with = [&](auto outer) {
            scan_with(item, start, first, last, [&](float a, float s, float b) { return outer(inner(a, s), b); });
        };
        switch (item.operations[1].step) {
            case ADD: return with([](float x, float y) { return x + y; });
            case MULTIPLY_: return with([](float x, float y) { return x * y; });
            case MAX: return with([](float x, float y) { return maximum(x, y); });
            default: return with([](float x, float y) { return minimum(x, y); });
        }
    };
    switch (item.operations[0].step) {
        case ADD: return both([](float x, float y) { return x + y; });
        case MULTIPLY_: return both([](float x, float y) { return x * y; });
        case MAX: return both([](float x, float y) { return maximum(x, y); });
        default: return both([](float x, float y) { return minimum(x, y); });
    }
}

}  // namespace LEVEL
