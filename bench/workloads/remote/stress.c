// A program that uses memory in every way that programs do, and checks every byte that it finds there.
//
//     gcc -O2 -pthread -o stress stress.c
//     ./stress --seconds 60 --threads 4 --mib 256 --seed 7 --fork
//
// The program does not depend on masu. It must end with `checks=N wrong=0`, both when run directly and when its memory
// is paged. Each thread has blocks of memory and takes one randomly chosen step after the other: it makes, moves,
// protects, drops and verifies blocks, gives them to system calls of all sorts, and takes signals meanwhile. A page of
// a block holds words that follow from the block's number, the page and the page's version, so a page that is lost,
// old, moved to the wrong place or mixed with another is found. Version 0 is all zeros.
//
// `--corrupt` makes it change a byte of its own memory, which it must detect.
//
// The first wrong byte, or the first wrong answer of a call, is printed, and the exit status is 3. 2: wrong arguments.
//
// Longer than 600 lines because one command must build it, and one file is easily copied to a target machine.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define WORKERS_MAX 64
#define BLOCKS_MAX 256
#define BSS_BYTES (16 * MIB)
#define BRK_BYTES (4 * MIB)
#define LINES_PER_WORKER 256

extern char **environ;

// ---- Expected contents, and mismatches -----------------------------------------------------------------------------

enum where { MALLOC, MAPPED, STATIC };

// Memory with a known content.
struct block {
    unsigned char *at;
    size_t bytes;
    uint64_t number; // of the block, for its content
    uint64_t first;  // the number of its first page: the head of a block may be unmapped
    uint32_t latest; // the version given last
    enum where where;
    int in_pieces;     // the kernel may have more than one mapping for it: not all calls take that
    uint32_t *version; // of each page
};

// State shared by a thread and the signal handler that checks it; lies in malloc memory.
struct alarms {
    atomic_ulong came;
    unsigned long checks;
    uint32_t version[32];
    unsigned char *pages; // 32 of them
};

struct worker {
    int number;
    uint64_t random;
    uint64_t checks;
    const char *doing;
    struct block *blocks[BLOCKS_MAX];
    int count;
    size_t live, limit;
    int file;
    unsigned long *steps;
    // For the handlers of this thread.
    volatile uintptr_t fault_from, fault_to;
    volatile unsigned long faults;
    sigjmp_buf *volatile jump;
    volatile uintptr_t fault_at;
    volatile int fault_code;
    struct alarms *alarms;
    volatile uintptr_t stack_from, stack_to;
    volatile int on_stack;
    pthread_t thread;
};

static __thread struct worker *self;
static const char *folder = "/tmp";
static char home[512];
static atomic_ulong block_numbers = 1;
static int with_fork;
static unsigned char bss[BSS_BYTES] __attribute__((aligned(4096)));

static void fail(const char *form, ...) {
    char text[600];
    int used = snprintf(text, sizeof text, "wrong: thread %d (process %d) in %s: ", self ? self->number : -1, getpid(),
                        self ? self->doing : "start");
    va_list list;
    va_start(list, form);
    used += vsnprintf(text + used, sizeof text - (size_t)used - 1, form, list);
    va_end(list);
    if (used > (int)sizeof text - 2) used = sizeof text - 2;
    text[used++] = '\n';
    ssize_t ignored = write(2, text, (size_t)used);
    (void)ignored;
    _exit(3);
}

// A call that must succeed.
static long must(long result, const char *call) {
    if (result < 0) fail("%s: %s", call, strerror(errno));
    return result;
}

static void *memory(void *got, const char *call) {
    if (!got || got == MAP_FAILED) fail("%s: %s", call, strerror(errno));
    return got;
}

static void same(long expected, long found, const char *what) {
    if (expected != found) fail("%s: expected %ld, found %ld", what, expected, found);
    self->checks++;
}

static uint64_t chance(void) {
    uint64_t x = self->random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    self->random = x;
    return x * 0x2545f4914f6cdd1dull;
}

static size_t below(size_t limit) { return limit ? (chance() >> 11) % limit : 0; }

// As many small ones as large ones: each doubling is as likely as any other.
static size_t size_between(size_t least, size_t most) {
    int doublings = 0;
    while (least << doublings < most) doublings++;
    size_t size = (least << below((size_t)doublings + 1));
    size += below(size);
    return size < least ? least : size > most ? most : size;
}

static inline uint64_t word_of(uint64_t number, uint64_t page, uint32_t version, size_t word) {
    if (version == 0) return 0;
    uint64_t x = number * 0x9e3779b97f4a7c15ull + page * 0xd1342543de82ef95ull + version * 0xaf251af3b0f025b5ull + word;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9ull, x ^= x >> 32;
    return x;
}

static size_t pages_of(const struct block *b) { return (b->bytes + PAGE - 1) / PAGE; }

// Compares `bytes` at `data` with the contents of the block from `from` on.
static void compare(const void *data, const struct block *b, size_t from, size_t bytes, const char *what) {
    const unsigned char *at = data;
    size_t done = 0;
    while (done < bytes) {
        size_t page = (from + done) / PAGE, in_page = (from + done) % PAGE;
        size_t here = PAGE - in_page < bytes - done ? PAGE - in_page : bytes - done;
        uint32_t version = b->version[page];
        for (size_t i = 0; i < here;) {
            size_t word = (in_page + i) / 8, in_word = (in_page + i) % 8;
            uint64_t expected = word_of(b->number, b->first + page, version, word), found = 0;
            size_t part = 8 - in_word < here - i ? 8 - in_word : here - i;
            memcpy(&found, at + done + i, part);
            expected >>= 8 * in_word;
            if (part < 8) expected &= (1ull << (8 * part)) - 1;
            if (expected != found) {
                fail(
                    "%s: at %p, byte %zu of block %llu of %zu bytes at %p, version %u: expected %016llx, found %016llx",
                    what, (const void *)(at + done + i), from + done + i, (unsigned long long)b->number, b->bytes,
                    (void *)b->at, version, (unsigned long long)expected, (unsigned long long)found);
            }
            i += part;
        }
        done += here;
        self->checks++;
    }
}

static void verify(const struct block *b, size_t page, size_t count, const char *what) {
    size_t from = page * PAGE, to = (page + count) * PAGE;
    if (to > b->bytes) to = b->bytes;
    if (from < to) compare(b->at + from, b, from, to - from, what);
}

static void verify_some(const struct block *b, const char *what) {
    size_t pages = pages_of(b), some = pages < 24 ? pages : 24;
    for (size_t i = 0; i < some; i++) verify(b, pages <= 24 ? i : below(pages), 1, what);
}

// Writes pages anew.
static void renew(struct block *b, size_t page, size_t count) {
    for (size_t p = page; p < page + count && p < pages_of(b); p++) {
        uint32_t version = ++b->latest;
        size_t bytes = b->bytes - p * PAGE < PAGE ? b->bytes - p * PAGE : PAGE;
        unsigned char *at = b->at + p * PAGE;
        for (size_t i = 0; i < bytes; i += 8) {
            uint64_t word = word_of(b->number, b->first + p, version, i / 8);
            memcpy(at + i, &word, bytes - i < 8 ? bytes - i : 8);
        }
        b->version[p] = version;
    }
}

static void renew_some(struct block *b) {
    size_t page = below(pages_of(b));
    renew(b, page, 1 + below(16));
}

// ---- Blocks
// ----------------------------------------------------------------------------------------------------------

static void forget(int place) {
    struct block *b = self->blocks[place];
    self->live -= b->bytes;
    self->blocks[place] = self->blocks[--self->count];
    free(b->version);
    free(b);
}

static void drop(int place) {
    struct block *b = self->blocks[place];
    if (b->where == STATIC) return;
    if (below(4) == 0)
        verify(b, 0, pages_of(b), "a block that is given up");
    else
        verify_some(b, "a block that is given up");
    if (b->where == MALLOC)
        free(b->at);
    else
        must(munmap(b->at, b->bytes), "munmap");
    forget(place);
}

static void make_room(size_t bytes) {
    for (int tries = 0; tries < 4 * BLOCKS_MAX && self->count; tries++) {
        if (self->live + bytes <= self->limit && self->count < BLOCKS_MAX - 8) break;
        drop((int)below((size_t)self->count));
    }
}

static struct block *keep(void *at, size_t bytes, enum where where) {
    struct block *b = memory(malloc(sizeof *b), "malloc");
    *b = (struct block){.at = at, .bytes = bytes, .where = where};
    b->number = atomic_fetch_add(&block_numbers, 1);
    b->version = memory(calloc(pages_of(b), sizeof *b->version), "calloc");
    self->blocks[self->count++] = b;
    self->live += bytes;
    return b;
}

static size_t new_size(void) {
    size_t most = self->limit / 4 < 8 * MIB ? self->limit / 4 : 8 * MIB;
    return size_between(below(4) ? 4 * KIB : 16, most);
}

