// f32 functions of GpSimd programs, computed in FP64 and rounded once: within 1 ulp, over the whole range. Included by
// the kernels of each processor level. Each selects among what it computed, so that loops over elements are vectorised.
#pragma once

#include "level_elements.h"

namespace LEVEL {
namespace {

const double TINY = 1e-5;  // below it two terms of a series are exact enough
const double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;

inline INLINED double magnitude_of(double x) { return wide_of(bits_of(x) & ~(uint64_t(1) << 63)); }
inline INLINED double with_sign(double magnitude, float x) {
    return wide_of(bits_of(magnitude) | uint64_t(bits_of(x) & 0x80000000) << 32);
}

// e^x between -150 and 150, beyond which an f32 has no more values.
inline INLINED double exp_wide(double x) {
    const double top = x > 150. ? 150. : x, inside = top < -150. ? -150. : top;
    const double magic = 6755399441055744.0;  // 1.5 * 2^52: the sum's last bits are the integer
    const double shifted = inside * 1.4426950408889634 + magic, whole = shifted - magic;
    const double r = (inside - whole * LN2_HIGH) - whole * LN2_LOW;
    // for |r| <= ln(2) / 2 the series
    double p = r * 2.08767569878681e-09 + 2.505210838544172e-08;
    p = p * r + 2.755731922398589e-07;
    p = p * r + 2.7557319223985893e-06;
    p = p * r + 2.48015873015873e-05;
    p = p * r + 1.984126984126984e-04;
    p = p * r + 1.3888888888888889e-03;
    p = p * r + 8.333333333333333e-03;
    p = p * r + 4.1666666666666664e-02;
    p = p * r + 0.16666666666666666;
    p = p * r + 0.5;
    p = p * r + 1.;
    p = p * r + 1.;
    return p * wide_of((bits_of(shifted) - bits_of(magic) + 1023) << 52);
}

// log(x) of positive numbers that are no infinity.
inline INLINED double log_wide(double x) {
    const uint64_t word = bits_of(x), root = 0x3FE6A09E667F3BCD;  // sqrt(1 / 2)
    const uint64_t shift = uint64_t(1024) << 52, above = word - root + shift;  // so that nothing is negative
    const double whole = double(int32_t(above >> 52)) - 1024.;
    // x = 2^whole m with m in [sqrt(1 / 2), sqrt(2)); log(m) = 2 atanh(s), its series
    const double m = wide_of(word - ((above >> 52 << 52) - shift)), s = (m - 1.) / (m + 1.), z = s * s;
    double p = z * 0.047619047619047616 + 0.05263157894736842;
    p = p * z + 0.058823529411764705;
    p = p * z + 0.06666666666666667;
    p = p * z + 0.07692307692307693;
    p = p * z + 0.09090909090909091;
    p = p * z + 0.1111111111111111;
    p = p * z + 0.14285714285714285;
    p = p * z + 0.2;
    p = p * z + 0.3333333333333333;
    return whole * LN2_HIGH + (whole * LN2_LOW + 2. * (s + s * z * p));
}

// log(1 + x) for x > -1 that is no infinity.
inline INLINED double log1p_wide(double x) {
    return magnitude_of(x) < TINY ? x - x * x * 0.5 : log_wide(1. + x);
}

// The angle whose tangent is x >= 0, infinity included.
inline INLINED double atan_wide(double x) {
    const bool far = x > 2.414213562373095, near = x > 0.41421356237309503;
    const double base = far ? 1.5707963267948966 : near ? 0.7853981633974483 : 0.;
    const double t = (far ? -1. : near ? x - 1. : x) / (far ? x : near ? x + 1. : 1.), z = t * t;
    double p = z * 0.037037037037037035 - 0.04;
    p = p * z + 0.043478260869565216;
    p = p * z - 0.047619047619047616;
    p = p * z + 0.05263157894736842;
    p = p * z - 0.058823529411764705;
    p = p * z + 0.06666666666666667;
    p = p * z - 0.07692307692307693;
    p = p * z + 0.09090909090909091;
    p = p * z - 0.1111111111111111;
    p = p * z + 0.14285714285714285;
    p = p * z - 0.2;
    p = p * z + 0.3333333333333333;
    return base + (t - t * z * p);
}

inline INLINED float expm1_(float x) {
    const double wide = x, result = magnitude_of(wide) < TINY ? wide + wide * wide * 0.5 : exp_wide(wide) - 1.;
    return x != x || x == 0.f ? x : float(result);
}

inline INLINED float log1p_(float x) {
    const float result = float(log1p_wide(x));
    const float limit = x == -1.f ? float_of(0xFF800000) : x < -1.f ? float_of(0x7FC00000) : x;
    return x > -1.f && x <= 3.40282347e38f && x != 0.f ? result : limit;
}

inline INLINED float sinh_(float x) {
    const double size = magnitude_of(x), e = exp_wide(size);
    const double result = size < 1e-3 ? size + size * size * size * 0.16666666666666666 : (e - 1. / e) * 0.5;
    return x != x ? x : float(with_sign(result, x));
}

inline INLINED float cosh_(float x) {
    const double e = exp_wide(magnitude_of(x));
    return x != x ? x : float((e + 1. / e) * 0.5);
}

inline INLINED float asinh_(float x) {
    const double size = magnitude_of(x), t = size + size * size / (1. + std::sqrt(size * size + 1.));
    const float result = float(with_sign(log1p_wide(size < 1e30 ? t : 1.), x));
    const float large = float(with_sign(log_wide(size < 1e30 ? 1. : size) + 0.6931471805599453, x));
    return size < 1e30 ? result : size <= 3.40282347e38 ? large : x;
}

inline INLINED float acosh_(float x) {
    const double wide = x, size = wide < 1e30 ? wide : 1e30;
    const float result = float(log1p_wide((size - 1.) + std::sqrt((size - 1.) * (size + 1.))));
    const float large = float(log_wide(wide) + 0.6931471805599453);
    const float limit = x < 1.f ? float_of(0x7FC00000) : x;
    return x >= 1.f && x <= 3.40282347e38f ? (wide < 1e30 ? result : large) : limit;
}

inline INLINED float atanh_(float x) {
    const double size = magnitude_of(x), inside = size < 1. ? size : 0.;
    const float result = float(with_sign(size < TINY ? size : log_wide((1. + inside) / (1. - inside)) * 0.5, x));
    const float limit = size > 1. ? float_of(0x7FC00000) : float_of(bits_of(x) | 0x7F800000);
    return x != x ? x : size < 1. ? result : limit;
}

inline INLINED float atan_(float x) { return x != x ? x : float(with_sign(atan_wide(magnitude_of(x)), x)); }

inline INLINED float asin_(float x) {
    const double size = magnitude_of(x);
    return size <= 1. ? float(with_sign(atan_wide(size / std::sqrt((1. - size) * (1. + size))), x)) : x != x ? x : float_of(0x7FC00000);
}

inline INLINED float acos_(float x) {
    const double wide = x;
    const float limit = x != x ? x : float_of(0x7FC00000);
    return wide >= -1. && wide <= 1. ? float(2. * atan_wide(std::sqrt((1. - wide) / (1. + wide)))) : limit;
}

inline INLINED float cbrt_(float x) {
    const double size = magnitude_of(x), inside = size > 0. && size <= 3.40282347e38 ? size : 1.;
    const float result = float(with_sign(exp_wide(log_wide(inside) * 0.3333333333333333), x));
    return size > 0. && size <= 3.40282347e38 ? result : x;
}

// tan(x) for |x| <= MOST_TURNED.
inline INLINED float near_tangent(float x) {
    const Turned t = turned(x);
    return t.quarter & 1 ? float(-t.cosine() / t.sine()) : float(t.sine() / t.cosine());
}

inline void tangents(float* d, const float* a, int n) {
    each_near(d, a, n, near_tangent, [](double x) { return std::tan(x); });
}

inline INLINED float round_away(float x) {
    const float whole = __builtin_truncf(x), rest = __builtin_fabsf(x - whole);
    const uint32_t one = rest >= 0.5f ? 0x3F800000 : 0;
    return whole + float_of(one | (bits_of(x) & 0x80000000));
}

inline INLINED float is_finite(float x) { return (bits_of(x) & 0x7F800000) != 0x7F800000 ? 1.f : 0.f; }

// As in ir/isa/functions.py. `widths`: the bits of the exponent in the upper half, of the mantissa in the lower one.
inline INLINED float reduce_precision(float x, uint32_t widths) {
    const uint32_t word = bits_of(x), sign = word & 0x80000000, drop = 23 - (widths & 0xFFFF), bits = widths >> 16;
    const uint32_t even = drop ? ((word >> drop) & 1) + ((1u << (drop - 1)) - 1) : 0;
    const uint32_t rounded = (word + even) & (0xFFFFFFFFu << drop);
    const uint32_t near = is_finite(x) != 0.f ? rounded : word, reach = (1u << (bits - 1)) - 1;
    const uint32_t exponent = near & 0x7F800000;
    const bool narrow = bits < 8;
    const uint32_t above = narrow && exponent > (127 + reach) << 23 ? sign | 0x7F800000 : near;
    const uint32_t result = narrow && exponent <= (127 - reach) << 23 ? sign : above;
    return x != x ? x : float_of(result);
}

// A number that is ordered as IEEE 754 orders all bits of floats, NaNs too.
inline INLINED int32_t order_of(float x) {
    const int32_t word = int32_t(bits_of(x));
    return word < 0 ? word ^ 0x7FFFFFFF : word;
}

// Powers of positive numbers from the exponential and the logarithm, others from the library, one at a time.
inline void powers(const Lines& to, const Lines& left, const Lines& right, int count, int n) {
    float base[BLOCK], exponent[BLOCK], made[BLOCK];
    for (int k = 0; k < count; ++k) {
        const float *a = left.row(k), *b = right.row(k), x = *a, y = *b;
        if (left.one) EACH base[i] = x;
        else EACH base[i] = a[i];
        if (right.one) EACH exponent[i] = y;
        else EACH exponent[i] = b[i];
        const auto is_plain = [&](i64 i) { return base[i] > 0.f && base[i] <= 3.40282347e38f && is_finite(exponent[i]) != 0.f; };
        int others = 0;
        EACH others += !is_plain(i);
        EACH made[i] = float(exp_wide(double(exponent[i]) * log_wide(is_plain(i) ? base[i] : 1.f)));
        for (i64 i = 0; others && i < n; ++i)
            if (!is_plain(i)) made[i] = one_nan(std::pow(base[i], exponent[i]));
        std::memcpy(to.row(k), made, size_t(n) * sizeof(float));
    }
}

// Calls `each` with what a step of a chain (level_map.cpp) makes of two elements; false for one that takes rows.
template <class F>
inline bool with_two(Step step, F each) {
#define TWO(NAME, VALUE) \
    case NAME: return each([](float x, float y) INLINED { return VALUE; }), true;
    switch (step) {
        TWO(ADD, one_nan(x + y))
        TWO(SUBTRACT, x - y)
        TWO(MULTIPLY_, one_nan(x * y))
        TWO(DIVIDE, x / y)
        TWO(MAX, maximum(x, y))
        TWO(MIN, minimum(x, y))
        TWO(EQUAL, x == y ? 1.f : 0.f)
        TWO(NOT_EQUAL, x == y ? 0.f : 1.f)
        TWO(GREATER_EQUAL, x >= y ? 1.f : 0.f)
        TWO(GREATER, x > y ? 1.f : 0.f)
        TWO(LESS_EQUAL, x <= y ? 1.f : 0.f)
        TWO(LESS, x < y ? 1.f : 0.f)
        TWO(REMAINDER, one_nan(std::fmod(x, y)))
        TWO(ANGLE, one_nan(float(std::atan2(double(x), double(y)))))
        TWO(REDUCE_PRECISION, reduce_precision(x, bits_of(y)))
        TWO(ORDERED_LESS, order_of(x) < order_of(y) ? 1.f : 0.f)
        TWO(ORDERED_LESS_EQUAL, order_of(x) <= order_of(y) ? 1.f : 0.f)
        TWO(ORDERED_EQUAL, bits_of(x) == bits_of(y) ? 1.f : 0.f)
        TWO(ORDERED_NOT_EQUAL, bits_of(x) == bits_of(y) ? 0.f : 1.f)
        default: return false;
    }
#undef TWO
}

// The same of sums and products, of which few enough are worth being compiled in pairs; `ANY`: a NaN may be any one.
template <bool ANY, class F>
inline INLINED void with_sum(const Operation& operation, F each) {
    const auto made = [](float x) INLINED { return ANY ? x : one_nan(x); };
    if (operation.step == ADD) each([made](float x, float y) INLINED { return made(x + y); });
    else each([made](float x, float y) INLINED { return made(x * y); });
}

template <class F>
inline INLINED void with_difference(const Operation& operation, F each) {
    if (operation.reverse) each([](float x, float y) INLINED { return y - x; });
    else each([](float x, float y) INLINED { return x - y; });
}

inline bool is_sum(const Operation& operation) {
    return operation.step == ADD || operation.step == MULTIPLY_ || operation.step == SUBTRACT;
}

// d = (x op y) op z for rows x, with one pass over memory. A sum or product makes all NaNs the same one, whatever it gets.
inline void arithmetic_pair(const Operation* two, const Lines& to, const Lines& from, const Lines& left, const Lines& right, int count, int n) {
    const auto rows = [&](auto f, auto g) INLINED {
        for (int k = 0; k < count; ++k) {
            float* d = to.row(k);
            const float *a = from.row(k), *b = left.row(k), *c = right.row(k), y = *b, z = *c;
            if (left.one && right.one) EACH d[i] = g(f(a[i], y), z);
            else if (left.one) EACH d[i] = g(f(a[i], y), c[i]);
            else if (right.one) EACH d[i] = g(f(a[i], b[i]), z);
            else EACH d[i] = g(f(a[i], b[i]), c[i]);
        }
    };
    if (two[1].step == SUBTRACT) {
        with_difference(two[1], [&](auto g) INLINED {
            if (two[0].step == SUBTRACT) with_difference(two[0], [&](auto f) INLINED { rows(f, g); });
            else with_sum<false>(two[0], [&](auto f) INLINED { rows(f, g); });
        });
    } else {
        with_sum<false>(two[1], [&](auto g) INLINED {
            if (two[0].step == SUBTRACT) with_difference(two[0], [&](auto f) INLINED { rows(f, g); });
            else with_sum<true>(two[0], [&](auto f) INLINED { rows(f, g); });
        });
    }
}

inline void arithmetic(Step step, const Lines& d, const Lines& a, const Lines& b, int count, int n) {
    if (!with_two(step, [&](auto f) INLINED { each2(d, a, b, count, n, f); })) powers(d, a, b, count, n);
}

// The same of one element.
template <class F>
inline bool with_one(Step step, F each) {
#define ONE(NAME, VALUE) \
    case NAME: return each([](float x) INLINED { return VALUE; }), true;
    switch (step) {
        ONE(ABS, float_of(bits_of(x) & 0x7FFFFFFF))
        ONE(NEGATE, float_of(bits_of(x) ^ 0x80000000))
        ONE(SQUARE, x * x)
        ONE(RELU, maximum(x, 0.f))
        ONE(SQRT, std::sqrt(x))
        ONE(RSQRT, 1.f / std::sqrt(x))
        ONE(RECIPROCAL, 1.f / x)
        ONE(SIGN, x > 0.f ? 1.f : x < 0.f ? -1.f : x)
        ONE(EXP, exp_(x))
        ONE(TANH, tanh_(x))
        ONE(SIGMOID, one_nan(sigmoid_(x)))
        ONE(ERF, erf_(x))
        ONE(GELU, one_nan(gelu_(x)))
        ONE(GELU_TANH, one_nan(gelu_tanh_(x)))
        ONE(SILU, one_nan(sigmoid_(x) * x))
        ONE(ROUND_EVEN, rint_(x))
        ONE(SOFTPLUS, softplus_(x))
        ONE(LOG, log_(x))
        ONE(TRUNCATE, truncate(x))
        ONE(FLOOR, x != x ? x : __builtin_floorf(x))  // some instructions make NaNs quiet
        ONE(CEIL, x != x ? x : __builtin_ceilf(x))
        ONE(ROUND_AWAY, round_away(x))
        ONE(IS_FINITE, is_finite(x))
        ONE(EXPM1, expm1_(x))
        ONE(LOG1P, log1p_(x))
        ONE(SINH, sinh_(x))
        ONE(COSH, cosh_(x))
        ONE(ASIN, asin_(x))
        ONE(ACOS, acos_(x))
        ONE(ATAN, atan_(x))
        ONE(ASINH, asinh_(x))
        ONE(ACOSH, acosh_(x))
        ONE(ATANH, atanh_(x))
        ONE(CBRT, cbrt_(x))
        default: return false;
    }
#undef ONE
}

inline void function(Step step, float* d, const float* a, int n) {
    if (with_one(step, [&](auto f) INLINED { each1(d, a, n, f); })) return;
    if (step == SINE) each_near(d, a, n, [](float x) { return turned_sine(x, 0); }, [](double x) { return std::sin(x); });
    else if (step == COSINE) each_near(d, a, n, [](float x) { return turned_sine(x, 1); }, [](double x) { return std::cos(x); });
    else tangents(d, a, n);
}

}  // namespace
}  // namespace LEVEL
