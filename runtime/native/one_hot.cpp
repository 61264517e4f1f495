#include "one_hot.h"

#include <cstring>

#include "context.h"
#include "indexing.h"

#define LEVEL one_hot  // elements, one by one: the same on every processor
#include "level_elements.h"

using namespace one_hot;

namespace {

const i64 MOST_NUMBER = 1 << 24;   // up to here FP32 has all integers
const i64 MOST_SIGNED = 1 << 20;   // of what is added to numbers whose signs are asked for
const int MOST_MEMBERS = 32000;    // what an int16_t tells apart
const i64 LEAST_NUMBERS = 32;
const i64 MOST_COUNTED = 1 << 22;  // sums of so many signs are exact in any order

// The comparison that an item is: which operands have consecutive numbers or a list of them, one value a partition, and
// factors of the list's numbers.
struct Form {
    bool signs;
    int list, value, weights;
};

Form form_of(const Item& item) {
    const Operation& first = item.operations[0];
    if (first.step == ADD) return {true, 1, first.operand, 0};
    if (item.operations.size() == 2) return {false, 1, first.operand, item.operations[1].operand};
    return item.home.ndims == 1 || item.home.stride[1][1] ? Form{false, 1, 2, 0} : Form{false, 2, 1, 0};
}

void drop(OneHots& one_hots, int k) {
    if (k != --one_hots.count) std::swap(one_hots.all[k], one_hots.all[one_hots.count]);
}

// Makes the members of a family that are still there, and forgets it. Those that mostly have to be made are put off no more.
void make(OneHots& one_hots, int k) {
    const Family& family = one_hots.all[k];
    const i64 size = family.row() / family.elements, lanes = family.place.lanes;
    const float rest = family.signs ? -1.f : 0.f;
    std::vector<float> row(static_cast<size_t>(family.elements));
    family.item->made += family.members - family.gone;
    if (family.item->made * 2 > family.item->lent) family.item->one_hot = false;
    for (i64 member = family.gone; member < family.members; ++member)
        for (i64 lane = 0; lane < lanes; ++lane) {
            if (family.along) {
                const int one = family.number[size_t(member * lanes + lane)];
                for (float& each : row) each = 0.f;
                if (one >= 0) row[size_t(one)] = 1.f;
            } else {
                for (i64 i = 0; i < family.elements; ++i) {
                    const size_t at = size_t(i * lanes + lane);
                    const int number = family.number[at];
                    const float value = (family.signs ? member < number : member == number) ? 1.f : rest;
                    row[size_t(i)] = family.weighted ? value * family.weight[at] : value;
                }
            }
            write(int(family.type), family.to + (member - family.gone) * family.row() + lane * family.pitch, size, row.data(), int(family.elements));
        }
    drop(one_hots, k);
}

void settle(Context& context, Counts& counts) {
    if (!counts.any) return;
    counts.any = false;
    --context.one_hots.counting;
    context.weights.note_all();
    for (i64 column = 0; column < counts.columns; ++column) {
        const int32_t* changes = counts.table.data() + column;
        i64 all = 0, above = 0;
        for (i64 row = 0; row <= counts.rows; ++row) all += changes[row * counts.columns];
        for (i64 row = 0; row < counts.rows; ++row) {  // signs that change after this row are 1 there
            above += changes[row * counts.columns];
            char* const to = counts.to + row * counts.pitch + column * 4;
            put(to, get<float>(to) + float(all - 2 * above));
        }
    }
}

// Those that meet a place.
void settle_counts(Context& context, const Place& place) {
    for (Counts& counts : context.one_hots.counts)
        if (counts.any && place.meets(counts.place)) settle(context, counts);
}

// Begins to count the products whose results are added there; null where sums are no integers.
Counts* begin_counts(Context& context, const Place& place, char* to, i64 pitch, i64 rows, i64 columns) {
    settle_counts(context, place);
    for (i64 row = 0; row < rows; ++row)
        for (i64 column = 0; column < columns; ++column) {
            const float sum = get<float>(to + row * pitch + column * 4);
            if (!(sum >= -float(MOST_COUNTED) && sum <= float(MOST_COUNTED)) || float(i64(sum)) != sum) return nullptr;
        }
    Counts& counts = context.one_hots.counts[context.one_hots.next_counts++ % MOST_COUNTS];
    settle(context, counts);
    counts.any = true;
    ++context.one_hots.counting;
    counts.place = place, counts.to = to;
    counts.pitch = pitch, counts.rows = rows, counts.columns = columns, counts.added = 0;
    counts.table.assign(size_t((rows + 1) * columns), 0);
    return &counts;
}

// Whether rows of FP32 numbers are consecutive, up or down, and the same in all lanes.
bool are_consecutive(const char* from, i64 pitch, i64 lanes, i64 count, float step) {
    const float* row = reinterpret_cast<const float*>(from);
    const float first = *row;
    int wrong = 0;
    for (int i = 0; i < int(count); ++i) wrong |= row[i] != first + step * float(i);
    for (i64 lane = 1; lane < lanes && !wrong && pitch; ++lane) wrong |= std::memcmp(from, from + lane * pitch, size_t(count) * 4);
    return !wrong;
}

bool is_whole_number(float x, i64 most) { return x > -float(most) && x < float(most) && float(i64(x)) == x; }

i64 elements_of(const Item& item) { return item.home.ndims == 2 ? item.home.inner : 1; }

// Which element of consecutive numbers a number is, or -1.
int find(float number, float first, i64 count) {
    const float apart = number - first;
    if (!(apart >= 0.f && apart < float(count))) return -1;
    const int found = int(apart);
    return first + float(found) == number ? found : -1;
}

// How many of the values `first`, `first` - 1, ... leave more than 0 when a number is added; -1 where one may leave 0.
int count_positive(float number, float first) {
    const float far = 4 * MOST_SIGNED;  // from here on sums have the number's sign
    if (number >= far || number <= -far) return number > 0.f ? MOST_MEMBERS : 0;
    if (number != number || float(i64(number)) != number) return -1;
    const float found = number + first + 0.5f;
    return found <= 0.f ? 0 : found >= float(MOST_MEMBERS) ? MOST_MEMBERS : int(found);
}

Family& begin(OneHots& one_hots, Item& item, char* const* start, const Place* places, i64 members) {
    if (one_hots.count == MOST_FAMILIES) make(one_hots, 0);
    Family& family = one_hots.all[one_hots.count++];
    family.item = &item;
    family.along = family.signs = family.weighted = false;
    family.place = places[0], family.to = start[0];
    family.type = item.operands[0].type, family.pitch = item.home.stride[0][0], family.elements = elements_of(item);
    family.members = members, family.gone = 0, item.lent += members;
    family.number.clear(), family.weight.clear();
    return family;
}

// Rows of consecutive numbers, of which each partition looks for its own.
bool put_off_along(OneHots& one_hots, Item& item, char* const* start, const Place* places, const Form& form, i64 members) {
    const Nest& nest = item.nest;
    const i64 pitch = nest.stride[form.list][0];
    const char* const row = start[form.list];
    const bool same = one_hots.known && one_hots.at == row && one_hots.pitch == pitch;
    if (!same || one_hots.lanes < nest.rows || one_hots.elements < nest.inner) {
        const float first = get<float>(row);
        if (!is_whole_number(first, MOST_NUMBER / 2) || !are_consecutive(row, pitch, nest.rows, nest.inner, 1.f)) return false;
        one_hots.known = true, one_hots.numbers = places[form.list], one_hots.at = row;
        one_hots.pitch = pitch, one_hots.lanes = nest.rows, one_hots.elements = nest.inner, one_hots.first = i64(first);
    }
    Family& family = begin(one_hots, item, start, places, members);
    family.along = true;
    const int type = int(item.operands[size_t(form.value)].type);
    const i64 size = size_of(type);
    for (i64 member = 0; member < members; ++member)
        for (i64 lane = 0; lane < nest.rows; ++lane) {
            const char* const at = start[form.value] + lane * nest.stride[form.value][0] + member * size;
            family.number.push_back(int16_t(find(element_as_float(type, at), float(one_hots.first), nest.inner)));
        }
    return true;
}

// What a list's numbers are to all values from `first` on; false where that is no matter of a place among them.
bool compare_all(Family& family, const Item& item, char* const* start, const Form& form, float first) {
    const i64 lanes = item.operands[0].lanes, n = family.elements;
    const bool column = item.nest.ndims == 1;
    float row[BLOCK];
    family.number.resize(size_t(lanes * n));
    family.weight.resize(form.weights ? size_t(lanes * n) : 0);
    const auto fetch = [&](int o, i64 lane) {
        const i64* strides = item.nest.stride[o];
        read(int(item.operands[size_t(o)].type), row, start[o] + lane * strides[0], column ? 0 : strides[1], int(n));
    };
    for (i64 lane = 0; lane < lanes; ++lane) {
        fetch(form.list, lane);
        for (i64 i = 0; i < n; ++i) {
            const int found = form.signs ? count_positive(row[i], first) : find(row[i], first, MOST_MEMBERS);
            if (form.signs && found < 0) return false;
            family.number[size_t(i * lanes + lane)] = int16_t(found);
        }
        if (!form.weights) continue;
        fetch(form.weights, lane);
        for (i64 i = 0; i < n; ++i) {
            if (row[i] * 0.f != 0.f) return false;
            family.weight[size_t(i * lanes + lane)] = row[i];
        }
    }
    return true;
}

// A list of numbers, which are all compared with one value after the other.
bool put_off_across(OneHots& one_hots, Item& item, char* const* start, const Place* places, const Form& form, i64 members) {
    const char* const values = start[form.value];
    const float first = get<float>(values);
    if (members < 2 || members > MOST_MEMBERS || elements_of(item) > BLOCK) return false;
    if (!is_whole_number(form.signs ? first + 0.5f : first, form.signs ? MOST_SIGNED : MOST_NUMBER / 2)) return false;
    if (!are_consecutive(values, item.nest.stride[form.value][0], item.operands[0].lanes, members, form.signs ? -1.f : 1.f)) return false;
    Family& family = begin(one_hots, item, start, places, members);
    family.signs = form.signs, family.weighted = form.weights > 0;
    if (compare_all(family, item, start, form, first)) return true;
    --one_hots.count;
    return false;
}

// The part of a family that a tile is, of which each column is the same element of one member after the other (across), or
// one element of a member after the other (along).
struct Window {
    i64 element, member, lane;
};

bool find_window(const Family& family, const Operand& tile, const Nest& free, const Place& place, Window& window) {
    const i64 row = family.row(), size = row / family.elements, from = place.from - family.place.from;
    const i64 step = family.along ? size : row;
    if (!family.place.holds(place) || tile.type != family.type || free.rows != 1 || from % size) return false;
    if (free.inner > 1 && free.stride[0][0] != step) return false;
    window = {from % row / size, from / row + family.gone, place.lane - family.place.lane};
    return !family.along || window.element + free.inner <= family.elements;
}

const int16_t* numbers_of(const Family& family, const Window& window) {
    return family.number.data() + (family.along ? window.member : window.element) * family.place.lanes + window.lane;
}

// Sums up numbers in the order of the lanes, each in one element of the result.
void add_ones(Context& context, const Item& item, char* out, const Family& family, const Window& window) {
    Weights& weights = context.weights;
    OneHots& one_hots = context.one_hots;
    const i64 columns = item.inside.inner, pitch = item.operands[0].stride[0], rows = weights.rows;
    const bool add = item.params[0] != 0;
    const Weights::Found clean{out, weights.writes_to(item.operands[0]), pitch, rows, columns};
    Weights::Found& known_clean = weights.known(out);
    for (i64 row = 0; row < rows && !(add && clean.is(known_clean)); ++row) {
        char* const to = out + row * pitch;
        if (!add) std::memset(to, 0, size_t(columns) * 4);
        else for (i64 column = 0; column < columns; ++column) put(to + column * 4, one_nan(get<float>(to + column * 4) + 0.f));
    }
    known_clean = clean;
    one_hots.sums.resize(MAX_LANES * MAX_COLUMNS), one_hots.begun.resize(MAX_LANES * MAX_COLUMNS);
    if (!++one_hots.product) one_hots.begun.assign(one_hots.begun.size(), 0), one_hots.product = 1;
    const int16_t* const numbers = numbers_of(family, window);
    const float* const factors = family.weighted ? family.weight.data() + window.element * family.place.lanes + window.lane : nullptr;
    int places[MAX_LANES], count = 0;
    for (int one = 0; one < weights.ones; ++one) {
        const int lane = weights.lane[one];
        const i64 column = numbers[lane] - window.member;
        if (numbers[lane] < 0 || column < 0 || column >= columns) continue;
        const size_t at = size_t(weights.row[one] * columns + column);
        const float value = factors ? factors[lane] : 1.f;
        if (one_hots.begun[at] == one_hots.product) {
            one_hots.sums[at] += value;
            continue;
        }
        one_hots.begun[at] = one_hots.product, one_hots.sums[at] = 0.f + value;
        places[count++] = int(at);
    }
    for (int k = 0; k < count; ++k) {
        char* const to = out + places[k] / columns * pitch + places[k] % columns * 4;
        put(to, one_nan(get<float>(to) + one_hots.sums[size_t(places[k])]));
    }
}

bool count_signs(Context& context, const Item& item, char* out, const Place& place, const Family& family, const Window& window) {
    const Weights& weights = context.weights;
    const i64 columns = item.inside.inner, pitch = item.operands[0].stride[0];
    Counts* found = nullptr;
    for (Counts& counts : context.one_hots.counts) {
        const bool same = counts.any && counts.to == out && counts.pitch == pitch && counts.rows == weights.rows && counts.columns == columns;
        if (same && item.params[0] && counts.added + MAX_LANES <= MOST_COUNTED) found = &counts;
    }
    if (!item.params[0]) {
        settle_counts(context, place);
        for (i64 row = 0; row < weights.rows; ++row) std::memset(out + row * pitch, 0, size_t(columns) * 4);
    }
    if (!found) found = begin_counts(context, place, out, pitch, weights.rows, columns);
    if (!found) return false;
    Counts& counts = *found;
    const int16_t* const numbers = numbers_of(family, window);
    counts.added += weights.depth;
    for (i64 lane = 0; lane < weights.depth; ++lane) {
        const i64 column = numbers[lane] - window.member;
        if (numbers[lane] >= 0 && column >= 0 && column < columns) ++counts.table[size_t(weights.changes[lane] * columns + column)];
    }
    return true;
}

}  // namespace

