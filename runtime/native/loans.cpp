#include "loans.h"

#include <functional>
#include <utility>

#include "context.h"
#include "strips.h"
#include "threads.h"

namespace {

const i64 LEAST_BYTES = 1 << 14;  // of a copy: smaller ones take no longer than the look at what others need
const i64 LEAST_RUN = 128;        // bytes of a run
const i64 GRAIN = 1 << 18;        // bytes that are worth a thread

void call_copy(void* data, i64 first, i64 last, Workspace&) {
    const auto& job = *static_cast<std::pair<const Kernels*, const Loan*>*>(data);
    const Loan& loan = *job.second;
    Nest nest{};
    nest.ndims = 3, nest.inner = loan.run, nest.rows = loan.target.lanes * loan.parts;
    nest.count[0] = loan.target.lanes, nest.count[1] = loan.parts, nest.count[2] = loan.run;
    nest.stride[0][0] = loan.pitch, nest.stride[0][1] = loan.run, nest.stride[0][2] = 1;
    nest.stride[1][0] = loan.apart, nest.stride[1][1] = loan.part_apart, nest.stride[1][2] = 1;
    job.first->copy(nest, 1, loan.to, loan.from, first * loan.parts, last * loan.parts);
}

// Copies that mostly have to be made after all, as of what is about to be written in HBM, are made at once from then on.
void make(const Context& context, const Loan& loan) {
    loan.copy->made += loan.run * loan.parts * loan.target.lanes;
    if (loan.copy->made * 2 > loan.copy->lent) loan.copy->lendable = loan.copy->repeats = false;
    std::pair<const Kernels*, const Loan*> job{context.kernels, &loan};
    const i64 least = GRAIN / (loan.run * loan.parts) + 1;
    if (loan.target.lanes < 2 * least) call_copy(&job, 0, loan.target.lanes, own_workspace());
    else in_parallel(loan.target.lanes, least, call_copy, &job);
}

// The parts [first, last) of a loan.
Loan parts_of(const Loan& loan, i64 first, i64 last) {
    Loan part = loan;
    part.parts = last - first;
    part.to += first * loan.run, part.from += first * loan.part_apart;
    part.target.from += first * loan.run, part.target.to = part.target.from + part.parts * loan.run;
    return part;
}

// The bytes [from, to) of each partition of a loan with one part.
Loan bytes_of(const Loan& loan, i64 from, i64 to) {
    Loan piece = loan;
    piece.run = to - from;
    piece.to += from - loan.target.from, piece.from += from - loan.target.from;
    piece.target.from = from, piece.target.to = to;
    return piece;
}

// The parts of a loan that the bytes [from, to) of partitions touch: first and last one.
std::pair<i64, i64> touched(const Loan& loan, i64 from, i64 to) {
    from = from > loan.target.from ? from : loan.target.from, to = to < loan.target.to ? to : loan.target.to;
    return {(from - loan.target.from) / loan.run, (to - loan.target.from + loan.run - 1) / loan.run};
}

// Whether nothing else needs to be copied when these bytes are written.
bool leaves_whole_runs(const Loan& loan, i64 from, i64 to) {
    const auto [first, last] = touched(loan, from, to);
    const Loan inner = parts_of(loan, first, last);
    return inner.parts == 1 || (from <= inner.target.from && inner.target.to <= to);
}

// Ends loan number k as far as it is in the bytes [from, to) of its partitions, which are copied or not needed any more.
void cut(Context& context, int k, i64 from, i64 to, bool copied) {
    Loans& loans = context.loans;
    const Loan loan = loans.all[k];
    loans.all[k] = loans.all[--loans.count];
    if (copied && loans.count > 2 * MOST_LOANS) return make(context, loan);
    const auto keep = [&](const Loan& rest) {
        if (rest.target.from < rest.target.to) loans.all[loans.count++] = rest;
    };
    from = from > loan.target.from ? from : loan.target.from, to = to < loan.target.to ? to : loan.target.to;
    const auto [first, last] = touched(loan, from, to);
    const Loan inner = parts_of(loan, first, last);
    keep(parts_of(loan, 0, first));
    keep(parts_of(loan, last, loan.parts));
    if (!leaves_whole_runs(loan, from, to)) return make(context, inner);
    if (inner.parts == 1) {
        keep(bytes_of(inner, inner.target.from, from));
        keep(bytes_of(inner, to, inner.target.to));
    }
    if (copied) make(context, inner.parts == 1 ? bytes_of(inner, from, to) : inner);
}

// Rows of a moving tile are read again for each few rows of the result. At such distances they push each other out of the
// nearest cache, so that the product copies them; if several do, one copy in SBUF is better.
const i64 CROWDED = 512, FEW_ROWS = 12;

// How an item reads lent bytes where they come from.
struct Reading {
    i64 first, parts;       // runs of the loan
    bool flat;              // the nest has no dim of runs
    bool again;             // a tile whose rows are read again and again
};

// Whether it can. `inner`: elements of the runs that other operands have made rows of the nest, or 0.
bool can_read(const Context& context, const Item& item, size_t o, const Place& place, const Loan& loan, i64& inner, Reading& reading) {
    if (!loan.target.holds(place)) return false;
    const Nest& nest = item.home;
    const i64 size = size_of(int(item.operands[o].type)), offset = place.from - loan.target.from;
    const bool tensor = item.kind == LOAD || item.kind == MULTIPLY;
    // one element of each partition, which are the only dim
    const bool simple = item.kind == MAP || item.kind == COPY || item.kind == SELECT || item.kind == BITS || item.kind == INTEGER;
    const bool column = simple && nest.ndims == 1 && nest.inner == item.operands[o].lanes && item.operands[o].lane_dim == 0;
    if (!(tensor || item.lanes.count || column)) return false;
    const auto [first, last] = touched(loan, place.from, place.to);
    reading = {first, last - first, false, false};
    if (item.kind == MULTIPLY) {
        reading.again = context.weights.rows > FEW_ROWS && !context.weights.listed && item.inside.rows * item.inside.inner > 1;
        if (o != 1 || (reading.again && loan.apart % CROWDED == 0 && loan.products)) return false;
    }
    if (reading.parts == 1) return true;
    if (tensor || item.inside.ndims) return false;
    if (nest.ndims == 3) {
        const i64 step = nest.stride[o][2], extent = (nest.inner - 1) * step + size;
        return nest.stride[o][1] == loan.run && step >= 0 && offset % loan.run + extent <= loan.run;
    }
    const bool whole_runs = offset % loan.run == 0 && (place.to - place.from) % loan.run == 0 && loan.run % size == 0;
    reading.flat = whole_runs && nest.ndims == 2 && nest.stride[o][1] == size && (!inner || inner == loan.run / size);
    if (reading.flat) inner = loan.run / size;
    return reading.flat;
}

// Makes runs of so many elements rows of the nest.
void fold(Item& item, i64 inner) {
    Nest& nest = item.nest;
    const i64 parts = nest.inner / inner;
    nest.ndims = 3, nest.rows *= parts, nest.inner = inner;
    nest.count[1] = parts, nest.count[2] = inner;
    for (size_t o = 0; o < item.operands.size(); ++o) {
        nest.stride[o][2] = nest.stride[o][1];
        nest.stride[o][1] *= inner;
    }
    if (item.kind == ACCUMULATE) item.params.back() = nest.rows / item.operands[0].count[0];
    item.lanes = lanes_of(item);
}

// Lets an item read lent bytes where they come from.
void redirect(Item& item, size_t o, char*& start, const Place& place, Loan& loan, const Reading& reading) {
    const i64 lane = place.lane - loan.target.lane;
    item.borrows = true;
    loan.products += reading.again;
    if (reading.flat && item.nest.ndims == 2) fold(item, loan.run / size_of(int(item.operands[o].type)));
    if (reading.parts > 1) item.nest.stride[o][1] = loan.part_apart;
    (item.kind == LOAD || item.kind == MULTIPLY ? item.pitch : item.nest.stride[o][0]) = loan.apart;
    start += loan.from - loan.to + lane * (loan.apart - loan.pitch) + reading.first * (loan.part_apart - loan.run);
}

// Whether something of a loan must be copied ahead of the item because of an operand.
bool is_needed(const Context& context, const Item& item, size_t o, const Place& place, const Loan& loan, i64& inner) {
    const bool meets = place.meets(loan.target);
    Reading reading;
    if (!is_written(item, o)) return meets && !can_read(context, item, o, place, loan, inner, reading);
    const bool over = o == 0 && item.whole && place.lane <= loan.target.lane &&
                      loan.target.lane + loan.target.lanes <= place.lane + place.lanes;
    return place.meets(loan.source) || (meets && !(over && leaves_whole_runs(loan, place.from, place.to)));
}

// Forgets where the sources of an item's last execution were.
void give_back(Item& item) {
    item.nest = item.home;
    item.pitch = item.operands.back().stride[0];
    item.borrows = false;
    if (item.kind == ACCUMULATE) item.params.back() = item.nest.rows / item.operands[0].count[0];
    if (item.lanes.count) item.lanes = lanes_of(item);
}

// Whether an item touches what was put off, or writes what is still to be copied.
bool meets_loans(const Loans& loans, const Item& item, const Place* places) {
    bool any = false;
    for (size_t o = 0; o < item.operands.size(); ++o)
        for (int k = 0; k < loans.count && item.operands[o].base >= 0; ++k)
            any |= places[o].meets(loans.all[k].target) || (is_written(item, o) && places[o].meets(loans.all[k].source));
    return any;
}

// Whether nothing reads a copy any more when an item has its turn: its readers follow it in the same stretch, up to its
// last use. Nobody looks at the memory afterwards where that is known.
bool is_over(const Code& code, const Item& copy, const Item& now) {
    const Item *const first = code.items.data(), *const end = first + code.items.size();
    if (copy.last_use < 0 || std::less<const Item*>()(&copy, first) || !std::less<const Item*>()(&copy, end)) return false;
    return &now <= &copy || &now - first > copy.last_use;
}

// Forgets copies that nothing reads any more where an item writes over them or what they are of.
void drop_over(Context& context, const Item& item, const Place* places) {
    Loans& loans = context.loans;
    for (size_t o = 0; o < item.operands.size(); ++o)
        for (int k = 0; k < loans.count && item.operands[o].base >= 0 && is_written(item, o); ++k) {
            const Loan& loan = loans.all[k];
            const bool meets = places[o].meets(loan.target) || places[o].meets(loan.source);
            if (meets && is_over(*context.code, *loan.copy, item)) loans.all[k--] = loans.all[--loans.count];
        }
}

// Copies what must be copied ahead of an item; false when it must and may not. `inner`: as `can_read` has it.
bool make_needed(Context& context, const Item& item, const Place* places, bool may_copy, i64& inner) {
    Loans& loans = context.loans;
    for (size_t o = 0; o < item.operands.size(); ++o)
        for (int k = 0; k < loans.count && item.operands[o].base >= 0; ++k) {
            if (!is_needed(context, item, o, places[o], loans.all[k], inner)) continue;
            if (!may_copy) return false;
            const Place whole = loans.all[k].target;
            const Place& part = places[o].meets(loans.all[k].source) ? whole : places[o];
            cut(context, k, part.from, part.to, true);
            o = 0, k = -1, inner = 0;  // what is left may be in the way of other operands now
        }
    return true;
}

// Lets an item read what was put off where it comes from, and forgets what it writes.
void redirect_all(Context& context, Item& item, char** start, Place* places, i64 inner) {
    Loans& loans = context.loans;
    const size_t operands = item.operands.size();
    Place asked[MAX_OPERANDS];
    for (size_t o = 0; o < operands; ++o) asked[o] = places[o];
    for (size_t o = 0; o < operands; ++o)
        for (int k = 0; k < loans.count && item.operands[o].base >= 0 && !is_written(item, o); ++k)
            if (Reading reading; can_read(context, item, o, asked[o], loans.all[k], inner, reading)) {
                redirect(item, o, start[o], asked[o], loans.all[k], reading);
                places[o] = loans.all[k].source;
                break;
            }
    for (size_t o = 0; o < operands; ++o)
        for (int k = loans.count - 1; k >= 0 && item.operands[o].base >= 0 && is_written(item, o); --k)
            if (asked[o].meets(loans.all[k].target)) cut(context, k, asked[o].from, asked[o].to, false);
}

}  // namespace

