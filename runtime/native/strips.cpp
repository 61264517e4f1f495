#include "strips.h"

#include "pieces.h"
#include "threads.h"

namespace {

const i64 STRIP_BYTES = 1 << 17;  // of all operands of one item: a part of what a processor's own cache holds
const i64 TILE_BYTES = 1 << 14;   // the same, where short-lived tiles are not in memory, and of these tiles
const i64 LEAST_BYTES = 1 << 13;  // of the operands of one item, on average, so that finding them takes less time
const i64 LONG_BYTES = 1 << 18;   // of all operands: from here on they do not stay in that cache from item to item
const i64 LEAST_LANES = 4;        // of a strip
const i64 LEAST_STRIPS = 8;       // that a thread takes at a time, where there are many

i64 lane_bytes(const Item& item) {
    i64 bytes = 0;
    for (const Operand& operand : item.operands) {
        if (operand.base < 0) continue;
        i64 count = 1;
        for (int d = 1; d < operand.ndims; ++d) count *= operand.stride[d] ? operand.count[d] : 1;
        bytes += count * size_of(int(operand.type));
    }
    return bytes;
}

// Where a short-lived tile is meanwhile: bytes before it and of it, of one partition; or where a copy would bring it.
struct Slot {
    i64 offset, bytes;
    int until;              // the last of the items that need it
    char* away;             // of partition 0
};

struct Strips {
    const Kernels* kernels;
    Item* const* items;
    char* const (*start)[MAX_OPERANDS];
    int count;
    i64 lanes;
    i64 pieces;                                 // that rows are cut into (pieces.h), and the nests of whole rows
    const Nest* whole;
    Slot slots[MOST_IN_STRIPS];
    int8_t slot[MOST_IN_STRIPS][MAX_OPERANDS];  // of an operand; -1: it is in memory
    bool done[MOST_IN_STRIPS];                  // a copy of what was made where it belongs

    // Bytes from the first element of operand o of item k to the one that its piece begins with.
    i64 piece_at(int k, size_t o, i64 piece) const {
        return piece ? column_at(whole[k], o, piece * items[k]->nest.inner) : 0;
    }

    // Where operand o of item k would begin in partition 0 if this strip's tiles were those of all.
    char* place_of(int k, size_t o, i64 strip, i64 piece, char* tiles) const {
        if (slot[k][o] < 0) return start[k][o] + piece_at(k, o, piece);
        const Slot& in = slots[slot[k][o]];
        char* const tile = in.away ? in.away + piece_at(in.until, 0, piece) : tiles + in.offset * lanes - strip * lanes * in.bytes;
        return tile + items[k]->lanes.first * in.bytes + items[k]->operands[o].within;
    }
};

void run_item(const Kernels& kernels, const Item& item, char* const* start, i64 first, i64 last, Workspace& w) {
    switch (item.kind) {
        case MAP: return kernels.map(item, start, first, last, w);
        case ACCUMULATE: return kernels.accumulate(item, start, first, last, w);
        case COPY: return kernels.copy(item.nest, size_of(int(item.operands[0].type)), start[0], start[1], first, last);
        case SELECT: return kernels.select(item, start, first, last, w);
        case BITS: return kernels.bits(item, start, first, last, w);
        case INTEGER: return kernels.integer(item, start, first, last, w);
        case REDUCE: return kernels.reduce(item, start, first, last, w);
        default: return kernels.scan(item, start, first, last, w);
    }
}

void call_strips(void* data, i64 first, i64 last, Workspace& workspace) {
    const Strips& job = *static_cast<Strips*>(data);
    char* start[MAX_OPERANDS];
    for (i64 unit = first * job.pieces; unit < last * job.pieces; ++unit)
        for (int k = 0; k < job.count; ++k) {
            if (job.done[k]) continue;
            const i64 strip = unit / job.pieces, piece = unit % job.pieces;
            const Item& item = *job.items[k];
            const Lanes& lanes = item.lanes;
            const i64 before = strip * job.lanes - lanes.first, units = job.pieces > 1 ? 1 : lanes.units;
            i64 from = before, to = from + job.lanes;
            from = from < 0 ? 0 : from, to = to > lanes.count ? lanes.count : to;
            if (from >= to) continue;
            for (size_t o = 0; o < item.operands.size(); ++o) start[o] = job.place_of(k, o, strip, piece, workspace.tiles);
            if (item.merges) start[item.operands.size()] = job.place_of(k - 1, 1, strip, piece, workspace.tiles);
            run_item(*job.kernels, item, start, from * units, to * units, workspace);
        }
}

// Whether an item copies all of a short-lived tile, row by row, out of the partitions.
bool brings_away(const Item& item, const Item& maker, i64 pieces) {
    const Nest& nest = item.nest;
    const Operand &to = item.operands[0], &from = item.operands[1], &tile = maker.operands[0];
    const i64 size = size_of(int(to.type));
    return item.kind == COPY && nest.ndims == 2 && !to.lanes && to.base >= 0 && from.maker >= 0 && from.within == 0 &&
           nest.stride[0][1] == size && nest.stride[1][1] == size && item.lanes.first == maker.lanes.first &&
           item.lanes.count == maker.lanes.count && nest.inner * size * pieces == tile.below + tile.above + size_of(int(tile.type));
}

// The slot of item k's short-lived result, beside those of earlier ones that are still needed.
Slot slot_for(const Strips& job, const i64* numbers, int k, int made) {
    const Item& item = *job.items[k];
    const Operand& tile = item.operands[0];
    Slot slot{0, ((tile.below + tile.above + size_of(int(tile.type))) / job.pieces + 63) / 64 * 64, k, nullptr};
    for (int j = k + 1; j < job.count && numbers[j] <= item.last_use; ++j) slot.until = j;
    const Item& last = *job.items[slot.until];
    if (numbers[slot.until] == item.last_use && last.operands.size() == 2 && last.operands[1].maker == numbers[k] && brings_away(last, item, job.pieces))
        return {0, last.nest.stride[0][0], slot.until, job.start[slot.until][0] - last.lanes.first * last.nest.stride[0][0]};
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < made; ++s) {
            const Slot& other = job.slots[s];
            const bool apart = other.offset >= slot.offset + slot.bytes || slot.offset >= other.offset + other.bytes;
            if (other.away || other.until < k || apart) continue;
            slot.offset = other.offset + other.bytes, moved = true;
        }
    }
    return slot;
}

