// Bytes of simulated memories: taken from the host only while it has them, listed for messages.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "objects.h"

namespace neuron {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;
constexpr int64_t kUnchecked = 1 << 20;  // asking the system takes as long as copying this much
constexpr int64_t kSparePart = 32;       // one part in so many of the host's memory is left to everything else

std::mutex list_mutex;
Storage* newest = nullptr;
std::atomic<int64_t> taken_unchecked{0};

bool read_number(const char* path, int64_t& number) {
  FILE* file = fopen(path, "r");
  if (!file) return false;
  long long value = 0;
  bool found = fscanf(file, "%lld", &value) == 1;
  fclose(file);
  number = value;
  return found;
}

// The list's mutex is not held: composing the message walks the list.
void check_host(int64_t bytes, const Device* device, const std::string& what) {
  if ((taken_unchecked += bytes) < kUnchecked) return;
  taken_unchecked = 0;
  int64_t left = host_bytes_left();
  if (left < 0 || bytes <= left) return;
  throw Failure{kResourceExhausted,
                "[NCC_EMEM901] the host, whose memory stands in for that of the devices, has " + size_text(left) +
                    " left, and " + what + (device ? " on " + device->debug : std::string()) + " needs " +
                    size_text(bytes) + "; largest buffers: " + Storage::largest(nullptr) +
                    " - delete arrays that are no longer needed, use a smaller batch or fewer devices"};
}

}  // namespace

std::string size_text(int64_t bytes) {
  char text[32];
  if (bytes >= int64_t{1} << 29) {
    snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
  } else {
    snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

int64_t host_bytes_left() {
  FILE* file = fopen("/proc/meminfo", "r");
  if (!file) return -1;
  char line[128];
  long long total = -1, available = -1;
  while ((total < 0 || available < 0) && fgets(line, sizeof line, file)) {
    sscanf(line, "MemTotal: %lld", &total);
    sscanf(line, "MemAvailable: %lld", &available);
  }
  fclose(file);
  if (total < 0 || available < 0) return -1;
  int64_t left = available << 10, limit = 0, used = 0;
  if (read_number("/sys/fs/cgroup/memory.max", limit) && read_number("/sys/fs/cgroup/memory.current", used)) {
    left = std::min(left, limit - used);
  }
  if (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", limit) &&
      read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", used)) {
    left = std::min(left, limit - used);
  }
  return std::max<int64_t>(0, left - (total << 10) / kSparePart);
}

Storage::Storage(size_t bytes, Device* owner, std::string label) : size(bytes), device(owner), what(std::move(label)) {
  if (device) device->claim(static_cast<int64_t>(size), what);
  // large blocks in huge pages: faulting in small ones costs more than the copy
  size_t alignment = size >= 2 * kHugePage ? kHugePage : kAlignment;
  try {
    check_host(static_cast<int64_t>(size), device, what);
    void* block = nullptr;
    if (posix_memalign(&block, alignment, std::max(size, kAlignment)) != 0) {
      throw Failure{kResourceExhausted, "[NCC_EMEM901] the host ran out of memory for " + what};
    }
    data = static_cast<char*>(block);
  } catch (...) {
    if (device) device->release(static_cast<int64_t>(size));
    throw;
  }
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) madvise(data, size, MADV_HUGEPAGE);
#endif
  // it will be written soon: what the next one finds left must not include it
  if (size >= static_cast<size_t>(kUnchecked)) {
    static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (size_t at = 0; at < size; at += page) static_cast<volatile char*>(data)[at] = 0;
  }
  std::lock_guard<std::mutex> lock(list_mutex);
  next = newest;
  if (next) next->previous = this;
  newest = this;
}

Storage::~Storage() {
  {
    std::lock_guard<std::mutex> lock(list_mutex);
    (previous ? previous->next : newest) = next;
    if (next) next->previous = previous;
  }
  if (device) device->release(static_cast<int64_t>(size));
  free(data);
}

// The five largest, equal ones counted together.
std::string Storage::largest(const Device* device) {
  std::map<std::pair<size_t, std::string>, int> groups;
  {
    std::lock_guard<std::mutex> lock(list_mutex);
    for (Storage* each = newest; each; each = each->next) {
      if (!device || each->device == device) groups[{each->size, each->what}]++;
    }
  }
  std::vector<std::pair<std::pair<size_t, std::string>, int>> sorted(groups.begin(), groups.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first.first > b.first.first; });
  std::string text;
  for (size_t i = 0; i < sorted.size() && i < 5; i++) {
    const auto& [key, count] = sorted[i];
    text += (i ? ", " : "") + (count > 1 ? std::to_string(count) + " times " : std::string()) + key.second + " (" +
            size_text(static_cast<int64_t>(key.first)) + ")";
  }
  return text.empty() ? "none" : text;
}

}  // namespace neuron