static struct block *by_malloc(void) {
    size_t bytes = new_size();
    make_room(bytes);
    struct block *b = keep(memory(malloc(bytes), "malloc"), bytes, MALLOC);
    renew(b, 0, pages_of(b));
    return b;
}

static struct block *by_mmap(void) {
    size_t bytes = (new_size() + PAGE - 1) / PAGE * PAGE;
    make_room(bytes);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (below(4) ? 0 : MAP_NORESERVE) | (below(8) ? 0 : MAP_POPULATE);
    return keep(memory(mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0), "mmap"), bytes, MAPPED);
}

// A block of this kind, or a new one.
static struct block *some_block(enum where where) {
    for (int i = 0; i < 8 && self->count; i++) {
        struct block *b = self->blocks[below((size_t)self->count)];
        if (b->where == where) return b;
    }
    struct block *b = where == MAPPED ? by_mmap() : by_malloc();
    if (b->where == MAPPED) renew_some(b);
    return b;
}

static struct block *any_block(void) {
    if (self->count == 0) return some_block(below(2) ? MALLOC : MAPPED);
    return self->blocks[below((size_t)self->count)];
}

static int place_of(const struct block *b) {
    for (int i = 0; i < self->count; i++)
        if (self->blocks[i] == b) return i;
    fail("a block is lost");
    return -1;
}

static void resize(struct block *b, size_t bytes) {
    size_t before = pages_of(b);
    self->live += bytes - b->bytes;
    b->bytes = bytes;
    size_t after = pages_of(b);
    b->version = memory(realloc(b->version, after * sizeof *b->version), "realloc");
    for (size_t p = before; p < after; p++) b->version[p] = 0;
}

// A range of pages of a block: at most `most`.
static size_t range(const struct block *b, size_t most, size_t *count) {
    size_t pages = b->bytes / PAGE, page = below(pages);
    *count = 1 + below(most);
    if (*count > pages - page) *count = pages - page;
    return page;
}

// ---- Memory: made, moved, changed
// -------------------------------------------------------------------------------------

static void step_touch(void) {
    for (int i = 0; i < 8; i++) {
        struct block *b = any_block();
        if (below(2))
            verify_some(b, "a block");
        else
            renew_some(b);
    }
}

static void step_malloc(void) {
    by_malloc();
    if (below(2) && self->count) drop((int)below((size_t)self->count));
}

static void step_calloc(void) {
    size_t bytes = new_size();
    make_room(bytes);
    struct block *b = keep(memory(calloc(1, bytes), "calloc"), bytes, MALLOC);
    verify_some(b, "calloc");
    renew_some(b);
}

static void step_realloc(void) {
    struct block *b = some_block(MALLOC);
    size_t bytes = new_size(), before = b->bytes;
    if (bytes > before && self->live + bytes - before > self->limit) bytes = 1 + below(before);
    b->at = memory(realloc(b->at, bytes), "realloc");
    if (bytes <= before) {
        resize(b, bytes);
        verify_some(b, "a block made smaller");
        return;
    }
    size_t end = before > 6 * PAGE ? before - 6 * PAGE : 0;
    compare(b->at + end, b, end, before - end, "a block made larger");
    resize(b, bytes);
    // The added part has any contents: the last page that was partly there, and all after it.
    size_t page = before / PAGE;
    if (before % PAGE) {
        struct block old = *b;
        old.bytes = before;
        verify(&old, page, 1, "the last page of a block made larger");
    }
    renew(b, page, pages_of(b) - page);
    verify_some(b, "a block made larger");
}

static void step_mmap(void) {
    struct block *b = by_mmap();
    verify_some(b, "a new mapping");
    renew_some(b);
    // A part goes, at its head or its tail.
    size_t pages = pages_of(b);
    if (pages > 4 && below(2)) {
        size_t gone = 1 + below(pages / 2);
        if (below(2)) {
            must(munmap(b->at + b->bytes - gone * PAGE, gone * PAGE), "munmap of a tail");
            resize(b, b->bytes - gone * PAGE);
        } else {
            must(munmap(b->at, gone * PAGE), "munmap of a head");
            b->at += gone * PAGE, b->first += gone;
            memmove(b->version, b->version + gone, (pages - gone) * sizeof *b->version);
            resize(b, b->bytes - gone * PAGE);
        }
        verify_some(b, "what is left of a mapping");
    }
    if (below(3) == 0) drop(place_of(b));
}