// Whether item k selects among words of a short-lived tile that the item ahead of it has just copied there, as they lie.
bool merges_copy(const Strips& job, int k) {
    const Item &item = *job.items[k], &copy = *job.items[k ? k - 1 : 0];
    if (!k || item.kind != SELECT || !(copy.kind == COPY || (copy.kind == MAP && copy.plain && copy.operations.empty()))) return false;
    const int tile = job.slot[k][0];
    if (tile < 0 || job.slot[k - 1][0] != tile || job.slot[k - 1][1] == tile || job.done[k - 1] || job.start[k - 1][0] != job.start[k][0]) return false;
    for (size_t o = 1; o < item.operands.size(); ++o)
        if (job.slot[k][o] == tile) return false;
    const Nest &a = copy.nest, &b = item.nest;
    const bool alike = a.ndims == 2 && b.ndims == 2 && a.inner == b.inner && item.lanes.first == copy.lanes.first && item.lanes.count == copy.lanes.count;
    const bool words = size_of(int(item.operands[0].type)) == 4 && size_of(int(copy.operands[0].type)) == 4;
    return alike && words && item.operands.size() == 3 && a.stride[0][1] == 4 && a.stride[1][1] == 4 && b.stride[0][1] == 4;
}

// Finds room for the short-lived tiles of items; returns how many bytes all of them take, of a partition.
i64 find_slots(Strips& job, const i64* numbers, i64 end) {
    i64 all = 0;
    int of[MOST_IN_STRIPS], made = 0;
    for (int k = 0; k < job.count; ++k) {
        const Item& item = *job.items[k];
        of[k] = -1;
        if (item.last_use >= 0 && item.last_use < end) {
            const Slot slot = slot_for(job, numbers, k, made);
            if (slot.away) job.done[slot.until] = true;
            const i64 last = slot.away ? 0 : slot.offset + slot.bytes;
            if (last <= MOST_TILES) {
                job.slots[made] = slot, of[k] = made++;
                all = last > all ? last : all;
            }
        }
        for (size_t o = 0; o < item.operands.size(); ++o) {
            job.slot[k][o] = -1;
            for (int j = k; j >= 0 && item.operands[o].maker >= 0; --j)
                if (numbers[j] == item.operands[o].maker) job.slot[k][o] = int8_t(of[j]);
        }
    }
    return all;
}

}  // namespace

