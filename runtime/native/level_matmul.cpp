// TensorE: each element of a product is one chain of fused multiply-adds over the depth, from 0 up, which is then stored
// or added to what PSUM has. Neither tiling nor threads nor the processor change that order.
#include "level.h"
#include "level_elements.h"

namespace LEVEL {
namespace {

#if defined(__AVX512F__)
const int LANES = 16, MOST_ROWS = 12;
typedef __m512 V;
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
inline V zero() { return _mm512_setzero_ps(); }
inline V fused(float a, V b, V c) { return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c); }
inline V sum(V a, V b) { return _mm512_add_ps(a, b); }
inline V same_nan(V a) {
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_set1_ps(one_nan(NAN)));
}
#elif defined(__AVX2__) && defined(__FMA__)
const int LANES = 8, MOST_ROWS = 6;
typedef __m256 V;
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
inline V zero() { return _mm256_setzero_ps(); }
inline V fused(float a, V b, V c) { return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c); }
inline V sum(V a, V b) { return _mm256_add_ps(a, b); }
inline V same_nan(V a) { return _mm256_blendv_ps(a, _mm256_set1_ps(one_nan(NAN)), _mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
#else
const int LANES = 4, MOST_ROWS = 6;
struct V {
    float x[LANES];
};
inline V load(const float* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
inline V zero() { return V{}; }
inline V fused(float a, V b, V c) { for (int i = 0; i < LANES; ++i) c.x[i] = std::fma(a, b.x[i], c.x[i]); return c; }
inline V sum(V a, V b) { for (int i = 0; i < LANES; ++i) a.x[i] += b.x[i]; return a; }
inline V same_nan(V a) { for (int i = 0; i < LANES; ++i) a.x[i] = one_nan(a.x[i]); return a; }
#endif

const int VECTORS = 2, WIDTH = VECTORS * LANES;  // columns of a panel
const int LINES = (WIDTH * 4 + 63) / 64;         // of a cache, for a panel's row
const i64 CROWDED = 512;                         // rows at such distances push each other out of the nearest cache
const int AHEAD = 8;                             // lanes that are asked for in advance

// Columns [first, last) of one lane of an operand, whose free dims are `free`.
void read_lane(const Nest& free, int type, const char* lane, i64 first, i64 last, float* to) {
    const i64 stride = free.stride[0][free.ndims - 1];
    if (free.rows == 1) return read(type, to, lane + first * stride, stride, int(last - first));
    char* start = const_cast<char*>(lane);
    Rows rows(free, 1, &start, first / free.inner);
    for (i64 at = first, skipped = first % free.inner; at < last; skipped = 0, rows.next()) {
        const i64 left = free.inner - skipped, n = last - at < left ? last - at : left;
        const char* from = rows.at[0] + skipped * stride;
        if (type == F32 && stride == 4) std::memcpy(to + (at - first), from, size_t(n) * sizeof(float));
        else read(type, to + (at - first), from, stride, int(n));
        at += n;
    }
}

// Elements that lie side by side in every lane of a moving tile, and in a row of its panel.
struct Piece {
    i64 from;               // bytes, in the lane
    int panel, column, count;
};

// The pieces of columns [first, last) of an f32 operand whose elements lie side by side in its last dim; how many there are.
int pieces_of(const Nest& free, i64 first, i64 last, Piece* pieces) {
    char* none = nullptr;
    Rows rows(free, 1, &none, first / free.inner);
    int count = 0;
    for (i64 at = first, skipped = first % free.inner; at < last; skipped = 0, rows.next())
        for (i64 end = at + free.inner - skipped < last ? at + free.inner - skipped : last; at < end;) {
            const int column = int(at - first), room = WIDTH - column % WIDTH;
            const int n = end - at < room ? int(end - at) : room;
            pieces[count++] = {(rows.at[0] - none) + skipped * 4, column / WIDTH, column % WIDTH, n};
            at += n, skipped += n;
        }
    return count;
}

inline void copy_few(float* to, const char* from, int n) {
#if defined(__AVX512F__)
    for (; n >= 16; n -= 16, to += 16, from += 64) _mm512_storeu_ps(to, _mm512_loadu_ps(from));
    const __mmask16 rest = __mmask16((1u << n) - 1);
    _mm512_mask_storeu_ps(to, rest, _mm512_maskz_loadu_ps(rest, from));
#else
    std::memcpy(to, from, size_t(n) * sizeof(float));
#endif
}

// ROWS rows of the result, WIDTH columns of which `columns` are wanted. The moving rows are b_pitch bytes apart, and so
// is what is asked for from `later` on.
template <int ROWS>
void tile(const float* a, const char* b, i64 b_pitch, const char* later, i64 depth, char* out, i64 pitch,
          const i64* places, int columns, bool add) {
    V total[ROWS][VECTORS];  // in registers, as long as all loops over it are unrolled
    for (int r = 0; r < ROWS; ++r) expect(out + r * pitch, places ? 64 : WIDTH * 4);
    _Pragma("GCC unroll 16") for (int r = 0; r < ROWS; ++r)
        _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; ++v) total[r][v] = zero();
    for (i64 k = 0; k < depth; ++k, a += MOST_ROWS, b += b_pitch, later += b_pitch) {
        V x[VECTORS];
        __builtin_prefetch(later);
        _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; ++v)
            x[v] = load(reinterpret_cast<const float*>(b) + v * LANES);
        _Pragma("GCC unroll 16") for (int r = 0; r < ROWS; ++r)
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; ++v) total[r][v] = fused(a[r], x[v], total[r][v]);
    }
    const int whole = places ? 0 : columns / LANES;  // vectors
    if (whole) {
        _Pragma("GCC unroll 16") for (int r = 0; r < ROWS; ++r)
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; ++v) {
                if (v >= whole) continue;
                float* row = reinterpret_cast<float*>(out + r * pitch) + v * LANES;
                store(row, same_nan(add ? sum(load(row), total[r][v]) : total[r][v]));
            }
        if (whole * LANES == columns) return;
    }
    float values[ROWS][WIDTH];
    _Pragma("GCC unroll 16") for (int r = 0; r < ROWS; ++r)
        _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; ++v) store(values[r] + v * LANES, total[r][v]);
    for (int r = 0; r < ROWS; ++r, out += pitch)
        for (int c = whole * LANES; c < columns; ++c) {
            char* at = out + (places ? places[c] : c * i64(4));
            put<float>(at, one_nan(add ? get<float>(at) + values[r][c] : values[r][c]));
        }
}