static void step_mremap(void) {
    struct block *b = some_block(MAPPED);
    size_t bytes = (new_size() + PAGE - 1) / PAGE * PAGE;
    if (bytes > b->bytes && self->live + bytes - b->bytes > self->limit) bytes = b->bytes;
    void *at;
    switch (below(5)) {
    case 0: // where it is, if it can
        at = mremap(b->at, b->bytes, bytes, 0);
        break;
    case 1: at = mremap(b->at, b->bytes, bytes, MREMAP_MAYMOVE); break;
    case 2: { // to a place of our own, over something
        if (b->in_pieces) return;
        unsigned char *place =
            memory(mmap(NULL, bytes + 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "mmap");
        memset(place, 0x55, bytes < 64 * PAGE ? bytes : 64 * PAGE);
        size_t skip = below(5) * PAGE;
        at = mremap(b->at, b->bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place + skip);
        if (at == MAP_FAILED) fail("mremap to a fixed place: %s", strerror(errno));
        if (skip) must(munmap(place, skip), "munmap");
        if (skip < 4 * PAGE) must(munmap(place + skip + bytes, 4 * PAGE - skip), "munmap");
        break;
    }
    case 3: { // the pages go, the old mapping stays and is empty
        if (b->in_pieces) return;
        bytes = b->bytes;
        at = mremap(b->at, bytes, bytes, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
        if (at == MAP_FAILED) return; // Linux before 5.7
        for (size_t p = 0; p < bytes / PAGE; p += 1 + bytes / PAGE / 8)
            same(0, b->at[p * PAGE + below(PAGE)], "what a moved page leaves");
        must(munmap(b->at, bytes), "munmap of an emptied mapping");
        break;
    }
    default: // smaller
        bytes = (1 + below(b->bytes / PAGE)) * PAGE;
        at = mremap(b->at, b->bytes, bytes, 0);
        break;
    }
    if (at == MAP_FAILED) {
        if (errno != ENOMEM && !(errno == EFAULT && b->in_pieces)) fail("mremap: %s", strerror(errno));
        verify_some(b, "a mapping that could not be moved");
        return;
    }
    b->at = at;
    resize(b, bytes);
    verify_some(b, "a moved mapping");
    renew_some(b);
}

static void step_fixed(void) {
    struct block *b = some_block(MAPPED);
    size_t count, page = range(b, 64, &count);
    void *at = b->at + page * PAGE;
    if (mmap(at, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
        fail("mmap of a part: %s", strerror(errno));
    b->in_pieces = 1;
    for (size_t p = page; p < page + count; p++) b->version[p] = 0;
    verify(b, page, count, "a part mapped anew");
    renew(b, page, below(count + 1));
    verify_some(b, "a mapping with a part mapped anew");
}

static void step_protect(void) {
    struct block *b = some_block(MAPPED);
    size_t count, page = range(b, 32, &count);
    unsigned char *at = b->at + page * PAGE;
    int none = below(2) == 0;
    if (count != pages_of(b)) b->in_pieces = 1;
    must(mprotect(at, count * PAGE, none ? PROT_NONE : PROT_READ), "mprotect");
    if (!none) verify(b, page, count, "memory that is read-only");
    self->fault_from = (uintptr_t)at, self->fault_to = (uintptr_t)at + count * PAGE;
    self->faults = 0;
    // Each page once: the handler gives it back its rights.
    size_t touched = 0;
    for (size_t p = page; p < page + count; p++) {
        if (below(2)) continue;
        if (none) {
            verify(b, p, 1, "memory that was forbidden");
        } else {
            renew(b, p, 1);
        }
        touched++;
    }
    same((long)touched, (long)self->faults, "faults of protected memory");
    self->fault_from = self->fault_to = 0;
    must(mprotect(at, count * PAGE, PROT_READ | PROT_WRITE), "mprotect back");
    verify(b, page, count, "memory that was protected");
}

static void step_dontneed(void) {
    struct block *b = some_block(MAPPED);
    size_t count, page = range(b, 128, &count);
    must(madvise(b->at + page * PAGE, count * PAGE, MADV_DONTNEED), "madvise(DONTNEED)");
    for (size_t p = page; p < page + count; p++) b->version[p] = 0;
    verify(b, page, count, "memory that is not needed");
    renew(b, page, below(count + 1));
    verify_some(b, "a mapping of which a part was not needed");
}

static void step_free(void) {
    struct block *b = some_block(MAPPED);
    size_t count, page = range(b, 64, &count);
    must(madvise(b->at + page * PAGE, count * PAGE, MADV_FREE), "madvise(FREE)");
    for (size_t p = page; p < page + count; p++) {
        volatile uint64_t *words = (volatile uint64_t *)(b->at + p * PAGE);
        int gone = 0;
        for (size_t w = 0; w < PAGE / 8; w++) {
            uint64_t expected = word_of(b->number, b->first + p, b->version[p], w), found = words[w];
            if (found == 0)
                gone = 1;
            else if (found != expected || gone)
                fail("memory that may go: at %p: expected 0 or %016llx, found %016llx", (void *)(words + w),
                     (unsigned long long)expected, (unsigned long long)found);
        }
        self->checks++;
    }
    renew(b, page, count);
    verify(b, page, count, "memory that was written before it went");
}

static void step_advice(void) {
    static const int advice[] = {
        MADV_NORMAL,     MADV_RANDOM,   MADV_SEQUENTIAL,  MADV_WILLNEED,          MADV_HUGEPAGE,
        MADV_NOHUGEPAGE, 20 /* COLD */, 21 /* PAGEOUT */, 22 /* POPULATE_READ */, 23 /* POPULATE_WRITE */};
    struct block *b = some_block(MAPPED);
    size_t count, page = range(b, 256, &count);
    b->in_pieces = 1;
    (void)madvise(b->at + page * PAGE, count * PAGE, advice[below(sizeof advice / sizeof *advice)]);
    verify(b, page, count, "memory with advice");
    if (mlock(b->at + page * PAGE, PAGE) == 0) {
        verify(b, page, 1, "locked memory");
        must(munlock(b->at + page * PAGE, PAGE), "munlock");
    }
    unsigned char *resident = memory(malloc(count), "malloc");
    must(mincore(b->at + page * PAGE, count * PAGE, resident), "mincore");
    must(msync(b->at + page * PAGE, count * PAGE, MS_ASYNC), "msync");
    free(resident);
}

// Lines of many threads on the same pages: each checks its own, and counts with the others in one word.
static struct { atomic_ulong all; } * counters;
static uint64_t *lines; // [line][worker][8]
static uint64_t line_version[WORKERS_MAX][LINES_PER_WORKER];

static void step_shared(void) {
    atomic_fetch_add(&counters[WORKERS_MAX].all, 1);
    atomic_fetch_add(&counters[self->number].all, 1);
    for (int i = 0; i < 32; i++) {
        size_t line = below(LINES_PER_WORKER);
        uint64_t *at = lines + (line * WORKERS_MAX + (size_t)self->number) * 8,
                 *version = &line_version[self->number][line];
        for (size_t w = 0; w < 8; w++) {
            uint64_t expected = word_of((uint64_t)self->number + 1000000, line, (uint32_t)*version, w);
            if (at[w] != expected)
                fail("a line of a shared page at %p: expected %016llx, found %016llx", (void *)(at + w),
                     (unsigned long long)expected, (unsigned long long)at[w]);
        }
        *version += 1;
        for (size_t w = 0; w < 8; w++) at[w] = word_of((uint64_t)self->number + 1000000, line, (uint32_t)*version, w);
        self->checks++;
    }
}

// The break: while there is one thread.
static void test_break(void) {
    self->doing = "brk";
    // malloc takes from the break, too: it must have its memory before.
    uint32_t versions[BRK_BYTES / PAGE];
    unsigned char *start = memory(sbrk(0), "sbrk");
    start = memory(sbrk((intptr_t)((0 - (uintptr_t)start) % PAGE + BRK_BYTES)), "sbrk");
    start += (0 - (uintptr_t)start) % PAGE;
    struct block b = {
        .at = start, .bytes = BRK_BYTES, .number = atomic_fetch_add(&block_numbers, 1), .version = versions};
    memset(versions, 0, sizeof versions);
    for (int i = 0; i < 20; i++) {
        verify(&b, 0, pages_of(&b), "the break");
        renew(&b, below(BRK_BYTES / PAGE), 1 + below(400));
        size_t less = 1 + below(BRK_BYTES / PAGE - 1);
        if (sbrk(0) != (void *)(start + BRK_BYTES)) return; // another library's break
        must((long)(sbrk(-(intptr_t)(less * PAGE)) == (void *)-1 ? -1 : 0), "sbrk down");
        must((long)(sbrk((intptr_t)(less * PAGE)) == (void *)-1 ? -1 : 0), "sbrk up");
        for (size_t p = BRK_BYTES / PAGE - less; p < BRK_BYTES / PAGE; p++) versions[p] = 0;
    }
    verify(&b, 0, pages_of(&b), "the break");
    struct block *kept = keep(start, BRK_BYTES, STATIC);
    uint32_t *own = kept->version;
    *kept = b;
    kept->where = STATIC, kept->version = own;
    memcpy(own, versions, sizeof versions);
}

// ---- Memory given to system calls
// -------------------------------------------------------------------------------------

// A piece of a block: from where, and how much, at most `most`.
static size_t piece(const struct block *b, size_t most, size_t *bytes) {
    size_t from = below(b->bytes);
    *bytes = 1 + below(most);
    if (*bytes > b->bytes - from) *bytes = b->bytes - from;
    return from;
}

// Vectors over one buffer, in malloc memory.
static struct iovec *vectors(void *at, size_t bytes, int *count) {
    *count = 1 + (int)below(12);
    struct iovec *list = memory(malloc((size_t)*count * sizeof *list), "malloc");
    unsigned char *next = at;
    for (int i = 0; i < *count; i++) {
        size_t here = i == *count - 1 ? bytes : below(bytes + 1);
        list[i] = (struct iovec){next, here};
        next += here, bytes -= here;
    }
    return list;
}

static void step_pipes(void) {
    struct block *b = any_block();
    int *ends = memory(malloc(2 * sizeof *ends), "malloc");
    must(pipe(ends), "pipe");
    for (int i = 0; i < 4; i++) {
        size_t bytes, from = piece(b, 60000, &bytes);
        unsigned char *got = memory(malloc(bytes), "malloc");
        int count;
        struct iovec *list;
        if (below(2)) {
            same((long)bytes, write(ends[1], b->at + from, bytes), "write to a pipe");
        } else {
            list = vectors(b->at + from, bytes, &count);
            same((long)bytes, writev(ends[1], list, count), "writev to a pipe");
            free(list);
        }
        if (below(2)) {
            same((long)bytes, read(ends[0], got, bytes), "read from a pipe");
        } else {
            list = vectors(got, bytes, &count);
            same((long)bytes, readv(ends[0], list, count), "readv from a pipe");
            free(list);
        }
        compare(got, b, from, bytes, "what came through a pipe");
        free(got);
    }
    close(ends[0]), close(ends[1]);
    free(ends);
}

static void step_files(void) {
    struct block *b = any_block();
    size_t bytes, from = piece(b, 4 * MIB, &bytes);
    off_t place = (off_t)below(100000);
    int count;
    struct iovec *list = vectors(b->at + from, bytes, &count);
    switch (below(3)) {
    case 0: same((long)bytes, pwrite(self->file, b->at + from, bytes, place), "pwrite"); break;
    case 1: same((long)bytes, pwritev(self->file, list, count, place), "pwritev"); break;
    default:
        must(lseek(self->file, place, SEEK_SET), "lseek");
        same((long)bytes, write(self->file, b->at + from, bytes), "write");
    }
    free(list);
    unsigned char *got = memory(malloc(bytes + 100), "malloc");
    list = vectors(got, bytes, &count);
    switch (below(4)) {
    case 0: same((long)bytes, pread(self->file, got, bytes, place), "pread"); break;
    case 1: same((long)bytes, preadv(self->file, list, count, place), "preadv"); break;
    case 2: {
        // More than there is: a short count, and nothing beyond it.
        must(ftruncate(self->file, place + (off_t)bytes), "ftruncate");
        memset(got + bytes, 0x77, 100);
        same((long)bytes, pread(self->file, got, bytes + 100, place), "pread at the end");
        for (int i = 0; i < 100; i++) same(0x77, got[bytes + (size_t)i], "what lies beyond a short read");
        break;
    }
    default: must(lseek(self->file, place, SEEK_SET), "lseek"); same((long)bytes, read(self->file, got, bytes), "read");
    }
    free(list);
    compare(got, b, from, bytes, "what was in a file");
    free(got);
    if (below(4) == 0) {
        size_t length = (size_t)place + bytes;
        unsigned char *map =
            memory(mmap(NULL, length, PROT_READ, below(2) ? MAP_PRIVATE : MAP_SHARED, self->file, 0), "mmap of a file");
        compare(map + place, b, from, bytes, "a file that is mapped");
        must(munmap(map, length), "munmap of a file");
        // Offsets in memory: sent to a pipe.
        int ends[2];
        must(pipe(ends), "pipe");
        off_t *offset = memory(malloc(sizeof *offset), "malloc");
        *offset = place;
        size_t some = bytes < 4000 ? bytes : 4000;
        same((long)some, sendfile(ends[1], self->file, offset, some), "sendfile");
        same(place + (long)some, *offset, "the offset of sendfile");
        unsigned char *told = memory(malloc(some), "malloc");
        same((long)some, read(ends[0], told, some), "read");
        compare(told, b, from, some, "what was sent from a file");
        free(told), free(offset);
        close(ends[0]), close(ends[1]);
    }
    must(ftruncate(self->file, 0), "ftruncate");
}

struct stream {
    int socket;
    const unsigned char *at;
    size_t bytes;
};

static void *send_all(void *argument) {
    struct stream *s = argument;
    for (size_t sent = 0; sent < s->bytes;) {
        ssize_t now = write(s->socket, s->at + sent, s->bytes - sent);
        if (now <= 0) return (void *)(intptr_t)errno;
        sent += (size_t)now;
    }
    return NULL;
}

// More than fits into a socket: both sides wait for each other, in the middle of a call.
static void step_streams(void) {
    struct block *b = any_block();
    int ends[2];
    must(below(2) ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), "socketpair");
    struct stream *s = memory(malloc(sizeof *s), "malloc");
    size_t bytes, from = piece(b, 4 * MIB, &bytes);
    *s = (struct stream){ends[1], b->at + from, bytes};
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_all, s)) fail("pthread_create");
    unsigned char *got = memory(malloc(bytes), "malloc");
    for (size_t done = 0; done < bytes;)
        done += (size_t)must(read(ends[0], got + done, bytes - done), "read of a stream");
    void *result;
    pthread_join(sender, &result);
    same(0, (intptr_t)result, "the sender of a stream");
    compare(got, b, from, bytes, "what came as a stream");
    free(got), free(s);
    close(ends[0]), close(ends[1]);
}

static void step_messages(void) {
    struct block *b = any_block();
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair");
    size_t bytes, from = piece(b, 60000, &bytes);
    int count;
    struct message {
        struct msghdr head;
        char control[CMSG_SPACE(sizeof(int))];
    } *out = memory(calloc(1, sizeof *out), "calloc"), *in = memory(calloc(1, sizeof *in), "calloc");
    out->head.msg_iov = vectors(b->at + from, bytes, &count);
    out->head.msg_iovlen = (size_t)count;
    out->head.msg_control = out->control, out->head.msg_controllen = sizeof out->control;
    struct cmsghdr *c = CMSG_FIRSTHDR(&out->head);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &self->file, sizeof(int));
    same((long)bytes, sendmsg(ends[0], &out->head, 0), "sendmsg");
    unsigned char *got = memory(malloc(bytes), "malloc");
    in->head.msg_iov = vectors(got, bytes, &count);
    in->head.msg_iovlen = (size_t)count;
    in->head.msg_control = in->control, in->head.msg_controllen = sizeof in->control;
    same((long)bytes, recvmsg(ends[1], &in->head, MSG_CMSG_CLOEXEC), "recvmsg");
    compare(got, b, from, bytes, "what came as a message");
    c = CMSG_FIRSTHDR(&in->head);
    if (!c || c->cmsg_type != SCM_RIGHTS) fail("a message came without its descriptor");
    int passed;
    memcpy(&passed, CMSG_DATA(c), sizeof passed);
    must(close(passed), "close of a descriptor that was passed");
    free(out->head.msg_iov), free(in->head.msg_iov);
    // By sendto and recvfrom, with an address that is none.
    socklen_t *length = memory(malloc(sizeof *length), "malloc");
    struct sockaddr_storage *from_whom = memory(malloc(sizeof *from_whom), "malloc");
    *length = sizeof *from_whom;
    same((long)bytes, sendto(ends[0], b->at + from, bytes, 0, NULL, 0), "sendto");
    same((long)bytes, recvfrom(ends[1], got, bytes, 0, (struct sockaddr *)from_whom, length), "recvfrom");
    compare(got, b, from, bytes, "what came from a socket");
    int *value = memory(malloc(sizeof *value), "malloc");
    *length = sizeof *value;
    must(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, value, length), "getsockopt");
    same(SOCK_DGRAM, *value, "a socket's type");
    free(value), free(length), free(from_whom), free(got), free(out), free(in);
    close(ends[0]), close(ends[1]);
}

