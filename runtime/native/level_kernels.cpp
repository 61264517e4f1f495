// The table of one processor level's kernels.
#include "level.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

const Kernels JOIN(kernels_, LEVEL) = {
    TEXT(LEVEL), LEVEL::map, LEVEL::accumulate, LEVEL::copy, LEVEL::select, LEVEL::bits, LEVEL::integer, LEVEL::reduce,
    LEVEL::scan, LEVEL::settle, LEVEL::transposed, LEVEL::is_identity, LEVEL::pack, LEVEL::multiply,
    LEVEL::interleaved, LEVEL::store_column, LEVEL::add_up, LEVEL::weighted_sum, LEVEL::map_of_one, LEVEL::words_of_one,
};
