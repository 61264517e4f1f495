// Bits moved, selected and combined, and exact integers.
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
void select_row(char* to, i64 to_stride, const char* by, i64 by_stride, const char* from, i64 stride, i64 n, bool zero) {
    if (to_stride == i64(sizeof(D)) && by_stride == i64(sizeof(P)) && stride == i64(sizeof(D))) {
        _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) {
            const D kept = get<D>(to + i * sizeof(D)), taken = get<D>(from + i * sizeof(D));
            put<D>(to + i * sizeof(D), (get<P>(by + i * sizeof(P)) == 0) == zero ? taken : kept);
        }
        return;
    }
    for (i64 i = 0; i < n; ++i) {  // without a branch, which nobody could predict
        const D kept = get<D>(to + i * to_stride), taken = get<D>(from + i * stride);
        const D mask = D(0) - D((get<P>(by + i * by_stride) == 0) == zero);
        put<D>(to + i * to_stride, D((taken & mask) | (kept & D(~mask))));
    }
}

template <class P>
void select_of(int size, char* to, i64 ts, const char* by, i64 bs, const char* from, i64 fs, i64 n, bool zero) {
    if (bs == 0) {  // one for the row
        if ((get<P>(by) == 0) != zero) return;
        if (size == 1) return copy_row<uint8_t>(to, ts, from, fs, n);
        if (size == 2) return copy_row<uint16_t>(to, ts, from, fs, n);
        return copy_row<uint32_t>(to, ts, from, fs, n);
    }
    if (size == 1) return select_row<P, uint8_t>(to, ts, by, bs, from, fs, n, zero);
    if (size == 2) return select_row<P, uint16_t>(to, ts, by, bs, from, fs, n, zero);
    return select_row<P, uint32_t>(to, ts, by, bs, from, fs, n, zero);
}

template <class T>
void widen(i64* to, const char* from, i64 stride, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] = i64(get<T>(from + i * stride));
}

void read_integers(int type, i64* to, const char* from, i64 stride, i64 n) {
    switch (type) {
        case S8: return widen<int8_t>(to, from, stride, n);
        case U16: return widen<uint16_t>(to, from, stride, n);
        case S16: return widen<int16_t>(to, from, stride, n);
        case U32: return widen<uint32_t>(to, from, stride, n);
        case S32: return widen<int32_t>(to, from, stride, n);
        default: return widen<uint8_t>(to, from, stride, n);
    }
}

template <class T>
void cut(char* to, i64 stride, const i64* from, i64 n) {
    for (i64 i = 0; i < n; ++i) put<T>(to + i * stride, T(from[i]));
}

void write_integers(int size, char* to, i64 stride, const i64* from, i64 n) {
    if (size == 1) return cut<uint8_t>(to, stride, from, n);
    if (size == 2) return cut<uint16_t>(to, stride, from, n);
    return cut<uint32_t>(to, stride, from, n);
}

// Values as elements of an integer type hold them: wrapped, sign or zeros in front.
void wrap(int type, i64* x, i64 n) {
    switch (type) {
        case S8: EACH x[i] = int8_t(x[i]); return;
        case U16: EACH x[i] = uint16_t(x[i]); return;
        case S16: EACH x[i] = int16_t(x[i]); return;
        case U32: EACH x[i] = uint32_t(x[i]); return;
        case S32: EACH x[i] = int32_t(x[i]); return;
        default: EACH x[i] = uint8_t(x[i]); return;
    }
}

