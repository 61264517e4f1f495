// What the kernels may be given. Nobody is trusted with it, for memory is at stake: neither the compiler nor encode.py.
#pragma once

#include "core.h"

// What items are checked against.
struct Limits {
    std::vector<Base> bases;
    i64 registers;
};

// Derives the bounds of an operand's offset; the bounds are empty for a pattern that fits nowhere. False when it is
// no operand at all.
bool bound(Operand& operand, const Limits& limits);

// Whether kernels can carry the item out: numbers and types of its operands, their counts, operators, parameters,
// registers. Its operands are bound.
bool is_sound(const Item& item, const Limits& limits);
