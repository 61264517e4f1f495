#include "check.h"

#include <limits>

namespace {

const i64 MAX_ELEMENTS = i64(1) << 40;

bool is_float_step(Step step) {
    const bool two = (step >= ADD && step <= LESS) || step == REMAINDER || step == POWER;
    return two || (step >= ANGLE && step <= CBRT && step != NOT);
}
bool is_integer_step(Step step) {
    return (step >= ADD && step <= ROTATE_LEFT) || step == ABS || step == SIGN || step == POPCOUNT || step == LEADING_ZEROS;
}
bool is_bit_step(Step step) { return (step >= AND && step <= SHIFT_RIGHT_ARITHMETIC) || step == NOT; }

// Whether kernels read and write elements of the type as f32.
bool is_number(i64 type) { return type != RAW8 && (type < SMALL_FLOAT || small_floats[type - SMALL_FLOAT].load()); }

bool is_whole(i64 type) { return type >= U8 && type <= PRED; }

bool is_index(i64 type) { return type == S32 || type == U32; }

i64 product(const Operand& operand, int first) {
    i64 count = 1;
    for (int d = first; d < operand.ndims; ++d) count *= operand.count[d];
    return count;
}

// The dims [first, last) of all operands [0, operands) have the same counts.
bool agree(const Item& item, size_t operands, int first, int last) {
    const Operand& one = item.operands[0];
    for (size_t o = 0; o < operands; ++o) {
        const Operand& other = item.operands[o];
        if (other.ndims < last) return false;
        for (int d = first; d < last; ++d)
            if (other.count[d] != one.count[d]) return false;
    }
    return true;
}

bool is_one_shape(const Item& item) {
    const int rank = item.operands[0].ndims;
    for (const Operand& operand : item.operands)
        if (operand.ndims != rank) return false;
    return agree(item, item.operands.size(), 0, rank);
}

bool are_numbers(const Item& item) {
    for (const Operand& operand : item.operands)
        if (!is_number(operand.type)) return false;
    return true;
}

// All operations have a step that `known` knows and an operand, or a constant.
template <class F>
bool are_operations(const Item& item, F known) {
    for (const Operation& operation : item.operations)
        if (!known(operation.step) || operation.operand < -1 || operation.operand >= int(item.operands.size()))
            return false;
    return true;
}

bool is_register(i64 place, const Limits& limits) { return place >= 0 && place < limits.registers; }

bool is_in_memory(const Operand& operand) { return operand.base >= 0; }

bool is_sound_integer(const Item& item) {
    const Operation& operation = item.operations[0];
    return operation.operand < 0 ? !item.params.empty() : operation.operand == 2;
}

bool are_of_size(const Item& item, int size) {
    for (const Operand& operand : item.operands)
        if (size_of(int(operand.type)) != size) return false;
    return true;
}

bool has_no_raw(const Item& item) {
    for (const Operand& operand : item.operands)
        if (operand.type == RAW8) return false;
    return true;
}

bool is_sound_reduction(const Item& item) {
    if (item.params.size() != 2 || item.operations.size() != 1) return false;
    const Step step = item.operations[0].step;
    const Operand &y = item.operands[0], &x = item.operands[1];
    const i64 outer = item.params[1];
    if ((step != ADD && step != MAX && step != MIN) || outer < 0 || outer >= x.ndims || outer > y.ndims) return false;
    return product(y, int(outer)) == 1 && agree(item, 2, 0, int(outer)) && product(x, int(outer)) <= MAX_ROW;
}

bool is_sound_scan(const Item& item) {
    for (const Operand& operand : item.operands)
        if (operand.type != F32 || operand.ndims < 1) return false;
    for (const Operation& operation : item.operations) {
        const Step step = operation.step;
        if (step != ADD && step != MULTIPLY_ && step != MAX && step != MIN) return false;
    }
    const int rank = item.operands[0].ndims;
    return agree(item, 3, 0, rank) && item.operands[1].ndims == rank && item.operands[2].ndims == rank && agree(item, 4, 0, 1);
}

bool is_tile(const Operand& operand) {
    return operand.lane_dim == 0 && operand.ndims >= 1 && operand.count[0] == operand.lanes && operand.lanes <= MAX_LANES;
}

bool is_sound_product(const Item& item) {
    const Operand &y = item.operands[0], &x = item.operands[1];
    const bool tiles = is_tile(y) && is_tile(x) && y.type == F32 && is_number(x.type) && item.params.size() == 3;
    return tiles && product(y, 1) == product(x, 1) && product(x, 1) <= MAX_COLUMNS;
}

// Rows of memory, and a list of them in partitions.
bool is_sound_gather(const Item& item) {
    const bool scatters = item.kind == SCATTER;
    const Operand &y = item.operands[0], &x = item.operands[1], &index = item.operands[2], &list = scatters ? x : y;
    const bool sizes = size_of(int(y.type)) == size_of(int(x.type)) && y.ndims == x.ndims && x.ndims >= 1;
    const bool lists = is_tile(list) && index.ndims >= 1 && index.count[0] == list.lanes && is_index(index.type);
    if (!sizes || !lists || !agree(item, 2, 1, y.ndims) || item.params.size() != 1) return false;
    if (!scatters) return true;
    if (item.operations.size() != 1) return false;
    const Step step = item.operations[0].step;
    return step == OR || (step == ADD && y.type == F32 && x.type == F32);
}

// A table's rows lie dense in its partitions, of which there are as many as the lists have.
bool is_sound_group(const Item& item) {
    const int table = item.kind == GROUP_GATHER ? 1 : 0;
    const Operand &rows = item.operands[size_t(table)], &list = item.operands[size_t(1 - table)], &index = item.operands[2];
    const i64 size = size_of(int(rows.type));
    if (rows.ndims != 3 || list.ndims != 3 || index.ndims != 2 || size != size_of(int(list.type))) return false;
    if (!is_tile(rows) || !is_tile(list) || !is_tile(index) || !is_index(index.type)) return false;
    if (rows.lanes != list.lanes || index.lanes != list.lanes || rows.lanes % GROUP) return false;
    if (index.count[1] != list.count[1] || list.count[2] != rows.count[2]) return false;
    if (rows.count[2] > 1 && rows.stride[2] != size) return false;
    if (rows.count[1] > 1 && rows.stride[1] != size * rows.count[2]) return false;
    if (item.params.size() != 1) return false;
    if (item.kind == GROUP_GATHER || item.params[0]) return true;
    if (item.operations.size() != 1 || rows.type != list.type || !is_number(rows.type)) return false;
    const Step step = item.operations[0].step;
    const bool whole = is_whole(rows.type) && (step == AND || step == OR || step == XOR);
    return whole || step == ADD || step == MULTIPLY_ || step == MAX || step == MIN;
}

// All windows lie in what the partitions have of x, whatever the bounds say.
bool is_sound_selection(const Item& item) {
    const Operand &y = item.operands[0], &x = item.operands[1], &source = item.operands[2], &bounds = item.operands[3];
    const int free = x.ndims - 1;
    if (y.ndims != x.ndims || source.ndims != x.ndims || free < 1 || item.operations.size() != 2) return false;
    for (const Operand& operand : item.operands)
        if (!is_tile(operand) || operand.lanes != y.lanes) return false;
    if (bounds.type != S32 || product(bounds, 1) != 5 * free || i64(item.params.size()) != 2 + 2 * free) return false;
    if (is_whole(x.type) != is_whole(source.type) || is_whole(x.type) != is_whole(y.type)) return false;
    if (is_whole(x.type) && item.params[1]) return false;
    __int128 taps = 1, elements = product(source, 1);
    for (int d = 0; d < free; ++d) {
        const i64 size = item.params[size_t(2 + 2 * d)], step = item.params[size_t(3 + 2 * d)];
        if (size < 1 || step < 1 || source.count[d + 1] < 1 || y.count[d + 1] < 1) return false;
        if (__int128(source.count[d + 1] - 1) * step + size > x.count[d + 1]) return false;
        taps *= size;
        if (taps > INT32_MAX) return false;
    }
    const Step keep = item.operations[0].step, combine = item.operations[1].step;
    const bool orders = keep == GREATER_EQUAL || keep == GREATER || keep == LESS_EQUAL || keep == LESS;
    return elements <= INT32_MAX && orders && (combine == ADD || combine == MULTIPLY_ || combine == MAX || combine == MIN);
}

bool is_sound_loop(const Item& item, const Limits& limits) {
    if (item.params.size() < 3 || item.params.size() % 2 == 0 || !is_register(item.params[1], limits)) return false;
    if (item.params[2] < -1) return false;
    for (size_t p = 3; p + 1 < item.params.size(); p += 2)
        if (!is_register(item.params[p], limits) || item.params[p + 1] < 1) return false;
    return true;
}

// params: WHILE: count, register of its number, register that decides; BRANCH: cases, register that decides. Then the
// counters of loops inside, which begin anew each time.
bool is_sound_region(const Item& item, const Limits& limits) {
    const std::vector<i64>& params = item.params;
    const size_t fixed = item.kind == WHILE ? 3 : 2;
    if (params.size() < fixed || params[0] < 0) return false;
    for (size_t p = fixed; p < params.size(); ++p)
        if (params[p] < 0) return false;
    if (item.kind == BRANCH) return is_register(params[1], limits);
    return is_register(params[0] ? params[1] : params[2], limits);
}

// There are `least` to `most` operands, of which the last `constants` may be constants.
bool has_operands(const Item& item, size_t least, size_t most, size_t constants = 0) {
    const size_t n = item.operands.size();
    if (n < least || n > most) return false;
    for (size_t o = 0; o + constants < n; ++o)
        if (!is_in_memory(item.operands[o])) return false;
    for (const Operand& operand : item.operands)
        if (!is_in_memory(operand) && item.params.size() < 2) return false;
    return true;
}

}  // namespace