bool can_be_one_hot(const Item& item) {
    const Nest& nest = item.nest;
    if (item.kind != MAP || item.operations.empty() || item.operations.size() > 2) return false;
    const Operation &first = item.operations[0], &last = item.operations.back();
    const bool equal = first.step == EQUAL && item.operations.size() == 1 && item.operands.size() == 3;
    const bool weighted = first.step == EQUAL && item.operations.size() == 2 && last.step == MULTIPLY_ && last.operand > 0 && item.operands.size() == 4;
    const bool signs = first.step == ADD && item.operations.size() == 2 && last.step == SIGN && item.operands.size() == 3;
    if (!(equal || weighted || signs) || first.operand < 0) return false;
    const i64 type = item.operands[0].type;
    if ((type != F32 && type != BF16) || (weighted && type != F32) || item.overlapped) return false;
    const i64 lanes = item.operands[0].lanes;
    for (const Operand& operand : item.operands)
        if (operand.base < 0 || operand.lanes != lanes || operand.lane_dim != 0 || operand.type == RAW8) return false;
    const Form form = form_of(item);
    if (lanes > MAX_LANES || nest.rows * nest.inner % lanes) return false;
    if (nest.ndims == 1) return nest.inner == lanes && item.operands[size_t(form.value)].type == F32;
    return nest.ndims == 2 && nest.rows == lanes && nest.stride[0][1] == size_of(int(type)) && !nest.stride[form.value][1] && nest.stride[form.list][1];
}