static void step_stdio(void) {
    struct block *b = any_block();
    FILE *f = fdopen(dup(self->file), "r+");
    if (!f) fail("fdopen: %s", strerror(errno));
    size_t room = size_between(512, 2 * MIB);
    char *buffer = memory(malloc(room), "malloc");
    if (setvbuf(f, buffer, _IOFBF, room)) fail("setvbuf");
    rewind(f);
    size_t bytes, from = piece(b, 1 * MIB, &bytes);
    same((long)bytes, (long)fwrite(b->at + from, 1, bytes, f), "fwrite");
    int lines_written = (int)below(200);
    if (fputc('\n', f) == EOF) fail("fputc: %s", strerror(errno));
    for (int i = 0; i < lines_written; i++)
        if (fprintf(f, "line %d of %d: %0*d\n", i, lines_written, 1 + i * 7 % 300, i) < 0)
            fail("fprintf: %s", strerror(errno));
    rewind(f);
    unsigned char *got = memory(malloc(bytes), "malloc");
    same((long)bytes, (long)fread(got, 1, bytes, f), "fread");
    compare(got, b, from, bytes, "what stdio read");
    same('\n', fgetc(f), "fgetc");
    char *line = NULL, expected[512];
    size_t size = 0;
    for (int i = 0; i < lines_written; i++) {
        snprintf(expected, sizeof expected, "line %d of %d: %0*d\n", i, lines_written, 1 + i * 7 % 300, i);
        same((long)strlen(expected), getline(&line, &size, f), "getline");
        if (strcmp(line, expected)) fail("getline: expected %s, found %s", expected, line);
    }
    same(-1, getline(&line, &size, f), "getline at the end");
    free(line), free(got);
    fclose(f);
    free(buffer);
    must(ftruncate(self->file, 0), "ftruncate");
}

static void step_names(void) {
    char *path = memory(malloc(PATH_MAX), "malloc"), *link_path = memory(malloc(PATH_MAX), "malloc");
    snprintf(path, PATH_MAX, "%s/thread-%d-%0*d", home, self->number, 1 + (int)below(180), 7);
    snprintf(link_path, PATH_MAX, "%s/link-%d", home, self->number);
    int file = (int)must(open(path, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600), "open");
    struct stat *state = memory(malloc(sizeof *state), "malloc"), here;
    size_t length = below(100000);
    must(ftruncate(file, (off_t)length), "ftruncate");
    must(stat(path, state), "stat");
    same((long)length, state->st_size, "the size of a file");
    must(fstat(file, &here), "fstat");
    same((long)here.st_ino, (long)state->st_ino, "the number of a file");
    close(file);
    unlink(link_path);
    must(symlink(path, link_path), "symlink");
    char *text = memory(malloc(PATH_MAX), "malloc");
    same((long)strlen(path), readlink(link_path, text, PATH_MAX), "readlink");
    if (memcmp(text, path, strlen(path))) fail("readlink gives another path");
    if (!realpath(link_path, text) || strcmp(strrchr(text, '/'), strrchr(path, '/'))) fail("realpath");
    must(chdir(home), "chdir");
    if (!getcwd(text, PATH_MAX) || strcmp(strrchr(text, '/'), strrchr(home, '/'))) fail("getcwd gives %s", text);
    // All names of the folder, by the call itself and by readdir.
    size_t room = size_between(512, 256 * KIB);
    char *list = memory(malloc(room), "malloc");
    int directory = (int)must(open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "open");
    int found = 0;
    for (long got; (got = must(syscall(SYS_getdents64, directory, list, room), "getdents64")) > 0;)
        for (long at = 0; at < got;) {
            unsigned short record;
            memcpy(&record, list + at + 16, sizeof record);
            if (strcmp(list + at + 19, strrchr(path, '/') + 1) == 0) found++;
            at += record;
        }
    close(directory);
    same(1, found, "how often getdents64 names a file");
    DIR *d = opendir(home);
    if (!d) fail("opendir: %s", strerror(errno));
    found = 0;
    for (struct dirent *entry; (entry = readdir(d));) found += strcmp(entry->d_name, strrchr(path, '/') + 1) == 0;
    closedir(d);
    same(1, found, "how often readdir names a file");
    must(unlink(path), "unlink");
    must(unlink(link_path), "unlink");
    must(access(path, F_OK) == -1 && errno == ENOENT ? 0 : -1, "access to what is gone");
    struct utsname *names = memory(malloc(sizeof *names), "malloc");
    must(uname(names), "uname");
    if (strcmp(names->sysname, "Linux")) fail("uname says %s", names->sysname);
    free(names), free(list), free(text), free(state), free(link_path), free(path);
}