void find_places(const Context& context, const Item& item, char* const* start, Place* places) {
    for (size_t o = 0; o < item.operands.size(); ++o) {
        const Operand& operand = item.operands[o];
        if (operand.base < 0) continue;
        i64 at = i64(reinterpret_cast<intptr_t>(start[o]));
        if (operand.lanes) at -= i64(reinterpret_cast<intptr_t>(context.bases[size_t(operand.base)])) + operand.origin;
        const i64 from = at + operand.below, to = at + operand.above + size_of(int(operand.type));
        if (operand.lanes) places[o] = {operand.base, operand.lane, operand.lanes, from, to};
        else places[o] = {-1, 0, 0, from, to};
        if (operand.lanes || operand.ndims < 2 || operand.count[0] < 2) continue;
        const i64 period = operand.stride[0], run = to - from - (operand.count[0] - 1) * period;
        if (period > 0 && run > 0 && run < period) places[o].period = period, places[o].run = run;
    }
}

bool can_be_lent(const Item& item) {
    const Nest& nest = item.nest;
    if (item.kind != COPY || !item.lanes.count || nest.ndims < 2 || nest.ndims > 3) return false;
    const Operand &to = item.operands[0], &from = item.operands[1];
    const int last = nest.ndims - 1;
    const i64 size = size_of(int(to.type)), run = nest.inner * size;
    if (!to.lanes || from.base < 0 || from.lanes || nest.stride[0][last] != size || nest.stride[1][last] != size) return false;
    if (last == 2 && (nest.stride[0][1] != run || nest.count[1] > MOST_PARTS)) return false;
    return run >= LEAST_RUN && run * nest.rows >= LEAST_BYTES;
}

