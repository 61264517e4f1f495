// Carries out items: finds their operands and hands them to the kernels, several threads at a time where that pays.
#include <atomic>
#include <cstring>

#include "context.h"
#include "indexing.h"
#include "pooling.h"
#include "strips.h"
#include "threads.h"

namespace {

const i64 GRAIN = 65536;       // elements that are worth a thread: those that take some ten times what waking it costs
const i64 SLOW_GRAIN = 16384;  // the same where each costs more than a few instructions
const i64 PRODUCTS = 1 << 21;  // multiplications that are worth one

struct Elementwise {
    const Kernels* kernels;
    const Item* item;
    char* const* start;
};

template <auto Kernel>
void call(void* data, i64 first, i64 last, Workspace& workspace) {
    const Elementwise& job = *static_cast<Elementwise*>(data);
    (job.kernels->*Kernel)(*job.item, job.start, first, last, workspace);
}

void call_copy(void* data, i64 first, i64 last, Workspace&) {
    const Elementwise& job = *static_cast<Elementwise*>(data);
    job.kernels->copy(job.item->nest, size_of(int(job.item->operands[0].type)), job.start[0], job.start[1], first, last);
}

void call_select_scatter(void* data, i64 first, i64 last, Workspace&) {
    const Elementwise& job = *static_cast<Elementwise*>(data);
    select_scatter(*job.item, job.start, first, last);
}

struct Product {
    Context* context;
    const Item* item;
    char* const* start;
};

void call_multiply(void* data, i64 first, i64 last, Workspace& workspace) {
    const Product& job = *static_cast<Product*>(data);
    job.context->kernels->multiply(*job.item, job.context->weights, job.start[0], job.start[1], first, last, workspace);
}

// Units of `each` elements in parallel.
void spread(Context& context, const Item& item, char* const* start, i64 units, i64 each, i64 grain, Work work) {
    Elementwise job{context.kernels, &item, start};
    if (units * each < 2 * grain) return work(&job, 0, units, own_workspace());
    in_parallel(units, grain / each > 1 ? grain / each : 1, work, &job);
}

// Whether a stationary tile lies in SBUF as FP32 rows.
bool is_dense_tile(const Item& load) {
    const Nest& free = load.inside;
    return load.operands[0].type == F32 && free.rows == 1 && (free.inner == 1 || free.stride[0][0] == 4);
}

// A product with the identity matrix.
struct Transpose {
    const Kernels* kernels;
    const Item* item;
    const char* from;
    i64 pitch, depth, rows;
    char* out;
    std::atomic<bool> finite;
};

void call_transposed(void* data, i64 first, i64 last, Workspace&) {
    Transpose& job = *static_cast<Transpose*>(data);
    if (!job.kernels->transposed(*job.item, job.from, job.pitch, job.depth, job.rows, job.out, first, last))
        job.finite = false;
}

// The one row of a product whose stationary tile has the same columns throughout, put off in all partitions but for the
// elements. False where that cannot be, or is no gain.
bool multiply_equal_rows(Context& context, Item& item, char* const* start, const Place* places) {
    const Weights& weights = context.weights;
    if (!item.repeats || !places || !weights.pending || weights.rows < 16 || !item.columns.empty() || context.loans.count >= MOST_LOANS) return false;
    const Operand &tile = weights.item->operands[0], &moving = item.operands[1];
    const Nest &columns = weights.item->inside, &free = item.inside;
    if (item.params[0] || item.params[1] || tile.type != F32 || columns.rows != 1 || columns.stride[0][0] != 0) return false;
    if (moving.type != F32 || free.rows != 1 || free.inner < 16 || free.stride[0][0] != 4 || moving.base == item.operands[0].base) return false;
    float* const row = lend_row(context, item, places[0], start[0]);
    context.weights.note(item);
    context.kernels->weighted_sum(item, weights, start[1], row);
    return true;
}

// Whether the moving tile is the identity matrix. One that stays as it is in a run is looked at once, whoever reads it.
bool is_identity(Context& context, Item& item, const char* moving) {
    const bool constant = item.params[2] != 0, stays = constant && !item.borrows;
    if (constant && item.seen == context.run) return item.identity;
    const Item* unit = context.unit;
    const Nest& free = item.inside;
    const bool same = stays && unit && context.unit_at == moving && unit->pitch == item.pitch && free.rows == 1 && unit->inside.rows == 1 &&
                      unit->inside.inner == free.inner && unit->inside.stride[0][0] == free.stride[0][0] &&
                      unit->operands[1].type == item.operands[1].type && unit->operands[1].lanes == item.operands[1].lanes;
    item.identity = same || context.kernels->is_identity(item, moving, own_workspace());
    item.seen = context.run;
    if (stays && item.identity) context.unit = &item, context.unit_at = moving;
    return item.identity;
}

bool multiply(Context& context, Item& item, char* const* start, const Place* places) {
    Weights& weights = context.weights;
    const Operand &out = item.operands[0], &moving = item.operands[1];
    if (weights.depth != moving.lanes || weights.rows != out.lanes) return false;
    const i64 columns = item.inside.rows * item.inside.inner;
    if (places && (context.one_hots.count || context.one_hots.counting) && multiply_one_hots(context, item, start, places)) return true;
    if (weights.listed) {
        if (!weights.signs && columns > 1 && !item.params[1] && context.kernels->add_up(item, weights, start[0], start[1], own_workspace())) return true;
        settle_weights(context);
    }
    if (multiply_equal_rows(context, item, start, places)) return true;
    const bool accumulates = item.params[0] != 0, tf32 = item.params[1] != 0;
    if (columns == moving.lanes && !accumulates && !tf32) {
        if (is_identity(context, item, start[1])) {
            if (weights.pending && !is_dense_tile(*weights.item)) context.kernels->settle(weights);
            const char* from = weights.pending ? weights.source : reinterpret_cast<const char*>(weights.dense);
            const i64 pitch = weights.pending ? weights.pitch : weights.rows * 4;
            Transpose job{context.kernels, &item, from, pitch, weights.depth, weights.rows, start[0], {item.columns.empty()}};
            weights.note(item);
            if (job.finite) call_transposed(&job, 0, (weights.depth + 15) / 16, own_workspace());
            if (job.finite) return true;
        }
    }
    if (weights.pending && !is_dense_tile(*weights.item)) context.kernels->settle(weights);
    if (columns > 1 && !tf32 && context.kernels->add_up(item, weights, start[0], start[1], own_workspace())) return true;
    weights.note(item);
    if (columns > 1) context.kernels->pack(weights, tf32);
    Product job{&context, &item, start};
    const i64 units = (columns + UNIT - 1) / UNIT;
    const i64 each = weights.depth * weights.rows * UNIT, least = (PRODUCTS + each - 1) / each;
    in_parallel(units, least > (units + 3) / 4 ? least : (units + 3) / 4, call_multiply, &job);
    return true;
}

// Addresses of all operands; false when one leaves its bounds or overlaps another one.
bool locate(const Context& context, Item& item, char** start) {
    i64 offsets[MAX_OPERANDS];
    if (item.overlapped) return false;
    for (size_t o = 0; o < item.operands.size(); ++o) {
        const Operand& operand = item.operands[o];
        if (operand.base < 0) {
            start[o] = reinterpret_cast<char*>(&item.params[1]);
            continue;
        }
        i64 offset = operand.offset, step;
        for (int c = 0; c < operand.ncoefs; ++c)
            if (__builtin_mul_overflow(context.registers[operand.place[c]], operand.coef[c], &step) ||
                __builtin_add_overflow(offset, step, &offset))
                return false;
        char* base = context.bases[size_t(operand.base)];
        if (offset < operand.low || offset > operand.high || !base) return false;
        offsets[o] = offset;
        start[o] = base + operand.origin + offset;
    }
    for (const auto& [a, b] : item.overlaps)
        if (overlap(item, a, b, offsets[a], offsets[b])) return false;
    return true;
}

void set_weights(Weights& weights, const Item& load, char* source, const Place& place) {
    reset_weights(weights, load.operands[0].lanes, load.inside.rows * load.inside.inner);
    weights.pending = true;
    weights.source = source;
    weights.place = place;
    weights.pitch = load.pitch;
    weights.item = &load;
}

// Addresses and places of all operands, or of what they borrow; false when Python or the copy of something must come first.
bool reach(Context& context, Item& item, char** start, Place* places) {
    if (!locate(context, item, start)) return false;
    find_places(context, item, start, places);
    return borrow(context, item, start, places, false) == READY;
}

const int MOST_TOGETHER = 16;

void call_transposes(void* data, i64 first, i64 last, Workspace& workspace) {
    Transpose* jobs = static_cast<Transpose*>(data);
    for (i64 k = first; k < last; ++k) call_transposed(&jobs[k], 0, (jobs[k].depth + 15) / 16, workspace);
}

}  // namespace

