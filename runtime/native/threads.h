// Splits the work of one instruction over threads.
#pragma once

#include "core.h"

// Work on units [first, last) of something; the last argument belongs to the calling thread.
typedef void (*Work)(void* data, i64 first, i64 last, Workspace& workspace);

// Runs `work` on all of range(units) in chunks of `grain`. Who works on what does not change any result.
void in_parallel(i64 units, i64 grain, Work work, void* data);

// At most so many threads work at the same time from now on.
void set_threads(int count);

// The calling thread's temporaries.
Workspace& own_workspace();
