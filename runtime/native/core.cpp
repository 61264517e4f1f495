// Entry points of the native core, called by library.py through ctypes, and the interpreter.
#include "core.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "context.h"
#include "short_lived.h"
#include "threads.h"

std::atomic<Tables*> small_floats[16];


namespace {

const int ABI = 12;  // library.py has the same number: raise both when the interface changes

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

void set_registers(Context& context, const Item& loop, const Open& open) {
    context.registers[loop.params[1]] = open.index;
    for (size_t p = 3; p + 1 < loop.params.size(); p += 2)
        context.registers[loop.params[p]] = (open.before + open.index) % loop.params[p + 1];
}

// What a stretch of interpretation ended with; a record for Python to carry out is its number.
const i64 DONE = -1, TIME = -2, FOREIGN = -3;
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

// Items from a LOAD on that are carried out together; 0 for none. There must be two products at least.
i64 load_together(Context& context, Code& code, i64 at) {
    const std::vector<Item>& items = code.items;
    if (at + 3 >= i64(items.size()) || items[size_t(at + 2)].kind != LOAD || items[size_t(at + 3)].kind != MULTIPLY) return 0;
    const i64 turned = transpose_together(context, code, at);
    return turned ? turned : interleave_together(context, code, at);
}

i64 interpret(Context& context, i64 most_nanoseconds) {
    Code& code = *context.code;
    std::vector<Open>& open = context.open;
    const i64 count = i64(code.items.size()), start = nanoseconds();
    i64 effort = 0;
    for (i64& at = context.at;; ++at) {
        if (at >= count) {
            if (context.observed) settle(context);
            return DONE;
        }
        Item& item = code.items[size_t(at)];
        effort += item.effort;
        if (effort >= EFFORT) {
            effort = 0;
            if (nanoseconds() - start > most_nanoseconds) return TIME;
        }
        if (item.single && execute_single(context, item)) continue;
        if (item.kind == LOOP) {
            if (item.params[0] <= 0 || put_off_loop(context, code, at)) {
                at = item.jump;
                continue;
            }
            open.push_back({at, 0, item.params[2] < 0 ? 0 : context.counters[item.params[2]]});
            set_registers(context, item, open.back());
        } else if (item.kind == WHILE) {
            context.regions.push_back({at, 0, {}, {}});
            repeat(context, item);
        } else if (item.kind == BRANCH) {
            if (!choose(context, item)) {
                settle(context);
                return item.number;
            }
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
        } else if (const i64 loaded = item.kind == LOAD ? load_together(context, code, at) : 0) {
            at += loaded - 1;
        } else if (const i64 done = item.strips ? strip(context, code, at) : 0) {
            for (i64 k = 1; k < done; ++k) effort += code.items[size_t(at + k)].effort;
            at += done - 1;
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
    if (small_floats[k].load()) return;
    Tables* tables = new Tables;
    std::memcpy(tables->read, read, sizeof tables->read);
    std::memcpy(tables->exact, exact, sizeof tables->exact);
    std::memcpy(tables->inexact, inexact, sizeof tables->inexact);
    Tables* none = nullptr;
    if (!small_floats[k].compare_exchange_strong(none, tables)) delete tables;
}

// What programs run on: a table of bases, four words each (see Base), the registers that there are, and whether somebody
// looks at the memory on chip after a run. Null for a level that there is not.
EXPORTED Context* core_new(const char* level, i64 nbases, const i64* bases, i64 registers, int observed) {
    const Kernels* kernels = kernels_for(level);
    if (!kernels) return nullptr;
    Context* context = new Context{};
    context->kernels = kernels;
    for (i64 b = 0; b < nbases; ++b, bases += 4) context->limits.bases.push_back({bases[0], bases[1], bases[2], bases[3]});
    context->limits.registers = registers;
    context->observed = observed;
    context->bases.resize(size_t(nbases));
    context->weights.writes.resize(size_t(nbases));
    return context;
}

EXPORTED void core_free(Context* context) { delete context; }

// Null when the words are no code (see decode.h).
EXPORTED Code* core_code(const Context* context, const i64* words, i64 count) {
    Code* code = decode(words, count, context->limits);
    if (code && !context->observed) find_short_lived(*code);
    return code;
}

EXPORTED void core_code_free(Code* code) { delete code; }

// Begin run number `run`: weights are NaN, registers and counters 0. Each base is at an address, or null, and has a number
// of bytes; returns the first one that has too few, or -1.
EXPORTED i64 core_start(Context* context, i64 run, char* const* addresses, const i64* sizes, i64* registers, i64* counters,
                        i64 slots) {
    Weights& weights = context->weights;
    context->loans.count = 0;
    context->one_hots.forget();
    weights.pending = weights.listed = weights.signs = false;
    weights.depth = weights.rows = 128;
    weights.packed = 0;
    weights.ones = OTHERS;
    weights.note_all();
    if (!weights.blank)
        for (float& weight : weights.dense) weight = std::numeric_limits<float>::quiet_NaN();
    weights.blank = true;
    context->run = run;
    context->unit = nullptr;
    context->registers = registers;
    context->counters = counters;
    context->slots = slots;
    context->code = nullptr;
    std::memset(registers, 0, sizeof(i64) * size_t(context->limits.registers));
    std::memset(counters, 0, sizeof(i64) * size_t(slots));
    for (size_t b = 0; b < context->bases.size(); ++b) {
        if (addresses[b] && sizes[b] < context->limits.bases[b].size()) return i64(b);
        context->bases[b] = addresses[b];
    }
    return -1;
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

// Run for about so many nanoseconds, from the start of `code` or, where that is null, on: DONE, TIME, FOREIGN for code that
// is not for this run, or the number of a record that is to be carried out before going on.
EXPORTED i64 core_run(Context* context, Code* code, i64 most_nanoseconds) {
    if (code) {
        context->code = code->slots <= context->slots ? code : nullptr;
        context->at = 0;
        context->open.clear();
        context->course.clear();
        context->regions.assign(1, Region{});
        if (!context->code) return FOREIGN;
    }
    return context->code ? interpret(*context, most_nanoseconds) : DONE;
}

// The stationary tile, for a record that Python carries out: its shape, and its values if `values` is not null.
EXPORTED void core_weights(Context* context, i64* shape, float* values) {
    Weights& weights = context->weights;
    settle_weights(*context);
    shape[0] = weights.depth, shape[1] = weights.rows;
    if (values) std::memcpy(values, weights.dense, sizeof(float) * weights.depth * weights.rows);
}