// Carries out the transposes that follow each other from item `at` on, each on one thread, and returns how many items
// those are. A transpose is two: a tile in SBUF is loaded, then multiplied with the identity matrix, to a part of PSUM.
i64 transpose_together(Context& context, Code& code, i64 at) {
    Transpose jobs[MOST_TOGETHER];
    Place places[MOST_TOGETHER], other[MAX_OPERANDS];
    char* source[MAX_OPERANDS];
    int count = 0;
    for (i64 k = at; k + 1 < i64(code.items.size()) && count < MOST_TOGETHER; k += 2) {
        Item &load = code.items[k], &product = code.items[k + 1];
        const bool known = load.kind == LOAD && product.kind == MULTIPLY && product.identity &&
                           product.seen == context.run && product.params[2] && product.columns.empty();
        if (!known || !is_dense_tile(load)) break;
        const i64 depth = load.operands[0].lanes, rows = load.inside.inner;
        char* start[MAX_OPERANDS];
        if (depth != product.operands[1].lanes || rows != product.operands[0].lanes) break;
        if (!reach(context, load, source, &places[count]) || !reach(context, product, start, other)) break;
        bool apart = true;  // from the results so far, all of which have columns of 4 bytes
        for (int k = 0; k < count; ++k)
            apart &= start[0] >= jobs[k].out + jobs[k].depth * 4 || start[0] + depth * 4 <= jobs[k].out;
        if (!apart) break;
        Transpose& job = jobs[count++];
        job.kernels = context.kernels, job.item = &product, job.from = source[0];
        job.pitch = load.pitch, job.depth = depth, job.rows = rows;
        job.out = start[0], job.finite = true;
    }
    if (count < 2) return 0;
    for (int k = 0; k < count; ++k) context.weights.note(*jobs[k].item);
    in_parallel(count, MOST_TOGETHER / 2, call_transposes, jobs);
    for (int k = 0; k < count; ++k) {
        const Item& load = code.items[at + 2 * k];
        set_weights(context.weights, load, const_cast<char*>(jobs[k].from), places[k]);
        if (!jobs[k].finite) execute(context, code.items[at + 2 * k + 1]);
    }
    return 2 * count;
}