template <int ROWS>
void tile_of(int rows, const float* a, const char* b, i64 b_pitch, const char* later, i64 depth, char* out, i64 pitch,
             const i64* places, int columns, bool add) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return tile_of<ROWS - 1>(rows, a, b, b_pitch, later, depth, out, pitch, places, columns, add);
    tile<ROWS>(a, b, b_pitch, later, depth, out, pitch, places, columns, add);
}

// to[m, k] = from[k, m] + 0; false when one of the numbers is not finite.
bool flip(const char* from, i64 from_pitch, char* to, i64 to_pitch, i64 depth, i64 rows) {
    const uint32_t exponent = 0x7F800000;
    uint32_t others = 0;  // numbers that are not finite
    const auto turn_one = [&](i64 k, i64 m) {
        const float x = get<float>(from + k * from_pitch + m * 4);
        others |= uint32_t((bits_of(x) & exponent) == exponent);
        put<float>(to + m * to_pitch + k * 4, x + 0.f);
    };
    i64 k = 0;
#if defined(__AVX2__)
    const __m256i largest = _mm256_set1_epi32(int(exponent));
    __m256i seen = _mm256_setzero_si256();
    for (; k + 8 <= depth; k += 8) {
        i64 m = 0;
        for (i64 i = k + 8; i < k + 16 && i < depth; ++i) expect(from + i * from_pitch, rows * 4);
        for (; m + 8 <= rows; m += 8) {
            __m256 r[8];
            for (int i = 0; i < 8; ++i) {
                r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + (k + i) * from_pitch) + m);
                seen = _mm256_or_si256(seen, _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(r[i]), largest), largest));
                r[i] = _mm256_add_ps(r[i], _mm256_setzero_ps());
            }
            turn(r);
            for (int i = 0; i < 8; ++i) _mm256_storeu_ps(reinterpret_cast<float*>(to + (m + i) * to_pitch) + k, r[i]);
        }
        for (; m < rows; ++m)
            for (i64 i = k; i < k + 8; ++i) turn_one(i, m);
    }
    others |= !_mm256_testz_si256(seen, seen);
#endif
    for (; k < depth; ++k)
        for (i64 m = 0; m < rows; ++m) turn_one(k, m);
    return !others;
}