i64 member_step(const Item& item, size_t o) {
    const i64 size = size_of(int(item.operands[o].type));
    return o == 0 ? elements_of(item) * size : int(o) == form_of(item).value ? size : 0;
}

bool make_one_hots(Context& context, const Item& item, const Place* places, bool may_make) {
    OneHots& one_hots = context.one_hots;
    for (size_t o = 0; o < item.operands.size(); ++o) {
        if (item.operands[o].base < 0) continue;
        const bool written = is_written(item, o), whole = o == 0 && written && item.whole;
        for (Counts& counts : one_hots.counts) {
            if (!counts.any || !places[o].meets(counts.place)) continue;
            if (!may_make) return false;
            if (item.kind != MULTIPLY) settle(context, counts);
        }
        if (written && one_hots.known && places[o].meets(one_hots.numbers)) one_hots.known = false;
        for (int k = 0; k < one_hots.count; ++k) {
            Family& family = one_hots.all[k];
            if (!places[o].meets(family.place)) continue;
            if (!may_make) return false;
            if (item.kind == LOAD || (item.kind == MULTIPLY && !written)) continue;
            const i64 row = family.row();
            const Place first{family.place.base, family.place.lane, family.place.lanes, family.place.from, family.place.from + row};
            if (whole && places[0].holds(family.place)) {
                drop(one_hots, k--);
            } else if (whole && places[0].holds(first) && places[0].to == first.to) {
                ++family.gone, family.place.from += row, family.to += row;
            } else {
                make(one_hots, k--);
            }
        }
    }
    return true;
}

