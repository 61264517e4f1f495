// The course of a run (course.py): what regions did, as numbered paths and outcomes, equal ones alike.
#pragma once

#include <map>

#include "core.h"

const i64 TAKEN = 0, REPEATED = 1, CHOSEN = 2;  // kinds of entries, the first number of each; library.py has them, too

class Course {
public:
    // The number of an entry.
    i64 number(std::vector<i64> entry) {
        const auto [found, is_new] = numbers.try_emplace(std::move(entry), i64(entries.size()));
        if (is_new) entries.push_back(&found->first);
        return found->second;
    }

    // The number of a path without regions.
    i64 plain() { return plain_ < 0 ? plain_ = number({TAKEN}) : plain_; }

    void clear() { numbers.clear(), entries.clear(), plain_ = -1; }

    std::vector<const std::vector<i64>*> entries;

private:
    std::map<std::vector<i64>, i64> numbers;
    i64 plain_ = -1;
};

// A region under way: its item, how often it was begun or which case it runs, what the regions inside did since then,
// and, of those that are repeated, (path, how many in a row took it).
struct Region {
    i64 item, number;
    std::vector<i64> taken, runs;

    // The number of the path that the iteration or case took.
    i64 path(Course& course) {
        if (taken.empty()) return course.plain();
        std::vector<i64> entry{TAKEN};
        entry.insert(entry.end(), taken.begin(), taken.end());
        taken.clear();
        return course.number(std::move(entry));
    }

    void add(i64 path) {
        if (!runs.empty() && runs[runs.size() - 2] == path) ++runs.back();
        else runs.push_back(path), runs.push_back(1);
    }
};
