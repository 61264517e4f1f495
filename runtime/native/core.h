// What the parts of the native core share: operands, instructions as decoded, and the kernels of a processor level.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

typedef int64_t i64;

// Numbers that encode.py has, too.
enum Type { F32, BF16, F16, U8, S8, U16, S16, U32, S32, PRED, RAW8, SMALL_FLOAT };  // small floats: one number each
enum Kind { LOOP, END, FALLBACK, MAP, ACCUMULATE, COPY, SELECT, BITS, INTEGER, REDUCE, LOAD, MULTIPLY, GATHER, REG_LOAD, SCAN,
            GROUP_GATHER, GROUP_SCATTER, WHILE, BRANCH, ELSE, SCATTER, SELECT_SCATTER };
enum Step {
    ADD, SUBTRACT, DIVIDE, MULTIPLY_, MAX, MIN, EQUAL, NOT_EQUAL, GREATER_EQUAL, GREATER, LESS_EQUAL, LESS,
    AND, OR, XOR, SHIFT_LEFT, SHIFT_RIGHT, SHIFT_RIGHT_ARITHMETIC, REMAINDER, MULTIPLY_HIGH, POWER,
    ROTATE_LEFT, ANGLE, REDUCE_PRECISION, ORDERED_LESS, ORDERED_LESS_EQUAL, ORDERED_EQUAL, ORDERED_NOT_EQUAL,
    FIRST_UNARY, ABS = FIRST_UNARY, NOT, SQUARE, RELU, SQRT, RSQRT, RECIPROCAL, SIGN, EXP, TANH, SIGMOID, ERF, GELU,
    GELU_TANH, SILU, NEGATE, ROUND_EVEN, SOFTPLUS, LOG, SINE, COSINE,
    TRUNCATE, FLOOR, CEIL, ROUND_AWAY, IS_FINITE, EXPM1, LOG1P, TAN, SINH, COSH, ASIN, ACOS, ATAN, ASINH, ACOSH, ATANH, CBRT,
    POPCOUNT, LEADING_ZEROS
};

const int MAX_OPERANDS = 6;
const int MAX_DIMS = 6;
const int MAX_ROW = 65536;  // elements of a partition that a sum can take
const int GROUP = 16;  // partitions that a processor of GpSimd sees
const int MAX_LANES = 128, MAX_COLUMNS = 512;  // of TensorE
const int BLOCK = 1024;  // elements that go through a chain of steps together
const i64 MOST_TILES = 1 << 18;  // bytes of short-lived tiles
const i64 UNIT = 64;     // columns of a product that are worked on together

// What is defined in headers is local to each file, since files are compiled for different processors.
namespace {

// The bytes of one element.
inline int size_of(int type) {
    static const int sizes[] = {4, 2, 2, 1, 1, 2, 2, 4, 4, 1, 8};
    return type < SMALL_FLOAT ? sizes[type] : 1;
}

}  // namespace

// A piece of memory that operands lie in: its first offset, the bytes of all of it or of a partition, how far
// partitions are apart and how many there are (0 and 0 in HBM).
struct Base {
    i64 start, bytes, pitch, lanes;
    i64 size() const { return lanes ? pitch * lanes : bytes; }
};

// An operand: a base (an index; -1: the constant in params[1]), an access pattern, the bounds of its offset.
struct Operand {
    i64 base, type, offset, low, high, origin;
    i64 lane, lanes;        // partitions; lanes is 0 in HBM
    i64 below, above;       // bytes that the pattern reaches around its offset, within a partition
    int lane_dim;           // the dim that goes over partitions, or -1
    i64 maker = -1;         // the item whose short-lived tile it is in (short_lived.h), and where in a partition of it
    i64 within = 0;
    int ncoefs, ndims;
    i64 place[MAX_DIMS], coef[MAX_DIMS];
    i64 count[MAX_DIMS], stride[MAX_DIMS];
};

// Loops over elements of several operands at once: dims that all of them can join are one.
struct Nest {
    int ndims;
    i64 rows, inner;        // products of the outer counts; the last count
    i64 count[MAX_DIMS], stride[MAX_OPERANDS][MAX_DIMS];
};

struct Operation {
    Step step;
    int operand;            // second argument: operand index, or -1 for the constant
    bool reverse;
    union {
        float value;
        uint32_t bits;
    };
};

// The partitions that an item works on, each for itself: the first one, their number (0: they depend on each other, or
// there are none), and how many of the kernel's units each is.
struct Lanes {
    i64 first, count, units;
};

