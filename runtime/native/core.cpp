// Entry points of the native core, called by library.py through ctypes, and the interpreter.
#include "core.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "course.h"
#include "decode.h"
#include "indexing.h"
#include "threads.h"

Tables* small_floats[16];


namespace {

const int ABI = 7;  // library.py has the same number: raise both when the interface changes

#if HAVE_AVX2
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif

#if HAVE_AVX512
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}
#endif

// An open loop: its item, iterations begun, those of earlier entries.
struct Open {
    i64 item, index, before;
};

struct Context {
    const Kernels* kernels;
    Limits limits;
    Weights weights;
    i64 run;
    std::vector<char*> bases;
    i64 *registers, *counters, slots;
    Code* code;              // what is being run, from item `at` on
    i64 at;
    std::vector<Open> open;
    std::vector<Region> regions;  // the first one is the code itself
    Course course;
};

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

bool multiply(Context& context, Item& item, char* const* start) {
    Weights& weights = context.weights;
    const Operand &out = item.operands[0], &moving = item.operands[1];
    if (weights.depth != moving.lanes || weights.rows != out.lanes) return false;
    const i64 columns = item.inside.rows * item.inside.inner;
    const bool accumulates = item.params[0] != 0, tf32 = item.params[1] != 0, constant = item.params[2] != 0;
    if (columns == moving.lanes && !accumulates && !tf32) {
        if (!constant || item.seen != context.run) {
            item.identity = context.kernels->is_identity(item, start[1], own_workspace());
            item.seen = context.run;
        }
        if (item.identity) {
            if (weights.pending && !is_dense_tile(*weights.item)) context.kernels->settle(weights);
            const char* from = weights.pending ? weights.source : reinterpret_cast<const char*>(weights.dense);
            const i64 pitch = weights.pending ? weights.item->operands[0].stride[0] : weights.rows * 4;
            Transpose job{context.kernels, &item, from, pitch, weights.depth, weights.rows, start[0], {item.columns.empty()}};
            if (job.finite) call_transposed(&job, 0, (weights.depth + 15) / 16, own_workspace());
            if (job.finite) return true;
        }
    }
    if (columns > 1) context.kernels->pack(weights, tf32);
    else if (weights.pending && !is_dense_tile(*weights.item)) context.kernels->settle(weights);
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

bool execute(Context& context, Item& item);

void set_weights(Weights& weights, const Item& load, char* source) {
    weights.pending = true;
    weights.source = source;
    weights.item = &load;
    weights.depth = load.operands[0].lanes;
    weights.rows = load.inside.rows * load.inside.inner;
    weights.packed = 0;
}

const int MOST_TOGETHER = 16;

void call_transposes(void* data, i64 first, i64 last, Workspace& workspace) {
    Transpose* jobs = static_cast<Transpose*>(data);
    for (i64 k = first; k < last; ++k) call_transposed(&jobs[k], 0, (jobs[k].depth + 15) / 16, workspace);
}

// Carries out the transposes that follow each other from item `at` on, each on one thread, and returns how many items
// those are. A transpose is two: a tile in SBUF is loaded, then multiplied with the identity matrix, to a part of PSUM.
i64 transpose_together(Context& context, Code& code, i64 at) {
    Transpose jobs[MOST_TOGETHER];
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
        if (!locate(context, load, source) || !locate(context, product, start)) break;
        bool apart = true;  // from the results so far, all of which have columns of 4 bytes
        for (int other = 0; other < count; ++other)
            apart &= start[0] >= jobs[other].out + jobs[other].depth * 4 || start[0] + depth * 4 <= jobs[other].out;
        if (!apart) break;
        Transpose& job = jobs[count++];
        job.kernels = context.kernels, job.item = &product, job.from = source[0];
        job.pitch = load.operands[0].stride[0], job.depth = depth, job.rows = rows;
        job.out = start[0], job.finite = true;
    }
    if (count < 2) return 0;
    in_parallel(count, MOST_TOGETHER / 2, call_transposes, jobs);
    for (int k = 0; k < count; ++k) {
        const Item& load = code.items[at + 2 * k];
        set_weights(context.weights, load, const_cast<char*>(jobs[k].from));
        if (!jobs[k].finite) execute(context, code.items[at + 2 * k + 1]);
    }
    return 2 * count;
}