Borrowed borrow(Context& context, Item& item, char** start, Place* places, bool may_copy, i64 members) {
    Loans& loans = context.loans;
    if (item.borrows) give_back(item);
    const bool one_hots = context.one_hots.waits();
    if (item.one_hot && !may_copy) return BLOCKED;
    if (one_hots && !make_one_hots(context, item, places, may_copy)) return BLOCKED;
    if (loans.count > MOST_LOANS && !may_copy) return BLOCKED;
    while (loans.count > MOST_LOANS) cut(context, 0, loans.all[0].target.from, loans.all[0].target.to, true);
    const bool meets = meets_loans(loans, item, places);
    i64 inner = 0;
    if (meets) drop_over(context, item, places);
    if (meets && !make_needed(context, item, places, may_copy, inner)) return BLOCKED;
    const size_t operands = item.operands.size();
    if (context.weights.pending)
        for (size_t o = 0; o < operands; ++o)
            if (item.operands[o].base >= 0 && is_written(item, o) && places[o].meets(context.weights.place)) {
                context.kernels->settle(context.weights);
                break;
            }
    if (meets) redirect_all(context, item, start, places, inner);
    const bool one_hot = item.one_hot && item.nest.ndims == item.home.ndims;
    if (one_hot && put_off_one_hot(context, item, start, places, members)) return PUT_OFF;
    if (!item.lendable) return READY;
    const Nest& nest = item.home;
    const i64 run = nest.inner * size_of(int(item.operands[0].type)), parts = nest.ndims == 3 ? nest.count[1] : 1;
    const i64 part_apart = nest.ndims == 3 ? nest.stride[1][1] : 0;
    item.lent += run * nest.rows;
    loans.all[loans.count++] = {&item, places[0], places[1], start[0], start[1], run, parts,
                                nest.stride[1][0], part_apart, nest.stride[0][0], 0};
    return PUT_OFF;
}

float* lend_row(Context& context, Item& item, const Place& place, char* to) {
    Loans& loans = context.loans;
    float* const row = loans.rows[loans.next_row++ % LENT_ROWS];
    const char *from = reinterpret_cast<char*>(row), *end = from + sizeof loans.rows[0];
    for (int k = 0; k < loans.count; ++k)
        if (from <= loans.all[k].from && loans.all[k].from < end) {
            const Place target = loans.all[k].target;
            cut(context, k--, target.from, target.to, true);
        }
    const i64 run = place.to - place.from;
    item.lent += run * place.lanes;
    loans.all[loans.count++] = {&item, place, {-2, 0, 0, 0, 0}, to, from, run, 1, 0, 0, item.operands[0].stride[0], 0};
    return row;
}

void settle_loans(Context& context) {
    Loans& loans = context.loans;
    while (loans.count) make(context, loans.all[--loans.count]);
}
