// Advice on memory (madvise(2)).
//
// Each part is selected by its name, checks itself, and prints "right" or the error; `answers` prints the kernel's answers.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#define WRONG(...) do { printf(__VA_ARGS__); printf("\n"); exit(3); } while (0)
enum { PAGE = 4096, BIG = 8 << 20, INSTALL = 102, REMOVE = 103 };
static volatile char *big;
static void all(void) { for (size_t i = 0; i < BIG; i += PAGE) big[i]++; }

static sigjmp_buf back;
static int pipes[2];
static void on_signal(int signal) { siglongjmp(back, signal); }

/* The byte at an address, or -1 where the kernel raises SIGSEGV. */
static int byte(volatile char *at) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) return *at;
    if (signal != SIGSEGV) WRONG("signal %d", signal);
    return -1;
}
static void guarded(char *page, int line) {
    char other[8] = {0};
    struct iovec mine = {other, 1}, theirs = {page, 1};
    if (byte(page) != -1) WRONG("line %d: no SIGSEGV before calls", line);
    if (write(pipes[1], page, 3) != -1 || errno != EFAULT) WRONG("line %d: it was written", line);
    if (write(pipes[1], "abc", 3) != 3) WRONG("write");
    if (read(pipes[0], page, 3) != -1 || errno != EFAULT) WRONG("line %d: it was read into", line);
    if (read(pipes[0], other, 3) != 3) WRONG("read");
    if (process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) != -1 || errno != EFAULT) WRONG("line %d: it was copied", line);
    if (byte(page) != -1) WRONG("line %d: no SIGSEGV after calls", line);
}
#define GUARDED(page) guarded(page, __LINE__)
#define IS(page, value) do { if (byte(page) != (value)) WRONG("line %d: %d", __LINE__, byte(page)); } while (0)
static void advise(char *start, size_t bytes, int advice, int line) {
    if (madvise(start, bytes, advice)) WRONG("line %d: %s", line, strerror(errno));
}
#define ADVISE(start, bytes, advice) advise(start, bytes, advice, __LINE__)
static char *map(size_t pages) {
    return mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Another process has memory with a guard page. */
static void peer(void) {
    char *memory = map(64), until[1];
    memset(memory, 9, 64 * PAGE);
    ADVISE(memory + 8 * PAGE, PAGE, INSTALL);
    if (write(1, &memory, sizeof memory) != sizeof memory || read(0, until, 1) != 0) WRONG("the reader");
}
static void of_peer(void) {
    int to[2], from[2], status;
    char *memory, byte = 0;
    if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) WRONG("pipe");
    pid_t child = vfork();
    if (child == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl("/proc/self/exe", "advice", "peer", NULL);
        _exit(1);
    }
    close(from[1]);
    if (read(from[0], &memory, sizeof memory) != sizeof memory) WRONG("no peer");
    struct iovec mine = {&byte, 1}, beside = {memory + 7 * PAGE, 1}, theirs = {memory + 8 * PAGE, 1};
    if (process_vm_readv(child, &mine, 1, &beside, 1, 0) != 1 || byte != 9) WRONG("beside its guard: %s", strerror(errno));
    if (process_vm_readv(child, &mine, 1, &theirs, 1, 0) != -1 || errno != EFAULT) WRONG("its guard was read");
    close(to[1]);
    if (waitpid(child, &status, 0) != child || status) WRONG("the peer's status is %x", status);
}

/* Guards on pages in memory, on pages that left, and on pages that were never touched; their neighbours come and go. */
static void guard(void) {
    enum { EACH = 64, PAGES = 3 * EACH };
    char *memory = map(PAGES), *page, *moved, *place;
    if (madvise(memory, PAGE, INSTALL)) {
        // Before Linux 6.13.
        if (errno != EINVAL) WRONG("%s", strerror(errno));
        return;
    }
    ADVISE(memory, PAGE, REMOVE);
    memset(memory, 5, EACH * PAGE);
    all();
    memset(memory + EACH * PAGE, 6, EACH * PAGE);
    for (size_t at = 8; at < PAGES; at += 16) ADVISE(memory + at * PAGE, PAGE, INSTALL);
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < PAGES; at++) {
            if (at % 16 == 8) GUARDED(memory + at * PAGE);
            else IS(memory + at * PAGE, at < EACH ? 5 : at < 2 * EACH ? 6 : 0);
        }
        all();
    }
    of_peer();
    // The guards stay when the memory is emptied or protected.
    ADVISE(memory, PAGES * PAGE, MADV_DONTNEED);
    ADVISE(memory, PAGES * PAGE, MADV_FREE);
    mprotect(memory, PAGES * PAGE, PROT_NONE);
    mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE);
    for (size_t at = 0; at < PAGES; at++) {
        if (at % 16 == 8) GUARDED(memory + at * PAGE);
        else { IS(memory + at * PAGE, 0); memory[at * PAGE] = 7; }
    }
    // They move along.
    place = map(2 * PAGES);
    moved = mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGES / 2 * PAGE);
    if (moved != place + PAGES / 2 * PAGE) WRONG("mremap");
    all();
    for (size_t at = 0; at < PAGES; at++) {
        if (at % 16 == 8) GUARDED(moved + at * PAGE);
        else IS(moved + at * PAGE, 7);
    }
    // A copy has them, too.
    ADVISE((char *)big, BIG, MADV_DONTNEED);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) WRONG("fork: %s", strerror(errno));
    if (child == 0) {
        for (size_t at = 8; at < PAGES; at += 16) GUARDED(moved + at * PAGE);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) WRONG("the child's status is %x", status);
    // Without its guard a page reads as zeros.
    ADVISE(moved, EACH * PAGE, REMOVE);
    for (size_t at = 0; at < EACH; at++) IS(moved + at * PAGE, at % 16 == 8 ? 0 : 7);
    memset(moved, 8, EACH * PAGE);
    all();
    for (size_t at = 0; at < EACH; at++) IS(moved + at * PAGE, 8);
    // New memory has no guards.
    page = moved + (EACH + 8) * PAGE;
    munmap(page, PAGE);
    if (mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page) WRONG("mmap");
    IS(page, 0);
    // Beyond a hole the kernel goes on.
    munmap(moved + 20 * PAGE, PAGE);
    if (madvise(moved + 18 * PAGE, 5 * PAGE, INSTALL) != -1 || errno != ENOMEM) WRONG("no hole");
    for (size_t at = 18; at < 23; at++) if (at != 20) GUARDED(moved + at * PAGE);
    IS(moved + 17 * PAGE, 8);
    IS(moved + 23 * PAGE, 8);
}

