// What a program runs on, and how the interpreter has its items carried out.
#pragma once

#include "course.h"
#include "decode.h"
#include "loans.h"
#include "one_hot.h"

// An open loop: its item, iterations begun, those of earlier entries.
struct Open {
    i64 item, index, before;
};

struct Context {
    const Kernels* kernels;
    Limits limits;
    Weights weights;
    Loans loans;
    OneHots one_hots;
    bool observed;           // somebody looks at the memory after a run
    i64 run;
    const Item* unit = nullptr;  // a product with an identity matrix that stays as it is in this run, and where that is
    const char* unit_at = nullptr;
    std::vector<char*> bases;
    i64 *registers, *counters, slots;
    Code* code;              // what is being run, from item `at` on
    i64 at;
    std::vector<Open> open;
    std::vector<Region> regions;  // the first one is the code itself
    Course course;
};

// Puts everything where Python looks for it.
void settle(Context& context);

// Puts the stationary tile into `Weights::dense`.
void settle_weights(Context& context);

// Makes way for another stationary tile, of which nothing is known.
void reset_weights(Weights& weights, i64 depth, i64 rows);

// Carries out one instruction; false when Python must, which finds all that it needs.
bool execute(Context& context, Item& item);

// Carries out an instruction on single elements (`Item::single`); false when that is for `execute` to do.
bool execute_single(Context& context, Item& item);

// Carries out several items from `at` on together, if that is worth it, and returns how many: transposes that follow each
// other, each on one thread; products of a column with interleaved tiles; items that keep to their partitions, in strips.
i64 transpose_together(Context& context, Code& code, i64 at);
i64 interleave_together(Context& context, Code& code, i64 at);
i64 strip(Context& context, Code& code, i64 at);

// Puts off all iterations of the loop at `at`, of one comparison; false when they are to be carried out one by one.
bool put_off_loop(Context& context, Code& code, i64 at);
