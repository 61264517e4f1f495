// Copies from HBM to SBUF that are put off. Most tiles are read once or twice and then overwritten: as long as nothing
// needs them in SBUF, instructions read them where they come from, and the copy is never made.
#pragma once

#include "core.h"

struct Context;

// A copy of `parts` runs a partition, dense in SBUF, that was put off.
struct Loan {
    Item* copy;
    Place target, source;   // bytes of each partition; all of the host's memory that is read
    char* to;
    const char* from;
    i64 run, parts;         // bytes of a run, runs
    i64 apart, part_apart;  // bytes between the partitions of the source, and between its runs
    i64 pitch;              // between the partitions of SBUF
    int products;           // how many products of several rows have read it
};

const int MOST_LOANS = 64;  // ahead of an item
const int LENT_ROWS = 8;
const i64 MOST_PARTS = 8;

// Their targets are apart.
struct Loans {
    Loan all[1024];         // a result cuts up to four pieces from each loan that it meets
    int count = 0;
    float rows[LENT_ROWS][MAX_COLUMNS];  // that products have made and not written
    int next_row = 0;
};

// Whether the copy may be put off: it is large enough, from HBM, and of few long runs a partition.
bool can_be_lent(const Item& item);

// The places of an item's operands in memory, at these addresses.
void find_places(const Context& context, const Item& item, char* const* start, Place* places);

// What becomes of an item: it is carried out with the operands as they are now; it is a copy, which was put off; something
// has to be copied first, but must not be.
enum Borrowed { READY, PUT_OFF, BLOCKED };

// To be called ahead of every item: sources that are lent are read where they come from, and what is about to be written,
// or cannot be read so, is copied first, if it `may_copy`. The places may be
// those of so many comparisons (one_hot.h), which are then put off, or are to be carried out one by one.
Borrowed borrow(Context& context, Item& item, char** start, Place* places, bool may_copy, i64 members = 1);

// Puts off that a product writes the same row into all partitions of its result: where that row is to be put meanwhile, as
// the source of a loan.
float* lend_row(Context& context, Item& item, const Place& place, char* to);

// Makes all copies that were put off.
void settle_loans(Context& context);
