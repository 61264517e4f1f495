// Comparisons of consecutive numbers with one value a partition, as histograms and sums by number make them: at most one
// element of a partition is 1. They are put off, and products that read them are told where the ones are; the elements are
// only made when something else needs them.
#pragma once

#include "core.h"

struct Context;

// The result of a comparison that was put off: where the ones are, in each partition, or -1.
struct OneHot {
    Place place;
    char* to;
    i64 type, pitch, elements;  // bytes between partitions, elements of one
    int at[MAX_LANES];
};

const int MOST_ONE_HOTS = 24;

struct OneHots {
    OneHot all[MOST_ONE_HOTS];
    int count = 0;
    bool known = false;     // numbers that were found to be consecutive in every partition, from `first` on
    Place numbers;
    const char* at;
    i64 pitch, lanes, elements, first;
};

// Whether an item is such a comparison, as far as one sees without its operands.
bool can_be_one_hot(const Item& item);

// To be called ahead of an item that may touch what was put off: makes what it needs. False when that must not be now.
bool make_one_hots(Context& context, const Item& item, const Place* places, bool may_make);

// Puts an item off that can be, if its numbers are consecutive; nothing that comes before it may be waiting.
bool put_off_one_hot(Context& context, Item& item, char* const* start, const Place* places);

// Takes the stationary tile from a comparison that was put off; false when it lies in memory.
bool load_one_hot(Context& context, const Item& load, const Place& place);

void settle_one_hots(Context& context);
