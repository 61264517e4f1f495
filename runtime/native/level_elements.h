// Elements of every type as f32 and back, and f32 functions; included by the kernels of each processor level.
// Every operation rounds as written (no contraction), and where two NaNs can meet in a sum or a product, of which the
// compiler says which operand comes first, the result is `one_nan`: all levels and flags give the same bits.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "core.h"
#include "level_shuffles.h"

#define EACH _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i)
#define INLINED __attribute__((always_inline))  // what a compiler may leave apart, and then not make vectors of

namespace LEVEL {
namespace {

// Rows of a tile lie so far apart that the processor does not guess the next one: asks for its first bytes.
inline void expect(const char* p, i64 bytes) {
    if (bytes > 4096) bytes = 4096;
    for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);  // there is no room for it in the nearest cache
}

// The same for the row of operand o that begins `pitch` bytes after this one.
inline void expect_next(const Item& item, size_t o, const char* row, i64 pitch, i64 bytes) {
    if (!(item.cached >> o & 1)) expect(row + pitch, bytes);
}

// The same for the next row of all operands.
inline void expect_row(const Item& item, const Rows& ahead, i64 count) {
    for (int o = 0; o < ahead.operands; ++o) expect_next(item, size_t(o), ahead.at[o], 0, ahead.step(o) * count);
}

// The same bits as another type.
template <class To, class From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "no bit is lost");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline uint32_t bits_of(float x) { return same_bits<uint32_t>(x); }
inline uint64_t bits_of(double x) { return same_bits<uint64_t>(x); }
inline float float_of(uint32_t word) { return same_bits<float>(word); }
inline double wide_of(uint64_t word) { return same_bits<double>(word); }

// Every NaN as the same one.
inline float one_nan(float x) { return x == x ? x : float_of(0x7FC00000); }

template <class T>
inline T get(const char* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}

template <class T>
inline void put(char* p, T value) {
    std::memcpy(p, &value, sizeof(T));
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7FFF;
    const float normal = float_of((rest << 13) + (112u << 23));
    const float small = float(int(rest)) * 0x1p-24f;
    const float wide = rest >= 0x7C00 ? float_of((rest << 13) | 0x7F800000) : rest < 0x400 ? small : normal;
    return float_of(bits_of(wide) | sign);
}

