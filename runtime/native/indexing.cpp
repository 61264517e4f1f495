#include "indexing.h"

#include <cstring>

#define LEVEL indexing  // elements, one by one: the same on every processor
#include "level_elements.h"

using namespace indexing;

namespace {

// A table of one group: its first partition, and how rows lie: `slots` of so many bytes a partition.
struct Table {
    char* at;
    i64 bytes, rows, rest;  // from the last row of a partition to the first one of the next
    uint64_t inverse;       // of the slots, times 2^40: exact enough for rows below 2^40 / slots, which fit no partition

    Table(char* first, i64 pitch, i64 slots, i64 row_bytes)
        : at(first), bytes(row_bytes), rows(GROUP * slots), rest(pitch - slots * row_bytes),
          inverse((uint64_t(1) << 40) / uint64_t(slots) + 1) {}

    // Row `row`, or null where the table has not so many.
    char* row(uint32_t row) const {
        return i64(row) < rows ? at + row * bytes + i64(row * inverse >> 40) * rest : nullptr;
    }
};

// Calls f(row of the table or null, entry of the list) for all entries of all groups in their order.
template <class F>
void entries(const Item& item, int table, char* const* start, F f) {
    const Operand &rows = item.operands[size_t(table)], &list = item.operands[size_t(1 - table)], &index = item.operands[2];
    const i64 bytes = size_of(int(rows.type)) * rows.count[2], entry_step = list.stride[1], step = index.stride[1];
    for (i64 lane = 0; lane < list.lanes; ++lane) {
        const i64 first = lane - lane % GROUP;
        const Table found(start[table] + first * rows.stride[0], rows.stride[0], rows.count[1], bytes);
        char* entry = start[1 - table] + lane * list.stride[0];
        const char* number = start[2] + lane * index.stride[0];
        for (i64 i = 0; i < list.count[1]; ++i, entry += entry_step, number += step) f(found.row(get<uint32_t>(number)), entry);
    }
}

// Elements of W bytes.
template <size_t W>
void gather_elements(const Item& item, char* const* start) {
    const i64 width = item.operands[0].count[2], step = item.operands[0].stride[2];
    const bool keep = item.params[0] != 0;
    if (width > 1 && step == i64(W)) {
        entries(item, 1, start, [&](const char* row, char* entry) {
            if (row) std::memcpy(entry, row, size_t(width) * W);
            else if (!keep) std::memset(entry, 0, size_t(width) * W);
        });
        return;
    }
    if (width == 1) {
        entries(item, 1, start, [keep](const char* row, char* entry) {
            if (row) std::memcpy(entry, row, W);
            else if (!keep) std::memset(entry, 0, W);
        });
        return;
    }
    entries(item, 1, start, [&](const char* row, char* entry) {
        if (!row && keep) return;
        for (i64 e = 0; e < width; ++e, entry += step) {
            if (row) std::memcpy(entry, row + e * i64(W), W);
            else std::memset(entry, 0, W);
        }
    });
}

// Calls combine(element of the table, the entry's) for elements of `size` bytes.
template <class F>
void scatter_elements(const Item& item, char* const* start, i64 size, F combine) {
    const i64 width = item.operands[1].count[2], step = item.operands[1].stride[2];
    if (width > 1 && step == size) {  // a loop that compilers make vectors of
        entries(item, 0, start, [&](char* row, const char* entry) {
            for (i64 at = 0; row && at < width * size; at += size) combine(row + at, entry + at);
        });
        return;
    }
    if (width == 1) {
        entries(item, 0, start, [&](char* row, const char* entry) {
            if (row) combine(row, entry);
        });
        return;
    }
    entries(item, 0, start, [&](char* row, const char* entry) {
        if (!row) return;
        for (i64 e = 0; e < width; ++e, row += size, entry += step) combine(row, entry);
    });
}

template <size_t W>
void assign(const Item& item, char* const* start) {
    scatter_elements(item, start, W, [](char* to, const char* from) { std::memcpy(to, from, W); });
}

template <class T, class F>
void scatter_whole(const Item& item, char* const* start, F f) {
    scatter_elements(item, start, sizeof(T), [&](char* to, const char* from) { put<T>(to, T(f(get<T>(to), get<T>(from)))); });
}

template <class T>
void scatter_numbers(const Item& item, char* const* start) {
    switch (item.operations[0].step) {
        case ADD: return scatter_whole<T>(item, start, [](T x, T y) { return uint32_t(x) + uint32_t(y); });
        case MULTIPLY_: return scatter_whole<T>(item, start, [](T x, T y) { return uint32_t(x) * uint32_t(y); });
        case MAX: return scatter_whole<T>(item, start, [](T x, T y) { return x > y ? x : y; });
        case MIN: return scatter_whole<T>(item, start, [](T x, T y) { return x < y ? x : y; });
        case AND: return scatter_whole<T>(item, start, [](T x, T y) { return x & y; });
        case OR: return scatter_whole<T>(item, start, [](T x, T y) { return x | y; });
        default: return scatter_whole<T>(item, start, [](T x, T y) { return x ^ y; });
    }
}

inline float one_nan_sum(float x, float y) { return one_nan(x + y); }

// Each result is rounded to the row's type.
template <class F>
void scatter_rounded(const Item& item, char* const* start, F f) {
    const int type = int(item.operands[0].type);
    if (type == F32) {
        return scatter_elements(item, start, 4, [&](char* to, const char* from) { put(to, f(get<float>(to), get<float>(from))); });
    }
    scatter_elements(item, start, size_of(type), [&](char* to, const char* from) {
        float x, y;
        read(type, &x, to, 0, 1), read(type, &y, from, 0, 1);
        x = f(x, y);
        write(type, to, 0, &x, 1);
    });
}

void scatter_floats(const Item& item, char* const* start) {
    switch (item.operations[0].step) {
        case ADD: return scatter_rounded(item, start, [](float x, float y) { return one_nan_sum(x, y); });
        case MULTIPLY_: return scatter_rounded(item, start, [](float x, float y) { return one_nan(x * y); });
        case MAX: return scatter_rounded(item, start, [](float x, float y) { return one_nan(maximum(x, y)); });
        default: return scatter_rounded(item, start, [](float x, float y) { return one_nan(minimum(x, y)); });
    }
}

// Whether all numbers of the list are those of rows.
bool all_inside(const Item& item, char* const* start, i64 count) {
    const Operand& index = item.operands[2];
    for (i64 lane = 0; lane < index.count[0]; ++lane) {
        const i64 row = element(index.type, start[2] + lane * index.stride[0]);
        if (row < 0 || row >= count) return false;
    }
    return true;
}

}  // namespace

