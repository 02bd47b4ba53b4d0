// Advice on memory (madvise(2)): each part is selected by its name, checks itself, and prints "right" or the error.

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

int main(int count, char **arguments) {
    const char *part = count > 1 ? arguments[1] : "";
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    if (pipe(pipes)) WRONG("pipe");
    big = map(BIG / PAGE);
    if (!strcmp(part, "guard")) guard();
    else if (!strcmp(part, "peer")) peer();
    else WRONG("no part %s", part);
    printf("right\n");
    return 0;
}