// Carries out one instruction; false when Python must.
bool execute(Context& context, Item& item) {
    Weights& weights = context.weights;
    if (item.writes_sbuf && weights.pending) context.kernels->settle(weights);
    char* start[MAX_OPERANDS];
    if (item.kind == FALLBACK || !locate(context, item, start)) return false;
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
            set_weights(weights, item, start[0]);
            return true;
        case MULTIPLY: return multiply(context, item, start);
        case GATHER: return gather(*context.kernels, item, start);
        case GROUP_GATHER: return group_gather(item, start);
        case GROUP_SCATTER: return group_scatter(item, start);
        case REG_LOAD: {
            const i64 value = element(item.operands[0], start[0]), least = item.params[0], most = item.params[1];
            context.registers[item.params[2]] = value < least ? least : value > most ? most : value;
            return true;
        }
        default: return false;
    }
}

void set_registers(Context& context, const Item& loop, const Open& open) {
    context.registers[loop.params[1]] = open.index;
    for (size_t p = 3; p + 1 < loop.params.size(); p += 2)
        context.registers[loop.params[p]] = (open.before + open.index) % loop.params[p + 1];
}

// What a stretch of interpretation ended with; a record for Python to carry out is its number.
const i64 DONE = -1, TIME = -2;
const i64 EFFORT = 1 << 16;  // between two looks at the clock

i64 nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Begins what is inside the innermost region, from the item after `at` on.
void enter(Context& context, const Item& item, size_t counters) {
    for (size_t p = counters; p < item.params.size(); ++p) context.counters[item.params[p]] = 0;
}

// Ends the innermost region, whose item is given; its END is what was last carried out.
void leave(Context& context, const Item& item, std::vector<i64> outcome) {
    context.regions.pop_back();
    context.regions.back().taken.push_back(context.course.number(std::move(outcome)));
    context.at = item.jump;
}

// Begins the innermost region, a WHILE, once more, or ends it.
void repeat(Context& context, const Item& item) {
    Region& region = context.regions.back();
    const i64 count = item.params[0];
    if (count ? region.number < count : context.registers[item.params[2]]) {
        enter(context, item, 3);
        if (count) context.registers[item.params[1]] = region.number;
        ++region.number;
        context.at = region.item;
    } else {
        std::vector<i64> outcome{REPEATED};
        outcome.insert(outcome.end(), region.runs.begin(), region.runs.end());
        leave(context, item, std::move(outcome));
    }
}

// Begins a BRANCH; false when there is no such case.
bool choose(Context& context, const Item& item) {
    const i64 chosen = context.registers[item.params[1]];
    if (chosen < 0 || chosen >= item.params[0]) return false;
    context.regions.push_back({context.at, chosen, {}, {}});
    enter(context, item, 2);
    context.at = item.columns[size_t(chosen)] - 1;
    return true;
}

// The end of an iteration or case of the innermost region.
void close(Context& context, const Item& item) {
    Region& region = context.regions.back();
    const i64 path = region.path(context.course);
    if (item.kind == BRANCH) return leave(context, item, {CHOSEN, region.number, path});
    region.add(path);
    repeat(context, item);
}

i64 interpret(Context& context, i64 most_nanoseconds) {
    Code& code = *context.code;
    std::vector<Open>& open = context.open;
    const i64 count = i64(code.items.size()), start = nanoseconds();
    i64 effort = 0;
    for (i64& at = context.at;; ++at) {
        if (at >= count) {
            if (context.weights.pending) context.kernels->settle(context.weights);
            return DONE;
        }
        Item& item = code.items[size_t(at)];
        effort += item.effort;
        if (effort >= EFFORT) {
            effort = 0;
            if (nanoseconds() - start > most_nanoseconds) return TIME;
        }
        if (item.kind == LOOP) {
            if (item.params[0] <= 0) {
                at = item.jump;
                continue;
            }
            open.push_back({at, 0, item.params[2] < 0 ? 0 : context.counters[item.params[2]]});
            set_registers(context, item, open.back());
        } else if (item.kind == WHILE) {
            context.regions.push_back({at, 0, {}, {}});
            repeat(context, item);
        } else if (item.kind == BRANCH) {
            if (!choose(context, item)) return item.number;
        } else if (item.kind == ELSE || (item.kind == END && code.items[size_t(item.jump)].kind != LOOP)) {
            close(context, code.items[size_t(item.jump)]);
        } else if (item.kind == END) {
            Open& inner = open.back();
            const Item& loop = code.items[size_t(inner.item)];
            if (++inner.index < loop.params[0]) {
                set_registers(context, loop, inner);
                at = inner.item;
                continue;
            }
            if (loop.params[2] >= 0) context.counters[loop.params[2]] = inner.before + loop.params[0];
            open.pop_back();
        } else if (const i64 turned = item.kind == LOAD ? transpose_together(context, code, at) : 0) {
            at += turned - 1;
        } else if (!execute(context, item)) {
            ++at;
            return item.number;
        }
    }
}

}  // namespace