bool bound(Operand& o, const Limits& limits) {
    if (o.type < 0 || o.type >= SMALL_FLOAT + 16 || o.base < -1 || o.base >= i64(limits.bases.size())) return false;
    if (o.lane_dim < -1 || o.lane_dim >= o.ndims) return false;
    for (int c = 0; c < o.ncoefs; ++c)
        if (!is_register(o.place[c], limits)) return false;
    i64 elements = 1;
    for (int d = 0; d < o.ndims; ++d)
        if (o.count[d] < 1 || __builtin_mul_overflow(elements, o.count[d], &elements) || elements > MAX_ELEMENTS) return false;
    if (o.base < 0) {
        for (int d = 0; d < o.ndims; ++d)
            if (o.stride[d]) return false;
        return !o.ncoefs && size_of(int(o.type)) <= int(sizeof(i64));
    }
    const Base& base = limits.bases[size_t(o.base)];
    if ((base.lanes > 0) != (o.lane_dim >= 0)) return false;
    __int128 below = 0, above = 0;
    o.lanes = 0;
    for (int d = 0; d < o.ndims; ++d) {
        if (d == o.lane_dim) {
            if (o.count[d] > 1 && o.stride[d] != base.pitch && o.stride[d] != 0) return false;
            o.lanes = o.stride[d] ? o.count[d] : 1;
            continue;
        }
        const __int128 reach = __int128(o.count[d] - 1) * o.stride[d];
        (reach < 0 ? below : above) += reach;
    }
    const __int128 high = __int128(base.start) + base.bytes - size_of(int(o.type)) - above, low = __int128(base.start) - below;
    if (o.lane < 0 || o.lane > base.lanes - o.lanes || high < low) {
        o.low = 0, o.high = -1, o.below = o.above = o.origin = 0;
        return true;
    }
    o.low = i64(low), o.high = i64(high), o.below = i64(below), o.above = i64(above);
    o.origin = base.lanes ? o.lane * base.pitch : -base.start;
    return true;
}

