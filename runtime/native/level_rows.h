// Rows of several operands, cut and gathered into pieces of work that stay in the nearest cache.
#pragma once

#include "level_elements.h"

namespace LEVEL {
namespace {

// A piece of work: `count` stretches of `length` elements, one after the other in the buffers. All operands' addresses, and
// how far their elements are apart.
struct Stretches {
    int count, length;
    char* (*at)[MAX_OPERANDS];
    const i64* step;
};

struct Four {
    uint32_t words[4];
};

const i64 SHORT = 32;  // elements of rows that are brought together, so that they are one row
const i64 LONG = 129;  // elements of rows that are worked on where they are, one by one

// Calls f(stretches) for all elements of rows [first, last): several short rows or parts of a long one at a time.
template <class F>
void blocks(const Item& item, char* const* start, i64 first, i64 last, F f) {
    const Nest& nest = item.nest;
    const int operands = int(item.operands.size());
    i64 step[MAX_OPERANDS];
    for (int o = 0; o < operands; ++o) step[o] = nest.stride[o][nest.ndims - 1];
    if (nest.rows == 1 && nest.inner <= BLOCK) {
        char* only[1][MAX_OPERANDS];
        for (int o = 0; o < operands; ++o) only[0][o] = start[o];
        return f(Stretches{1, int(nest.inner), only, step});
    }
    if (nest.ndims <= 2 && nest.inner >= LONG) {
        char* only[1][MAX_OPERANDS];
        for (i64 row = first; row < last; ++row) {
            for (int o = 0; o < operands; ++o) {
                const i64 pitch = nest.ndims == 2 ? nest.stride[o][0] : 0;
                only[0][o] = start[o] + row * pitch;
                if (row + 1 < last) expect_next(item, size_t(o), only[0][o], pitch, nest.stride[o][nest.ndims - 1] * nest.inner);
            }
            for (i64 done = 0; done < nest.inner; done += BLOCK) {
                const i64 length = nest.inner - done < BLOCK ? nest.inner - done : BLOCK;
                f(Stretches{1, int(length), only, step});
                for (int o = 0; o < operands; ++o) only[0][o] += nest.stride[o][nest.ndims - 1] * length;
            }
        }
        return;
    }
    char* at[BLOCK / 2][MAX_OPERANDS];
    Rows rows(nest, operands, start, first);
    const i64 together = nest.inner >= LONG ? 1 : BLOCK / (nest.inner < 2 ? 2 : nest.inner);
    for (i64 row = first; row < last;) {
        const i64 count = last - row < together ? last - row : together;
        for (i64 k = 0; k < count; ++k, rows.next()) {
            std::memcpy(at[k], rows.at, sizeof rows.at);  // of a size that is known
            if (count > 1 && nest.inner >= SHORT) expect_row(item, rows, nest.inner);
        }
        row += count;
        if (count > 1) {
            f(Stretches{int(count), int(nest.inner), at, step});
            continue;
        }
        if (row < last) expect_row(item, rows, nest.inner);  // shorter ones cost less than asking for them
        for (i64 done = 0; done < nest.inner; done += BLOCK) {
            const i64 length = nest.inner - done < BLOCK ? nest.inner - done : BLOCK;
            f(Stretches{1, int(length), at, step});
            for (int o = 0; o < operands; ++o) at[0][o] += rows.step(o) * length;
        }
    }
}

// A few bytes, in pieces that may share some.
inline INLINED void copy_few(char* to, const char* from, i64 bytes) {
    const auto pieces = [&](auto one) INLINED {
        const i64 size = i64(sizeof one);
        for (i64 i = 0; i + size <= bytes; i += size) std::memcpy(&one, from + i, sizeof one), std::memcpy(to + i, &one, sizeof one);
        std::memcpy(&one, from + bytes - size, sizeof one), std::memcpy(to + bytes - size, &one, sizeof one);
    };
    if (bytes >= 16) pieces(Four{});
    else if (bytes >= 8) pieces(uint64_t());
    else if (bytes >= 4) pieces(uint32_t());
    else for (i64 i = 0; i < bytes; ++i) to[i] = from[i];
}

// Rows that lie `pitch` bytes apart, of n elements, `step` bytes apart.
struct Piece {
    char* at[MAX_OPERANDS];
    i64 rows;
};

// Brings the rows of an operand one after the other, to `flat`, or back.
template <class T, bool BACK>
void bring(char* flat, char* at, i64 pitch, i64 step, i64 rows, i64 n) {
    const i64 size = i64(sizeof(T)), bytes = n * size;
    if (step == size && pitch == bytes) {
        std::memcpy(BACK ? at : flat, BACK ? flat : at, size_t(rows * bytes));
        return;
    }
    for (i64 k = 0; k < rows; ++k, flat += bytes, at += pitch) {
        if (!BACK && step == 0) {
            const T same = get<T>(at);
            EACH put<T>(flat + i * size, same);
        } else if (step == size) copy_few(BACK ? at : flat, BACK ? flat : at, bytes);
        else if (BACK) for (i64 i = 0; i < n; ++i) put<T>(at + i * step, get<T>(flat + i * size));
        else for (i64 i = 0; i < n; ++i) put<T>(flat + i * size, get<T>(at + i * step));
    }
}

template <bool BACK>
void bring_all(const Item& item, int o, char* flat, const Piece* pieces, int count) {
    const Nest& nest = item.nest;
    const i64 pitch = nest.stride[o][nest.ndims - 2], step = nest.stride[o][nest.ndims - 1], n = nest.inner;
    const int size = size_of(int(item.operands[size_t(o)].type));
    for (int k = 0; k < count; ++k) {
        char* const at = pieces[k].at[o];
        if (size == 1) bring<uint8_t, BACK>(flat, at, pitch, step, pieces[k].rows, n);
        else if (size == 2) bring<uint16_t, BACK>(flat, at, pitch, step, pieces[k].rows, n);
        else bring<uint32_t, BACK>(flat, at, pitch, step, pieces[k].rows, n);
        flat += pieces[k].rows * n * size;
    }
}

// Whether runs of rows are one row but for operands that repeat a row, or an element in a row, for which there are buffers.
inline bool are_runs(const Item& item) {
    const Nest& nest = item.nest;
    const int d = nest.ndims - 2;
    if (d < 0 || nest.inner >= LONG || nest.count[d] < 2) return false;
    for (size_t o = 0; o < item.operands.size(); ++o) {
        const i64 size = size_of(int(item.operands[o].type)), step = nest.stride[o][d + 1], apart = nest.stride[o][d];
        const bool dense = step == size && apart == nest.inner * size;
        if (!dense && (o == 0 || (step != 0 && (step != size || apart != 0)))) return false;
    }
    return true;
}

// As `blocks`, but f sees one stretch at a time; the first operand is the only one that is written.
template <class F>
void whole_blocks(const Item& item, char* const* start, i64 first, i64 last, Workspace& w, F f) {
    const Nest& nest = item.nest;
    const bool brief = nest.inner < SHORT;
    if (last - first < 2 || !(brief || are_runs(item))) return blocks(item, start, first, last, f);
    const int d = nest.ndims - 2, operands = int(item.operands.size());
    const i64 n = nest.inner, many = nest.count[d], most = BLOCK / (n < 2 ? 2 : n);
    Nest runs = nest;  // of so many rows
    runs.ndims = nest.ndims - 1;
    Rows rows(runs, operands, start, first / many);
    Piece pieces[BLOCK / 2];
    char* only[1][MAX_OPERANDS];
    i64 step[MAX_OPERANDS], within = first % many, filled[MAX_OPERANDS] = {};
    const char* repeated[MAX_OPERANDS] = {};  // the row of which a buffer holds so many
    for (i64 row = first; row < last;) {
        int count = 0;
        i64 all = 0;
        for (i64 more; all < most && row < last && (brief || !count); all += more, row += more) {
            more = many - within < last - row ? many - within : last - row;
            if (more > most - all) more = most - all;
            Piece& piece = pieces[count++];
            for (int o = 0; o < MAX_OPERANDS; ++o) piece.at[o] = o < operands ? rows.at[o] + within * nest.stride[o][d] : nullptr;
            piece.rows = more;
            within += more;
            if (within == many) within = 0, rows.next();
        }
        for (int o = 0; o < operands; ++o) {
            const i64 size = size_of(int(item.operands[size_t(o)].type)), apart = nest.stride[o][d];
            bool dense = nest.stride[o][d + 1] == size && (apart == n * size || many == 1), same = o && !nest.stride[o][d + 1] && (!apart || many == 1);
            const char* next = pieces[0].at[o];
            for (int k = 0; k < count; next += pieces[k++].rows * n * size)
                dense &= pieces[k].at[o] == next, same &= pieces[k].at[o] == pieces[0].at[o];
            only[0][o] = dense || same ? pieces[0].at[o] : w.flat[o], step[o] = same ? 0 : size;
            if (o == 0 || dense || same) continue;
            const bool repeats = !apart && count == 1;
            if (repeats && repeated[o] == pieces[0].at[o] && filled[o] >= all) continue;
            bring_all<false>(item, o, w.flat[o], pieces, count);
            repeated[o] = repeats ? pieces[0].at[o] : nullptr, filled[o] = all;
        }
        f(Stretches{1, int(all * n), only, step});
        if (only[0][0] == w.flat[0]) bring_all<true>(item, 0, w.flat[0], pieces, count);
    }
}

}  // namespace
}  // namespace LEVEL
