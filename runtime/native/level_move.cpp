// Bits moved and selected.
#include "level.h"
#include "level_elements.h"

namespace LEVEL {
namespace {

template <class T>
void copy_row(char* to, i64 to_stride, const char* from, i64 from_stride, i64 n) {
    if (from_stride == 0) {
        const T value = get<T>(from);
        if (to_stride == i64(sizeof(T)))
            for (i64 i = 0; i < n; ++i) put<T>(to + i * sizeof(T), value);
        else
            for (i64 i = 0; i < n; ++i) put<T>(to + i * to_stride, value);
        return;
    }
    if (to_stride == i64(sizeof(T))) {
        _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) put<T>(to + i * sizeof(T), get<T>(from + i * from_stride));
        return;
    }
    _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) put<T>(to + i * to_stride, get<T>(from + i * from_stride));
}

template <class P, class D>
void select_row(char* to, i64 to_stride, const char* other, const char* by, i64 by_stride, const char* from, i64 stride, i64 n, bool zero, P counts) {
    const bool dense = to_stride == i64(sizeof(D)) && by_stride == i64(sizeof(P));
    if (dense && stride == 0) {
        const D value = get<D>(from), flip = D(0) - D(zero);
        _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) {
            const D kept = get<D>(other + i * sizeof(D)), mask = D(D((get<P>(by + i * sizeof(P)) & counts) == 0) - D(1)) ^ flip;
            put<D>(to + i * sizeof(D), D((value & mask) | (kept & D(~mask))));
        }
        return;
    }
    if (dense && stride == i64(sizeof(D))) {
        _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) {
            const D kept = get<D>(other + i * sizeof(D)), taken = get<D>(from + i * sizeof(D));
            put<D>(to + i * sizeof(D), ((get<P>(by + i * sizeof(P)) & counts) == 0) == zero ? taken : kept);
        }
        return;
    }
    for (i64 i = 0; i < n; ++i) {  // without a branch, which nobody could predict
        const D kept = get<D>(other + i * to_stride), taken = get<D>(from + i * stride);
        const D mask = D(0) - D(((get<P>(by + i * by_stride) & counts) == 0) == zero);
        put<D>(to + i * to_stride, D((taken & mask) | (kept & D(~mask))));
    }
}

// `other`: the elements that stay, as far apart as the results.
template <class P>
void select_of(int size, char* to, i64 ts, const char* other, const char* by, i64 bs, const char* from, i64 fs, i64 n, bool zero, P counts) {
    if (bs == 0) {  // one for the row
        if (((get<P>(by) & counts) == 0) != zero) {
            if (other == to) return;
            from = other, fs = ts;
        }
        if (size == 1) return copy_row<uint8_t>(to, ts, from, fs, n);
        if (size == 2) return copy_row<uint16_t>(to, ts, from, fs, n);
        return copy_row<uint32_t>(to, ts, from, fs, n);
    }
    if (size == 1) return select_row<P, uint8_t>(to, ts, other, by, bs, from, fs, n, zero, counts);
    if (size == 2) return select_row<P, uint16_t>(to, ts, other, by, bs, from, fs, n, zero, counts);
    return select_row<P, uint32_t>(to, ts, other, by, bs, from, fs, n, zero, counts);
}

// Words [first, last) of each of n rows, `from_pitch` bytes apart, become rows `to_pitch` bytes apart.
void turn_words(char* to, i64 to_pitch, const char* from, i64 from_pitch, i64 first, i64 last, i64 n) {
    i64 row = first;
#if defined(__AVX2__)
    for (; row + 8 <= last; row += 8) {
        i64 i = 0;
        for (; i + 8 <= n; i += 8) {
            __m256 r[8];
            for (int k = 0; k < 8; ++k) r[k] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + (i + k) * from_pitch) + row);
            turn(r);
            for (int k = 0; k < 8; ++k) _mm256_storeu_ps(reinterpret_cast<float*>(to + (row + k) * to_pitch) + i, r[k]);
        }
        for (; i < n; ++i)
            for (int k = 0; k < 8; ++k)
                put<uint32_t>(to + (row + k) * to_pitch + i * 4, get<uint32_t>(from + i * from_pitch + (row + k) * 4));
    }
#endif
    for (; row < last; ++row) copy_row<uint32_t>(to + row * to_pitch, 4, from + row * 4, from_pitch, n);
}

}  // namespace

const i64 AHEAD = 8192;
const i64 FEW = 8;  // elements of rows that are copied column by column, where there are more rows than that