inline uint16_t float_to_half(float x) {
    const uint32_t word = bits_of(x), magnitude = word & 0x7FFFFFFF;
    const uint32_t normal = (magnitude - (112u << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    // adding 0.5 leaves a multiple of 2^-24 in the last mantissa bits
    const uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000;
    const uint32_t special = magnitude > 0x7F800000 ? 0x7E00 : 0x7C00;
    const uint32_t half = magnitude >= 0x477FF000 ? special : magnitude < 0x38800000 ? small : normal;
    return uint16_t(half | ((word >> 16) & 0x8000));
}

inline uint16_t float_to_bfloat(float x) {
    const uint32_t word = bits_of(x);
    const uint32_t rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16;
    return uint16_t(x != x ? (word >> 16 & 0x8000) | 0x7FC0 : rounded);
}

// To the nearest integer, ties to even, for any x.
inline INLINED float rint_(float x) {
#if defined(__SSE4_1__)
    return x != x ? x : __builtin_rintf(x);  // some instructions make NaNs quiet
#else
    const float magnitude = float_of(bits_of(x) & 0x7FFFFFFF), big = 0x1p23f;
    const float whole = magnitude < big ? (magnitude + big) - big : magnitude;
    return float_of(bits_of(whole) | (bits_of(x) & 0x80000000));
#endif
}

// Towards zero.
inline INLINED float truncate(float x) {
#if defined(__SSE4_1__)
    return x != x ? x : __builtin_truncf(x);
#else
    const float magnitude = float_of(bits_of(x) & 0x7FFFFFFF);
    const float small = magnitude < 0x1p23f ? magnitude : 0.f;
    const float whole = magnitude < 0x1p23f ? float(int32_t(small)) : magnitude;
    return float_of(bits_of(whole) | (bits_of(x) & 0x80000000));
#endif
}

// Of two zeros +0 is the greater, and NaN wins. The greater of x and y is y where they are equal, so that a positive
// `a` stands there, and a negative one as x.
inline INLINED float maximum(float a, float b) {
    const bool negative = int32_t(bits_of(a)) < 0;
    const float x = negative ? a : b, y = negative ? b : a, greater = x > y ? x : y;
    return x != x ? x : greater;
}

inline INLINED float minimum(float a, float b) {
    const bool negative = int32_t(bits_of(a)) < 0;
    const float x = negative ? b : a, y = negative ? a : b, less = x < y ? x : y;
    return x != x ? x : less;
}

// To a mantissa of 10 bits, ties to even; NaN and infinity as they are.
inline INLINED float to_tf32(float x) {
    const uint32_t word = bits_of(x);
    const uint32_t rounded = (word + 0xFFF + ((word >> 13) & 1)) & 0xFFFFE000;
    return (word & 0x7F800000) == 0x7F800000 ? x : float_of(rounded);
}

// Reads n elements, `stride` bytes apart, of any type but RAW8. Every other one is half of a larger word, where a compiler
// would gather.
template <class T, class F>
inline void read_as(float* to, const char* from, i64 stride, int n, F convert) {
    typedef typename std::conditional<sizeof(T) == 1, uint16_t, uint32_t>::type Pair;
    if (stride == i64(sizeof(T))) {
        EACH to[i] = convert(get<T>(from + i * sizeof(T)));
    } else if (stride == 0) {
        const float value = convert(get<T>(from));
        EACH to[i] = value;
    } else if (sizeof(T) < 4 && stride == i64(sizeof(Pair)) && n > 1) {
        const int last = n--;  // not beyond it
        EACH to[i] = convert(T(get<Pair>(from + i * sizeof(Pair))));
        to[last - 1] = convert(get<T>(from + (last - 1) * stride));
    } else {
        for (i64 i = 0; i < n; ++i) to[i] = convert(get<T>(from + i * stride));
    }
}

// Halves side by side, by the processor's own conversion, but for the bits of NaNs.
inline void read_f16(float* to, const char* from, int n) {
    int i = 0;
#if defined(__AVX512BW__)
    for (; i + 16 <= n; i += 16) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * i64(2)));
        const __m512i words = _mm512_cvtepu16_epi32(half), top = _mm512_set1_epi32(0x7C00);
        const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(words, _mm512_set1_epi32(0x8000)), 16);
        const __m512i rest = _mm512_slli_epi32(_mm512_and_si512(words, _mm512_set1_epi32(0x7FFF)), 13);
        const __m512i special = _mm512_or_si512(_mm512_or_si512(sign, rest), _mm512_set1_epi32(0x7F800000));
        const __mmask16 is_special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(words, top), top);
        _mm512_storeu_ps(to + i, _mm512_mask_blend_ps(is_special, _mm512_cvtph_ps(half), _mm512_castsi512_ps(special)));
    }
#endif
    for (; i < n; ++i) to[i] = half_to_float(get<uint16_t>(from + i * i64(2)));
}

inline void write_f16(char* to, const float* from, int n) {
    int i = 0;
#if defined(__AVX512BW__)
    for (; i + 16 <= n; i += 16) {
        const __m512 x = _mm512_loadu_ps(from + i);
        const __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m256i quiet = _mm256_or_si256(_mm256_and_si256(half, _mm256_set1_epi16(int16_t(0x8000))), _mm256_set1_epi16(0x7E00));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * i64(2)), _mm256_mask_blend_epi16(nan, half, quiet));
    }
#endif
    for (; i < n; ++i) put<uint16_t>(to + i * i64(2), float_to_half(from[i]));
}

inline void read(int type, float* to, const char* from, i64 stride, int n) {
    switch (type) {
        case F32:
            if (stride == 8) return read_pairs(reinterpret_cast<char*>(to), from, n);
            return read_as<float>(to, from, stride, n, [](float x) { return x; });
        case BF16: return read_as<uint16_t>(to, from, stride, n, [](uint16_t x) { return float_of(uint32_t(x) << 16); });
        case F16:
            if (stride == 2) return read_f16(to, from, n);
            return read_as<uint16_t>(to, from, stride, n, half_to_float);
        case U8: case PRED: return read_as<uint8_t>(to, from, stride, n, [](uint8_t x) { return float(x); });
        case S8: return read_as<int8_t>(to, from, stride, n, [](int8_t x) { return float(x); });
        case U16: return read_as<uint16_t>(to, from, stride, n, [](uint16_t x) { return float(x); });
        case S16: return read_as<int16_t>(to, from, stride, n, [](int16_t x) { return float(x); });
        case U32: return read_as<uint32_t>(to, from, stride, n, [](uint32_t x) { return float(x); });
        case S32: return read_as<int32_t>(to, from, stride, n, [](int32_t x) { return float(x); });
        default: {
            const float* table = small_floats[type - SMALL_FLOAT].load(std::memory_order_acquire)->read;
            for (i64 i = 0; i < n; ++i) to[i] = table[uint8_t(from[i * stride])];
        }
    }
}