static void step_poll(void) {
    int count = 1 + (int)below(40);
    int(*ends)[2] = memory(malloc((size_t)count * sizeof *ends), "malloc");
    struct pollfd *asked = memory(malloc((size_t)count * sizeof *asked), "malloc");
    struct epoll_event *told = memory(calloc((size_t)count, sizeof *told), "calloc");
    int group = (int)must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"), full = 0;
    for (int i = 0; i < count; i++) {
        must(pipe(ends[i]), "pipe");
        asked[i] = (struct pollfd){.fd = ends[i][0], .events = POLLIN, .revents = 0x55};
        struct epoll_event *event = memory(malloc(sizeof *event), "malloc");
        *event = (struct epoll_event){.events = EPOLLIN, .data.u32 = (uint32_t)i};
        must(epoll_ctl(group, EPOLL_CTL_ADD, ends[i][0], event), "epoll_ctl");
        free(event);
        if (i % 3 == 0) full++, same(1, write(ends[i][1], "x", 1), "write to a pipe");
    }
    struct timespec *time = memory(malloc(sizeof *time), "malloc");
    *time = (struct timespec){0, 1000};
    same(full, below(2) ? poll(asked, (nfds_t)count, 0) : ppoll(asked, (nfds_t)count, time, NULL), "poll");
    for (int i = 0; i < count; i++) same(i % 3 == 0 ? POLLIN : 0, asked[i].revents, "what poll says of a pipe");
    same(full, epoll_wait(group, told, count, 0), "epoll_wait");
    for (int i = 0; i < full; i++) same(0, told[i].data.u32 % 3, "what epoll says of a pipe");
    fd_set *set = memory(malloc(sizeof *set), "malloc");
    FD_ZERO(set);
    int high = 0, low = 0;
    for (int i = 0; i < count; i++)
        if (ends[i][0] < FD_SETSIZE) {
            FD_SET(ends[i][0], set);
            if (ends[i][0] > high) high = ends[i][0];
            low += i % 3 == 0;
        }
    struct timeval *limit = memory(calloc(1, sizeof *limit), "calloc");
    same(low, select(high + 1, set, NULL, NULL, limit), "select");
    free(limit), free(set), free(time);
    for (int i = 0; i < count; i++) close(ends[i][0]), close(ends[i][1]);
    close(group);
    free(told), free(asked), free(ends);
}

static void step_clocks(void) {
    struct timespec *times = memory(malloc(3 * sizeof *times), "malloc");
    must(clock_gettime(CLOCK_MONOTONIC, times), "clock_gettime");
    must(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, times + 1), "clock_gettime by the kernel");
    times[2] = (struct timespec){0, (long)below(200000)};
    must(syscall(SYS_nanosleep, times + 2, NULL), "nanosleep");
    long slept = times[2].tv_nsec;
    must(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, times + 2), "clock_gettime by the kernel");
    long passed = (times[2].tv_sec - times[1].tv_sec) * 1000000000 + times[2].tv_nsec - times[1].tv_nsec;
    if (passed < slept) fail("%ld ns of sleep took %ld ns", slept, passed);
    if (times[1].tv_sec < times[0].tv_sec) fail("the clock went back");
    self->checks++;
    free(times);
}

// Calls with unmapped memory: the kernel returns EFAULT, or ends early, as without a pager.
static void step_bad_pointers(void) {
    int ends[2];
    must(pipe(ends), "pipe");
    unsigned char *at =
        memory(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "mmap");
    memset(at, 7, PAGE);
    must(mprotect(at + PAGE, 2 * PAGE, PROT_NONE), "mprotect");
    void *bad[] = {(void *)16, at + PAGE, at + 2 * PAGE, (void *)-4096};
    for (size_t i = 0; i < 4; i++) {
        errno = 0;
        same(-1, write(ends[1], bad[i], 10), "write of what is not there");
        same(EFAULT, errno, "its error");
        struct iovec *list = memory(malloc(2 * sizeof *list), "malloc");
        list[0] = (struct iovec){bad[i], 10};
        errno = 0;
        same(-1, writev(ends[1], list, 1), "writev of what is not there");
        same(EFAULT, errno, "its error");
        free(list);
        errno = 0;
        same(-1, writev(ends[1], bad[i], 2), "writev of vectors that are not there");
        same(EFAULT, errno, "its error");
        errno = 0;
        same(-1, open(bad[i], O_RDONLY), "open of a name that is not there");
        same(EFAULT, errno, "its error");
        errno = 0;
        same(-1, syscall(SYS_clock_gettime, CLOCK_MONOTONIC, bad[i]), "clock_gettime to where nothing is");
        same(EFAULT, errno, "its error");
    }
    // The kernel writes only the part that is in the file.
    same(100, pwrite(self->file, at + PAGE - 100, 200, 0), "pwrite of what is there in part");
    must(ftruncate(self->file, 0), "ftruncate");
    must(munmap(at, 4 * PAGE), "munmap");
    close(ends[0]), close(ends[1]);
}

// ---- Threads
// ----------------------------------------------------------------------------------------------------------

struct ball {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int turn, rounds;
    sem_t done;
    pthread_barrier_t start;
};

static void *play(void *argument) {
    struct ball *ball = argument;
    pthread_barrier_wait(&ball->start);
    pthread_mutex_lock(&ball->mutex);
    for (int i = 0; i < ball->rounds; i++) {
        while (ball->turn != 1) pthread_cond_wait(&ball->changed, &ball->mutex);
        ball->turn = 0;
        pthread_cond_signal(&ball->changed);
    }
    pthread_mutex_unlock(&ball->mutex);
    sem_post(&ball->done);
    return NULL;
}

static void step_futex(void) {
    struct ball *ball = memory(calloc(1, sizeof *ball + below(8 * KIB)), "calloc");
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    if (below(2)) pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    if (below(2)) pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&ball->mutex, &kind);
    pthread_cond_init(&ball->changed, NULL);
    pthread_barrier_init(&ball->start, NULL, 2);
    sem_init(&ball->done, 0, 0);
    ball->rounds = 100;
    pthread_t other;
    if (pthread_create(&other, NULL, play, ball)) fail("pthread_create");
    pthread_barrier_wait(&ball->start);
    pthread_mutex_lock(&ball->mutex);
    for (int i = 0; i < ball->rounds; i++) {
        ball->turn = 1;
        pthread_cond_signal(&ball->changed);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 60;
        while (ball->turn != 0)
            if (pthread_cond_timedwait(&ball->changed, &ball->mutex, &until) == ETIMEDOUT) fail("a wake-up was lost");
        self->checks++;
    }
    pthread_mutex_unlock(&ball->mutex);
    while (sem_wait(&ball->done) && errno == EINTR) {}
    pthread_join(other, NULL);
    pthread_barrier_destroy(&ball->start);
    pthread_cond_destroy(&ball->changed);
    pthread_mutex_destroy(&ball->mutex);
    free(ball);
}

struct errand {
    uint64_t seed;
    uint64_t sum;
    int depth;
};

// A deep stack with much on it, and the sum of it.
static __attribute__((noinline)) uint64_t deep(uint64_t seed, int depth) {
    volatile uint64_t room[128];
    for (int i = 0; i < 128; i++) room[i] = word_of(seed, (uint64_t)depth, 1, (size_t)i);
    uint64_t below_us = depth > 0 ? deep(seed, depth - 1) : 0;
    for (int i = 0; i < 128; i++)
        if (room[i] != word_of(seed, (uint64_t)depth, 1, (size_t)i))
            fail("a stack at %p, depth %d: found %016llx", (void *)(uintptr_t)&room[i], depth,
                 (unsigned long long)room[i]);
    return below_us + room[depth % 128];
}

static uint64_t deep_sum(uint64_t seed, int depth) {
    uint64_t sum = 0;
    for (int d = 0; d <= depth; d++) sum += word_of(seed, (uint64_t)d, 1, (size_t)(d % 128));
    return sum;
}

static void *run_errand(void *argument) {
    struct errand *e = argument;
    size_t bytes = 8 * KIB + e->seed % (56 * KIB);
    unsigned char *at = malloc(bytes);
    if (!at) fail("malloc");
    memset(at, (int)(e->seed & 0xff), bytes);
    e->sum = deep(e->seed, e->depth);
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (e->seed & 0xff)) fail("a thread's memory at %p", (void *)(at + i));
    free(at);
    return e;
}

static void step_threads(void) {
    enum { MANY = 24 };
    pthread_t threads[MANY];
    struct errand *errands = memory(malloc(MANY * sizeof *errands), "malloc");
    for (int i = 0; i < MANY; i++) {
        errands[i] = (struct errand){chance(), 0, 10};
        if (pthread_create(&threads[i], NULL, run_errand, &errands[i])) fail("pthread_create");
    }
    for (int i = 0; i < MANY; i++) {
        void *result;
        pthread_join(threads[i], &result);
        if (result != &errands[i] || errands[i].sum != deep_sum(errands[i].seed, 10))
            fail("a thread came back with something else");
        self->checks++;
    }
    free(errands);
}

