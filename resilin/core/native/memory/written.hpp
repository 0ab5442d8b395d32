// Which pages of a private mapping of a file this process has written, and so has copies of. The kernel's own word, by
// whatever means they were written: the table of pages in /proc.
#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace resilin::memory {

constexpr size_t PAGE = 4096;

inline char *page_down(const char *at) { return reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(at) & ~(PAGE - 1)); }
inline char *page_up(const char *at) { return page_down(at + PAGE - 1); }

class PageTable {
  public:
    // Whether any page from `begin` to `end` was written. True, too, where the kernel does not say.
    bool written(const char *begin, const char *end) {
        const uint64_t from = reinterpret_cast<uint64_t>(page_down(begin)), to = reinterpret_cast<uint64_t>(page_up(end));
        if (from >= to) return false;
        if (fd_ < 0) fd_ = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        if (fd_ < 0) return true;
        if (scans_) {
            Region region;
            Scan scan{};
            scan.size = sizeof scan;
            scan.start = from;
            scan.end = to;
            scan.regions = reinterpret_cast<uint64_t>(&region);
            scan.region_count = scan.most_pages = 1;
            scan.inverted = scan.all_of = IS_FILE; // pages that are no file's
            scan.any_of = PRESENT | SWAPPED;
            scan.returned = IS_FILE;
            const int found = ioctl(fd_, _IOWR('f', 16, Scan), &scan);
            if (found >= 0) return found > 0;
            scans_ = false; // before Linux 6.7
        }
        bool found = false;
        const bool known = each(from, to, [&](uint64_t, bool written) { return !(found = found || written); });
        return found || !known;
    }

    // calls run(first, last + 1) for pages from `begin` to `end` that were written, one after the other
    template <class Run> void written_runs(char *begin, char *end, Run run) {
        char *first = nullptr;
        each(reinterpret_cast<uint64_t>(begin), reinterpret_cast<uint64_t>(end), [&](uint64_t page, bool written) {
            char *at = reinterpret_cast<char *>(page);
            if (written && !first) first = at;
            if (!written && first) run(std::exchange(first, nullptr), at);
            return true;
        });
        if (first) run(first, end);
    }

    // in a forked child: what is open tells of the parent
    void reopen() {
        if (fd_ >= 0) close(fd_);
        fd_ = -1;
    }

  private:
    enum : uint64_t { IS_FILE = 4, PRESENT = 8, SWAPPED = 16 };
    struct Region {
        uint64_t begin, end, categories;
    };
    struct Scan { // the kernel's pm_scan_arg
        uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages, inverted, all_of, any_of, returned;
    };

    // calls page(address, written) until it returns false; false where the kernel does not say
    template <class Page> bool each(uint64_t from, uint64_t to, Page page) {
        uint64_t entries[512];
        while (from < to) {
            const size_t count = std::min<uint64_t>(512, (to - from) / PAGE);
            const ssize_t got = pread(fd_, entries, count * 8, static_cast<off_t>(from / PAGE * 8));
            if (got != static_cast<ssize_t>(count * 8)) return false;
            for (size_t i = 0; i < count; i++, from += PAGE) // bits 63: present, 62: swapped out, 61: a file's
                if (!page(from, entries[i] >> 62 && !(entries[i] >> 61 & 1))) return true;
        }
        return true;
    }

    int fd_ = -1;
    bool scans_ = true;
};

} // namespace resilin::memory