i64 lane_pitch(const Operand& operand) { return operand.stride[0]; }

bool is_dense(const Nest& free, i64 type) {
    return type == F32 && free.rows == 1 && (free.stride[0][free.ndims - 1] == 4 || free.inner == 1);
}

// VECTORS_ vectors of sums side by side, of a tile as it lies.
template <int VECTORS_>
void columns_of(const char* tile, i64 pitch, i64 depth, const float* x, float* total) {
    const i64 bytes = VECTORS_ * LANES * 4;
    V sum[VECTORS_];
    _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS_; ++v) sum[v] = zero();
    for (i64 k = 0; k < depth; ++k, tile += pitch) {
        // a tile is seldom read twice, and what lies so far apart comes from far away; behind its end the next columns
        const char* later = tile + (k + AHEAD < depth ? AHEAD * pitch : (AHEAD - depth) * pitch + bytes);
        for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(later + i);
        _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS_; ++v)
            sum[v] = fused(x[k], load(reinterpret_cast<const float*>(tile) + v * LANES), sum[v]);
    }
    _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS_; ++v) store(total + v * LANES, sum[v]);
}

// The sums of tile[k, m] * x[k] over k, for the columns m in [first, last) of a tile as it lies.
void column_sums(const char* tile, i64 pitch, i64 depth, const float* x, i64 first, i64 last, float* total) {
    i64 m = first;
    for (; m + 8 * LANES <= last; m += 8 * LANES) columns_of<8>(tile + m * 4, pitch, depth, x, total + m);
    for (; m + 4 * LANES <= last; m += 4 * LANES) columns_of<4>(tile + m * 4, pitch, depth, x, total + m);
    for (; m + LANES <= last; m += LANES) columns_of<1>(tile + m * 4, pitch, depth, x, total + m);
    for (; m < last; ++m) {
        total[m] = 0.f;
        for (i64 k = 0; k < depth; ++k) total[m] = std::fma(get<float>(tile + k * pitch + m * 4), x[k], total[m]);
    }
}

// The single column of the moving tile.
void read_column(const Item& item, const char* moving, float* values) {
    const Operand& x = item.operands[1];
    for (i64 k = 0; k < x.lanes; ++k) read(int(x.type), values + k, moving + k * item.pitch, 0, 1);
}

}  // namespace

// The single column of a product from sums that are `step` elements apart.
void store_column(const Item& item, char* out, const float* sums, i64 step) {
    const i64 pitch = lane_pitch(item.operands[0]), rows = item.operands[0].lanes;
    const bool add = item.params[0] != 0;
    for (i64 m = 0; m < rows; ++m, out += pitch, sums += step)
        put<float>(out, one_nan(add ? get<float>(out) + *sums : *sums));
}

namespace {

// The product with a single column: the rows of the result side by side, instead of a panel that is empty but for it.
void multiply_column(const Item& item, const Weights& weights, char* out, const char* moving, Workspace& w) {
    const i64 depth = weights.depth, rows = weights.rows;
    const bool tf32 = item.params[1] != 0;
    float total[MAX_LANES], values[MAX_LANES];
    read_column(item, moving, values);
    const char* tile = weights.pending ? weights.source : reinterpret_cast<const char*>(weights.dense);
    i64 from = weights.pending ? weights.pitch : rows * 4;
    if (tf32) {  // w.row has room for a whole tile
        for (i64 k = 0; k < depth; ++k) {
            values[k] = to_tf32(values[k]);
            for (i64 m = 0; m < rows; ++m) w.row[k * rows + m] = to_tf32(get<float>(tile + k * from + m * 4));
        }
        tile = reinterpret_cast<const char*>(w.row), from = rows * 4;
    }
    column_sums(tile, from, depth, values, 0, rows, total);
    store_column(item, out, total, 1);
}

// The product of a single row of the result: sums of the moving tile as it lies.
void multiply_row(const Item& item, const Weights& weights, char* out, const char* moving, i64 first, i64 last, Workspace& w) {
    const i64 depth = weights.depth, all = item.inside.rows * item.inside.inner, end = last * UNIT < all ? last * UNIT : all;
    const bool add = item.params[0] != 0;
    float values[MAX_LANES];
    for (i64 k = 0; k < depth; ++k) values[k] = weights.panels[k * MOST_ROWS];
    column_sums(moving, item.pitch, depth, values, first * UNIT, end, w.row);
    for (i64 c = first * UNIT; c < end; ++c) {
        char* at = out + (item.columns.empty() ? c * 4 : item.columns[size_t(c)]);
        put<float>(at, one_nan(add ? get<float>(at) + w.row[c] : w.row[c]));
    }
}

}  // namespace