template <class T, class F>
inline void write_as(char* to, i64 stride, const float* from, int n, F convert) {
    typedef typename std::conditional<sizeof(T) == 1, uint16_t, uint32_t>::type Pair;
    if (stride == i64(sizeof(T))) {
        EACH put<T>(to + i * sizeof(T), convert(from[i]));
    } else if (sizeof(T) < 4 && stride == i64(sizeof(Pair)) && n > 1) {
        typedef typename std::make_unsigned<typename std::conditional<sizeof(T) == 4, int, T>::type>::type Half;
        const int last = n--, bits = 8 * (sizeof(Pair) - sizeof(Half));
        EACH {
            const Pair rest = Pair(get<Pair>(to + i * sizeof(Pair)) >> bits << bits);
            put<Pair>(to + i * sizeof(Pair), Pair(rest | Half(convert(from[i]))));
        }
        put<T>(to + (last - 1) * stride, convert(from[last - 1]));
    } else {
        for (i64 i = 0; i < n; ++i) put<T>(to + i * stride, convert(from[i]));
    }
}

// To the nearest integer, ties to even, saturating; NaN gives 0. All of the type's bounds are exact in f32.
template <class T>
inline T narrow(float x) {
    const float low = sizeof(T) == 1 ? (T(-1) < 0 ? -128.f : 0.f) : (T(-1) < 0 ? -32768.f : 0.f);
    const float high = sizeof(T) == 1 ? (T(-1) < 0 ? 127.f : 255.f) : (T(-1) < 0 ? 32767.f : 65535.f);
    const float number = low != 0.f && x != x ? 0.f : x;
    const float above = number > low ? number : low;  // what NaN is not
    const float inside = above < high ? above : high;
    const float magic = 12582912.f;  // 1.5 * 2^23: the sum's last bits are the integer
    return T(int32_t(bits_of(inside + magic)) - int32_t(bits_of(magic)));
}

inline int32_t to_s32(float x) {
    const float number = x != x ? 0.f : rint_(x);
    const float inside = number < -0x1p31f ? -0x1p31f : number >= 0x1p31f ? 0.f : number;
    return number >= 0x1p31f ? INT32_MAX : int32_t(inside);
}

inline uint32_t to_u32(float x) {
    const float number = x != x ? 0.f : rint_(x);
    const float inside = number < 0.f || number >= 0x1p32f ? 0.f : number;
    return number >= 0x1p32f ? UINT32_MAX : uint32_t(i64(inside));
}

// Writes n elements, `stride` bytes apart, of any type but RAW8.
inline void write(int type, char* to, i64 stride, const float* from, int n) {
    switch (type) {
        case F32:
            if (stride == 8) return write_pairs(to, reinterpret_cast<const char*>(from), n);
            return write_as<float>(to, stride, from, n, [](float x) { return x; });
        case BF16: return write_as<uint16_t>(to, stride, from, n, float_to_bfloat);
        case F16:
            if (stride == 2) return write_f16(to, from, n);
            return write_as<uint16_t>(to, stride, from, n, float_to_half);
        case U8: return write_as<uint8_t>(to, stride, from, n, narrow<uint8_t>);
        case S8: return write_as<int8_t>(to, stride, from, n, narrow<int8_t>);
        case U16: return write_as<uint16_t>(to, stride, from, n, narrow<uint16_t>);
        case S16: return write_as<int16_t>(to, stride, from, n, narrow<int16_t>);
        case U32: return write_as<uint32_t>(to, stride, from, n, to_u32);
        case S32: return write_as<int32_t>(to, stride, from, n, to_s32);
        case PRED: return write_as<uint8_t>(to, stride, from, n, [](float x) { return uint8_t(!(x == 0.f)); });
        default: {
            const Tables& tables = *small_floats[type - SMALL_FLOAT].load(std::memory_order_acquire);
            for (i64 i = 0; i < n; ++i) {
                const uint32_t word = bits_of(from[i]);
                to[i * stride] = char(((word & 0xFFFF) ? tables.inexact : tables.exact)[word >> 16]);
            }
        }
    }
}

// 2^n for n in [-126, 127].
inline INLINED float power_of_two(int n) { return float_of(uint32_t(n + 127) << 23); }

