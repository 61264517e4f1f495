// Folds of rows of f32 elements that lie one beside the other: sums in NumPy's order, extremes.
#pragma once

#include "level_elements.h"

namespace LEVEL {
namespace {

typedef float Eight __attribute__((vector_size(32)));
typedef float Sixteen __attribute__((vector_size(64)));

template <class T>
inline T vector_at(const float* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

const i64 LEAF = 128;  // elements of which eight sums are made side by side

// The pairwise sums of `COUNT` times n elements, at most LEAF: several chains at once, since each waits for itself.
template <int COUNT>
inline void leaves(const float* const* x, i64 n, float* total) {
    if (n < 8) {
        for (int k = 0; k < COUNT; ++k) {
            total[k] = -0.f;
            for (i64 i = 0; i < n; ++i) total[k] += x[k][i];
        }
        return;
    }
    Eight sums[COUNT];
    for (int k = 0; k < COUNT; ++k) sums[k] = vector_at<Eight>(x[k]);
    i64 i = 8;
    for (; i < n - n % 8; i += 8)
        _Pragma("GCC unroll 4") for (int k = 0; k < COUNT; ++k) sums[k] += vector_at<Eight>(x[k] + i);
    for (int k = 0; k < COUNT; ++k) {
        const Eight& r = sums[k];
        total[k] = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (i64 rest = i; rest < n; ++rest) total[k] += x[k][rest];
    }
}

// Where pairwise summation cuts n elements in two.
inline i64 half_of(i64 n) { return n / 2 - n / 2 % 8; }

// The sum that NumPy's pairwise summation gives.
inline float pairwise(const float* x, i64 n) {
    if (n <= LEAF) {
        float total;
        leaves<1>(&x, n, &total);
        return total;
    }
    const i64 half = half_of(n);
    if (n == 4 * LEAF || n == 2 * LEAF) {  // equal parts
        const float* parts[] = {x, x + LEAF, x + 2 * LEAF, x + 3 * LEAF};
        float total[4];
        if (n == 2 * LEAF) return leaves<2>(parts, LEAF, total), total[0] + total[1];
        leaves<4>(parts, LEAF, total);
        return (total[0] + total[1]) + (total[2] + total[3]);
    }
    return pairwise(x, half) + pairwise(x + half, n - half);
}

// The same of `count` rows, `pitch` bytes apart.
inline void pairwise_rows(const char* from, i64 pitch, i64 count, i64 n, float* total) {
    const auto row = [&](i64 k) { return reinterpret_cast<const float*>(from + k * pitch); };
    i64 k = 0;
    for (; n <= LEAF && k + 4 <= count; k += 4) {
        const float* rows[] = {row(k), row(k + 1), row(k + 2), row(k + 3)};
        leaves<4>(rows, n, total + k);
    }
    for (; k < count; ++k) total[k] = pairwise(row(k), n);
}

// The greatest element, or the least one, where none is NaN: of several NaNs, the order of `maximum` and `minimum` says
// which one it is.
template <bool GREATEST>
inline bool plain_extreme(const float* x, i64 n, float& found) {
    const i64 together = 64, side = 16;
    const auto better = [](auto a, auto b) { return GREATEST ? (b > a ? b : a) : (b < a ? b : a); };
    if (n < side) return false;
    Sixteen best = vector_at<Sixteen>(x), sum = best;  // a sum is NaN if an element is
    i64 i = side;
    if (n >= together) {
        Sixteen chain[4], sums[4];
        for (int k = 0; k < 4; ++k) chain[k] = sums[k] = vector_at<Sixteen>(x + side * k);
        for (i = together; i + together <= n; i += together)
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; ++k) {
                const Sixteen next = vector_at<Sixteen>(x + i + side * k);
                sums[k] += next;
                chain[k] = better(chain[k], next);
            }
        best = better(better(chain[0], chain[1]), better(chain[2], chain[3]));
        sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    for (; i < n; i += side) {  // the last ones once more, if need be
        const Sixteen next = vector_at<Sixteen>(x + (i + side <= n ? i : n - side));
        sum += next;
        best = better(best, next);
    }
    float all[16], sums[16];
    std::memcpy(all, &best, sizeof all), std::memcpy(sums, &sum, sizeof sums);
    int any = 0;
    for (int k = 0; k < side; ++k) any |= sums[k] != sums[k];
    for (int width = 8; width; width /= 2)
        for (int k = 0; k < width; ++k)
            all[k] = better(all[k], all[k + width]);
    found = all[0];
    if (any || found != 0.f) return !any;
    const uint32_t wanted = GREATEST ? 0 : 0x80000000;  // the one of the zeros that wins
    bool there = false;
    for (i64 k = 0; k < n && !there; k += together) {
        uint32_t found_there = 0;
        const int count = int(n - k < together ? n - k : together);
        for (int j = 0; j < count; ++j) found_there |= uint32_t(bits_of(x[k + j]) == wanted);
        there = found_there;
    }
    found = float_of(there ? wanted : wanted ^ 0x80000000);
    return true;
}

// The elements folded by `maximum` or `minimum`: sixteen side by side, then these, then the rest.
template <bool GREATEST>
inline float extreme(const float* x, i64 n) {
    const auto better = [](float a, float b) { return GREATEST ? maximum(a, b) : minimum(a, b); };
    float best[16], total;
    if (plain_extreme<GREATEST>(x, n, total)) return total;
    const i64 side = n < 16 ? n : 16;
    for (i64 j = 0; j < side; ++j) best[j] = x[j];
    i64 i = side;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; ++j) best[j] = better(best[j], x[i + j]);
    total = best[0];
    for (i64 j = 1; j < side; ++j) total = better(total, best[j]);
    for (; i < n; ++i) total = better(total, x[i]);
    return total;
}

}  // namespace
}  // namespace LEVEL
