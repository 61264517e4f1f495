// Bits combined and exact integers, as words of 32 bits: elements of fewer get their sign or zeros in front.
#include "level.h"
#include "level_rows.h"

#include <utility>

namespace LEVEL {
namespace {

bool is_comparison(Step step) { return step >= EQUAL && step <= LESS; }

bool is_signed(int type) { return type == S8 || type == S16 || type == S32; }

template <class T>
void widen(uint32_t* to, const char* from, i64 stride, i64 n) {
    if (stride == i64(sizeof(T))) {
        EACH to[i] = uint32_t(int32_t(get<T>(from + i * i64(sizeof(T)))));
    } else if (stride == 0) {
        const uint32_t same = uint32_t(int32_t(get<T>(from)));
        EACH to[i] = same;
    } else {
        for (i64 i = 0; i < n; ++i) to[i] = uint32_t(int32_t(get<T>(from + i * stride)));
    }
}

void read_words(int type, uint32_t* to, const char* from, i64 stride, i64 n) {
    switch (type) {
        case S8: return widen<int8_t>(to, from, stride, n);
        case U16: return widen<uint16_t>(to, from, stride, n);
        case S16: return widen<int16_t>(to, from, stride, n);
        case U32: case S32: return widen<int32_t>(to, from, stride, n);
        default: return widen<uint8_t>(to, from, stride, n);
    }
}

template <class T>
void cut(char* to, i64 stride, const uint32_t* from, i64 n) {
    if (stride == i64(sizeof(T))) EACH put<T>(to + i * i64(sizeof(T)), T(from[i]));
    else for (i64 i = 0; i < n; ++i) put<T>(to + i * stride, T(from[i]));
}

void write_words(int size, char* to, i64 stride, const uint32_t* from, i64 n) {
    if (size == 1) return cut<uint8_t>(to, stride, from, n);
    if (size == 2) return cut<uint16_t>(to, stride, from, n);
    return cut<uint32_t>(to, stride, from, n);
}

template <class T>
void wrap_as(char* x, i64 n) {
    EACH put<uint32_t>(x + i * 4, uint32_t(int32_t(T(get<uint32_t>(x + i * 4)))));
}

// Words as elements of an integer type hold them.
void wrap(int type, char* x, i64 n) {
    switch (type) {
        case S8: return wrap_as<int8_t>(x, n);
        case U16: return wrap_as<uint16_t>(x, n);
        case S16: return wrap_as<int16_t>(x, n);
        case U32: case S32: return;
        default: return wrap_as<uint8_t>(x, n);
    }
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

// The ones, or the zeros in front, of the words' bits in `mask`, less `rest`.
void count_bits(char* to, const char* from, bool in_front, uint32_t mask, uint32_t rest, i64 n) {
    i64 i = 0;
#if defined(__AVX512BW__) && defined(__AVX512CD__)
    const __m512i of = _mm512_set1_epi32(int(mask)), four = _mm512_set1_epi8(15), one = _mm512_set1_epi8(1);
    const __m512i counts = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    for (; i + 16 <= n; i += 16) {
        const __m512i x = _mm512_and_si512(_mm512_loadu_si512(from + i * 4), of);
        __m512i found;
        if (in_front) {
            found = _mm512_sub_epi32(_mm512_lzcnt_epi32(x), _mm512_set1_epi32(int(rest)));
        } else {
            const __m512i low = _mm512_shuffle_epi8(counts, _mm512_and_si512(x, four));
            const __m512i high = _mm512_shuffle_epi8(counts, _mm512_and_si512(_mm512_srli_epi32(x, 4), four));
            found = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_add_epi8(low, high), one), _mm512_set1_epi16(1));
        }
        _mm512_storeu_si512(to + i * 4, found);
    }
#endif
    for (; i < n; ++i) {
        const uint32_t x = get<uint32_t>(from + i * 4) & mask;
        put(to + i * 4, in_front ? zeros_in_front(x) - rest : ones(x));
    }
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

// By squares; a negative exponent gives 0 unless x is 1 or -1.
inline uint32_t power(uint32_t x, uint32_t y, uint32_t top) {
    uint32_t result = 1, square = x, left = y;
    _Pragma("GCC unroll 32") for (int k = 0; k < 32; ++k) {
        result *= left & 1 ? square : 1;
        square *= square, left >>= 1;
    }
    const uint32_t unit = x + 1 <= 2 && x ? (y & 1 ? x : 1) : 0;
    return y & top ? unit : result;
}

template <class F>
inline INLINED void each_word(char* to, const char* a, const char* b, bool one_a, bool one_b, i64 n, F f) {
    const uint32_t x = get<uint32_t>(a), y = get<uint32_t>(b);
    if (one_b) {
        EACH put<uint32_t>(to + i * 4, f(get<uint32_t>(a + i * 4), y));
    } else if (one_a) {
        EACH put<uint32_t>(to + i * 4, f(x, get<uint32_t>(b + i * 4)));
    } else {
        EACH put<uint32_t>(to + i * 4, f(get<uint32_t>(a + i * 4), get<uint32_t>(b + i * 4)));
    }
}

// Calls `each` with what a step makes of two words; false for one that takes rows. HLO's rules: x / 0 has all bits set,
// x % 0 is x, shifts by the width or more move all bits out. Elements have `width` bits. `top` is the sign bit where
// numbers have one: with it turned they are ordered as those without.
template <class F>
inline bool with_words(Step step, uint32_t width, uint32_t top, F each) {
    const uint32_t mask = ~0u >> (32 - width), rest = 32 - width;
#define OP(NAME, VALUE) \
    case NAME: \
        return each([=](uint32_t x, uint32_t y) { \
            (void)y, (void)top, (void)width, (void)mask, (void)rest; \
            return uint32_t(VALUE); \
        }), true;
    switch (step) {
        OP(ADD, x + y)
        OP(SUBTRACT, x - y)
        OP(MULTIPLY_, x * y)
        OP(DIVIDE, quotient(x, y, top))
        OP(REMAINDER, y == 0 ? x : x - y * quotient(x, y, top))
        OP(POWER, power(x, y, top))
        OP(AND, x & y)
        OP(OR, x | y)
        OP(XOR, x ^ y)
        OP(NOT, ~x)
        OP(MAX, (x ^ top) > (y ^ top) ? x : y)
        OP(MIN, (x ^ top) < (y ^ top) ? x : y)
        OP(EQUAL, x == y)
        OP(NOT_EQUAL, x != y)
        OP(GREATER_EQUAL, (x ^ top) >= (y ^ top))
        OP(GREATER, (x ^ top) > (y ^ top))
        OP(LESS_EQUAL, (x ^ top) <= (y ^ top))
        OP(LESS, (x ^ top) < (y ^ top))
        OP(SHIFT_LEFT, y < width ? x << (y & 31) : 0)
        OP(SHIFT_RIGHT, y < width ? (x & mask) >> (y & 31) : 0)
        OP(SHIFT_RIGHT_ARITHMETIC, int32_t(x << rest) >> rest >> (y < width ? y : width - 1))
        OP(ROTATE_LEFT, (y < width ? x << (y & 31) : 0) | (x & mask) >> ((0 - y) & (width - 1)))
        OP(ABS, x & top ? 0 - x : x)
        OP(SIGN, x & top ? ~0u : x != 0)
        default: return false;
    }
#undef OP
}

void combine(Step step, uint32_t width, uint32_t top, char* to, const char* a, const char* b, bool one_a, bool one_b, i64 n) {
    const uint32_t mask = ~0u >> (32 - width), rest = 32 - width;
    if (with_words(step, width, top, [=](auto f) INLINED { each_word(to, a, b, one_a, one_b, n, f); })) return;
    if (step == POPCOUNT || step == LEADING_ZEROS) {
        if (!one_a) return count_bits(to, a, step == LEADING_ZEROS, mask, rest, n);
        uint32_t found;
        count_bits(reinterpret_cast<char*>(&found), a, step == LEADING_ZEROS, mask, rest, 1);
        EACH put<uint32_t>(to + i * 4, found);
    } else if (step == MULTIPLY_HIGH) {
        const auto high = [=](uint32_t x, uint32_t y) {
            return uint32_t(uint64_t(x) * y >> 32) - (x & top ? y : 0) - (y & top ? x : 0);
        };
        const auto part = [=](uint32_t x, uint32_t y) { return x * y >> (width & 31); };
        if (width == 32) each_word(to, a, b, one_a, one_b, n, high);
        else each_word(to, a, b, one_a, one_b, n, part);
    }
}

// Whether there is one operation on rows of words, one beside the other or one for all, which need no buffer.
bool is_direct(const Item& item, const int* types) {
    const Nest& nest = item.nest;
    bool row = false;
    if (nest.ndims > 2 || nest.inner < LONG || item.operations.size() != 1) return false;
    for (size_t o = 0; o < item.operands.size(); ++o) {
        const i64 stride = nest.stride[o][nest.ndims - 1];
        if (size_of(types[o]) != 4 || (stride != 4 && (stride || o == 0))) return false;
        row |= o > 0 && stride;
    }
    return row;
}

void direct(const Item& item, char* const* start, i64 first, i64 last, uint32_t width, uint32_t top, const uint32_t* constant) {
    const Nest& nest = item.nest;
    const Operation& operation = item.operations[0];
    const uint32_t same = constant ? *constant : operation.bits;
    const bool two = operation.step != NOT && operation.operand >= 0;
    const int inner = nest.ndims - 1, o = two ? operation.operand : 1;
    const auto pitch = [&](int k) { return inner ? nest.stride[k][0] : 0; };
    for (i64 row = first; row < last; ++row) {
        char* const to = start[0] + row * pitch(0);
        const char *a = start[1] + row * pitch(1), *b = two ? start[o] + row * pitch(o) : reinterpret_cast<const char*>(&same);
        bool one_a = !nest.stride[1][inner], one_b = !two || !nest.stride[o][inner];
        if (row + 1 < last) {
            expect_next(item, 0, to, pitch(0), nest.inner * 4);
            if (!one_a) expect_next(item, 1, a, pitch(1), nest.inner * 4);
            if (!one_b) expect_next(item, size_t(o), b, pitch(o), nest.inner * 4);
        }
        if (operation.reverse) std::swap(a, b), std::swap(one_a, one_b);
        combine(operation.step, width, top, to, a, b, one_a, one_b, nest.inner);
    }
}

template <class T, class F>
inline INLINED void each_narrow(T* to, const T* a, const T* b, bool one_a, bool one_b, i64 n, F f) {
    const T x = *a, y = *b;
    if (one_b) EACH to[i] = T(f(a[i], y));
    else if (one_a) EACH to[i] = T(f(x, b[i]));
    else EACH to[i] = T(f(a[i], b[i]));
}

// As `with_words`, of what makes the same bits of fewer, in elements of `T`.
template <class T, class F>
inline bool with_narrow(Step step, T top, F each) {
#define OP(NAME, VALUE) \
    case NAME: return each([=](T x, T y) INLINED { return (void)x, (void)y, (void)top, T(VALUE); }), true;
    switch (step) {
        OP(ADD, x + y)
        OP(SUBTRACT, x - y)
        OP(MULTIPLY_, x * y)
        OP(AND, x & y)
        OP(OR, x | y)
        OP(XOR, x ^ y)
        OP(NOT, ~x)
        OP(MAX, T(x ^ top) > T(y ^ top) ? x : y)
        OP(MIN, T(x ^ top) < T(y ^ top) ? x : y)
        OP(EQUAL, x == y)
        OP(NOT_EQUAL, x != y)
        OP(GREATER_EQUAL, T(x ^ top) >= T(y ^ top))
        OP(GREATER, T(x ^ top) > T(y ^ top))
        OP(LESS_EQUAL, T(x ^ top) <= T(y ^ top))
        OP(LESS, T(x ^ top) < T(y ^ top))
        default: return false;
    }
#undef OP
}

bool is_narrow(Step step) {
    return with_narrow<uint8_t>(step, 0, [](auto) {});
}

// A chain on one stretch, in elements of `T`; a result of fewer bytes is cut.
template <class T>
void chain_of(const Item& item, const Stretches& s, uint32_t top, const uint32_t* constant, Workspace& w) {
    T *const x = reinterpret_cast<T*>(w.x), *const to = size_of(int(item.operands[0].type)) == int(sizeof(T)) ? reinterpret_cast<T*>(s.at[0][0]) : x;
    const T* value = reinterpret_cast<const T*>(s.at[0][1]);
    const i64 n = s.length;
    bool one = !s.step[1];
    for (const Operation& operation : item.operations) {
        const T same = T(constant ? *constant : operation.bits), *other = &same;
        const bool two = operation.step != NOT && operation.operand >= 0;
        if (two) other = reinterpret_cast<const T*>(s.at[0][operation.operand]);
        bool one_other = !two || !s.step[operation.operand];
        if (one && one_other) {
            const T first = *value;
            EACH x[i] = first;
            value = x, one = false;
        }
        T* const target = &operation == &item.operations.back() ? to : x;
        const T *a = operation.reverse ? other : value, *b = operation.reverse ? value : other;
        const bool one_a = operation.reverse ? one_other : one, one_b = operation.reverse ? one : one_other;
        with_narrow<T>(operation.step, T(top ? T(1) << (sizeof(T) * 8 - 1) : 0),
                       [=](auto f) INLINED { each_narrow<T>(target, a, b, one_a, one_b, n, f); });
        value = target, one = false;
    }
    if (to == x && value == x) EACH s.at[0][0][i] = char(x[i]);
}

// Whether a chain on one stretch is carried out in elements of its own type, which are of fewer than 4 bytes.
bool narrow(const Item& item, const Stretches& s, const int* types, uint32_t top, const uint32_t* constant, Workspace& w) {
    const int size = size_of(types[1]), result = size_of(int(item.operands[0].type));
    if (s.count != 1 || item.operations.empty() || s.step[0] != result) return false;
    if (result != size && (result != 1 || !is_comparison(item.operations.back().step))) return false;
    for (const Operation& operation : item.operations)
        if (!is_narrow(operation.step)) return false;
    for (size_t o = 1; o < item.operands.size(); ++o)
        if (size_of(types[o]) != size || (s.step[o] != size && s.step[o])) return false;
    if (size == 1) chain_of<uint8_t>(item, s, top, constant, w);
    else chain_of<uint16_t>(item, s, top, constant, w);
    return true;
}

// A chain of operations on elements that are read as `types` and are numbers of the first source's; constants are those
// of the operations, or `constant`.
void words(const Item& item, char* const* start, i64 first, i64 last, Workspace& w, const int* types, const uint32_t* constant) {
    char *const x = reinterpret_cast<char*>(w.x), *const y = reinterpret_cast<char*>(w.y);
    const int type = types[1], size = size_of(int(item.operands[0].type));
    const uint32_t width = uint32_t(size_of(type)) * 8, top = is_signed(type) ? 0x80000000 : 0;
    if (is_direct(item, types)) return direct(item, start, first, last, width, top, constant);
    whole_blocks(item, start, first, last, w, [&](const Stretches& s) {
        if (size_of(type) < 4 && narrow(item, s, types, top, constant, w)) return;
        const i64 n = i64(s.count) * s.length, step = s.step[0];
        const auto elements = [&](int o, char* buffer, bool& one) -> const char* {
            const i64 stride = s.step[o];
            const bool wide = size_of(types[o]) == 4;
            one = wide && stride == 0 && s.count == 1;
            if (one || (wide && stride == 4 && s.count == 1)) return s.at[0][o];
            for (int k = 0; k < s.count; ++k)
                read_words(types[o], reinterpret_cast<uint32_t*>(buffer) + k * s.length, s.at[k][o], stride, s.length);
            if (types[o] != type) wrap(type, buffer, n);
            return buffer;
        };
        char* const target = s.count == 1 && size == 4 && step == 4 ? s.at[0][0] : x;
        bool one = false;
        const char* value = elements(1, x, one);
        for (const Operation& operation : item.operations) {
            uint32_t same = constant ? *constant : operation.bits;
            wrap(type, reinterpret_cast<char*>(&same), 1);
            const char* other = reinterpret_cast<const char*>(&same);
            bool one_other = true;
            if (operation.step != NOT && operation.operand >= 0) other = elements(operation.operand, y, one_other);
            if (one && one_other) read_words(U32, w.x, value, 0, n), value = x, one = false;
            char* const to = &operation == &item.operations.back() ? target : x;
            if (operation.reverse) combine(operation.step, width, top, to, other, value, one_other, one, n);
            else combine(operation.step, width, top, to, value, other, one, one_other, n);
            if (!is_comparison(operation.step)) wrap(type, to, n);
            value = to;
            one = false;
        }
        if (target != x) return;
        for (int k = 0; k < s.count; ++k) write_words(size, s.at[k][0], step, w.x + k * s.length, s.length);
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
    blocks(item, start, first, last, [&](const Stretches& s) {
        const i64 n = s.length;
        for (int k = 0; k < s.count; ++k) {
            char* const to = s.at[k][0];
            const char *a = s.at[k][1], *b = s.at[k][operation.operand];
            switch (operation.step) {
                case AND: EACH to[i] = char(a[i] & b[i]); break;
                case OR: EACH to[i] = char(a[i] | b[i]); break;
                default: EACH to[i] = char(a[i] ^ b[i]);
            }
        }
    });
}

}  // namespace

// As BITS or INTEGER, for operands of one element.
void words_of_one(const Item& item, char* const* start) {
    const bool integers = item.kind == INTEGER;
    const auto type_of = [&](size_t o) {
        const int type = int(item.operands[o].type), size = size_of(type);
        return integers ? type : size == 1 ? U8 : size == 2 ? U16 : U32;
    };
    const int type = type_of(1);
    const uint32_t width = uint32_t(size_of(type)) * 8, top = is_signed(type) ? 0x80000000 : 0;
    const auto element = [&](size_t o) {
        uint32_t x;
        const int own = type_of(o);
        if (size_of(own) == 4) return get<uint32_t>(start[o]);
        read_words(own, &x, start[o], 0, 1);
        if (own != type) wrap(type, reinterpret_cast<char*>(&x), 1);
        return x;
    };
    uint32_t value = element(1);
    for (const Operation& operation : item.operations) {
        uint32_t other = integers && !item.params.empty() ? uint32_t(item.params[0]) : operation.bits;
        if (operation.step != NOT && operation.operand >= 0) other = element(size_t(operation.operand));
        else if (width < 32) wrap(type, reinterpret_cast<char*>(&other), 1);
        const uint32_t x = operation.reverse ? other : value, y = operation.reverse ? value : other;
        if (!with_words(operation.step, width, top, [&](auto f) { value = f(x, y); }))
            combine(operation.step, width, top, reinterpret_cast<char*>(&value), reinterpret_cast<const char*>(&x),
                    reinterpret_cast<const char*>(&y), false, false, 1);
        if (width < 32 && !is_comparison(operation.step)) wrap(type, reinterpret_cast<char*>(&value), 1);
    }
    write_words(size_of(int(item.operands[0].type)), start[0], 0, &value, 1);
}

// Operands: result, first source, others; all of one width. A chain of bit operations.
void bits(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    if (is_of_bytes(item)) return bytes(item, start, first, last);
    int types[MAX_OPERANDS];
    for (size_t o = 0; o < item.operands.size(); ++o) {
        const int size = size_of(int(item.operands[o].type));
        types[o] = size == 1 ? U8 : size == 2 ? U16 : U32;
    }
    words(item, start, first, last, w, types, nullptr);
}

// Operands: result, a and perhaps b, else the constant in params[0]. One exact operation on elements of a's type.
void integer(const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    int types[MAX_OPERANDS];
    for (size_t o = 0; o < item.operands.size(); ++o) types[o] = int(item.operands[o].type);
    const uint32_t constant = item.params.empty() ? 0 : uint32_t(item.params[0]);
    words(item, start, first, last, w, types, &constant);
}

}  // namespace LEVEL