namespace {

const int MOST_INTERLEAVED = 64;

// Products of one column with every so many columns of a row in SBUF.
struct Interleaved {
    const Kernels* kernels;
    const Item* item;
    const char *tile, *moving;
    i64 pitch;
    float* total;
};

void call_interleaved(void* data, i64 first, i64 last, Workspace&) {
    const Interleaved& job = *static_cast<Interleaved*>(data);
    job.kernels->interleaved(*job.item, job.tile, job.pitch, job.moving, first * MAX_LANES, last * MAX_LANES, job.total);
}

// Whether a product takes one column, as FP32, from a tile whose own columns lie apart; memories do not meet.
bool is_interleaved(const Item& load, const Item& product) {
    if (load.kind != LOAD || product.kind != MULTIPLY || product.inside.rows * product.inside.inner != 1) return false;
    const Operand &tile = load.operands[0], &out = product.operands[0], &moving = product.operands[1];
    const i64 apart = load.inside.stride[0][0];
    return tile.type == F32 && load.inside.rows == 1 && apart > 4 && apart % 4 == 0 && !product.params[1] &&
           tile.lanes == moving.lanes && load.inside.inner == out.lanes && out.base != tile.base && out.base != moving.base;
}

}  // namespace

// As `transpose_together`, products of a column with tiles that lie between each other's columns: all that is between
// is multiplied at once, as it lies.
i64 interleave_together(Context& context, Code& code, i64 at) {
    char *source[MOST_INTERLEAVED][MAX_OPERANDS], *start[MOST_INTERLEAVED][MAX_OPERANDS];
    Place place, last, places[MAX_OPERANDS];
    if (at + 1 >= i64(code.items.size()) || !is_interleaved(code.items[at], code.items[at + 1])) return 0;
    const Item &load = code.items[at], &product = code.items[at + 1];
    const i64 apart = load.inside.stride[0][0], rows = load.inside.inner, depth = load.operands[0].lanes;
    const char *lowest = nullptr, *highest = nullptr;
    int count = 0;
    for (i64 k = at; k + 1 < i64(code.items.size()) && count < MOST_INTERLEAVED; k += 2, ++count) {
        Item &next = code.items[k], &other = code.items[k + 1];
        if (!is_interleaved(next, other) || next.inside.inner != rows || next.inside.stride[0][0] != apart) break;
        if (next.operands[0].lanes != depth || other.operands[1].type != product.operands[1].type) break;
        if (!reach(context, next, source[count], &place) || !reach(context, other, start[count], places)) break;
        const char *low = lowest && lowest < source[count][0] ? lowest : source[count][0];
        const char *high = highest > source[count][0] ? highest : source[count][0];
        if (start[count][1] != start[0][1] || high - low >= apart || (high - low) % 4 || next.pitch != load.pitch) break;
        lowest = low, highest = high, last = place;
    }
    const i64 all = (rows - 1) * (apart / 4) + (highest - lowest) / 4 + 1;
    if (count < 2 || count * 8 < apart || all > MAX_ROW) return 0;
    for (int k = 0; k < count; ++k) context.weights.note(code.items[size_t(at + 2 * k + 1)]);
    float* total = own_workspace().row;
    Interleaved job{context.kernels, &product, lowest, start[0][1], load.pitch, total};
    const i64 chunks = all / MAX_LANES, rest = chunks * MAX_LANES;
    in_parallel(chunks, chunks / 4 + 1, call_interleaved, &job);
    job.kernels->interleaved(product, lowest, job.pitch, job.moving, rest, all, total);
    for (int k = 0; k < count; ++k) {
        const Item& other = code.items[at + 2 * k + 1];
        const float* sums = total + (source[k][0] - lowest) / 4;
        context.kernels->store_column(other, start[k][0], sums, apart / 4);
    }
    set_weights(context.weights, code.items[at + 2 * count - 2], source[count - 1][0], last);
    return 2 * count;
}

