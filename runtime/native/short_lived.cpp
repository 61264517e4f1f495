// The memory on chip is followed from the end of the code to its start, as bytes that somebody is still going to read. Of a
// stretch of items without loops and branches, that is known item by item; of a loop it is everything that any stretch in
// it reads and did not write itself.
#include "short_lived.h"

#include <algorithm>
#include <map>

#include "strips.h"

namespace {

const size_t MOST_NEAR = 256;  // uses that are looked at one by one

// Bytes [from, to) of partitions, from the offset without registers; [least, most) whatever the registers are.
struct Use {
    const Operand* operand;
    i64 from, to, least, most;
    i64 item;
};

bool share_lanes(const Operand& a, const Operand& b) { return a.lane < b.lane + b.lanes && b.lane < a.lane + a.lanes; }

bool holds_lanes(const Operand& a, const Operand& b) { return a.lane <= b.lane && b.lane + b.lanes <= a.lane + a.lanes; }

bool meets(const Use& a, const Use& b) {
    if (a.operand->base != b.operand->base || !share_lanes(*a.operand, *b.operand)) return false;
    if (same_coefs(*a.operand, *b.operand)) return a.from < b.to && b.from < a.to;
    return a.least < b.most && b.least < a.most;
}

// Bytes that somebody reads later, of all partitions from a first to a last one.
class Later {
public:
    void add(i64 base, i64 lane, i64 last, i64 from, i64 to) {
        auto& spans = of_[base];
        auto at = spans.upper_bound(from);
        if (at != spans.begin() && std::prev(at)->second.to >= from) --at;
        while (at != spans.end() && at->first <= to) {
            from = std::min(from, at->first), to = std::max(to, at->second.to);
            lane = std::min(lane, at->second.lane), last = std::max(last, at->second.last);
            at = spans.erase(at);
        }
        spans[from] = {to, lane, last};
    }

    void add(const Use& use) {
        add(use.operand->base, use.operand->lane, use.operand->lane + use.operand->lanes, use.least, use.most);
    }

    void add(const Later& other) {
        for (const auto& [base, spans] : other.of_)
            for (const auto& [from, span] : spans) add(base, span.lane, span.last, from, span.to);
    }

    bool meets(const Use& use) const {
        const Operand& operand = *use.operand;
        const auto found = of_.find(operand.base);
        if (found == of_.end()) return false;
        const auto& spans = found->second;
        auto at = spans.upper_bound(use.least);
        if (at != spans.begin()) --at;
        for (; at != spans.end() && at->first < use.most; ++at)
            if (use.least < at->second.to && operand.lane < at->second.last && at->second.lane < operand.lane + operand.lanes)
                return true;
        return false;
    }

