// One helper pool for the process. Chunks are claimed, so nobody waits for a thread that the system does not run: a word
// holds the number of chunks and how many are taken from either end, and whoever counts it up owns the chunk. The caller
// takes the first ones and helpers the last ones, which are the same partitions in instruction after instruction: their
// data stays in the cache of one processor. Helpers look for work a short while and then sleep.
#include "threads.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

Workspace& own_workspace() {
    static thread_local std::unique_ptr<Workspace> workspace;
    if (!workspace) workspace.reset(new Workspace);
    return *workspace;
}

namespace {

struct Job {
    Work work;
    void* data;
    i64 units, grain;
};

const int MAX_THREADS = 16;
const int SPINS = 250;  // each some 40 ns: what lies between two instructions that both have work for threads
// A caller that had to wait for so many spins met a helper that the system had stopped; for a number of jobs, which
// grows each time, it then works alone.
const int LONG_WAIT = 4000;
const int LEAST_ALONE = 256, MOST_ALONE = 1 << 15;

// in cache lines of their own, which travel between the processors for every job
alignas(64) std::atomic<uint64_t> word{0};  // chunks << 32 | taken from the end << 16 | taken from the start
Job job;
alignas(64) std::atomic<uint32_t> done{0};
alignas(64) std::atomic<int> asleep{0};
std::atomic<int> threads{1};
// never destroyed: helpers still sleep on them when the process ends
std::mutex& busy = *new std::mutex;
std::mutex& sleeping = *new std::mutex;
std::condition_variable& wake = *new std::condition_variable;
int started = 0;
int alone = 0, penalty = LEAST_ALONE;

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool is_left(uint64_t seen) { return (seen & 0xFFFF) + (seen >> 16 & 0xFFFF) < seen >> 32; }

// Claims and works on one chunk of the current job, the first or the last one; false when there is none.
bool help(Workspace& workspace, bool last_one) {
    uint64_t seen = word.load(std::memory_order_acquire);
    do {
        if (!is_left(seen)) return false;
    } while (!word.compare_exchange_weak(seen, seen + (last_one ? 1 << 16 : 1), std::memory_order_acq_rel,
                                         std::memory_order_acquire));
    const uint64_t chunk = last_one ? (seen >> 32) - 1 - (seen >> 16 & 0xFFFF) : seen & 0xFFFF;
    const i64 first = i64(chunk) * job.grain;
    const i64 last = first + job.grain < job.units ? first + job.grain : job.units;
    job.work(job.data, first, last, workspace);
    done.fetch_add(1, std::memory_order_release);
    return true;
}

bool is_work() { return is_left(word.load(std::memory_order_acquire)); }

void helper() {
    Workspace& workspace = own_workspace();
    for (;;) {
        for (int spin = 0; spin < SPINS; ++spin) {
            if (help(workspace, true)) spin = 0;
            relax();
        }
        std::unique_lock<std::mutex> lock(sleeping);
        asleep.fetch_add(1);
        wake.wait(lock, is_work);
        asleep.fetch_sub(1);
    }
}

void start_helpers(int wanted) {
    for (; started < wanted; ++started) std::thread(helper).detach();
}

}  // namespace

void set_threads(int count) { threads = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count; }

void in_parallel(i64 units, i64 grain, Work work, void* data) {
    const int count = threads.load(std::memory_order_relaxed);
    if (grain * 0xFFFF < units) grain = units / 0xFFFF + 1;
    const i64 chunks = (units + grain - 1) / grain;
    Workspace& workspace = own_workspace();
    if (count < 2 || chunks < 2 || !busy.try_lock()) {
        work(data, 0, units, workspace);
        return;
    }
    std::lock_guard<std::mutex> lock(busy, std::adopt_lock);
    if (alone > 0) {
        --alone;
        work(data, 0, units, workspace);
        return;
    }
    start_helpers(count - 1);
    job = {work, data, units, grain};
    done.store(0, std::memory_order_relaxed);
    word.store(uint64_t(chunks) << 32);
    if (asleep.load() > 0) {
        { std::lock_guard<std::mutex> waiting(sleeping); }
        wake.notify_all();
    }
    while (help(workspace, false)) {
    }
    int waited = 0;
    for (; done.load(std::memory_order_acquire) < chunks; ++waited) relax();
    if (waited > LONG_WAIT) {
        alone = penalty;
        penalty = penalty * 2 < MOST_ALONE ? penalty * 2 : MOST_ALONE;
    } else if (penalty > LEAST_ALONE) {
        --penalty;
    }
}