namespace {

void load_register(Context& context, const Item& item, const char* from) {
    const i64 value = element(item.operands[0].type, from), least = item.params[0], most = item.params[1];
    context.registers[item.params[2]] = value < least ? least : value > most ? most : value;
}

// Carries out an item whose operands are at hand; false when Python must.
bool carry_out(Context& context, Item& item, char* const* start, const Place* places) {
    const Nest& nest = item.nest;
    switch (item.kind) {
        case MAP: {
            bool slow = false;
            for (const Operation& operation : item.operations) slow |= operation.step >= EXP;
            spread(context, item, start, nest.rows, nest.inner, slow ? SLOW_GRAIN : GRAIN, call<&Kernels::map>);
            return true;
        }
        case ACCUMULATE: {
            const i64 each = item.params.back() * nest.inner;
            spread(context, item, start, nest.rows * nest.inner / each, each, SLOW_GRAIN, call<&Kernels::accumulate>);
            return true;
        }
        case COPY: spread(context, item, start, nest.rows, nest.inner, GRAIN, call_copy); return true;
        case SELECT: spread(context, item, start, nest.rows, nest.inner, GRAIN, call<&Kernels::select>); return true;
        case BITS: spread(context, item, start, nest.rows, nest.inner, SLOW_GRAIN, call<&Kernels::bits>); return true;
        case INTEGER: spread(context, item, start, nest.rows, nest.inner, SLOW_GRAIN, call<&Kernels::integer>); return true;
        case REDUCE:
            spread(context, item, start, nest.rows * nest.inner, item.inside.rows * item.inside.inner, GRAIN,
                   call<&Kernels::reduce>);
            return true;
        case SCAN:
            spread(context, item, start, nest.rows * nest.inner, item.inside.rows * item.inside.inner, SLOW_GRAIN,
                   call<&Kernels::scan>);
            return true;
        case LOAD:
            if (!context.one_hots.count || !load_one_hot(context, item, places[0])) set_weights(context.weights, item, start[0], places[0]);
            return true;
        case MULTIPLY: return multiply(context, item, start, places);
        case GATHER: return gather(*context.kernels, item, start);
        case SCATTER: return scatter(*context.kernels, item, start);
        case GROUP_GATHER: return group_gather(item, start);
        case GROUP_SCATTER: return group_scatter(item, start);
        case SELECT_SCATTER: {
            const Operand& y = item.operands[0];
            spread(context, item, start, y.lanes, item.effort / y.lanes, SLOW_GRAIN, call_select_scatter);
            return true;
        }
        case REG_LOAD: load_register(context, item, start[0]); return true;
        default: return false;
    }
}

}  // namespace

