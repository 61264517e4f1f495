// Chains of f32 operations on rows of plain operands (`Item::plain`): nothing is converted or brought together, so that a
// row takes little longer than its elements.
#pragma once

#include "level_rows.h"
#include "level_wide.h"

namespace LEVEL {
namespace {

// Carries out the chain on n elements of one row, at most BLOCK, whose operands begin at `at`; the result goes to `to`.
void chain_of_row(const Item& item, char* const* at, int n, float* to, Workspace& w) {
    const auto operand = [&](int o) -> Lines {
        return {nullptr, reinterpret_cast<float*>(at[o]), 0, item.nest.stride[o][item.nest.ndims - 1] == 0};
    };
    const auto second = [&](const Operation& operation) -> Lines {
        return operation.operand < 0 ? Lines{nullptr, const_cast<float*>(&operation.value), 0, true} : operand(operation.operand);
    };
    const size_t count = item.operations.size();
    const float* value = reinterpret_cast<float*>(at[1]);
    bool one = item.nest.stride[1][item.nest.ndims - 1] == 0;
    const auto repeat = [&](float* row) {
        const float same = *value;
        EACH row[i] = same;
        value = row, one = false;
    };
    if (count == 0) {
        if (one) repeat(to);
        else if (to != value) std::memmove(to, value, size_t(n) * sizeof(float));
    }
    for (size_t k = 0; k < count; ++k) {
        const Operation& operation = item.operations[k];
        const bool pair = k + 1 < count && !one && is_sum(operation) && is_sum(item.operations[k + 1]);
        k += pair;
        const Lines target{nullptr, k + 1 == count ? to : w.a, 0, false};
        if (operation.step >= FIRST_UNARY) {
            if (one) repeat(w.a);
            function(operation.step, target.base, value, n);
        } else {
            const Lines other = second(operation);
            if (one && other.one) repeat(w.a);
            const Lines own{nullptr, const_cast<float*>(value), 0, one};
            if (pair) arithmetic_pair(&operation, target, own, other, second(item.operations[k]), 1, n);
            else if (operation.reverse) arithmetic(operation.step, target, other, own, 1, n);
            else arithmetic(operation.step, target, own, other, 1, n);
        }
        value = target.base, one = false;
    }
}

// Calls f(addresses of all operands) for each of the rows [first, last).
template <class F>
void each_row(const Item& item, char* const* start, i64 first, i64 last, F f) {
    const Nest& nest = item.nest;
    const int operands = int(item.operands.size());
    if (nest.ndims > 2) {
        Rows rows(nest, operands, start, first);
        for (i64 row = first; row < last; ++row) {
            f(rows.at);
            rows.next();
            if (row + 1 < last) expect_row(item, rows, nest.inner);
        }
        return;
    }
    char* at[MAX_OPERANDS];
    for (i64 row = first; row < last; ++row) {
        for (int o = 0; o < operands; ++o) {
            const i64 pitch = nest.ndims == 2 ? nest.stride[o][0] : 0;
            at[o] = start[o] + row * pitch;
            if (row + 1 < last) expect_next(item, size_t(o), at[o], pitch, nest.stride[o][nest.ndims - 1] * nest.inner);
        }
        f(at);
    }
}

// A chain of plain operands: the row that begins at `at`, to `to`.
void whole_row(const Item& item, char* const* at, float* to, Workspace& w) {
    const Nest& nest = item.nest;
    if (nest.inner <= BLOCK) return chain_of_row(item, at, int(nest.inner), to, w);
    char* part[MAX_OPERANDS];
    for (i64 done = 0; done < nest.inner; done += BLOCK) {
        for (size_t o = 0; o < item.operands.size(); ++o) part[o] = at[o] + done * nest.stride[o][nest.ndims - 1];
        chain_of_row(item, part, int(nest.inner - done < BLOCK ? nest.inner - done : BLOCK), to + done, w);
    }
}

}  // namespace
}  // namespace LEVEL