struct Item {
    Kind kind;
    i64 number;             // index of the record
    int results;            // how many operands are written, which come first; of ACCUMULATE it is the first and the last one
    bool elementwise;       // a source may lie exactly where the result does
    std::vector<std::pair<int, int>> overlaps;  // pairs of operands that may overlap at run time
    bool overlapped;        // a pair always does
    std::vector<i64> params;
    std::vector<Operation> operations;
    std::vector<Operand> operands;
    std::vector<i64> columns;  // MULTIPLY: where the columns of a result lie that is not dense; BRANCH: where its cases begin
    Nest nest;              // of all operands; reductions: of the outer dims; scans: of the partitions; TensorE, gather: of the result's free dims
    Nest inside;            // reductions: the dims that go; scans: those walked along; TensorE, gather: the source's free dims
    i64 jump;               // LOOP, WHILE, BRANCH: index of its END and back; ELSE: index of its BRANCH
    Lanes lanes{};
    i64 strips = 0;         // items from this one on that keep to their partitions, if that is worth something
    i64 effort;             // about how long it takes, in units of some nanoseconds
    i64 seen = -1;          // MULTIPLY: run in which a constant moving tile was looked at
    bool identity = false;
    i64 pitch = 0;          // MULTIPLY, LOAD: how far apart the partitions of the source are
    Nest home{};            // the nest of operands where they lie; `nest` is that of what is read instead (loans.h)
    bool borrows = false;   // something is read elsewhere
    bool lendable = false;  // a copy that may be put off
    bool repeats = true;    // MULTIPLY: equal rows of a result may be put off
    i64 lent = 0, made = 0; // bytes, or comparisons, that were put off, and those of them that had to be made after all
    uint32_t cached = 0;    // a bit for each operand that a strip has in the nearest cache
    i64 last_use = -1;      // the last item that touches its short-lived result
    bool unused = false;    // nothing reads its result, but for the sum of ACCUMULATE
    bool one_hot = false;   // a comparison that may be put off (one_hot.h)
    bool single = false;    // each operand is one element, at the same place throughout a run
    i64 located = -1;       // of a single element: the run in which its operands were found, and where
    char* at[MAX_OPERANDS];
    bool merges = false;    // SELECT, for now: reads what it keeps where the copy ahead of it would read it (strips.cpp)
    bool plain = false;     // MAP, ACCUMULATE: all operands of the chain are f32 elements side by side, or one for a row
    bool whole = false;     // all bytes between the first and the last one of a result's partitions are written
};

namespace {

inline bool is_written(const Item& item, size_t o) {
    return item.kind == ACCUMULATE ? o == 0 || o + 1 == item.operands.size() : int(o) < item.results;
}

}  // namespace

// Bytes that an operand may touch: of partitions, counted from the first one of a base, or of the host's memory (base -1,
// no partitions), there perhaps the first `run` of every `period` bytes only.
struct Place {
    i64 base, lane, lanes, from, to, period = 0, run = 0;

    bool meets(const Place& other) const {
        return base == other.base && from < other.to && other.from < to && !interleaves(other) &&
               (base < 0 || (lane < other.lane + other.lanes && other.lane < lane + lanes));
    }
    bool interleaves(const Place& other) const {
        if (!period || period != other.period) return false;
        const i64 apart = ((other.from - from) % period + period) % period;
        return run <= apart && other.run <= period - apart;
    }
    bool holds(const Place& other) const {
        return base == other.base && from <= other.from && other.to <= to && lane <= other.lane &&
               other.lane + other.lanes <= lane + lanes;
    }
};

// Memory for one thread's temporaries.
struct Workspace {
    alignas(64) float a[BLOCK], b[BLOCK], c[BLOCK];
    alignas(64) uint32_t x[BLOCK], y[BLOCK];
    alignas(64) char flat[MAX_OPERANDS][BLOCK * 4];
    alignas(64) float panel[128 * 64];
    alignas(64) float row[MAX_ROW];
    alignas(64) char tiles[MOST_TILES];
};

const int NOT_KNOWN = -1, OTHERS = -2;

// The stationary tile of TensorE, [depth, rows]; pending: still where it was loaded from, to be read from there.
struct Weights {
    bool pending;
    char* source;
    Place place;            // of the source
    i64 pitch;              // between its partitions
    const Item* item;
    i64 depth, rows;
    bool blank;             // dense holds nothing but NaN, as at the start of a run
    bool listed;            // dense does not hold the tile, which is zeros but for the ones that are known,
    bool signs;             // or ones up to the row where they change to -1, of each lane
    uint8_t changes[128];
    int packed;             // 0: not packed; 1: packed; 2: packed and rounded to tf32
    int ones;               // NOT_KNOWN; OTHERS: not only a few ones among zeros; else how many ones, at these places
    uint8_t lane[256], row[256];
    // what sums of lanes have found, as long as nothing but such products has been carried out since, or written to a base:
    // `steps` counts others, `writes` those that write to each base
    i64 steps;
    std::vector<i64> writes;
    struct Found {
        const char* at;
        i64 steps, pitch, rows, n;