// Reads the stationary tile out of SBUF, which something is about to write.
void settle(Weights& w) {
    const Operand& x = w.item->operands[0];
    const Nest& free = w.item->inside;
    const bool windows = x.type == F32 && free.rows > 1;  // few elements side by side
    if (windows) {
        int offsets[MAX_LANES], count = 0;
        char* none = nullptr;
        Rows rows(free, 1, &none, 0);
        for (i64 row = 0; row < free.rows; ++row, rows.next())
            for (i64 i = 0; i < free.inner; ++i) offsets[count++] = int(rows.at[0] - none + i * rows.step(0));
        for (i64 k = 0; k < w.depth; ++k) {
            const char* lane = w.source + k * w.pitch;
            float* to = w.dense + k * w.rows;
            for (int i = 0; i < count; ++i) to[i] = get<float>(lane + offsets[i]);
        }
    }
    for (i64 k = 0; !windows && k < w.depth; ++k)
        read_lane(w.item->inside, int(x.type), w.source + k * w.pitch, 0, w.rows, w.dense + k * w.rows);
    w.pending = w.blank = false;
}

// The product of a stationary tile, [depth, rows] of FP32, with the identity matrix, as a transpose of its lanes
// [first * 16, last * 16); false when a value that is not finite makes it something else.
bool transposed(const Item& item, const char* tile, i64 pitch, i64 depth, i64 rows, char* out, i64 first, i64 last) {
    const i64 from = first * 16, end = last * 16 < depth ? last * 16 : depth;
    return flip(tile + from * pitch, pitch, out + from * 4, lane_pitch(item.operands[0]), end - from, rows);
}

// Whether the moving tile, which has as many columns as lanes, is the identity matrix.
bool is_identity(const Item& item, const char* moving, Workspace& w) {
    const Operand& x = item.operands[1];
    const i64 n = x.lanes;
    for (i64 k = 0; k < n; ++k) {
        const char* lane = moving + k * item.pitch;
        const float* row = w.a;
        if (is_dense(item.inside, x.type)) row = reinterpret_cast<const float*>(lane);
        else read_lane(item.inside, int(x.type), lane, 0, n, w.a);
        uint32_t wrong = 0;
        for (int m = 0; m < int(n); ++m) wrong |= m == int(k) ? bits_of(row[m]) ^ 0x3F800000 : bits_of(row[m]) << 1;
        if (wrong) return false;
    }
    return true;
}

// Lays the stationary tile out as `multiply` reads it: panels of MOST_ROWS rows of the result.
void pack(Weights& w, bool tf32) {
    if (w.packed == 1 + tf32) return;
    const bool direct = w.pending && is_dense(w.item->inside, w.item->operands[0].type);
    if (w.pending && !direct) settle(w);
    const char* from = direct ? w.source : reinterpret_cast<const char*>(w.dense);
    const i64 pitch = direct ? w.pitch : w.rows * 4;
    for (i64 k = 0; k < w.depth; ++k) {
        const float* row = reinterpret_cast<const float*>(from + k * pitch);
        float* to = w.panels + k * MOST_ROWS;
        if (direct && k + AHEAD < w.depth) expect(from + (k + AHEAD) * pitch, w.rows * 4);
        for (i64 m = 0; m < w.rows; m += MOST_ROWS, to += w.depth * MOST_ROWS) {
            const i64 n = w.rows - m < MOST_ROWS ? w.rows - m : MOST_ROWS;
            if (n == MOST_ROWS) std::memcpy(to, row + m, sizeof(float) * MOST_ROWS);
            else std::memcpy(to, row + m, sizeof(float) * n);
            if (tf32)
                for (i64 i = 0; i < n; ++i) to[i] = to_tf32(to[i]);
        }
    }
    w.packed = 1 + tf32;
}