// e^x within 1.5 ulp, subnormal results included.
inline INLINED float exp_(float x) {
    const float top = 88.8f, bottom = -104.f;
    const float inside = x > top ? top : x < bottom ? bottom : x;
    const float magic = 12582912.f;
    const float shifted = inside * 1.44269504088896341f + magic;
    const int n = int32_t(bits_of(shifted)) - int32_t(bits_of(magic));
    const float whole = shifted - magic;
    const float r = (inside - whole * 0.693359375f) - whole * -2.12194440e-4f;
    // (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, a minimax fit
    float p = 0.00019916029f * r + 0.00139473216f;
    p = p * r + 0.00833326951f;
    p = p * r + 0.0416662507f;
    p = p * r + 0.166666672f;
    p = p * r + 0.5f;
    const float y = (p * (r * r) + r) + 1.f;
    const int half = n >> 1;
    const float result = y * power_of_two(half) * power_of_two(n - half);
    return x != x ? x : result;
}

// tanh within 2 ulp.
inline INLINED float tanh_(float x) {
    const float magnitude = float_of(bits_of(x) & 0x7FFFFFFF), s = x * x;
    // (tanh(r) - r) / r^3 in s = r^2 for r <= 0.625, a minimax fit
    float p = 0.00214750739f * s + -0.00818263926f;
    p = p * s + 0.0217029508f;
    p = p * s + -0.0539472029f;
    p = p * s + 0.13333210349f;
    p = p * s + -0.333333313f;
    const float small = x + x * (s * p);
    const float clipped = magnitude > 10.f ? 10.f : magnitude;
    const float large = 1.f - 2.f / (exp_(clipped * 2.f) + 1.f);
    const float result = float_of(bits_of(magnitude < 0.625f ? small : large) | (bits_of(x) & 0x80000000));
    return x != x ? x : result;
}

// 1 / (1 + e^-x), through e^x where that is the smaller: no result is lost to overflow.
inline INLINED float sigmoid_(float x) {
    const float e = exp_(x < 0.f ? x : -x);
    const float sum = e + 1.f, lost = e - (sum - 1.f), y = (x < 0.f ? e : 1.f) / sum;
    return y - y * lost;
}

// The polynomials of ir/isa/functions.py, operation by operation.
inline INLINED float erf_(float x) {
    const float whole = float_of(bits_of(x) & 0x7FFFFFFF), m = whole > 4.f ? 4.f : whole, s = m * m;
    float p = s * 8.393791e-05f + -0.00081655016f;
    p = p * s + 0.0052048871f;
    p = p * s + -0.026861811f;
    p = p * s + 0.11283755f;
    p = p * s + -0.37612638f;
    const float small = (p * s + 0.12837917f) * m + m;
    const float t = (m - 2.5f) * 0.66666667f;
    float q = t * -0.000265765f + -9.7651486e-05f;
    q = q * t + 0.0020599302f;
    q = q * t + -0.0015341142f;
    q = q * t + -0.0047043134f;
    q = q * t + 0.010400716f;
    q = q * t + -0.0066124415f;
    q = q * t + -0.009572532f;
    q = q * t + 0.03185954f;
    q = q * t + -0.046391595f;
    q = q * t + 0.043652967f;
    q = q * t + -0.02818715f;
    q = q * t + 0.012252737f;
    q = q * t + -0.0032672798f;
    q = q * t + 0.00040695298f;
    const float result = m < 1.f ? small : 1.f - q;
    return x != x ? x : float_of(bits_of(result) | (bits_of(x) & 0x80000000));
}

inline INLINED float gelu_(float x) { return ((erf_(x * 0.70710678118654752f) + 1.f) * x) * 0.5f; }

inline INLINED float gelu_tanh_(float x) {
    const float inner = ((x * x) * 0.044715f + 1.f) * x * 0.7978845608028654f;
    return ((tanh_(inner) + 1.f) * x) * 0.5f;
}

// log(1 + e^x), as max(x, 0) + log1p(e^-|x|), within 2 ulp.
inline INLINED float softplus_(float x) {
    const float y = exp_(float_of(bits_of(x) | 0x80000000)), s = y / (y + 2.f), z = s * s;
    // (atanh(s) - s) / s^3 in z = s^2 for s <= 1 / 3, its series
    float p = z * 0.0588235294f + 0.0666666667f;
    p = p * z + 0.0769230769f;
    p = p * z + 0.0909090909f;
    p = p * z + 0.111111111f;
    p = p * z + 0.142857143f;
    p = p * z + 0.2f;
    p = p * z + 0.333333333f;
    const float logarithm = y - s * (y - z * p * 2.f);  // 2 s = y - s y
    return x != x ? x : logarithm + (x > 0.f ? x : 0.f);
}