bool put_off_one_hot(Context& context, Item& item, char* const* start, const Place* places, i64 members) {
    OneHots& one_hots = context.one_hots;
    const Form form = form_of(item);
    const bool row = !form.signs && !form.weights && elements_of(item) >= LEAST_NUMBERS && item.operands[size_t(form.list)].type == F32 &&
                     item.nest.stride[form.list][1] == 4;
    if (row && put_off_along(one_hots, item, start, places, form, members)) return true;
    const bool list = item.operands[size_t(form.value)].type == F32;
    if (list && put_off_across(one_hots, item, start, places, form, members)) return true;
    if (members == 1) item.one_hot = false;  // nor will it be next time
    return false;
}

bool load_one_hot(Context& context, const Item& load, const Place& place) {
    OneHots& one_hots = context.one_hots;
    for (int k = 0; k < one_hots.count; ++k) {
        const Family& family = one_hots.all[k];
        if (!place.meets(family.place)) continue;
        const Operand& tile = load.operands[0];
        const Nest& free = load.inside;
        Window window;
        if (family.weighted || !find_window(family, tile, free, place, window)) {
            make(one_hots, k--);
            continue;
        }
        Weights& weights = context.weights;
        reset_weights(weights, tile.lanes, free.inner);
        weights.listed = true;
        weights.signs = family.signs;
        const int16_t* const numbers = numbers_of(family, window);
        const int first = int(family.along ? window.element : window.member), rows = int(free.inner);
        if (family.signs) {
            weights.ones = OTHERS;
            for (i64 lane = 0; lane < tile.lanes; ++lane) {
                const int change = numbers[lane] - first;
                weights.changes[lane] = uint8_t(change < 0 ? 0 : change > rows ? rows : change);
            }
            return true;
        }
        weights.ones = 0;
        for (int lane = 0; lane < int(tile.lanes); ++lane) {
            const int one = numbers[lane] - first;
            weights.lane[weights.ones] = uint8_t(lane), weights.row[weights.ones] = uint8_t(one);
            weights.ones += numbers[lane] >= 0 && one >= 0 && one < rows;
        }
        return true;
    }
    return false;
}

