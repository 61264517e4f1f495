// Rows of several operands, cut and gathered into pieces of work that stay in the nearest cache.
#pragma once

#include "level_elements.h"

namespace LEVEL {
namespace {

// A piece of work: `count` stretches of `length` elements, one after the other in the buffers. All operands' addresses.
struct Stretches {
    int count, length;
    char* (*at)[MAX_OPERANDS];
};

const i64 LONG = 129;  // elements of rows that are worked on where they are, one by one

// Calls f(stretches) for all elements of rows [first, last): several short rows or parts of a long one at a time.
template <class F>
void blocks(const Item& item, char* const* start, i64 first, i64 last, F f) {
    const Nest& nest = item.nest;
    const int operands = int(item.operands.size());
    if (nest.rows == 1 && nest.inner <= BLOCK) {
        char* only[1][MAX_OPERANDS];
        for (int o = 0; o < operands; ++o) only[0][o] = start[o];
        return f(Stretches{1, int(nest.inner), only});
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
                f(Stretches{1, int(length), only});
                for (int o = 0; o < operands; ++o) only[0][o] += nest.stride[o][nest.ndims - 1] * length;
            }
        }
        return;
    }
    char* at[BLOCK / 2][MAX_OPERANDS];
    Rows rows(nest, operands, start, first);
    const i64 together = nest.inner >= LONG ? 1 : BLOCK / (nest.inner < 2 ? 2 : nest.inner);
    const bool expects = together > 1 && nest.inner >= 32;  // shorter rows cost less than asking for them
    Rows ahead(nest, operands, start, expects && first + together < last ? first + together : first);
    for (i64 row = first; row < last;) {
        const i64 count = last - row < together ? last - row : together;
        for (i64 k = 0; k < count; ++k, rows.next())
            for (int o = 0; o < operands; ++o) at[k][o] = rows.at[o];
        row += count;
        for (i64 k = 0; expects && k < together && row + k < last; ++k, ahead.next()) expect_row(item, ahead, nest.inner);
        if (count > 1) {
            f(Stretches{int(count), int(nest.inner), at});
            continue;
        }
        if (row < last) expect_row(item, rows, nest.inner);
        for (i64 done = 0; done < nest.inner; done += BLOCK) {
            const i64 length = nest.inner - done < BLOCK ? nest.inner - done : BLOCK;
            f(Stretches{1, int(length), at});
            for (int o = 0; o < operands; ++o) at[0][o] += rows.step(o) * length;
        }
    }
}

}  // namespace
}  // namespace LEVEL