// Whether the last dim is better the one before it, and the other way round.
static bool is_short(const Nest& nest, int size) {
    const int d = nest.ndims - 1;
    const bool together = nest.stride[0][d] == size && nest.stride[1][d] == size && nest.inner * size > 4;
    return d > 0 && nest.inner < FEW && nest.count[d - 1] >= 2 * FEW && !together;
}

static void copy_rows(const Nest& nest, int size, char* to, const char* from, i64 first, i64 last) {
    char* const start[] = {to, const_cast<char*>(from)};
    Rows rows(nest, 2, start, first);
    const i64 n = nest.inner, ts = rows.step(0), fs = rows.step(1);
    if (size == 4 && ts == 4 && fs != 4 && nest.ndims == 2 && nest.stride[1][0] == 4)
        return turn_words(to, nest.stride[0][0], from, fs, first, last, n);
    // main memory is far: rows are asked for so many bytes in advance
    const i64 distance = n * size >= 256 && n * size <= AHEAD / 2 ? AHEAD / (n * size) : 1;
    Rows ahead(nest, 2, start, first + distance < last ? first + distance : first);
    for (i64 row = first; row < last; ++row) {
        char *y = rows.at[0], *x = rows.at[1];
        rows.next();
        if (row + distance < last) {
            for (int o = 0; o < 2; ++o) expect(ahead.at[o], ahead.step(o) * n);
            ahead.next();
        }
        if (ts == size && fs == size) {
            std::memmove(y, x, n * size);
            continue;
        }
        switch (size) {
            case 1: copy_row<uint8_t>(y, ts, x, fs, n); break;
            case 2: copy_row<uint16_t>(y, ts, x, fs, n); break;
            case 4:
                if (ts == 4 && fs == 8) read_pairs(y, x, n);
                else if (ts == 8 && fs == 4) write_pairs(y, x, n);
                else copy_row<uint32_t>(y, ts, x, fs, n);
                break;
            default: copy_row<uint64_t>(y, ts, x, fs, n); break;
        }
    }
}

// Operand 0 of the nest gets the bits of operand 1, rows [first, last).
void copy(const Nest& nest, int size, char* to, const char* from, i64 first, i64 last) {
    const int d = nest.ndims - 1;
    const i64 many = d ? nest.count[d - 1] : 1, begin = (first + many - 1) / many, end = last / many;
    if (!is_short(nest, size) || begin >= end) return copy_rows(nest, size, to, from, first, last);
    Nest other = nest;
    other.count[d - 1] = nest.inner, other.count[d] = other.inner = many;
    other.rows = nest.rows / many * nest.inner;
    for (int o = 0; o < 2; ++o) other.stride[o][d - 1] = nest.stride[o][d], other.stride[o][d] = nest.stride[o][d - 1];
    copy_rows(nest, size, to, from, first, begin * many);
    copy_rows(other, size, to, from, begin * nest.inner, end * nest.inner);
    copy_rows(nest, size, to, from, end * many, last);
}

// Operands: result, predicate, source, and what is kept where that is not in the result yet (`Item::merges`). params: whether it is taken where the predicate is 0, perhaps the constant, and
// whether the predicate is a float, whose sign does not count.
void select(const Item& item, char* const* start, i64 first, i64 last, Workspace&) {
    const int size = size_of(int(item.operands[0].type)), by = size_of(int(item.operands[1].type));
    const bool zero = item.params[0] != 0;
    const size_t at = item.operands[2].base < 0 ? 2 : 1;
    const uint32_t counts = item.params.size() > at && item.params[at] ? ~(1u << (by * 8 - 1)) : ~0u;
    Rows rows(item.nest, item.merges ? 4 : 3, start, first);
    const i64 n = item.nest.inner, s0 = rows.step(0), s1 = rows.step(1), s2 = rows.step(2);
    for (i64 row = first; row < last; ++row) {
        char *y = rows.at[0], *p = rows.at[1], *x = rows.at[2], *other = item.merges ? rows.at[3] : y;
        rows.next();
        if (row + 1 < last) expect_row(item, rows, n);
        if (by == 1) select_of<uint8_t>(size, y, s0, other, p, s1, x, s2, n, zero, uint8_t(counts));
        else if (by == 2) select_of<uint16_t>(size, y, s0, other, p, s1, x, s2, n, zero, uint16_t(counts));
        else select_of<uint32_t>(size, y, s0, other, p, s1, x, s2, n, zero, counts);
    }
}

}  // namespace LEVEL