        bool is(const Found& other) const {
            return at == other.at && steps == other.steps && pitch == other.pitch && rows <= other.rows && n == other.n;
        }
    };
    Found finite;           // a moving tile
    Found clean[16];        // results to which adding 0 changes nothing, the next one to be forgotten
    unsigned oldest;

    // What is known of the result at an address, or room for it.
    Found& known(const char* at) {
        for (Found& each : clean)
            if (each.at == at) return each;
        return clean[oldest++ % 16];
    }

    // How often a base has been written to by anything but such products; HBM, which has several bases, by anything at all.
    i64 writes_to(const Operand& operand) const { return operand.lanes ? writes[size_t(operand.base)] : steps; }

    void note(const Item& item) {
        ++steps;
        if (item.kind == FALLBACK) return note_all();
        const auto count = [&](const Operand& operand) {
            if (operand.base >= 0) ++writes[size_t(operand.base)];
        };
        for (int o = 0; o < item.results; ++o) count(item.operands[size_t(o)]);
        if (item.kind == ACCUMULATE) count(item.operands.back());
    }

    void note_all() {
        ++steps;
        for (i64& count : writes) ++count;
    }

    alignas(64) float dense[128 * 128];
    alignas(64) float panels[128 * 144];
};

struct Tables {             // of a small float type
    float read[256];
    uint8_t exact[65536], inexact[65536];  // by the upper half of an f32: when the lower half is 0, and else
};
extern std::atomic<Tables*> small_floats[16];  // set once: threads may open the core at the same time

struct Kernels {
    const char* name;
    void (*map)(const Item&, char* const*, i64, i64, Workspace&);
    void (*accumulate)(const Item&, char* const*, i64, i64, Workspace&);
    void (*copy)(const Nest&, int, char*, const char*, i64, i64);
    void (*select)(const Item&, char* const*, i64, i64, Workspace&);
    void (*bits)(const Item&, char* const*, i64, i64, Workspace&);
    void (*integer)(const Item&, char* const*, i64, i64, Workspace&);
    void (*reduce)(const Item&, char* const*, i64, i64, Workspace&);
    void (*scan)(const Item&, char* const*, i64, i64, Workspace&);
    void (*settle)(Weights&);
    bool (*transposed)(const Item&, const char*, i64, i64, i64, char*, i64, i64);  // false: it would be no transpose
    bool (*is_identity)(const Item&, const char*, Workspace&);
    void (*pack)(Weights&, bool);
    void (*multiply)(const Item&, const Weights&, char*, const char*, i64, i64, Workspace&);
    void (*interleaved)(const Item&, const char*, i64, const char*, i64, i64, float*);
    void (*store_column)(const Item&, char*, const float*, i64);
    bool (*add_up)(const Item&, Weights&, char*, const char*, Workspace&);  // false: not with these operands
    void (*weighted_sum)(const Item&, const Weights&, const char*, float*);
    void (*map_of_one)(const Item&, char* const*);
    void (*words_of_one)(const Item&, char* const*);
};

extern const Kernels kernels_base;
#if HAVE_AVX2
extern const Kernels kernels_avx2;
#endif
#if HAVE_AVX512  // never without the other one
extern const Kernels kernels_avx512;
#endif

// The best kernels of this processor, or those of the level that is named (null where it cannot run).
const Kernels* kernels_for(const char* level);

namespace {

// Walks over the rows of a nest: addresses of all operands at the start of a row.
struct Rows {
    const Nest& nest;
    int operands;
    i64 index[MAX_DIMS];
    char* at[MAX_OPERANDS] = {};

    Rows(const Nest& n, int count, char* const* start, i64 row) : nest(n), operands(count) {
        for (int o = 0; o < operands; ++o) at[o] = start[o];
        for (int d = nest.ndims - 2; d >= 0; --d) {
            index[d] = d ? row % nest.count[d] : row;
            row = d ? row / nest.count[d] : 0;
            for (int o = 0; o < operands; ++o) at[o] += index[d] * nest.stride[o][d];
        }
    }

    void next() {
        for (int d = nest.ndims - 2; d >= 0; --d) {
            for (int o = 0; o < operands; ++o) at[o] += nest.stride[o][d];
            if (++index[d] < nest.count[d]) return;
            index[d] = 0;
            for (int o = 0; o < operands; ++o) at[o] -= nest.count[d] * nest.stride[o][d];
        }
    }

    i64 step(int operand) const { return nest.stride[operand][nest.ndims - 1]; }
};

}  // namespace
