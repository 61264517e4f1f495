// Comparisons that histograms and sums by number are made of, of one list of numbers with one value after another: of
// consecutive numbers with a value a partition, so that at most one element of a partition is 1, or of a partition's numbers
// with what is the same in all partitions. They are put off, and products that read them are told where the ones are; the
// elements are only made when something else needs them. Signs of differences are such comparisons, too.
#pragma once

#include "core.h"

struct Context;

// Comparisons that lie side by side, each with `elements` a partition, and the next one right after it.
struct Family {
    Item* item;             // the first one
    bool along;             // a member has consecutive values, numbers one a partition; else members are values, and numbers its elements
    bool signs;             // 1 and -1 instead of 1 and 0
    bool weighted;          // ones times a number of the list's own
    Place place;            // of the members that are still there
    char* to;               // the first of these
    i64 type, pitch, elements, members, gone;  // bytes between partitions; how many members, and how many are not there any more
    std::vector<int16_t> number;  // of each partition, which element of a member, or which member, is 1, or from which on there are -1
    std::vector<float> weight;

    i64 row() const { return elements * (type == F32 ? 4 : 2); }
};

const int MOST_FAMILIES = 12, MOST_COUNTS = 8;

// Products of signs with ones that were put off: by column of the result, how often signs change at which row.
struct Counts {
    bool any = false;
    Place place;
    char* to;
    i64 pitch, rows, columns, added;
    std::vector<int32_t> table;
};

struct OneHots {
    Family all[MOST_FAMILIES];
    int count = 0;
    bool known = false;     // numbers that were found to be consecutive in every partition, from `first` on
    Place numbers;
    const char* at;
    i64 pitch, lanes, elements, first;
    Counts counts[MOST_COUNTS];
    int next_counts = 0, counting = 0;  // how many there are
    // sums of a product, by element of its result, and in which product they were begun
    std::vector<float> sums;
    std::vector<uint32_t> begun;
    uint32_t product = 0;

    bool waits() const { return count || known || counting; }
    void forget() {
        count = counting = 0;
        known = false;
        for (Counts& each : counts) each.any = false;
    }
};

// Whether an item is such a comparison, as far as one sees without its operands.
bool can_be_one_hot(const Item& item);

// How far what two values, or numbers, after each other take from, or give to, an operand is apart.
i64 member_step(const Item& item, size_t o);

// To be called ahead of an item that may touch what was put off: makes what it needs, but for stationary and moving tiles.
// False when that must not be now.
bool make_one_hots(Context& context, const Item& item, const Place* places, bool may_make);

// Puts an item off that can be, and the same for so many values, or numbers, and results, each right after the one before,
// whose places are those of all of them; nothing that comes before it may be waiting.
bool put_off_one_hot(Context& context, Item& item, char* const* start, const Place* places, i64 members);

// Takes the stationary tile from a comparison that was put off; false when it lies in memory.
bool load_one_hot(Context& context, const Item& load, const Place& place);

// Puts the stationary tile, known by its ones or signs, into `Weights::dense`.
void settle_listed(Weights& weights);

// The product of such a tile with a moving one that was put off, too; false when that is not so, or makes it something
// else, and both operands lie in memory.
bool multiply_one_hots(Context& context, const Item& item, char* const* start, const Place* places);

void settle_one_hots(Context& context);