// HLO's rules: x / 0 has all bits set, x % 0 is x, shifts by the width or more move all bits out.
void combine(Step step, int type, i64* a, const i64* b, i64 n) {
    const i64 width = size_of(type) * 8, mask = (i64(1) << width) - 1;
#define OP(NAME, VALUE) \
    case NAME: \
        for (i64 i = 0; i < n; ++i) { const i64 x = a[i], y = b[i]; (void)y; a[i] = VALUE; } \
        return;
    switch (step) {
        OP(ADD, x + y)
        OP(SUBTRACT, x - y)
        OP(MULTIPLY_, i64(uint64_t(x) * uint64_t(y)))
        OP(DIVIDE, y == 0 ? -1 : x / y)
        OP(REMAINDER, y == 0 ? x : x % y)
        OP(MAX, x > y ? x : y)
        OP(MIN, x < y ? x : y)
        OP(AND, x & y)
        OP(OR, x | y)
        OP(XOR, x ^ y)
        OP(SHIFT_LEFT, (y & mask) < width ? i64(uint64_t(x) << (y & mask)) : 0)
        OP(SHIFT_RIGHT, (y & mask) < width ? (x & mask) >> (y & mask) : 0)
        OP(SHIFT_RIGHT_ARITHMETIC, (i64(uint64_t(x) << (64 - width)) >> (64 - width)) >>
            ((y & mask) < width ? (y & mask) : width - 1))
        OP(MULTIPLY_HIGH, i64((uint64_t(x) * uint64_t(y)) >> width))
        OP(EQUAL, x == y)
        OP(NOT_EQUAL, x != y)
        OP(GREATER_EQUAL, x >= y)
        OP(GREATER, x > y)
        OP(LESS_EQUAL, x <= y)
        OP(LESS, x < y)
        OP(ABS, x < 0 ? -x : x)
        OP(SIGN, (x > 0) - (x < 0))
        OP(POPCOUNT, __builtin_popcountll(uint64_t(x & mask)))
        OP(LEADING_ZEROS, (x & mask) ? __builtin_clzll(uint64_t(x & mask)) - (64 - width) : width)
        default: return;
    }
#undef OP
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

// Operand 0 of the nest gets the bits of operand 1, rows [first, last).
void copy(const Nest& nest, int size, char* to, const char* from, i64 first, i64 last) {
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
            expect_row(ahead, n);
            ahead.next();
        }
        if (ts == size && fs == size) {
            std::memmove(y, x, n * size);
            continue;
        }
        switch (size) {
            case 1: copy_row<uint8_t>(y, ts, x, fs, n); break;
            case 2: copy_row<uint16_t>(y, ts, x, fs, n); break;
            case 4: copy_row<uint32_t>(y, ts, x, fs, n); break;
            default: copy_row<uint64_t>(y, ts, x, fs, n); break;
        }
    }
}

// Operands: result, predicate, source. params[0]: taken where the predicate is 0.
void select(const Item& item, char* const* start, i64 first, i64 last, Workspace&) {
    const int size = size_of(int(item.operands[0].type)), by = size_of(int(item.operands[1].type));
    const bool zero = item.params[0] != 0;
    Rows rows(item.nest, 3, start, first);
    const i64 n = item.nest.inner, s0 = rows.step(0), s1 = rows.step(1), s2 = rows.step(2);
    for (i64 row = first; row < last; ++row) {
        char *y = rows.at[0], *p = rows.at[1], *x = rows.at[2];
        rows.next();
        if (row + 1 < last) expect_row(rows, n);
        if (by == 1) select_of<uint8_t>(size, y, s0, p, s1, x, s2, n, zero);
        else if (by == 2) select_of<uint16_t>(size, y, s0, p, s1, x, s2, n, zero);
        else select_of<uint32_t>(size, y, s0, p, s1, x, s2, n, zero);
    }
}