void settle_listed(Weights& weights) {
    for (i64 lane = 0; weights.signs && lane < weights.depth; ++lane)
        for (i64 row = 0; row < weights.rows; ++row) weights.dense[lane * weights.rows + row] = row < weights.changes[lane] ? 1.f : -1.f;
    if (!weights.signs) std::memset(weights.dense, 0, sizeof(float) * size_t(weights.depth * weights.rows));
    for (int one = 0; !weights.signs && one < weights.ones; ++one) weights.dense[weights.lane[one] * weights.rows + weights.row[one]] = 1.f;
    weights.listed = weights.blank = false;
}

bool multiply_one_hots(Context& context, const Item& item, char* const* start, const Place* places) {
    OneHots& one_hots = context.one_hots;
    const Weights& weights = context.weights;
    bool done = false;
    for (int k = 0; k < one_hots.count; ++k) {
        const Family& family = one_hots.all[k];
        if (!places[1].meets(family.place)) continue;
        Window window;
        const bool known = weights.listed && !family.along && !family.signs && !item.params[1] && item.columns.empty() &&
                           places[0].base != places[1].base && find_window(family, item.operands[1], item.inside, places[1], window);
        if (known && weights.signs && !family.weighted) done = count_signs(context, item, start[0], places[0], family, window);
        if (known && !weights.signs) {
            settle_counts(context, places[0]);
            add_ones(context, item, start[0], family, window);
            done = true;
        }
        if (done) return true;
        make(one_hots, k--);
    }
    settle_counts(context, places[0]);
    settle_counts(context, places[1]);
    return false;
}

void settle_one_hots(Context& context) {
    for (Counts& counts : context.one_hots.counts) settle(context, counts);
    while (context.one_hots.count) make(context.one_hots, 0);
    context.one_hots.forget();
}