    // What is written ahead of it is not read.
    void remove(const Use& use) {
        const Operand& operand = *use.operand;
        const auto found = of_.find(operand.base);
        if (operand.ncoefs || found == of_.end()) return;
        auto& spans = found->second;
        auto at = spans.upper_bound(use.from);
        if (at != spans.begin()) --at;
        while (at != spans.end() && at->first < use.to) {
            const i64 from = at->first;
            const Span span = at->second;
            if (span.to <= use.from || span.lane < operand.lane || operand.lane + operand.lanes < span.last) {
                ++at;
                continue;
            }
            at = spans.erase(at);
            if (from < use.from) spans[from] = {use.from, span.lane, span.last};
            if (use.to < span.to) spans[use.to] = span;
        }
    }

private:
    struct Span {
        i64 to, lane, last;
    };
    std::map<i64, std::map<i64, Span>> of_;
};

bool is_control(const Item& item) {
    return item.kind == LOOP || item.kind == END || item.kind == WHILE || item.kind == BRANCH || item.kind == ELSE;
}

const i64 MOST_RUNS = 8;

// Where the runs of an operand begin that is written, from its first byte on, and how many bytes each has: all of them are
// new. None where that is not so, or are too many.
std::vector<i64> filled_runs(const Item& item, size_t o, i64& bytes) {
    switch (item.kind) {
        case MAP: case COPY: case BITS: case INTEGER: case ACCUMULATE: case REDUCE: case SCAN: break;
        case MULTIPLY:
            if (item.params[0]) return {};
            break;
        default: return {};
    }
    const Operand& operand = item.operands[o];
    std::vector<i64> starts{0};
    if (operand.lane_dim != 0 || operand.lanes != operand.count[0]) return {};
    bytes = size_of(int(operand.type));
    for (int d = operand.ndims - 1; d > 0; --d) {
        if (operand.count[d] == 1) continue;
        if (starts.size() == 1 && operand.stride[d] == bytes) {
            bytes *= operand.count[d];
            continue;
        }
        if (operand.stride[d] <= 0 || i64(starts.size()) * operand.count[d] > MOST_RUNS) return {};
        const size_t before = starts.size();
        for (i64 k = 1; k < operand.count[d]; ++k)
            for (size_t run = 0; run < before; ++run) starts.push_back(starts[run] + k * operand.stride[d]);
    }
    return starts;
}

// Whether the item looks at what an operand was before.
bool is_read(const Item& item, size_t o) {
    switch (item.kind) {
        case MAP: case COPY: case BITS: case INTEGER: case ACCUMULATE: case REDUCE: case SCAN: return !is_written(item, o);
        case MULTIPLY: return o > 0 || item.params[0];
        default: return true;
    }
}

class Finder {
public:
    explicit Finder(Code& code) : items_(code.items) {
        for (const Item& item : items_) {
            if (item.kind == LOOP) {
                may_be(item.params[1], 0, item.params[0] - 1);
                for (size_t p = 3; p + 1 < item.params.size(); p += 2) may_be(item.params[p], 0, item.params[p + 1] - 1);
            } else if (item.kind == WHILE && item.params[0]) {
                may_be(item.params[1], 0, item.params[0] - 1);
            } else if (item.kind == REG_LOAD) {
                may_be(item.params[2], item.params[0], item.params[1]);
            }
        }
    }

    void find() {
        Later later;
        for (i64 end = i64(items_.size()); end > 0;) {
            if (items_[size_t(end - 1)].kind == END) {
                i64 start = items_[size_t(end - 1)].jump;
                while (items_[size_t(start)].kind == ELSE) start = items_[size_t(start)].jump;
                Later inside;
                walk(start, end, [&](i64 first, i64 last) {
                    Later own;
                    stretch(first, last, own, false);
                    inside.add(own);
                });
                later.add(inside);
                walk(start, end, [&](i64 first, i64 last) {
                    Later own = later;
                    stretch(first, last, own, true);
                });
                end = start;
            } else {
                i64 start = end - 1;
                while (start > 0 && !is_control(items_[size_t(start - 1)])) --start;
                stretch(start, end, later, true);
                end = start;
            }
        }
    }

private:
    typedef std::pair<i64, i64> Bounds;

    void may_be(i64 place, i64 least, i64 most) {
        const auto [at, added] = registers_.insert({place, {std::min<i64>(least, 0), std::max<i64>(most, 0)}});
        if (!added) at->second = {std::min(at->second.first, least), std::max(at->second.second, most)};
    }

    template <class F>
    void walk(i64 start, i64 end, F f) {
        for (i64 last = end; last > start;) {
            i64 first = last;
            while (first > start && !is_control(items_[size_t(first - 1)])) --first;
            if (first < last) f(first, last);
            last = first - 1;
        }
    }

    Use use_of(i64 item, size_t o) const {
        const Operand& operand = items_[size_t(item)].operands[o];
        const i64 from = operand.offset + operand.below, to = operand.offset + operand.above + size_of(int(operand.type));
        __int128 least = from, most = to;
        for (int c = 0; c < operand.ncoefs; ++c) {
            const auto found = registers_.find(operand.place[c]);
            if (found == registers_.end()) continue;
            const __int128 a = __int128(found->second.first) * operand.coef[c], b = __int128(found->second.second) * operand.coef[c];
            least += std::min(a, b), most += std::max(a, b);
        }
        const __int128 far = __int128(1) << 62;  // beyond any memory
        return {&operand, from, to, i64(std::max(least, -far)), i64(std::min(most, far)), item};
    }