i64 element(i64 type, const char* at) {
    switch (type) {
        case S8: return get<int8_t>(at);
        case U16: return get<uint16_t>(at);
        case S16: return get<int16_t>(at);
        case U32: return get<uint32_t>(at);
        case S32: return get<int32_t>(at);
        default: return get<uint8_t>(at);
    }
}

float element_as_float(int type, const char* at) {
    float value;
    read(type, &value, at, 0, 1);
    return value;
}

bool gather(const Kernels& kernels, const Item& item, char* const* start) {
    const Operand &out = item.operands[0], &rows = item.operands[1], &index = item.operands[2];
    const bool clamp = item.params[0] != 0;
    const i64 count = rows.count[0];
    if (!clamp && !all_inside(item, start, count)) return false;
    for (i64 lane = 0; lane < out.lanes; ++lane) {
        i64 row = element(index.type, start[2] + lane * index.stride[0]);
        row = row < 0 ? 0 : row >= count ? count - 1 : row;
        kernels.copy(item.nest, size_of(int(out.type)), start[0] + lane * out.stride[0],
                              start[1] + row * rows.stride[0], 0, item.nest.rows);
    }
    return true;
}

bool scatter(const Kernels& kernels, const Item& item, char* const* start) {
    const Operand &rows = item.operands[0], &list = item.operands[1], &index = item.operands[2];
    const bool skip = item.params[0] != 0, add = item.operations[0].step == ADD;
    if (!skip && !all_inside(item, start, rows.count[0])) return false;
    for (i64 lane = 0; lane < list.lanes; ++lane) {
        const i64 row = element(index.type, start[2] + lane * index.stride[0]);
        if (row < 0 || row >= rows.count[0]) continue;
        char* const both[] = {start[0] + row * rows.stride[0], start[1] + lane * list.stride[0]};
        if (!add) {
            kernels.copy(item.nest, size_of(int(rows.type)), both[0], both[1], 0, item.nest.rows);
            continue;
        }
        Rows parts(item.nest, 2, both, 0);
        for (i64 part = 0; part < item.nest.rows; ++part, parts.next())
            for (i64 i = 0; i < item.nest.inner; ++i) {
                char* const to = parts.at[0] + i * parts.step(0);
                put(to, one_nan_sum(get<float>(to), get<float>(parts.at[1] + i * parts.step(1))));
            }
    }
    return true;
}

bool group_gather(const Item& item, char* const* start) {
    switch (size_of(int(item.operands[0].type))) {
        case 1: gather_elements<1>(item, start); break;
        case 2: gather_elements<2>(item, start); break;
        case 4: gather_elements<4>(item, start); break;
        default: gather_elements<8>(item, start); break;
    }
    return true;
}

bool group_scatter(const Item& item, char* const* start) {
    const int type = int(item.operands[0].type);
    if (item.params[0]) {
        switch (size_of(type)) {
            case 1: assign<1>(item, start); break;
            case 2: assign<2>(item, start); break;
            case 4: assign<4>(item, start); break;
            default: assign<8>(item, start); break;
        }
        return true;
    }
    switch (type) {
        case PRED: case U8: scatter_numbers<uint8_t>(item, start); break;
        case S8: scatter_numbers<int8_t>(item, start); break;
        case U16: scatter_numbers<uint16_t>(item, start); break;
        case S16: scatter_numbers<int16_t>(item, start); break;
        case U32: scatter_numbers<uint32_t>(item, start); break;
        case S32: scatter_numbers<int32_t>(item, start); break;
        default: scatter_floats(item, start);
    }
    return true;
}
