// How much memory this process could have now. Pages of arenas come when they are first written, and a machine that has
// none left then kills the process: a block that can never be filled is refused when it is asked for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace resilin::memory {

constexpr size_t UNKNOWN = std::numeric_limits<size_t>::max();

// the number behind `key` in a file of lines "key number"; UNKNOWN when it is not there
inline size_t number_of(const std::string &file, const std::string &key) {
    std::ifstream lines(file);
    std::string word;
    for (size_t value; lines >> word; lines.ignore(UNKNOWN >> 1, '\n'))
        if (word == key && lines >> value) return value;
    return UNKNOWN;
}

// the number that a file consists of; UNKNOWN for "max" or when there is no such file
inline size_t number_in(const std::string &file) {
    std::ifstream line(file);
    size_t value;
    return line >> value ? value : UNKNOWN;
}

// what one control group has left, counting files in memory, which give way
inline size_t left_in(const std::string &group, const char *limit, const char *usage) {
    const size_t most = number_in(group + limit), used = number_in(group + usage);
    if (most == UNKNOWN || used == UNKNOWN) return UNKNOWN;
    size_t files = 0;
    for (const char *key : {"inactive_file", "active_file"}) {
        const size_t pages = number_of(group + "/memory.stat", key);
        if (pages != UNKNOWN) files += pages;
    }
    return most - std::min(most, used - std::min(used, files));
}

// the least that the control groups of this process (version 1 or 2) and those around them have left
inline size_t left_in_groups() {
    size_t least = UNKNOWN;
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) { // "4:memory:/path" or, version 2, "0::/path"
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool old = controllers.find(",memory,") != std::string::npos;
        if (!old && controllers != ",,") continue;
        const std::string root = old ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
        std::string path = line.substr(second + 1);
        for (;; path.resize(path.rfind('/'))) {
            while (!path.empty() && path.back() == '/') path.pop_back();
            least = std::min(least, old ? left_in(root + path, "/memory.limit_in_bytes", "/memory.usage_in_bytes")
                                        : left_in(root + path, "/memory.max", "/memory.current"));
            if (path.find('/') == std::string::npos) break;
        }
    }
    return least;
}

inline bool has_memory(size_t size) {
    const size_t free = number_of("/proc/meminfo", "MemAvailable:"), swap = number_of("/proc/meminfo", "SwapFree:");
    if (free != UNKNOWN && size / 1024 > free + (swap == UNKNOWN ? 0 : swap)) return false;
    return size <= left_in_groups();
}

} // namespace resilin::memory