    // Items [first, last), whose registers stay as they are between two that load some. `later` is what is read
    // afterwards, then what is read from the start on.
    void stretch(i64 first, i64 last, Later& later, bool mark) {
        near_.clear(), written_.clear();
        for (i64 i = last - 1; i >= first; --i) {
            const Item& item = items_[size_t(i)];
            if (item.kind == REG_LOAD) forget(later);
            const size_t operands = item.operands.size();
            for (size_t o = 0; o < operands; ++o) {
                if (!item.operands[o].lanes || item.operands[o].base < 0 || !is_written(item, o)) continue;
                const Use use = use_of(i, o);
                i64 bytes = 0;
                const std::vector<i64> runs = filled_runs(item, o, bytes);
                const bool filled = runs.size() == 1;
                if (mark && o == 0 && filled && item.lanes.count) keep_if_short_lived(use, later);
                for (const i64 start : runs) {
                    const i64 rest = use.to - use.from - start - bytes;
                    const Use run{use.operand, use.from + start, use.to - rest, use.least + start, use.most - rest, i};
                    later.remove(run);
                    overwrite(run);
                }
                written_.push_back({use, !runs.empty()});
            }
            for (size_t o = 0; o < operands; ++o)
                if (item.operands[o].lanes && item.operands[o].base >= 0 && is_read(item, o)) near_.push_back(use_of(i, o));
            if (near_.size() > MOST_NEAR) give_up_old(i, later);
        }
        forget(later);
    }

    void forget(Later& later) {
        for (const Use& use : near_) later.add(use);
        near_.clear(), written_.clear();
    }

    // Those that are too far away for a strip are no longer looked at one by one.
    void give_up_old(i64 now, Later& later) {
        const bool all = near_.size() > 2 * MOST_NEAR;
        const auto is_old = [&](const Use& use) {
            const bool old = use.item >= now + MOST_IN_STRIPS && (all || !use.operand->ncoefs);
            if (old) later.add(use);
            return old;
        };
        near_.erase(std::remove_if(near_.begin(), near_.end(), is_old), near_.end());
        if (written_.size() > 4 * MOST_NEAR) written_.erase(written_.begin(), written_.end() - MOST_NEAR);
    }

    void overwrite(const Use& by) {
        size_t kept = 0;
        for (Use use : near_) {
            if (meets(by, use) && holds_lanes(*by.operand, *use.operand) && same_coefs(*by.operand, *use.operand)) {
                if (by.from <= use.from && use.to <= by.to) continue;
                const i64 from = use.from, to = use.to;
                if (by.from <= from) use.from = by.to, use.least += by.to - from;
                else if (to <= by.to) use.to = by.from, use.most -= to - by.from;
            }
            near_[kept++] = use;
        }
        near_.resize(kept);
    }

    // Whether an operand can be read from, or written to, where strips keep the tile.
    bool can_move(const Use& use, const Use& tile) const {
        const Item& item = items_[size_t(use.item)];
        const Operand& operand = *use.operand;
        const i64 from = operand.offset + operand.below, to = operand.offset + operand.above + size_of(int(operand.type));
        return use.item - tile.item < MOST_IN_STRIPS && item.lanes.count && same_coefs(operand, *tile.operand) &&
               holds_lanes(*tile.operand, operand) && tile.from <= from && to <= tile.to;
    }

    void keep_if_short_lived(const Use& tile, const Later& later) {
        if (later.meets(tile)) return;
        std::vector<const Operand*> users{tile.operand};
        i64 last = tile.item;
        for (const Use& use : near_)
            if (meets(tile, use)) {
                if (!can_move(use, tile)) return;
                users.push_back(use.operand);
                last = std::max(last, use.item);
            }
        for (size_t k = written_.size(); k-- > 0 && written_[k].first.item <= last;) {
            const auto& [use, filled] = written_[k];
            if (!meets(tile, use)) continue;
            if (filled && use.item == last) continue;
            if (filled || !can_move(use, tile)) return;
            users.push_back(use.operand);
        }
        items_[size_t(tile.item)].last_use = last;
        items_[size_t(tile.item)].unused = users.size() == 1;
        for (const Operand* user : users) {
            Operand& operand = const_cast<Operand&>(*user);
            operand.maker = tile.item;
            operand.within = operand.offset - tile.from;
        }
    }

    std::vector<Item>& items_;
    std::map<i64, Bounds> registers_;
    std::vector<Use> near_;
    std::vector<std::pair<Use, bool>> written_;
};

}  // namespace

void find_short_lived(Code& code) {
    for (const Item& item : code.items)
        if (item.kind == FALLBACK && item.operands.empty()) return;  // it may read anything
    Finder(code).find();
}
