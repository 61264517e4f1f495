// The passes of the race check over all dynamic instructions that take long in NumPy, one after the other in emission
// order. What they compute is said in race_clocks.py, race_pairs.py and intervals.py, which do the same without them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

using i64 = int64_t;
using std::size_t;

namespace {

constexpr int MAX_SLOTS = 16;
constexpr int32_t ALWAYS = INT32_MAX;

struct Queue {
    std::vector<int32_t> versions;  // by position in the piece
    int32_t version;
};

struct Footprint {
    i64 base, end, first, last;  // bytes [base, end) of partitions [first, last)
    i64 lowest, highest;         // pages
};

constexpr int MAX_DIMS = 8;

// A set of cells relative to a base: `run` of them at each point of a grid, major dims first; and in which layers of a
// map, with which mask: entries first_mask..last_mask-1.
struct Shape {
    i64 run, ndims, first_mask, last_mask;
    i64 count[MAX_DIMS], stride[MAX_DIMS];
};

// Calls `each` with all runs of cells at `base`: the first cell, how many, and how far they are apart. Ends when it
// gives false, which is then the result.
template <class F>
bool each_run(const Shape& shape, i64 base, F each) {
    i64 index[MAX_DIMS] = {}, at = base, inner = shape.ndims;
    i64 length = shape.run, step = 1;
    if (length == 1 && inner) --inner, length = shape.count[inner], step = shape.stride[inner];
    for (;;) {
        if (!each(at, length, step)) return false;
        i64 d = inner - 1;
        for (; d >= 0; --d) {
            at += shape.stride[d];
            if (++index[d] < shape.count[d]) break;
            at -= shape.count[d] * shape.stride[d];
            index[d] = 0;
        }
        if (d < 0) return true;
    }
}

template <class Cell>
bool walk_cells(Cell* state, const Shape& shape, i64 base, Cell mask, bool write) {
    return each_run(shape, base, [&](i64 at, i64 length, i64 step) {
        Cell* cell = state + at;
        Cell all = mask;
        if (write)
            for (i64 i = 0; i < length; ++i, cell += step) *cell |= mask;
        else
            for (i64 i = 0; i < length; ++i, cell += step) all &= *cell;
        return (all & mask) == mask;
    });
}

template <class Cell>
i64 walk_events(i64 nevents, const i64* footprints, const bool* writes, const i64* patterns, const i64* bases, const Shape* shapes,
                const i64* layers, const Cell* masks, i64 pitch, Cell* state) {
    for (i64 n = 0; n < nevents; ++n) {
        const Shape& shape = shapes[patterns[footprints[n]]];
        for (i64 k = shape.first_mask; k < shape.last_mask; ++k)
            if (!walk_cells(state + layers[k] * pitch, shape, bases[footprints[n]], masks[k], writes[n])) return n;
    }
    return -1;
}

}  // namespace

API int race_abi() { return 3; }

// Positions and versions of all instructions; rows of `known`, for which there is room for one a slot and piece and one
// a wait; `totals` are its rows and the implied waits. Returns the first wait that never ends, or -1; then `totals` has
// how many of the awaited instructions are issued.
API i64 race_clocks(i64 npieces, const i64* sizes, const i64* bases, i64 nslots, const bool* in_order, const int8_t* slots,
                    i64 nwaits, const i64* at, const i64* awaited, const i64* counts, i64* positions, i64* versions,
                    int32_t* known, i64* totals) {
    i64 rows = npieces * nslots, instr = 0, wait = 0, implied = 0;
    Queue queues[MAX_SLOTS];
    for (i64 piece = 0; piece < npieces; ++piece) {
        const i64* base = bases + piece * nslots;
        for (i64 slot = 0; slot < nslots; ++slot) {
            Queue& queue = queues[slot];
            queue.versions.clear();
            queue.version = int32_t(piece * nslots + slot);
            for (i64 other = 0; other < nslots; ++other) {
                known[queue.version * nslots + other] = other == slot && in_order[slot] ? ALWAYS : int32_t(base[other]);
            }
        }
        for (const i64 end = instr + sizes[piece]; instr < end; ++instr) {
            const int slot = slots[instr];
            Queue& queue = queues[slot];
            for (; wait < nwaits && at[wait] == instr; ++wait) {
                const i64 other = awaited[wait], count = counts[wait];
                const Queue& source = queues[other];
                const i64 issued = base[other] + i64(source.versions.size());
                if (count > issued) return totals[0] = issued, wait;
                if (count <= known[queue.version * nslots + other]) {
                    ++implied;
                    continue;
                }
                const int32_t* mine = known + queue.version * nslots;
                const int32_t* theirs = known + source.versions[size_t(count - base[other] - 1)] * nslots;
                int32_t* merged = known + rows * nslots;
                for (i64 s = 0; s < nslots; ++s) merged[s] = mine[s] > theirs[s] ? mine[s] : theirs[s];
                merged[other] = int32_t(count);
                queue.version = int32_t(rows++);
            }
            queue.versions.push_back(queue.version);
            positions[instr] = base[slot] + i64(queue.versions.size());
            versions[instr] = queue.version;
        }
    }
    totals[0] = rows, totals[1] = implied;
    return -1;
}