// Threads whose stack is malloc memory.
static void step_stacks(void) {
    size_t bytes = 128 * KIB + below(512 * KIB) / PAGE * PAGE;
    void *stack;
    if (posix_memalign(&stack, PAGE, bytes)) fail("posix_memalign");
    pthread_attr_t how;
    pthread_attr_init(&how);
    if (pthread_attr_setstack(&how, stack, bytes)) fail("pthread_attr_setstack");
    struct errand *e = memory(malloc(sizeof *e), "malloc");
    *e = (struct errand){chance(), 0, (int)(bytes / 2048)};
    if (e->depth > 80) e->depth = 80;
    pthread_t thread;
    if (pthread_create(&thread, &how, run_errand, e)) fail("pthread_create");
    pthread_join(thread, NULL);
    if (e->sum != deep_sum(e->seed, e->depth))
        fail("a thread on a stack of malloc memory came back with something else");
    self->checks++;
    pthread_attr_destroy(&how);
    free(e), free(stack);
}

struct waiting {
    int end;
    volatile int cleaned;
    sem_t about_to;
    char room[8192];
};

static void clean(void *argument) { ((struct waiting *)argument)->cleaned = 1; }

static void *wait_in_read(void *argument) {
    struct waiting *w = argument;
    pthread_cleanup_push(clean, w);
    sem_post(&w->about_to);
    ssize_t got = read(w->end, w->room, sizeof w->room);
    (void)got;
    pthread_cleanup_pop(0);
    return NULL;
}

static void step_cancel(void) {
    int ends[2];
    must(pipe(ends), "pipe");
    struct waiting *w = memory(calloc(1, sizeof *w), "calloc");
    w->end = ends[0];
    sem_init(&w->about_to, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_in_read, w)) fail("pthread_create");
    while (sem_wait(&w->about_to) && errno == EINTR) {}
    if (below(2)) usleep((useconds_t)below(500));
    pthread_cancel(thread);
    void *result;
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED || !w->cleaned) fail("a thread that waits in read was not cancelled");
    self->checks++;
    close(ends[0]), close(ends[1]);
    free(w);
}

struct coroutine {
    ucontext_t here, back;
    uint64_t seed, sum;
    int rounds;
};

static __thread struct coroutine *current;

static void coroutine_main(void) {
    struct coroutine *c = current;
    for (int i = 0; i < c->rounds; i++) {
        c->sum += deep(c->seed + (uint64_t)i, 8);
        swapcontext(&c->here, &c->back);
    }
}

static void step_coroutines(void) {
    enum { MANY = 6, ROUNDS = 5 };
    struct coroutine *list = memory(calloc(MANY, sizeof *list), "calloc");
    void *stacks[MANY];
    for (int i = 0; i < MANY; i++) {
        struct coroutine *c = &list[i];
        c->seed = chance(), c->rounds = ROUNDS;
        getcontext(&c->here);
        c->here.uc_stack.ss_sp = stacks[i] = memory(malloc(64 * KIB), "malloc");
        c->here.uc_stack.ss_size = 64 * KIB;
        c->here.uc_link = &c->back;
        makecontext(&c->here, coroutine_main, 0);
    }
    for (int round = 0; round <= ROUNDS; round++)
        for (int i = 0; i < MANY; i++) {
            current = &list[i];
            swapcontext(&list[i].back, &list[i].here);
        }
    for (int i = 0; i < MANY; i++) {
        uint64_t expected = 0;
        for (uint64_t r = 0; r < ROUNDS; r++) expected += deep_sum(list[i].seed + r, 8);
        if (list[i].sum != expected) fail("a coroutine came back with something else");
        self->checks++;
        free(stacks[i]);
    }
    free(list);
}

// ---- Signals
// ----------------------------------------------------------------------------------------------------------

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    if (self && number == SIGSEGV && at >= self->fault_from && at < self->fault_to) {
        self->faults++;
        if (mprotect((void *)(at & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE)) _exit(3);
        return;
    }
    if (self && self->jump) {
        self->fault_at = at, self->fault_code = info->si_code;
        siglongjmp(*self->jump, 1);
    }
    signal(number, SIG_DFL); // a real error
}

static void on_jump(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    self->on_stack = here >= self->stack_from && here < self->stack_to;
    if (self->jump) siglongjmp(*self->jump, 2);
}

static void on_alarm(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    int saved = errno;
    struct alarms *a = self ? self->alarms : NULL;
    if (a) {
        unsigned long came = atomic_fetch_add(&a->came, 1);
        for (unsigned long p = came % 4; p < 32; p += 4) {
            uint64_t *words = (uint64_t *)(a->pages + p * PAGE);
            for (size_t w = 0; w < PAGE / 8; w += 1 + came % 7) {
                uint64_t expected = word_of(77, p, a->version[p], w);
                if (words[w] != expected)
                    fail("memory of a signal handler at %p: expected %016llx, found %016llx", (void *)(words + w),
                         (unsigned long long)expected, (unsigned long long)words[w]);
            }
            a->version[p]++;
            for (size_t w = 0; w < PAGE / 8; w++) words[w] = word_of(77, p, a->version[p], w);
            a->checks++;
        }
    }
    errno = saved;
}

static void handle(int number, void (*with)(int, siginfo_t *, void *), int flags) {
    struct sigaction *action = memory(calloc(1, sizeof *action), "calloc");
    action->sa_sigaction = with;
    action->sa_flags = SA_SIGINFO | flags;
    sigemptyset(&action->sa_mask);
    must(sigaction(number, action, NULL), "sigaction");
    struct sigaction *told = memory(calloc(1, sizeof *told), "calloc");
    must(sigaction(number, NULL, told), "sigaction");
    if (told->sa_sigaction != with || (told->sa_flags & (SA_SIGINFO | flags)) != (SA_SIGINFO | flags))
        fail("sigaction gives another handler for signal %d", number);
    free(told), free(action);
}

// A signal stack in malloc memory; returns it, or NULL.
static void *own_stack(void) {
    size_t bytes = 64 * KIB;
    stack_t *new = memory(malloc(sizeof *new), "malloc"), *old = memory(malloc(sizeof *old), "malloc");
    *new = (stack_t){.ss_sp = memory(malloc(bytes), "malloc"), .ss_size = bytes};
    must(sigaltstack(new, NULL), "sigaltstack");
    must(sigaltstack(NULL, old), "sigaltstack");
    if (old->ss_sp != new->ss_sp || old->ss_size != bytes || old->ss_flags) fail("sigaltstack gives another stack");
    void *stack = new->ss_sp;
    self->stack_from = (uintptr_t)stack, self->stack_to = self->stack_from + bytes;
    free(new), free(old);
    return stack;
}

static void give_up_stack(void *stack) {
    stack_t none = {.ss_flags = SS_DISABLE}, old;
    must(sigaltstack(&none, NULL), "sigaltstack");
    must(sigaltstack(NULL, &old), "sigaltstack");
    if (!(old.ss_flags & SS_DISABLE)) fail("the signal stack is still there");
    self->stack_from = self->stack_to = 0;
    free(stack);
}

static void step_timers(void) {
    struct alarms *a = memory(calloc(1, sizeof *a), "calloc");
    a->pages = memory(mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "mmap");
    void *stack = below(2) ? own_stack() : NULL;
    self->alarms = a;
    struct sigevent *event = memory(calloc(1, sizeof *event), "calloc");
    event->sigev_notify = SIGEV_THREAD_ID, event->sigev_signo = SIGRTMIN + 1;
    memcpy((char *)event + 16, &(pid_t){(pid_t)syscall(SYS_gettid)}, sizeof(pid_t)); // sigev_notify_thread_id
    timer_t *timer = memory(malloc(sizeof *timer), "malloc");
    must(timer_create(CLOCK_MONOTONIC, event, timer), "timer_create");
    struct itimerspec *when = memory(malloc(sizeof *when), "malloc");
    long every = 50000 + (long)below(200000);
    *when = (struct itimerspec){{0, every}, {0, every}};
    must(timer_settime(*timer, 0, when, NULL), "timer_settime");
    for (int i = 0; i < 6; i++) {
        step_touch();
        if (i % 3 == 0) step_pipes();
    }
    must(timer_delete(*timer), "timer_delete");
    self->alarms = NULL;
    self->checks += a->checks;
    if (stack) give_up_stack(stack);
    must(munmap(a->pages, 32 * PAGE), "munmap");
    free(when), free(timer), free(event), free(a);
}