const Kernels* kernels_for(const char* level) {
    const bool any = !*level;
#if HAVE_AVX512
    if ((any || !std::strcmp(level, kernels_avx512.name)) && has_avx512()) return &kernels_avx512;
#endif
#if HAVE_AVX2
    if ((any || !std::strcmp(level, kernels_avx2.name)) && has_avx2()) return &kernels_avx2;
#endif
    return any || !std::strcmp(level, kernels_base.name) ? &kernels_base : nullptr;
}

EXPORTED int core_abi() { return ABI; }

// Name of the kernels that `level` selects ("" for the best), or null.
EXPORTED const char* core_level(const char* level) {
    const Kernels* found = kernels_for(level);
    return found ? found->name : nullptr;
}

EXPORTED void core_threads(int count) { set_threads(count); }

// Tables of small float type k: 256 values as f32, the codes by an f32's upper half (see Tables).
EXPORTED void core_small_float(int k, const float* read, const uint8_t* exact, const uint8_t* inexact) {
    if (small_floats[k]) return;
    Tables* tables = new Tables;
    std::memcpy(tables->read, read, sizeof tables->read);
    std::memcpy(tables->exact, exact, sizeof tables->exact);
    std::memcpy(tables->inexact, inexact, sizeof tables->inexact);
    small_floats[k] = tables;
}

// What programs run on: a table of bases, four words each (see Base), and the registers that there are. Null for a level
// that there is not.
EXPORTED Context* core_new(const char* level, i64 nbases, const i64* bases, i64 registers) {
    const Kernels* kernels = kernels_for(level);
    if (!kernels) return nullptr;
    Context* context = new Context{};
    context->kernels = kernels;
    for (i64 b = 0; b < nbases; ++b, bases += 4) context->limits.bases.push_back({bases[0], bases[1], bases[2], bases[3]});
    context->limits.registers = registers;
    context->bases.resize(size_t(nbases));
    return context;
}

EXPORTED void core_free(Context* context) { delete context; }

// Null when the words are no code (see decode.h).
EXPORTED Code* core_code(const Context* context, const i64* words, i64 count) {
    return decode(words, count, context->limits);
}

EXPORTED void core_code_free(Code* code) { delete code; }

// Begin run number `run`: weights are NaN. Each base is at an address, or null, and has a number of bytes; returns the
// first one that has too few, or -1.
EXPORTED i64 core_start(Context* context, i64 run, char* const* addresses, const i64* sizes, i64* registers, i64* counters,
                        i64 slots) {
    Weights& weights = context->weights;
    weights.pending = false;
    weights.depth = weights.rows = 128;
    weights.packed = 0;
    for (float& weight : weights.dense) weight = std::numeric_limits<float>::quiet_NaN();
    context->run = run;
    context->registers = registers;
    context->counters = counters;
    context->slots = slots;
    context->code = nullptr;
    for (size_t b = 0; b < context->bases.size(); ++b) {
        if (addresses[b] && sizes[b] < context->limits.bases[b].size()) return i64(b);
        context->bases[b] = addresses[b];
    }
    return -1;
}

// Go to the start of code; 0 when it is not for this run.
EXPORTED int core_begin(Context* context, Code* code) {
    context->code = code->slots <= context->slots ? code : nullptr;
    context->at = 0;
    context->open.clear();
    context->course.clear();
    context->regions.assign(1, Region{});
    return context->code != nullptr;
}

// What the regions of the code did: the entries of their course in the order in which they were made, then what the
// code itself met, each with its length in front. Returns how many words that is, which are written if there is room.
EXPORTED i64 core_course(const Context* context, i64* words, i64 room) {
    std::vector<const std::vector<i64>*> all = context->course.entries;
    all.push_back(&context->regions.front().taken);
    i64 needed = 0;
    for (const auto* entry : all) needed += 1 + i64(entry->size());
    if (needed > room) return needed;
    for (const auto* entry : all) {
        *words++ = i64(entry->size());
        for (const i64 word : *entry) *words++ = word;
    }
    return needed;
}

// Run for about so many nanoseconds: DONE, TIME, or the number of a record that is to be carried out before going on.
EXPORTED i64 core_run(Context* context, i64 most_nanoseconds) {
    return context->code ? interpret(*context, most_nanoseconds) : DONE;
}

// The stationary tile, for a record that Python carries out: its shape, and its values if `values` is not null.
EXPORTED void core_weights(Context* context, i64* shape, float* values) {
    Weights& weights = context->weights;
    if (weights.pending) context->kernels->settle(weights);
    shape[0] = weights.depth, shape[1] = weights.rows;
    if (values) std::memcpy(values, weights.dense, sizeof(float) * weights.depth * weights.rows);
}
