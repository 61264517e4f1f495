#include "one_hot.h"

#include <cstring>

#include "context.h"
#include "indexing.h"

namespace {

const i64 MOST_NUMBER = 1 << 24;  // up to here FP32 has all integers
const i64 LEAST_NUMBERS = 32;

// The operand that has the numbers; the other one has a value a partition.
int numbers_of(const Item& item) { return item.home.stride[1][1] ? 1 : 2; }

// Makes result k and forgets it.
void make(OneHots& one_hots, int k) {
    const OneHot& one_hot = one_hots.all[k];
    const i64 size = size_of(int(one_hot.type));
    char* row = one_hot.to;
    for (i64 lane = 0; lane < one_hot.place.lanes; ++lane, row += one_hot.pitch) {
        std::memset(row, 0, size_t(one_hot.elements * size));
        if (one_hot.at[lane] < 0) continue;
        const uint32_t one = one_hot.type == F32 ? 0x3F800000 : 0x3F80;  // little end first
        std::memcpy(row + one_hot.at[lane] * size, &one, size_t(size));
    }
    one_hots.all[k] = one_hots.all[--one_hots.count];
}

bool is_consecutive(const Item& item, int o, const char* from, i64& first) {
    float number, next;
    std::memcpy(&number, from, sizeof number), std::memcpy(&next, from + 4, sizeof next);
    if (!(number > -MOST_NUMBER && number + item.nest.inner < MOST_NUMBER) || next != number + 1) return false;
    first = i64(number);
    if (float(first) != number) return false;
    for (i64 lane = 0; lane < item.lanes.count; ++lane, from += item.nest.stride[o][0]) {
        const float* row = reinterpret_cast<const float*>(from);
        const int n = int(item.nest.inner), start = int(first);
        int wrong = 0;
        for (int i = 0; i < n; ++i) wrong |= row[i] != float(start + i);
        if (wrong) return false;
    }
    return true;
}

}  // namespace

bool can_be_one_hot(const Item& item) {
    const Nest& nest = item.nest;
    if (item.kind != MAP || item.operations.size() != 1 || item.operands.size() != 3) return false;
    if (item.operations[0].step != EQUAL || item.operations[0].operand != 2) return false;
    const i64 type = item.operands[0].type;
    if ((type != F32 && type != BF16) || nest.ndims != 2 || nest.inner < LEAST_NUMBERS || nest.stride[0][1] != size_of(int(type))) return false;
    if (!item.lanes.count || nest.rows != item.lanes.count || item.overlapped) return false;
    const int numbers = numbers_of(item);
    return item.operands[1].lanes && item.operands[2].lanes && item.operands[size_t(numbers)].type == F32 &&
           nest.stride[numbers][1] == 4 && nest.stride[3 - numbers][1] == 0;
}

bool make_one_hots(Context& context, const Item& item, const Place* places, bool may_make) {
    OneHots& one_hots = context.one_hots;
    for (size_t o = 0; o < item.operands.size(); ++o) {
        if (item.operands[o].base < 0) continue;
        const bool written = is_written(item, o);
        if (written && one_hots.known && places[o].meets(one_hots.numbers)) one_hots.known = false;
        for (int k = 0; k < one_hots.count; ++k) {
            const Place& place = one_hots.all[k].place;
            if (!places[o].meets(place)) continue;
            if (!may_make) return false;
            if (item.kind == LOAD) continue;
            if (o == 0 && written && item.whole && places[0].holds(place)) one_hots.all[k--] = one_hots.all[--one_hots.count];
            else make(one_hots, k--);
        }
    }
    return true;
}

bool put_off_one_hot(Context& context, Item& item, char* const* start, const Place* places) {
    OneHots& one_hots = context.one_hots;
    const int numbers = numbers_of(item);
    if (one_hots.count == MOST_ONE_HOTS) make(one_hots, 0);
    const Nest& nest = item.nest;
    const i64 pitch = nest.stride[numbers][0];
    const bool same = one_hots.known && one_hots.at == start[numbers] && one_hots.pitch == pitch;
    if (!same || one_hots.lanes < nest.rows || one_hots.elements < nest.inner) {
        i64 first;
        if (!is_consecutive(item, numbers, start[numbers], first)) {
            item.one_hot = false;  // nor will it be next time
            return false;
        }
        one_hots.known = true, one_hots.numbers = places[numbers], one_hots.at = start[numbers];
        one_hots.pitch = pitch, one_hots.lanes = nest.rows, one_hots.elements = nest.inner, one_hots.first = first;
    }
    const int values = 3 - numbers;
    OneHot& one_hot = one_hots.all[one_hots.count++];
    one_hot.place = places[0], one_hot.to = start[0];
    one_hot.type = item.operands[0].type, one_hot.pitch = nest.stride[0][0], one_hot.elements = nest.inner;
    const char* at = start[values];
    for (i64 lane = 0; lane < nest.rows; ++lane, at += nest.stride[values][0]) {
        const float value = element_as_float(int(item.operands[size_t(values)].type), at), apart = value - float(one_hots.first);
        const bool inside = apart >= 0.f && apart < float(nest.inner);
        const i64 found = inside ? i64(apart) : -1;
        one_hot.at[lane] = inside && float(one_hots.first + found) == value ? int(found) : -1;
    }
    return true;
}

bool load_one_hot(Context& context, const Item& load, const Place& place) {
    OneHots& one_hots = context.one_hots;
    for (int k = 0; k < one_hots.count; ++k) {
        const OneHot& one_hot = one_hots.all[k];
        if (!place.meets(one_hot.place)) continue;
        const Operand& tile = load.operands[0];
        const Nest& free = load.inside;
        const i64 size = size_of(int(tile.type));
        const bool dense = free.rows == 1 && (free.inner == 1 || free.stride[0][0] == size) && tile.type == one_hot.type;
        if (!dense || !one_hot.place.holds(place)) {
            make(one_hots, k--);
            continue;
        }
        Weights& weights = context.weights;
        reset_weights(weights, tile.lanes, free.inner);
        weights.listed = true;
        weights.ones = 0;
        const int column = int((place.from - one_hot.place.from) / size), lane = int(place.lane - one_hot.place.lane);
        for (int each = 0; each < int(tile.lanes); ++each) {
            const int row = one_hot.at[lane + each] - column;
            weights.lane[weights.ones] = uint8_t(each), weights.row[weights.ones] = uint8_t(row);
            weights.ones += one_hot.at[lane + each] >= 0 && row >= 0 && row < int(free.inner);
        }
        return true;
    }
    return false;
}

void settle_one_hots(Context& context) {
    while (context.one_hots.count) make(context.one_hots, 0);
}