// All signals blocked: also those that a pager could use.
static void step_blocked(void) {
    sigset_t *all = memory(malloc(sizeof *all), "malloc"), *old = memory(malloc(sizeof *old), "malloc"),
             *now = memory(malloc(sizeof *now), "malloc");
    sigfillset(all);
    must(-pthread_sigmask(SIG_BLOCK, all, old), "pthread_sigmask");
    for (int i = 0; i < 4; i++) step_touch();
    must(-pthread_sigmask(SIG_SETMASK, NULL, now), "pthread_sigmask");
    for (int s = 1; s < 32; s++)
        if (s != SIGKILL && s != SIGSTOP) same(1, sigismember(now, s), "whether a blocked signal is blocked");
    // A signal that arrives meanwhile stays pending.
    pthread_kill(pthread_self(), SIGUSR1);
    sigpending(now);
    same(1, sigismember(now, SIGUSR1), "whether a signal is pending");
    sigemptyset(now);
    sigaddset(now, SIGUSR1);
    siginfo_t *info = memory(malloc(sizeof *info), "malloc");
    struct timespec *limit = memory(calloc(1, sizeof *limit), "calloc");
    same(SIGUSR1, sigtimedwait(now, info, limit), "sigtimedwait");
    same(SIGUSR1, info->si_signo, "the signal of sigtimedwait");
    must(-pthread_sigmask(SIG_SETMASK, old, NULL), "pthread_sigmask");
    must(-pthread_sigmask(SIG_SETMASK, NULL, now), "pthread_sigmask");
    same(0, sigismember(now, SIGUSR1), "whether a signal is still blocked");
    free(limit), free(info), free(now), free(old), free(all);
}

static void step_altstack(void) {
    void *stack = own_stack();
    for (int i = 0; i < 4; i++) {
        self->on_stack = 0;
        pthread_kill(pthread_self(), SIGUSR1);
        same(1, self->on_stack, "whether a handler runs on the signal stack");
        step_touch();
    }
    give_up_stack(stack);
    self->on_stack = 1;
    pthread_kill(pthread_self(), SIGUSR1);
    same(0, self->on_stack, "whether a handler runs on a signal stack that is gone");
}

// Out of handlers, from the stack and from a signal stack.
static void step_jumps(void) {
    void *stack = below(2) ? own_stack() : NULL;
    sigjmp_buf *jump = memory(malloc(sizeof *jump), "malloc");
    unsigned char *none = memory(mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "mmap");
    volatile int jumps = 0;
    for (volatile int i = 0; i < 6; i++) {
        int from = sigsetjmp(*jump, 1);
        if (from == 0) {
            self->jump = jump;
            if (i % 2)
                pthread_kill(pthread_self(), SIGUSR1);
            else
                *(volatile unsigned char *)(none + 100 + i) = 1;
            fail("no jump");
        }
        self->jump = NULL;
        jumps = jumps + 1;
        if (from == 1) same((long)(uintptr_t)(none + 100 + i), (long)self->fault_at, "the address of a fault");
        step_touch();
    }
    same(6, jumps, "jumps out of handlers");
    must(munmap(none, PAGE), "munmap");
    if (stack) give_up_stack(stack);
    free(jump);
}

// A SIGBUS that is the program's own: a mapping beyond the end of its file.
static void step_sigbus(void) {
    must(ftruncate(self->file, 2 * (off_t)PAGE), "ftruncate");
    unsigned char *map =
        memory(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, self->file, 0), "mmap of a file");
    map[0] = 1;
    must(ftruncate(self->file, (off_t)PAGE), "ftruncate");
    sigjmp_buf *jump = memory(malloc(sizeof *jump), "malloc");
    size_t place = PAGE + below(PAGE);
    int from = sigsetjmp(*jump, 1);
    if (from == 0) {
        self->jump = jump;
        map[place] = 1;
        fail("no SIGBUS beyond the end of a file");
    }
    self->jump = NULL;
    same((long)(uintptr_t)(map + place), (long)self->fault_at, "the address of a SIGBUS");
    same(BUS_ADRERR, self->fault_code, "the code of a SIGBUS");
    // The kernel's access to it is an error, too.
    int ends[2];
    must(pipe(ends), "pipe");
    same(-1, write(ends[1], map + PAGE, 10), "write of what lies beyond the end of a file");
    same(EFAULT, errno, "its error");
    close(ends[0]), close(ends[1]);
    must(munmap(map, 2 * PAGE), "munmap of a file");
    must(ftruncate(self->file, 0), "ftruncate");
    free(jump);
}

// ---- Processes
// --------------------------------------------------------------------------------------------------------

static int wait_for(pid_t child) {
    int *status = memory(malloc(sizeof *status), "malloc");
    while (waitpid(child, status, 0) < 0)
        if (errno != EINTR) fail("waitpid: %s", strerror(errno));
    int ended = WIFEXITED(*status) ? WEXITSTATUS(*status) : 1000 + WTERMSIG(*status);
    free(status);
    return ended;
}

// The arguments that a program checks which was started with `--check-arguments SEED`.
static char *argument_of(uint64_t seed, int place) {
    size_t bytes = (size_t)(word_of(seed, (uint64_t)place, 1, 0) % (place % 5 == 4 ? 20000 : 200));
    char *text = memory(malloc(bytes + 1), "malloc");
    for (size_t i = 0; i < bytes; i++) text[i] = (char)('a' + word_of(seed, (uint64_t)place, 2, i) % 26);
    text[bytes] = 0;
    return text;
}

enum { ARGUMENTS = 12 };

static int check_arguments(int count, char **list) {
    uint64_t seed = strtoull(list[2], NULL, 16);
    if (count != ARGUMENTS + 3) return 4;
    for (int i = 0; i < ARGUMENTS; i++) {
        char *expected = argument_of(seed, i);
        if (strcmp(expected, list[i + 3])) return 5;
        free(expected);
    }
    const char *variable = getenv("STRESS_VARIABLE");
    char *expected = argument_of(seed, ARGUMENTS);
    int right = variable && strcmp(variable, expected) == 0;
    free(expected);
    return right ? 0 : 6;
}

static void step_spawn(void) {
    if (below(2)) {
        char **simple = memory(calloc(2, sizeof *simple), "calloc");
        simple[0] = strdup("true");
        const char *path = access("/bin/true", X_OK) ? "/usr/bin/true" : "/bin/true";
        pid_t child = vfork();
        if (child == 0) {
            execv(path, simple);
            _exit(9);
        }
        must(child, "vfork");
        same(0, wait_for(child), "what /bin/true ended with");
        free(simple[0]), free(simple);
        return;
    }
    uint64_t seed = chance();
    char **list = memory(calloc(ARGUMENTS + 4, sizeof *list), "calloc");
    list[0] = strdup("stress"), list[1] = strdup("--check-arguments");
    list[2] = memory(malloc(20), "malloc");
    snprintf(list[2], 20, "%llx", (unsigned long long)seed);
    for (int i = 0; i < ARGUMENTS; i++) list[i + 3] = argument_of(seed, i);
    int variables = 0;
    while (environ[variables]) variables++;
    char **environment = memory(calloc((size_t)variables + 2, sizeof *environment), "calloc");
    for (int i = 0; i < variables; i++) environment[i] = strdup(environ[i]);
    char *value = argument_of(seed, ARGUMENTS);
    environment[variables] = memory(malloc(strlen(value) + 20), "malloc");
    sprintf(environment[variables], "STRESS_VARIABLE=%s", value);
    pid_t child;
    int error = posix_spawn(&child, "/proc/self/exe", NULL, NULL, list, environment);
    if (error) fail("posix_spawn: %s", strerror(error));
    same(0, wait_for(child), "what a spawned program ended with (4 to 6: it got other arguments)");
    for (int i = 0; i < ARGUMENTS + 3; i++) free(list[i]);
    for (int i = 0; i <= variables; i++) free(environment[i]);
    free(value), free(list), free(environment);
}

static void step_fork(void) {
    if (!with_fork) return;
    volatile uint64_t *common =
        memory(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), "mmap");
    pid_t child = fork();
    if (child < 0 && errno == ENOMEM) {
        // A copy does not fit.
        must(munmap((void *)common, PAGE), "munmap");
        return;
    }
    if (child == 0) {
        // All that was there at the fork, then a copy that is changed; the parent goes on meanwhile.
        uint64_t before = self->checks;
        for (int i = 0; i < self->count; i++)
            verify(self->blocks[i], 0, pages_of(self->blocks[i]), "a child's copy of a block");
        for (int i = 0; i < 16 && self->count; i++) renew_some(any_block());
        for (int i = 0; i < self->count; i++) verify_some(self->blocks[i], "a child's block that it changed");
        if (below(2) && self->count) {
            // A grandchild.
            pid_t next = fork();
            if (next == 0) {
                for (int i = 0; i < self->count; i++) verify_some(self->blocks[i], "a grandchild's copy of a block");
                _exit(0);
            }
            if (next > 0 && wait_for(next)) _exit(3);
        }
        common[0] = self->checks - before + 1;
        _exit(0);
    }
    must(child, "fork");
    for (int i = 0; i < 8; i++) step_touch();
    same(0, wait_for(child), "what a child ended with");
    if (common[0] == 0) fail("what a child wrote to shared memory is not there");
    self->checks += common[0] - 1;
    must(munmap((void *)common, PAGE), "munmap");
}