// Pairs of accesses to a page, one of them a write, of which the later one does not know the earlier one to be complete,
// and whose hulls meet: each pair once. Accesses touch the pages `lowest` to `highest` of their footprints. Returns how
// many there are. `end` is 0, or why the walk ended early: 1 for want of room, 2 after looking at `most` candidates.
API i64 race_pairs(i64 naccesses, const i64* accesses, const i64* at, const i64* footprints, const bool* writes,
                   const Footprint* all, i64 nslots, const int8_t* slots, const i64* pieces, const i64* positions,
                   const i64* versions, const int32_t* known, i64 npages, i64 room, i64 most, i64* earlier, i64* later,
                   i64* end) {
    struct Visit {
        int32_t access, before;  // the one before it, of the same slot to the same page
    };
    std::vector<Visit> visits(1);
    std::vector<int32_t> lasts(size_t(npages * 2 * nslots));   // positions of the last access, and of the last write
    std::vector<int32_t> newest(size_t(npages * nslots));      // visits
    std::vector<int32_t> owners(size_t(npages), -1);           // the piece that these belong to
    i64 found = 0, looked = 0;
    *end = 0;
    for (i64 n = 0; n < naccesses; ++n) {
        const i64 i = accesses[n], instr = at[i];
        const Footprint& mine = all[footprints[i]];
        const int32_t* clock = known + versions[instr] * nslots;
        const int32_t piece = int32_t(pieces[instr]), position = int32_t(positions[instr]);
        const int slot = slots[instr];
        for (i64 page = mine.lowest; page <= mine.highest; ++page) {
            int32_t *any = lasts.data() + page * 2 * nslots, *written = any + nslots;
            int32_t* heads = newest.data() + page * nslots;
            if (owners[size_t(page)] != piece) {
                owners[size_t(page)] = piece;
                for (i64 s = 0; s < 2 * nslots; ++s) any[s] = 0;
                for (i64 s = 0; s < nslots; ++s) heads[s] = 0;
            }
            const int32_t* theirs = writes[i] ? any : written;
            for (i64 s = 0; s < nslots; ++s) {
                if (theirs[s] <= clock[s]) continue;
                for (int32_t visit = heads[s]; visit; visit = visits[size_t(visit)].before) {
                    const i64 other = visits[size_t(visit)].access;
                    if (positions[at[other]] <= clock[s]) break;
                    if (++looked > most) return *end = 2, found;
                    const Footprint& one = all[footprints[other]];
                    if (!(writes[i] || writes[other]) || at[other] == instr) continue;
                    if (page != mine.lowest && page != one.lowest) continue;
                    if (one.base >= mine.end || mine.base >= one.end) continue;
                    if (one.first >= mine.last || mine.first >= one.last) continue;
                    if (found == room) return *end = 1, found;
                    earlier[found] = other, later[found++] = i;
                }
            }
            any[slot] = position;
            if (writes[i]) written[slot] = position;
            visits.push_back({int32_t(i), heads[slot]});
            heads[slot] = int32_t(visits.size() - 1);
        }
    }
    return found;
}

// Accesses one after the other on a map of what is defined (race_maps.py): writes define their cells. Returns the first
// read of a cell that is not, or -1. `words`: whether cells are words of 64 bits, else they are bytes.
API i64 race_defined(bool words, i64 nevents, const i64* footprints, const bool* writes, const i64* patterns, const i64* bases,
                     const Shape* shapes, const i64* layers, const uint64_t* masks, i64 pitch, void* state) {
    if (words)
        return walk_events(nevents, footprints, writes, patterns, bases, shapes, layers, masks, pitch, static_cast<uint64_t*>(state));
    const i64 layer = 0;
    const uint8_t mask = 1;
    return walk_events(nevents, footprints, writes, patterns, bases, shapes, &layer, &mask, pitch, static_cast<uint8_t*>(state));
}

// The same where the cells of a footprint are those of its stretches, firsts..lasts-1 of `begins` and `ends`.
API i64 race_defined_stretches(i64 nevents, const i64* footprints, const bool* writes, const i64* firsts, const i64* lasts,
                               const i64* begins, const i64* ends, uint8_t* state) {
    for (i64 n = 0; n < nevents; ++n) {
        for (i64 k = firsts[footprints[n]]; k < lasts[footprints[n]]; ++k) {
            const i64 length = ends[k] - begins[k];
            if (writes[n]) std::memset(state + begins[k], 1, size_t(length));
            else if (std::memchr(state + begins[k], 0, size_t(length))) return n;
        }
    }
    return -1;
}

// Numbers the distinct keys in the order of their first places, which are returned, too. Returns how many there are.
API i64 race_distinct(i64 count, const i64* keys, i64* numbers, i64* firsts) {
    int bits = 0;
    std::vector<int32_t> table;
    i64 found = 0;
    // where the number of a key is in the table, or belongs
    auto place_of = [&](i64 key) {
        size_t place = size_t((uint64_t(key) * 0x9E3779B97F4A7C15u) >> (64 - bits));
        while (table[place] >= 0 && keys[firsts[table[place]]] != key) place = (place + 1) & (table.size() - 1);
        return place;
    };
    for (i64 i = 0; i < count; ++i) {
        if (size_t(found) * 2 >= table.size()) {
            bits = bits ? bits + 2 : 10;
            table.assign(size_t(1) << bits, -1);
            for (i64 n = 0; n < found; ++n) table[place_of(keys[firsts[n]])] = int32_t(n);
        }
        const size_t place = place_of(keys[i]);
        if (table[place] < 0) {
            table[place] = int32_t(found);
            firsts[found++] = i;
        }
        numbers[i] = table[place];
    }
    return found;
}