// Units [first, last) of UNIT columns each. params: accumulate, tf32.
void multiply(const Item& item, const Weights& weights, char* out, const char* moving, i64 first, i64 last, Workspace& w) {
    const Operand& x = item.operands[1];
    const i64 depth = weights.depth, pitch = lane_pitch(item.operands[0]);
    const i64 all = item.inside.rows * item.inside.inner;
    const bool add = item.params[0] != 0, tf32 = item.params[1] != 0;
    const i64 x_pitch = item.pitch;
    const bool crowded = x_pitch % CROWDED == 0 && weights.rows > MOST_ROWS;
    if (all == 1) return multiply_column(item, weights, out, moving, w);
    if (weights.rows == 1 && is_dense(item.inside, x.type) && !tf32) return multiply_row(item, weights, out, moving, first, last, w);
    for (i64 column = first * UNIT; column < all && column < last * UNIT; column += UNIT) {
        const i64 end = column + UNIT < all ? column + UNIT : all;
        const bool dense = is_dense(item.inside, x.type) && end - column == UNIT && !tf32 && !crowded;
        Piece pieces[UNIT];
        const i64 step = item.inside.stride[0][item.inside.ndims - 1];
        const bool in_pieces = !dense && x.type == F32 && (step == 4 || item.inside.inner == 1) && !tf32;
        const int count = in_pieces ? pieces_of(item.inside, column, end, pieces) : 0;
        if (in_pieces && end - column < UNIT) std::memset(w.panel, 0, sizeof(float) * size_t(depth * UNIT));
        for (i64 k = 0; k < depth; ++k) {
            if (in_pieces) {
                const char* lane = moving + k * x_pitch;
                if (k + AHEAD < depth) __builtin_prefetch(lane + AHEAD * x_pitch + pieces[0].from);
                for (int p = 0; p < count; ++p)
                    copy_few(w.panel + (pieces[p].panel * depth + k) * WIDTH + pieces[p].column, lane + pieces[p].from, pieces[p].count);
                continue;
            }
            if (dense) {
                if (column == first * UNIT) expect(moving + k * x_pitch + column * 4, WIDTH * 4);
                continue;
            }
            read_lane(item.inside, int(x.type), moving + k * x_pitch, column, end, w.a);
            for (i64 c = end - column; c < UNIT; ++c) w.a[c] = 0.f;
            if (tf32)
                for (i64 c = 0; c < UNIT; ++c) w.a[c] = to_tf32(w.a[c]);
            for (i64 p = 0; p < UNIT / WIDTH; ++p)
                std::memcpy(w.panel + (p * depth + k) * WIDTH, w.a + p * WIDTH, sizeof(float) * WIDTH);
        }
        for (i64 from = column; from < end; from += WIDTH) {
            const char* b = dense ? moving + from * 4 : reinterpret_cast<const char*>(w.panel + (from - column) * depth);
            const i64 b_pitch = dense ? x_pitch : i64(sizeof(float)) * WIDTH;
            const int columns = int(end - from < WIDTH ? end - from : WIDTH);
            const i64* places = item.columns.empty() ? nullptr : item.columns.data() + from;
            for (i64 m = 0; m < weights.rows; m += MOST_ROWS) {
                const int rows = int(weights.rows - m < MOST_ROWS ? weights.rows - m : MOST_ROWS);
                char* at = out + m * pitch + (places ? 0 : from * 4);
                const float* a = weights.panels + m * depth;
                // the next columns, one line of each row during each of the first tiles
                const char* later = b + (dense && from + WIDTH < all ? WIDTH * 4 : 0) + m / MOST_ROWS % LINES * 64;
                tile_of<MOST_ROWS>(rows, a, b, b_pitch, later, depth, at, pitch, places, columns, add);
            }
        }
    }
}

// The row that all rows of a product are equal to, from the first column of a stationary tile that is still in SBUF.
void weighted_sum(const Item& item, const Weights& weights, const char* moving, float* total) {
    const i64 n = item.inside.inner;
    float values[MAX_LANES];
    for (i64 k = 0; k < weights.depth; ++k) values[k] = get<float>(weights.source + k * weights.pitch);
    column_sums(moving, item.pitch, weights.depth, values, 0, n, total);
    for (i64 c = 0; c < n; ++c) total[c] = one_nan(total[c]);
}

// Sums of a wide stationary tile, of which products take every so many columns, with the single column of a moving one.
void interleaved(const Item& item, const char* tile, i64 pitch, const char* moving, i64 first, i64 last, float* total) {
    float values[MAX_LANES];
    read_column(item, moving, values);
    column_sums(tile, pitch, item.operands[1].lanes, values, first, last, total);
}