void reset_weights(Weights& weights, i64 depth, i64 rows) {
    weights.pending = weights.listed = weights.signs = false;
    weights.depth = depth;
    weights.rows = rows;
    weights.packed = 0;
    weights.ones = NOT_KNOWN;
}

void settle_weights(Context& context) {
    Weights& weights = context.weights;
    if (weights.pending) context.kernels->settle(weights);
    if (weights.listed) settle_listed(weights);
}

void settle(Context& context) {
    settle_weights(context);
    settle_one_hots(context);
    settle_loans(context);
}

bool execute(Context& context, Item& item) {
    char* start[MAX_OPERANDS];
    Place places[MAX_OPERANDS];
    bool found = false;
    const bool known = (item.kind != FALLBACK || item.operands.size()) && locate(context, item, start);
    const bool waits = context.loans.count || context.weights.pending || context.one_hots.waits();
    const bool meets = waits || item.lendable || item.borrows || item.one_hot;
    if (item.kind != LOAD && item.kind != MULTIPLY) context.weights.note(item);
    if (known && (meets || item.kind == LOAD)) found = true, find_places(context, item, start, places);
    if (known && meets && borrow(context, item, start, places, true) == PUT_OFF) return true;
    if (known && item.kind == FALLBACK) return false;
    if (known && carry_out(context, item, start, found ? places : nullptr)) return true;
    settle(context);
    return false;
}

bool execute_single(Context& context, Item& item) {
    if (context.loans.count || context.weights.pending || context.one_hots.waits()) return false;
    context.weights.note(item);
    if (item.located != context.run) {
        if (!locate(context, item, item.at)) return false;
        item.located = context.run;
    }
    if (item.kind == REG_LOAD) load_register(context, item, item.at[0]);
    else if (item.kind == MAP) context.kernels->map_of_one(item, item.at);
    else if (item.kind == COPY) std::memmove(item.at[0], item.at[1], size_t(size_of(int(item.operands[0].type))));
    else context.kernels->words_of_one(item, item.at);
    return true;
}

bool put_off_loop(Context& context, Code& code, i64 at) {
    const Item& loop = code.items[size_t(at)];
    Item& item = code.items[size_t(at + 1)];
    const i64 count = loop.params[0];
    if (!item.one_hot || loop.jump != at + 2 || loop.params.size() > 3 || count < 2) return false;
    char *start[MAX_OPERANDS], *last[MAX_OPERANDS];
    Place places[MAX_OPERANDS];
    i64& counter = context.registers[loop.params[1]];
    counter = 0;
    if (!locate(context, item, start)) return false;
    counter = count - 1;
    if (!locate(context, item, last)) return false;
    find_places(context, item, start, places);
    for (size_t o = 0; o < item.operands.size(); ++o) {
        const i64 all = (count - 1) * member_step(item, o);
        if (last[o] - start[o] != all) return false;
        places[o].to += all;
        if (o && places[o].meets(places[0])) return false;
    }
    context.weights.note(item);
    return borrow(context, item, start, places, true, count) == PUT_OFF;
}

i64 strip(Context& context, Code& code, i64 at) {
    Item* items[MOST_IN_STRIPS];
    i64 numbers[MOST_IN_STRIPS];
    char* start[MOST_IN_STRIPS][MAX_OPERANDS];
    Outside outside;
    int count = 0, done = 0;
    for (; done < MOST_IN_STRIPS && done < code.items[size_t(at)].strips; ++done) {
        Item& item = code.items[size_t(at + done)];
        Place places[MAX_OPERANDS];
        if (!locate(context, item, start[count])) break;
        find_places(context, item, start[count], places);
        if (!outside.admits(item, places)) break;
        context.weights.note(item);
        const Borrowed borrowed = borrow(context, item, start[count], places, done == 0);
        if (borrowed == BLOCKED) break;
        outside.add(item, places);
        if (borrowed == READY) numbers[count] = at + done, items[count++] = &item;
    }
    if (count == 1) carry_out(context, *items[0], start[0], nullptr);
    if (count > 1) run_in_strips(*context.kernels, items, numbers, start, count, at + done);
    return done;
}