Lanes lanes_of(const Item& item) {
    const Nest& nest = item.nest;
    i64 units = nest.rows;
    switch (item.kind) {
        case MAP: case COPY: case SELECT: case BITS: case INTEGER: break;
        case REDUCE: case SCAN: units = nest.rows * nest.inner; break;
        case ACCUMULATE: units = nest.rows / item.params.back(); break;
        default: return {};
    }
    Lanes found{};
    for (const Operand& operand : item.operands) {
        if (operand.base < 0 || !operand.lanes) continue;
        const bool whole = operand.lane_dim == 0 && operand.count[0] == operand.lanes;
        if (!whole || (found.count && (found.first != operand.lane || found.count != operand.lanes))) return {};
        found.first = operand.lane, found.count = operand.lanes;
    }
    // partitions are the outermost dim, since they lie farther apart than their bytes reach
    if (found.count < 2 || item.operands[0].count[0] != found.count || units % found.count) return {};
    found.units = units / found.count;
    return found;
}

bool is_long(const Item& item) { return lane_bytes(item) * item.lanes.count >= LONG_BYTES; }

bool Outside::admits(const Item& item, const Place* places) const {
    for (size_t o = 0; o < item.operands.size(); ++o)
        for (int k = 0; k < count; ++k)
            if (item.operands[o].base >= 0 && (written[k] || is_written(item, o)) && places[o].meets(all[k])) return false;
    return true;
}

void Outside::add(const Item& item, const Place* places) {
    for (size_t o = 0; o < item.operands.size(); ++o)
        if (item.operands[o].base >= 0 && places[o].base < 0) all[count] = places[o], written[count++] = is_written(item, o);
}

void run_in_strips(const Kernels& kernels, Item* const* items, const i64* numbers, char* const (*start)[MAX_OPERANDS], int count,
                   i64 end) {
    Nest whole[MOST_IN_STRIPS];
    Strips job{&kernels, items, start, count, 0, 1, whole, {}, {}, {}};
    i64 kept = find_slots(job, numbers, end);
    job.pieces = pieces_of(items, start, count, kept, 2 * TILE_BYTES);
    if (job.pieces > 1) {
        for (int k = 0; k < count; ++k) whole[k] = items[k]->nest, cut(items[k]->nest, job.pieces), job.done[k] = false;
        kept = find_slots(job, numbers, end);
    }
    i64 most = kept > 1 ? kept : 1, sum = 1, all = 0, pitch[MOST_IN_STRIPS][MAX_OPERANDS];
    for (int k = 0; k < count; ++k) {
        const i64 bytes = lane_bytes(*items[k]) / job.pieces, last = items[k]->lanes.first + items[k]->lanes.count;
        most = bytes > most ? bytes : most, sum += bytes;
        all = last > all ? last : all;
        for (size_t o = 0; o < items[k]->operands.size(); ++o) {
            i64& apart = items[k]->nest.stride[o][0];
            pitch[k][o] = apart;
            if (job.slot[k][o] < 0) continue;
            apart = job.slots[job.slot[k][o]].bytes;
            if (!job.slots[job.slot[k][o]].away) items[k]->cached |= 1u << o;
        }
    }
    for (int k = 1; k < count; ++k) {
        if (!merges_copy(job, k)) continue;
        items[k]->merges = job.done[k - 1] = true;
        items[k]->cached |= items[k - 1]->cached >> 1 & 1 ? 1u << 3 : 0;
        for (int d = 0; d < 2; ++d) items[k]->nest.stride[3][d] = items[k - 1]->nest.stride[1][d];
    }
    const i64 enough = kept ? LEAST_BYTES * count / sum + 1 : LEAST_LANES;
    i64 lanes = (kept ? TILE_BYTES : STRIP_BYTES) / most;
    lanes = lanes < enough ? enough : lanes;
    if (kept && lanes > MOST_TILES / kept) lanes = MOST_TILES / kept;
    job.lanes = lanes = lanes > all ? all : lanes;
    const i64 strips = (all + lanes - 1) / lanes;
    in_parallel(strips, strips / LEAST_STRIPS > 1 ? strips / LEAST_STRIPS : 1, call_strips, &job);
    for (int k = 0; k < count; ++k) {
        for (size_t o = 0; o < items[k]->operands.size(); ++o) items[k]->nest.stride[o][0] = pitch[k][o];
        if (job.pieces > 1) items[k]->nest = whole[k];
        items[k]->cached = 0, items[k]->merges = false;
    }
}