namespace {

// Calls f(rows, offset within the row, length) for blocks of all rows.
template <class F>
void row_blocks(const Item& item, char* const* start, i64 first, i64 last, F f) {
    Rows rows(item.nest, int(item.operands.size()), start, first);
    for (i64 row = first; row < last; ++row, rows.next())
        for (i64 done = 0; done < item.nest.inner; done += BLOCK)
            f(rows, done, item.nest.inner - done < BLOCK ? item.nest.inner - done : BLOCK);
}

bool is_comparison(Step step) { return step >= EQUAL && step <= LESS; }

// Whether all elements of a chain have 32 bits, but for a truth value in the end, and no step needs more.
bool is_of_words(const Item& item) {
    if (item.operations.empty()) return false;
    const bool truth = is_comparison(item.operations.back().step) && size_of(int(item.operands[0].type)) == 1;
    for (size_t o = truth; o < item.operands.size(); ++o)
        if (size_of(int(item.operands[o].type)) != 4) return false;
    for (const Operation& operation : item.operations) switch (operation.step) {
            case ADD: case SUBTRACT: case MULTIPLY_: case AND: case OR: case XOR: case NOT: break;
            case SHIFT_LEFT: case SHIFT_RIGHT: case SHIFT_RIGHT_ARITHMETIC: break;
            case MAX: case MIN: case MULTIPLY_HIGH: case DIVIDE: case REMAINDER: break;
            case ABS: case SIGN: case POPCOUNT: case LEADING_ZEROS: break;
            case EQUAL: case NOT_EQUAL: case GREATER_EQUAL: case GREATER: case LESS_EQUAL: case LESS: break;
            default: return false;
        }
    return true;
}

// How many bits are ones; not in the form that compilers replace by an instruction for one word at a time.
inline uint32_t ones(uint32_t x) {
    x = (x & 0x55555555) + (x >> 1 & 0x55555555);
    x = (x & 0x33333333) + (x >> 2 & 0x33333333);
    x = (x & 0x0F0F0F0F) + (x >> 4 & 0x0F0F0F0F);
    x = (x & 0x00FF00FF) + (x >> 8 & 0x00FF00FF);
    return (x & 0x3F) + (x >> 16);
}

inline uint32_t zeros_in_front(uint32_t x) {
    for (int shift = 1; shift < 32; shift *= 2) x |= x >> shift;
    return ones(~x);
}

// x / y towards zero: FP64 is exact enough, since a quotient that is no integer is farther than 2^-32 of itself from one.
inline uint32_t quotient(uint32_t x, uint32_t y, uint32_t top) {
    const double magic = 0x1p52;
    const uint32_t a = x & top ? 0 - x : x, b = y & top ? 0 - y : y;
    const uint64_t wide_a = 0x4330000000000000 | a, wide_b = 0x4330000000000000 | (b ? b : 1);
    double p, q;
    std::memcpy(&p, &wide_a, 8), std::memcpy(&q, &wide_b, 8);
    const double exact = (p - magic) / (q - magic), nearest = exact + magic, whole = nearest - magic > exact ? nearest - 1 : nearest;
    uint64_t bits;
    std::memcpy(&bits, &whole, 8);
    return y == 0 ? ~0u : (x ^ y) & top ? 0 - uint32_t(bits) : uint32_t(bits);
}

template <class F>
inline void each_word(char* to, const char* a, const char* b, bool one_a, bool one_b, int n, F f) {
    const uint32_t x = get<uint32_t>(a), y = get<uint32_t>(b);
    if (one_b) {
        EACH put<uint32_t>(to + i * 4, f(get<uint32_t>(a + i * 4), y));
    } else if (one_a) {
        EACH put<uint32_t>(to + i * 4, f(x, get<uint32_t>(b + i * 4)));
    } else {
        EACH put<uint32_t>(to + i * 4, f(get<uint32_t>(a + i * 4), get<uint32_t>(b + i * 4)));
    }
}

// `top` is the sign bit where numbers have one: with it turned they are ordered as those without.
void combine_words(Step step, uint32_t top, char* to, const char* a, const char* b, bool one_a, bool one_b, int n) {
#define OP(NAME, VALUE) \
    case NAME: return each_word(to, a, b, one_a, one_b, n, [=](uint32_t x, uint32_t y) { (void)y, (void)top; return VALUE; });
    switch (step) {
        OP(ADD, x + y)
        OP(SUBTRACT, x - y)
        OP(MULTIPLY_, x * y)
        OP(DIVIDE, quotient(x, y, top))
        OP(REMAINDER, y == 0 ? x : x - y * quotient(x, y, top))
        OP(AND, x & y)
        OP(OR, x | y)
        OP(XOR, x ^ y)
        OP(NOT, ~x)
        OP(MAX, (x ^ top) > (y ^ top) ? x : y)
        OP(MIN, (x ^ top) < (y ^ top) ? x : y)
        OP(EQUAL, uint32_t(x == y))
        OP(NOT_EQUAL, uint32_t(x != y))
        OP(GREATER_EQUAL, uint32_t((x ^ top) >= (y ^ top)))
        OP(GREATER, uint32_t((x ^ top) > (y ^ top)))
        OP(LESS_EQUAL, uint32_t((x ^ top) <= (y ^ top)))
        OP(LESS, uint32_t((x ^ top) < (y ^ top)))
        OP(MULTIPLY_HIGH, uint32_t(uint64_t(x) * y >> 32) - (x & top ? y : 0) - (y & top ? x : 0))
        OP(SHIFT_LEFT, y < 32 ? x << (y & 31) : 0)
        OP(SHIFT_RIGHT, y < 32 ? x >> (y & 31) : 0)
        OP(SHIFT_RIGHT_ARITHMETIC, uint32_t(int32_t(x) >> (y < 32 ? y : 31)))
        OP(ABS, x & top ? 0 - x : x)
        OP(SIGN, x & top ? ~0u : uint32_t(x != 0))
        OP(POPCOUNT, ones(x))
        OP(LEADING_ZEROS, zeros_in_front(x))
        default: return;
    }
#undef OP
}

// As bits (with constants of each operation) and integer (with params[0]), where is_of_words.
void words(const Item& item, char* const* start, i64 first, i64 last, Workspace& w, bool own_constants) {
    char *const x = reinterpret_cast<char*>(w.x), *const y = reinterpret_cast<char*>(w.y);
    const uint32_t top = item.operands[1].type == S32 ? 0x80000000 : 0;
    const bool truth = size_of(int(item.operands[0].type)) == 1;
    row_blocks(item, start, first, last, [&](const Rows& rows, i64 done, i64 n) {
        const auto elements = [&](int o, char* buffer, bool& one) -> const char* {
            const i64 stride = rows.step(o);
            const char* from = rows.at[o] + done * stride;
            one = stride == 0;
            if (stride == 4 || one) return from;
            copy_row<uint32_t>(buffer, 4, from, stride, n);
            return buffer;
        };
        char* const result = rows.at[0] + done * rows.step(0);
        char* const target = rows.step(0) == 4 && !truth ? result : x;
        bool one = false;
        const char* value = elements(1, x, one);
        for (const Operation& operation : item.operations) {
            uint32_t same = own_constants ? operation.bits : uint32_t(item.params[0]);
            const char* other = reinterpret_cast<const char*>(&same);
            bool one_other = true;
            if (operation.step != NOT && operation.operand >= 0) other = elements(operation.operand, y, one_other);
            if (one && one_other) copy_row<uint32_t>(x, 4, value, 0, n), value = x, one = false;
            char* const to = &operation == &item.operations.back() ? target : x;
            if (operation.reverse) combine_words(operation.step, top, to, other, value, one_other, one, int(n));
            else combine_words(operation.step, top, to, value, other, one, one_other, int(n));
            value = to;
            one = false;
        }
        if (truth) {
            const i64 step = rows.step(0);
            if (step == 1) EACH result[i] = x[i * 4];
            else EACH result[i * step] = x[i * 4];
        } else if (target == x) {
            copy_row<uint32_t>(result, rows.step(0), x, 4, n);
        }
    });
}

// Bytes, one beside the other, of which one AND, OR or XOR makes others.
bool is_of_bytes(const Item& item) {
    for (size_t o = 0; o < item.operands.size(); ++o)
        if (size_of(int(item.operands[o].type)) != 1 || item.nest.stride[o][item.nest.ndims - 1] != 1) return false;
    const Operation& operation = item.operations[0];
    const bool known = operation.step == AND || operation.step == OR || operation.step == XOR;
    return item.operations.size() == 1 && operation.operand >= 0 && known;
}

void bytes(const Item& item, char* const* start, i64 first, i64 last) {
    const Operation& operation = item.operations[0];
    row_blocks(item, start, first, last, [&](const Rows& rows, i64 done, i64 n) {
        char* const to = rows.at[0] + done;
        const char *a = rows.at[1] + done, *b = rows.at[operation.operand] + done;
        switch (operation.step) {
            case AND: EACH to[i] = char(a[i] & b[i]); break;
            case OR: EACH to[i] = char(a[i] | b[i]); break;
            default: EACH to[i] = char(a[i] ^ b[i]);
        }
    });
}

}  // namespace