// ---- The program
// ------------------------------------------------------------------------------------------------------

static const struct kind {
    const char *name;
    void (*step)(void);
    int weight;
} kinds[] = {
    {"touch", step_touch, 40},
    {"malloc", step_malloc, 20},
    {"calloc", step_calloc, 6},
    {"realloc", step_realloc, 12},
    {"mmap", step_mmap, 12},
    {"mremap", step_mremap, 16},
    {"fixed", step_fixed, 8},
    {"protect", step_protect, 8},
    {"dontneed", step_dontneed, 10},
    {"free", step_free, 8},
    {"advice", step_advice, 8},
    {"shared", step_shared, 12},
    {"pipes", step_pipes, 8},
    {"files", step_files, 8},
    {"streams", step_streams, 3},
    {"messages", step_messages, 6},
    {"stdio", step_stdio, 4},
    {"names", step_names, 4},
    {"poll", step_poll, 3},
    {"clocks", step_clocks, 3},
    {"pointers", step_bad_pointers, 3},
    {"futex", step_futex, 2},
    {"threads", step_threads, 2},
    {"stacks", step_stacks, 3},
    {"cancel", step_cancel, 2},
    {"coroutines", step_coroutines, 3},
    {"timers", step_timers, 3},
    {"blocked", step_blocked, 4},
    {"altstack", step_altstack, 3},
    {"jumps", step_jumps, 4},
    {"sigbus", step_sigbus, 3},
    {"spawn", step_spawn, 1},
    {"fork", step_fork, 2},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static struct settings {
    double seconds;
    unsigned long steps;
    int threads;
    size_t mib;
    uint64_t seed;
    int chosen[KINDS];
    int brk;
    int verbose;
    int corrupt;
} settings = {.seconds = 10, .threads = 4, .mib = 256, .seed = 1, .brk = 1};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double until;

static void *work(void *argument) {
    struct worker *w = argument;
    self = w;
    int total = 0;
    for (int k = 0; k < KINDS; k++) total += settings.chosen[k] ? kinds[k].weight : 0;
    char path[600];
    snprintf(path, sizeof path, "%s/file-%d", home, w->number);
    w->doing = "start";
    w->file = (int)must(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), "open");
    unlink(path);
    // A share of the static memory, which holds zeros until now.
    size_t share = BSS_BYTES / (size_t)settings.threads / PAGE * PAGE;
    if (share > w->limit / 4) share = w->limit / 4 / PAGE * PAGE;
    struct block *own =
        keep(bss + (size_t)w->number * (BSS_BYTES / (size_t)settings.threads / PAGE * PAGE), share, STATIC);
    verify(own, 0, pages_of(own), "static memory");
    for (unsigned long step = 0; settings.steps ? step < settings.steps : now() < until; step++) {
        size_t pick = below((size_t)total);
        int k = 0;
        while (!settings.chosen[k] || (pick >= (size_t)kinds[k].weight))
            pick -= settings.chosen[k] ? (size_t)kinds[k].weight : 0, k++;
        w->doing = kinds[k].name;
        // For the test of this program: a bit that turns over by itself.
        if (settings.corrupt && step > 20) own->at[below(own->bytes)] ^= 4;
        kinds[k].step();
        w->steps[k]++;
    }
    w->doing = "end";
    for (int i = 0; i < w->count; i++) verify(w->blocks[i], 0, pages_of(w->blocks[i]), "a block at the end");
    for (int i = w->count; i-- > 0;)
        if (w->blocks[i]->where != STATIC) drop(i);
    close(w->file);
    return NULL;
}

static void choose(const char *names, int chosen) {
    char *copy = strdup(names), *rest = copy;
    for (char *name; (name = strsep(&rest, ","));) {
        int found = strcmp(name, "brk") == 0;
        if (found) settings.brk = chosen;
        for (int k = 0; k < KINDS; k++)
            if (strcmp(kinds[k].name, name) == 0) settings.chosen[k] = chosen, found = 1;
        if (!found) {
            fprintf(stderr, "stress: no kind is named %s; --list names them\n", name);
            exit(2);
        }
    }
    free(copy);
}

static void arguments(int count, char **list) {
    for (int k = 0; k < KINDS; k++) settings.chosen[k] = 1;
    for (int i = 1; i < count; i++) {
        const char *name = list[i];
        if (strcmp(name, "--fork") == 0) {
            with_fork = 1;
            continue;
        }
        if (strcmp(name, "--verbose") == 0) {
            settings.verbose = 1;
            continue;
        }
        if (strcmp(name, "--corrupt") == 0) {
            settings.corrupt = 1;
            continue;
        }
        if (strcmp(name, "--list") == 0) {
            printf("brk");
            for (int k = 0; k < KINDS; k++) printf(" %s", kinds[k].name);
            printf("\n");
            exit(0);
        }
        if (++i >= count) {
            fprintf(stderr,
                    "stress: %s wants a value, or is unknown\n"
                    "    --seconds N --steps N --threads N --mib N --seed N --folder DIR --without KIND,... --only "
                    "KIND,... --fork --verbose --corrupt --list\n",
                    name);
            exit(2);
        }
        const char *value = list[i];
        if (strcmp(name, "--seconds") == 0)
            settings.seconds = atof(value);
        else if (strcmp(name, "--steps") == 0)
            settings.steps = strtoul(value, NULL, 10);
        else if (strcmp(name, "--threads") == 0)
            settings.threads = atoi(value);
        else if (strcmp(name, "--mib") == 0)
            settings.mib = strtoul(value, NULL, 10);
        else if (strcmp(name, "--seed") == 0)
            settings.seed = strtoull(value, NULL, 10);
        else if (strcmp(name, "--folder") == 0)
            folder = value;
        else if (strcmp(name, "--without") == 0)
            choose(value, 0);
        else if (strcmp(name, "--only") == 0) {
            for (int k = 0; k < KINDS; k++) settings.chosen[k] = 0;
            settings.brk = 0;
            choose(value, 1);
        } else {
            fprintf(stderr, "stress: %s is unknown\n", name);
            exit(2);
        }
    }
    int any = 0;
    for (int k = 0; k < KINDS; k++) any |= settings.chosen[k];
    if (!any) settings.chosen[0] = 1; // `--only brk`
    if (settings.threads < 1 || settings.threads > WORKERS_MAX || settings.mib < (size_t)settings.threads) {
        fprintf(stderr, "stress: 1 to %d threads, and a MiB or more for each\n", WORKERS_MAX);
        exit(2);
    }
}

int main(int count, char **list) {
    if (count > 2 && strcmp(list[1], "--check-arguments") == 0) return check_arguments(count, list);
    arguments(count, list);
    static struct worker workers[WORKERS_MAX];
    snprintf(home, sizeof home, "%s/stress-XXXXXX", folder);
    if (!mkdtemp(home)) {
        fprintf(stderr, "stress: cannot make a folder in %s: %s\n", folder, strerror(errno));
        return 2;
    }
    for (int i = 0; i < settings.threads; i++) {
        struct worker *w = &workers[i];
        w->number = i, w->doing = "start";
        w->random = (settings.seed + 1) * 0x9e3779b97f4a7c15ull ^ ((uint64_t)(i + 1) << 32);
        w->limit = settings.mib * MIB / (size_t)settings.threads;
        w->steps = calloc(KINDS, sizeof *w->steps);
    }
    self = &workers[0];
    counters = memory(calloc(WORKERS_MAX + 1, sizeof *counters), "calloc");
    lines = memory(
        mmap(NULL, LINES_PER_WORKER * WORKERS_MAX * 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
        "mmap");
    if (settings.brk) test_break();
    handle(SIGSEGV, on_fault, SA_ONSTACK);
    handle(SIGBUS, on_fault, SA_ONSTACK);
    handle(SIGUSR1, on_jump, SA_ONSTACK | SA_RESTART);
    handle(SIGRTMIN + 1, on_alarm, SA_ONSTACK | SA_RESTART);
    signal(SIGPIPE, SIG_IGN);
    until = now() + settings.seconds;
    for (int i = 0; i < settings.threads; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i])) fail("pthread_create");
    unsigned long long checks = 0;
    unsigned long counted = 0;
    for (int i = 0; i < settings.threads; i++) {
        pthread_join(workers[i].thread, NULL);
        checks += workers[i].checks;
        counted += counters[i].all;
    }
    same((long)counted, (long)counters[WORKERS_MAX].all, "what all threads counted together");
    if (settings.verbose)
        for (int k = 0; k < KINDS; k++) {
            unsigned long steps = 0;
            for (int i = 0; i < settings.threads; i++) steps += workers[i].steps[k];
            fprintf(stderr, "%-12s %lu\n", kinds[k].name, steps);
        }
    rmdir(home);
    printf("checks=%llu wrong=0\n", checks);
    return 0;
}