bool is_sound(const Item& item, const Limits& limits) {
    if (item.results < 0 || item.results > int(item.operands.size())) return false;
    switch (item.kind) {
        case LOOP: return is_sound_loop(item, limits);
        case WHILE: case BRANCH: return is_sound_region(item, limits);
        case END: case ELSE: case FALLBACK: return true;
        case MAP:
            return has_operands(item, 2, MAX_OPERANDS) && is_one_shape(item) && are_numbers(item) &&
                   are_operations(item, is_float_step);
        case ACCUMULATE:
            return has_operands(item, 3, MAX_OPERANDS) && is_one_shape(item) && are_numbers(item) &&
                   item.params.empty() && item.operands[0].ndims >= 1 && product(item.operands[0], 1) <= MAX_ROW &&
                   size_of(int(item.operands.back().type)) == 4 && are_operations(item, is_float_step);
        case COPY:
            return has_operands(item, 2, 2, 1) && is_one_shape(item) && are_of_size(item, size_of(int(item.operands[0].type)));
        case SELECT: {
            if (!has_operands(item, 3, 3, 1) || !is_one_shape(item) || item.params.empty()) return false;
            const int size = size_of(int(item.operands[0].type));
            return size == size_of(int(item.operands[2].type)) && size <= 4 && size_of(int(item.operands[1].type)) <= 4;
        }
        case BITS: {
            if (!has_operands(item, 2, MAX_OPERANDS) || !is_one_shape(item)) return false;
            const int size = size_of(int(item.operands[0].type));
            return has_no_raw(item) && size_of(int(item.operands[1].type)) == size && are_operations(item, is_bit_step);
        }
        case INTEGER:
            return has_operands(item, 2, 3) && is_one_shape(item) && item.operations.size() == 1 && has_no_raw(item) &&
                   are_operations(item, is_integer_step) && is_sound_integer(item);
        case REDUCE: return has_operands(item, 2, 2) && are_numbers(item) && is_sound_reduction(item);
        case LOAD:
            return has_operands(item, 1, 1) && is_tile(item.operands[0]) && is_number(item.operands[0].type) &&
                   product(item.operands[0], 1) <= MAX_LANES;
        case MULTIPLY: return has_operands(item, 2, 2) && is_sound_product(item);
        case GATHER: case SCATTER: return has_operands(item, 3, 3) && is_sound_gather(item);
        case REG_LOAD:
            return has_operands(item, 1, 1) && is_whole(item.operands[0].type) && item.params.size() == 3 &&
                   is_register(item.params[2], limits) && item.params[0] <= item.params[1];
        case GROUP_GATHER: case GROUP_SCATTER: return has_operands(item, 3, 3) && is_sound_group(item);
        case SELECT_SCATTER: return has_operands(item, 4, 4) && are_numbers(item) && is_sound_selection(item);
        case SCAN: return has_operands(item, 4, 4, 1) && item.operations.size() == 2 && is_sound_scan(item);
        default: return false;
    }
}