// Operands: result, first source, others; all of one width. A chain of bit operations.
void bits(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    if (is_of_words(item)) return words(item, start, first, last, w, true);
    if (is_of_bytes(item)) return bytes(item, start, first, last);
    const int size = size_of(int(item.operands[0].type));
    const int type = size == 1 ? U8 : size == 2 ? U16 : U32;
    row_blocks(item, start, first, last, [&](const Rows& rows, i64 done, i64 n) {
        read_integers(type, w.x, rows.at[1] + done * rows.step(1), rows.step(1), n);
        for (const Operation& operation : item.operations) {
            if (operation.step == NOT) {
                for (i64 i = 0; i < n; ++i) w.x[i] = ~w.x[i];
                wrap(type, w.x, n);
                continue;
            }
            if (operation.operand < 0) {
                for (i64 i = 0; i < n; ++i) w.y[i] = operation.bits;
            } else {
                const int o = operation.operand, other = size_of(int(item.operands[o].type));
                const int unsigned_type = other == 1 ? U8 : other == 2 ? U16 : U32;
                read_integers(unsigned_type, w.y, rows.at[o] + done * rows.step(o), rows.step(o), n);
            }
            wrap(type, w.y, n);
            if (operation.reverse) {
                combine(operation.step, type, w.y, w.x, n);
                std::memcpy(w.x, w.y, n * sizeof(i64));
            } else {
                combine(operation.step, type, w.x, w.y, n);
            }
            wrap(type, w.x, n);
        }
        write_integers(size, rows.at[0] + done * rows.step(0), rows.step(0), w.x, n);
    });
}

// Operands: result, a and perhaps b, else the constant in params[0]. One exact operation on elements of a's type.
void integer(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    if (is_of_words(item)) return words(item, start, first, last, w, false);
    const int type = int(item.operands[1].type), size = size_of(int(item.operands[0].type));
    const Operation& operation = item.operations[0];
    const bool truth = is_comparison(operation.step);
    row_blocks(item, start, first, last, [&](const Rows& rows, i64 done, i64 n) {
        read_integers(type, w.x, rows.at[1] + done * rows.step(1), rows.step(1), n);
        if (operation.operand < 0)
            for (i64 i = 0; i < n; ++i) w.y[i] = item.params[0];
        else
            read_integers(int(item.operands[2].type), w.y, rows.at[2] + done * rows.step(2), rows.step(2), n);
        wrap(type, w.y, n);
        i64* result = operation.reverse ? w.y : w.x;
        combine(operation.step, type, result, operation.reverse ? w.x : w.y, n);
        if (!truth) wrap(type, result, n);
        write_integers(size, rows.at[0] + done * rows.step(0), rows.step(0), result, n);
    });
}

}  // namespace LEVEL