/* Prints the kernel's answers to all advice but that of COLLAPSE (masu has it as on a kernel without) and of HWPOISON and
 * SOFT_OFFLINE (which take pages from the machine). */
static void ask(const char *kind, char *start, size_t bytes, int changes) {
    static const int mild[] = {0, 1, 2, 3, 12, 13, 14, 15, 22, 23, 5, 6, 7, 27, 99, 104, -1, 1 << 20};
    static const int others[] = {20, 21, 4, 8, 24, 9, 10, 11, 16, 17, 18, 19, 102, 22, 23, 3, 103, 22, 23};
    for (size_t at = 0; at < sizeof mild / sizeof *mild; at++) {
        int answer = madvise(start, bytes, mild[at]);
        printf("%s %d: %d %s\n", kind, mild[at], answer, answer ? strerror(errno) : "");
    }
    for (size_t at = 0; changes && at < sizeof others / sizeof *others; at++) {
        int answer = madvise(start, bytes, others[at]);
        printf("%s %d: %d %s\n", kind, others[at], answer, answer ? strerror(errno) : "");
    }
}
static void answers(void) {
    enum { PAGES = 64 };
    char *all_of_it = map(PAGES), *memory = all_of_it + 4 * PAGE;
    memset(memory, 5, 48 * PAGE);
    all();
    mprotect(memory + 8 * PAGE, 4 * PAGE, PROT_READ);
    mprotect(memory + 12 * PAGE, 4 * PAGE, PROT_NONE);
    mprotect(memory + 20 * PAGE, 4 * PAGE, PROT_WRITE);
    munmap(memory + 24 * PAGE, 4 * PAGE);
    munmap(memory + 52 * PAGE, 8 * PAGE);
    if (mmap(memory + 36 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        WRONG("mmap");
    static const struct { const char *kind; int from, pages; } ranges[] = {
        {"page", 1, 1}, {"pages", 1, 6}, {"read-only", 9, 2}, {"up to read-only", 6, 4}, {"read-only first", 10, 1},
        {"none", 13, 1}, {"up to none", 10, 4}, {"none and others", 14, 4}, {"write-only", 21, 2}, {"hole", 25, 2},
        {"up to a hole", 18, 8}, {"over a hole", 17, 15}, {"from a hole", 27, 3}, {"shared", 37, 2}, {"up to shared", 34, 4},
        {"hole, shared", 27, 14}, {"untouched", 49, 2}, {"last and hole", 50, 4}, {"beyond", 53, 2},
    };
    for (size_t at = 0; at < sizeof ranges / sizeof *ranges; at++)
        ask(ranges[at].kind, memory + ranges[at].from * PAGE, ranges[at].pages * PAGE, 1);
    ask("no length", memory, 0, 1);
    ask("no length, unaligned", memory + 1, 0, 1);
    ask("a byte", memory + 2 * PAGE, 1, 1);
    ask("part of a page", memory + 2 * PAGE, PAGE + 1, 1);
    ask("unaligned", memory + 2 * PAGE + 8, PAGE, 1);
    ask("unaligned and hole", memory + 25 * PAGE + 8, PAGE, 1);
    ask("wraps", memory, -(size_t)PAGE, 1);
    ask("wraps to nothing", memory, -(size_t)memory, 1);
    ask("wraps by rounding", memory, -(size_t)1, 1);
    ask("unaligned wraps", memory + 1, -(size_t)1, 1);
    ask("to the end", memory, (size_t)1 << 47, 0);
    ask("beyond the end", memory, (size_t)1 << 62, 0);
    if (!madvise(memory + 3 * PAGE, PAGE, INSTALL)) {
        ask("up to a guard", memory + PAGE, 3 * PAGE, 0);
        ask("guard", memory + 3 * PAGE, PAGE, 0);
        ask("before a guard", memory + PAGE, 2 * PAGE, 0);
        ask("behind a guard", memory + 4 * PAGE, 2 * PAGE, 0);
        ask("guard, then read-only", memory + PAGE, 10 * PAGE, 0);
    }
}

int main(int count, char **arguments) {
    const char *part = count > 1 ? arguments[1] : "";
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    if (pipe(pipes)) WRONG("pipe");
    big = map(BIG / PAGE);
    if (!strcmp(part, "guard")) guard();
    else if (!strcmp(part, "peer")) peer();
    else if (!strcmp(part, "answers")) answers();
    else WRONG("no part %s", part);
    printf("right\n");
    return 0;
}