namespace {

// Where the ones of a stationary tile are, in the order of the lanes; OTHERS when it has more than zeros and a few ones.
int find_ones(const char* tile, i64 pitch, Weights& w) {
    const int most = int(sizeof w.lane);
    int found = 0;
    for (i64 k = 0; k < w.depth; ++k) {
        const float* lane = reinterpret_cast<const float*>(tile + k * pitch);
        uint32_t any = 0;
        for (i64 m = 0; m < w.rows; ++m) any |= bits_of(lane[m]) << 1;
        for (i64 m = 0; any && m < w.rows; ++m) {
            if (lane[m] == 0.f) continue;
            if (lane[m] != 1.f || found == most) return OTHERS;
            w.lane[found] = uint8_t(k), w.row[found++] = uint8_t(m);
        }
    }
    return found;
}

// What adding 0 makes of a row of sums, where it makes anything of them.
void add_zero(float* to, i64 n) {
    uint32_t changes = 0;
    for (i64 i = 0; i < n; ++i) changes |= uint32_t(to[i] != to[i]) | uint32_t(bits_of(to[i]) == 0x80000000);
    if (changes) _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) to[i] = one_nan(to[i] + 0.f);
}

}  // namespace

// The product with a stationary tile of zeros and a few ones, as sums of lanes: the same bits as long as the lanes are
// finite, for a chain of sums from 0 up is never -0, and what else is added to it is 0.
bool add_up(const Item& item, Weights& weights, char* out, const char* moving, Workspace& w) {
    const Operand& x = item.operands[1];
    const i64 n = item.inside.rows * item.inside.inner, pitch = lane_pitch(item.operands[0]), x_pitch = item.pitch;
    if (!is_dense(item.inside, x.type) || !item.columns.empty() || weights.ones == OTHERS) return false;
    if (weights.ones == NOT_KNOWN) {
        const char* tile = weights.pending ? weights.source : reinterpret_cast<const char*>(weights.dense);
        weights.ones = find_ones(tile, weights.pending ? weights.pitch : weights.rows * 4, weights);
        if (weights.ones == OTHERS) return false;
    }
    // what moves may lie where results do
    if (item.operands[0].base == x.base) weights.note(item);
    const Weights::Found finite{moving, weights.steps, x_pitch, weights.depth, n};
    const Weights::Found clean{out, weights.writes_to(item.operands[0]), pitch, weights.rows, n};
    Weights::Found& known_clean = weights.known(out);
    const uint32_t exponent = 0x7F800000;
    uint32_t others = 0;  // numbers that are not finite
    for (i64 k = finite.is(weights.finite) ? weights.depth : 0; k < weights.depth; ++k) {
        const float* lane = reinterpret_cast<const float*>(moving + k * x_pitch);
        for (i64 i = 0; i < n; ++i) others |= uint32_t((bits_of(lane[i]) & exponent) == exponent);
    }
    if (others) return false;
    weights.finite = finite;
    const bool is_clean = clean.is(known_clean);
    const bool add = item.params[0] != 0;
    uint8_t left[MAX_LANES] = {};  // ones of each row that are still to come
    bool begun[MAX_LANES] = {};
    for (int one = 0; one < weights.ones; ++one) {
        expect(out + weights.row[one] * pitch, n * 4);
        ++left[weights.row[one]];
    }
    for (i64 m = add && is_clean ? weights.rows : 0; m < weights.rows; ++m) {
        float* to = reinterpret_cast<float*>(out + m * pitch);
        if (left[m]) continue;
        if (add) add_zero(to, n);
        else std::memset(to, 0, size_t(n) * sizeof(float));
    }
    for (int one = 0; one < weights.ones; ++one) {
        const int m = weights.row[one];
        const float* lane = reinterpret_cast<const float*>(moving + weights.lane[one] * x_pitch);
        float *to = reinterpret_cast<float*>(out + m * pitch), *total = w.row + m * n;
        const bool last = --left[m] == 0;
        if (last && !begun[m] && add) {
            _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) to[i] = one_nan(to[i] + (0.f + lane[i]));
            continue;
        }
        if (!begun[m]) _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) total[i] = 0.f + lane[i];
        else _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) total[i] += lane[i];
        begun[m] = true;
        if (!last) continue;
        if (add) _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) to[i] = one_nan(to[i] + total[i]);
        else _Pragma("GCC ivdep") for (i64 i = 0; i < n; ++i) to[i] = one_nan(total[i]);
    }
    known_clean = clean;
    return true;
}

}  // namespace LEVEL