// log(x) within 2 ulp, subnormal numbers included.
inline INLINED float log_(float x) {
    const bool tiny = x < 0x1p-126f;
    const uint32_t word = bits_of(tiny ? x * 0x1p23f : x), half = 0x3F3504F3;  // sqrt(1 / 2)
    const int32_t n = int32_t(word - half) >> 23;
    // x = 2^n m with m in [sqrt(1 / 2), sqrt(2)); log(m) = 2 atanh(s), its series
    const float y = float_of(word - (uint32_t(n) << 23)) - 1.f, s = y / (y + 2.f), z = s * s;
    float p = z * 0.0909090909f + 0.111111111f;
    p = p * z + 0.142857143f;
    p = p * z + 0.2f;
    p = p * z + 0.333333333f;
    const float whole = float(tiny ? n - 23 : n);
    const float part = y - (s * (y - z * p * 2.f) - whole * -2.12194440e-4f);  // 2 s = y - s y
    const float result = whole * 0.693359375f + part;
    const float limit = x == 0.f ? float_of(0xFF800000) : x < 0.f ? float_of(0x7FC00000) : x;
    return x > 0.f && x <= 3.40282347e38f ? result : limit;
}

const float MOST_TURNED = 524288.f;  // up to here FP64 takes multiples of pi / 2 off well enough

// x less a multiple of pi / 2, in FP64, for |x| <= MOST_TURNED.
struct Turned {
    double r;
    uint64_t quarter;  // the multiple

    // For |r| <= pi / 4 the series.
    double sine() const {
        const double z = r * r;
        double p = z * 2.7557319223985893e-06 - 1.9841269841269841e-04;
        p = p * z + 8.3333333333333332e-03;
        p = p * z - 0.16666666666666666;
        return (p * z + 1.) * r;
    }

    double cosine() const {
        const double z = r * r;
        double q = z * -2.7557319223985888e-07 + 2.4801587301587302e-05;
        q = q * z - 1.3888888888888889e-03;
        q = q * z + 4.1666666666666664e-02;
        q = q * z - 0.5;
        return q * z + 1.;
    }
};

inline INLINED Turned turned(float x) {
    const double magic = 6755399441055744.0, wide = x;  // 1.5 * 2^52: the sum's last bits are the integer
    const double shifted = wide * 0.63661977236758134308 + magic, whole = shifted - magic;
    return {(wide - whole * 1.5707963267341256) - whole * 6.077100506506192e-11, bits_of(shifted)};
}

// sin(x + turn * pi / 2) for |x| <= MOST_TURNED, rounded once.
inline INLINED float turned_sine(float x, uint64_t turn) {
    const Turned t = turned(x);
    const uint64_t quarter = t.quarter + turn;
    const float result = float(quarter & 1 ? t.cosine() : t.sine());
    return float_of(bits_of(result) ^ uint32_t(quarter & 2) << 30);
}

// Of n numbers of any size `near` up to MOST_TURNED, and beyond that `far` in FP64.
template <class Near, class Far>
inline INLINED void each_near(float* d, const float* a, int n, Near near, Far far) {
    bool all = true;
    for (i64 i = 0; i < n; ++i) all &= float_of(bits_of(a[i]) & 0x7FFFFFFF) <= MOST_TURNED;
    if (all) {
        EACH d[i] = near(a[i]);
        return;
    }
    for (i64 i = 0; i < n; ++i) {
        const float x = a[i], magnitude = float_of(bits_of(x) & 0x7FFFFFFF);
        d[i] = magnitude <= MOST_TURNED ? near(x) : x != x ? x : one_nan(float(far(double(x))));
    }
}

// Rows of f32 elements: of one operand where they lie, or `step` elements apart; `one`: an element stands for its row.
struct Lines {
    char* const* at;  // of the first row; those of all operands are MAX_OPERANDS apart
    float* base;
    i64 step;
    bool one;

    float* row(int k) const { return at ? reinterpret_cast<float*>(at[k * MAX_OPERANDS]) : base + k * step; }
};

// d = x op y for all elements of `count` rows of `n`.
template <class F>
inline INLINED void each2(const Lines& to, const Lines& left, const Lines& right, int count, int n, F f) {
    for (int k = 0; k < count; ++k) {
        float* d = to.row(k);
        const float *a = left.row(k), *b = right.row(k);
        if (right.one) {
            const float y = *b;
            EACH d[i] = f(a[i], y);
        } else if (left.one) {
            const float x = *a;
            EACH d[i] = f(x, b[i]);
        } else {
            EACH d[i] = f(a[i], b[i]);
        }
    }
}

template <class F>
inline INLINED void each1(float* d, const float* a, int n, F f) {
    EACH d[i] = f(a[i]);
}

}  // namespace
}  // namespace LEVEL
