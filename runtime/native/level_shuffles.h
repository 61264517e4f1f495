// Words brought into another order; bits are moved only.
#pragma once

#include <cstring>

#include "core.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace LEVEL {
namespace {

#if defined(__AVX2__)
// Element i of row k becomes element k of row i; bits are moved only.
inline void turn(__m256 (&r)[8]) {
    __m256 t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    __m256 u[8];
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
#endif

// Every other word, as the parts of complex numbers lie.
inline void read_pairs(char* to, const char* from, i64 n) {
    i64 i = 0;
#if defined(__AVX512F__)
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (; i < n; i += 16) {
        const i64 left = n - i < 16 ? n - i : 16;
        const uint32_t words = (uint64_t(1) << (2 * left - 1)) - 1;  // not beyond the last one
        const __m512i low = _mm512_maskz_loadu_epi32(__mmask16(words), from + i * 8);
        const __m512i high = _mm512_maskz_loadu_epi32(__mmask16(words >> 16), from + i * 8 + 64);
        _mm512_mask_storeu_epi32(to + i * 4, __mmask16((1u << left) - 1), _mm512_permutex2var_epi32(low, even, high));
    }
#endif
    for (; i < n; ++i) std::memcpy(to + i * 4, from + i * 8, 4);
}

// The same the other way round; the words between stay.
inline void write_pairs(char* to, const char* from, i64 n) {
    i64 i = 0;
#if defined(__AVX512F__)
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i rest = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
    for (; i < n; i += 16) {
        const i64 left = n - i < 16 ? n - i : 16;
        const uint32_t words = 0x55555555 & uint32_t((uint64_t(1) << 2 * left) - 1);
        const __m512i x = _mm512_maskz_loadu_epi32(__mmask16((1u << left) - 1), from + i * 4);
        _mm512_mask_storeu_epi32(to + i * 8, __mmask16(words), _mm512_permutexvar_epi32(twice, x));
        _mm512_mask_storeu_epi32(to + i * 8 + 64, __mmask16(words >> 16), _mm512_permutexvar_epi32(rest, x));
    }
#endif
    for (; i < n; ++i) std::memcpy(to + i * 8, from + i * 4, 4);
}

}  // namespace
}  // namespace LEVEL
