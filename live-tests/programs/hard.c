// Calls that need special care in a pager.
//
// Each part is selected by its name, checks itself, and prints "right" or the error.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define WRONG(...) do { printf(__VA_ARGS__); printf("\n"); exit(3); } while (0)
enum { PAGE = 4096, BIG = 8 << 20, PART = 16 * PAGE };
static volatile char *big;
static void all(void) { for (size_t i = 0; i < BIG; i += PAGE) big[i]++; }

/* The kernel empties the mapped part and returns ENOMEM for the unmapped one; old bytes must not come back, nor a fault
 * for ever. */
static void hole(void) {
    char *memory = mmap(NULL, 3 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 5, 3 * PART);
    all();
    for (size_t i = 2 * PART; i < 3 * PART; i += PAGE) memory[i]++;
    munmap(memory + PART, PART);
    if (madvise(memory, 3 * PART, MADV_DONTNEED) != -1 || errno != ENOMEM) WRONG("no hole");
    for (size_t i = 0; i < 3 * PART; i++) if ((i < PART || i >= 2 * PART) && memory[i]) WRONG("byte %zu is %d", i, memory[i]);
}

/* A read sleeps; handlers come again and again, push all of its memory out and make calls of the same kind. */
static int data[2], other[2];
static volatile int came;
/* Time from the end of one handler to the next signal: on a busy machine, a repeating timer would be faster than the
 * handlers. */
static const struct itimerval soon = {{0, 0}, {0, 10000}};
static void on_alarm(int signal) {
    char buffer[20];
    struct iovec pieces[2] = {{buffer, 10}, {buffer + 10, 10}};
    came++;
    all();
    if (write(other[1], "0123456789abcdefghij", 20) != 20 || readv(other[0], pieces, 2) != 20 || memcmp(buffer, "0123456789abcdefghij", 20))
        WRONG("the handler's own read %d", signal);
    setitimer(ITIMER_REAL, &soon, NULL);
}
static void *later(void *letter) {
    char message[128];
    usleep(60000);
    memset(message, *(char *)letter, sizeof message);
    if (write(data[1], message, sizeof message) != sizeof message) WRONG("write");
    return NULL;
}
static void interrupted(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval never = {{0, 0}, {0, 0}};
    char *first = malloc(300000), *second = malloc(300000);
    sigset_t alarms;
    sigemptyset(&alarms), sigaddset(&alarms, SIGALRM);
    if (pipe(data) || pipe(other)) WRONG("pipe");
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    for (int i = 0; i < 8; i++) {
        char letter = (char)('A' + i);
        char *here = first + i * 30000, *there = second + i * 30000;
        struct iovec pieces[2] = {{here, 64}, {there, 64}};
        pthread_t thread;
        pthread_sigmask(SIG_BLOCK, &alarms, NULL);
        pthread_create(&thread, NULL, later, &letter);
        pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
        ssize_t got = readv(data[0], pieces, 2);
        if (got != 128) WRONG("read %zd %s", got, strerror(errno));
        for (int j = 0; j < 64; j++) if (here[j] != letter || there[j] != letter) WRONG("byte %d of read %d", j, i);
        pthread_join(thread, NULL);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    if (came < 8) WRONG("only %d alarms", came);
}

/* Whole, or not at all. Memory that is not paged has no limit. */
static void message(void) {
    int pair[2];
    static char small[1000];
    char *sent = malloc(120000), *got = malloc(120000), stack[120000];
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    memset(sent, 'x', 120000), memset(stack, 'y', sizeof stack);
    ssize_t said = send(pair[0], sent, 120000, 0);
    if (said == -1 && errno != EMSGSIZE) WRONG("send: %s", strerror(errno));
    if (said != -1 && said != 120000) WRONG("a part of a message was sent: %zd", said);
    if (said == 120000 && (recv(pair[1], got, 120000, 0) != 120000 || memcmp(sent, got, 120000))) WRONG("another message came");
    if (send(pair[0], stack, sizeof stack, 0) != sizeof stack) WRONG("send from the stack: %s", strerror(errno));
    memset(stack, 0, sizeof stack);
    if (recv(pair[1], stack, sizeof stack, 0) != sizeof stack || stack[119999] != 'y') WRONG("receive to the stack");
    struct iovec tiny[300];
    for (int i = 0; i < 300; i++) tiny[i] = (struct iovec){small + i, 1};
    if (writev(pair[0], tiny, 300) != 300) WRONG("300 tiny pieces are one message");
    printf("%s ", said == -1 ? "refused" : "sent");
}

/* Clones as for a container's first process: a copy, but on a stack of its own. */
static int child(void *argument) { _exit(big[PAGE] == *(char *)argument ? 42 : 1); }
static void stack(void) {
    char *memory = malloc(1 << 16), expected = big[PAGE];
    int status = 0, pid = clone(child, memory + (1 << 16), SIGCHLD, &expected);
    if (pid < 0) WRONG("clone: %s", strerror(errno));
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 42) WRONG("the child ended with %x", status);
}

/* "As much as you like": the length is nonsense, and the kernel does not mind. */
static void lengths(void) {
    char *name = malloc(4096);
    int ends[2];
    if (pipe(ends) || write(ends[1], "all", 3) != 3) WRONG("pipe");
    if (read(ends[0], name, 0x7ffff000) != 3 || memcmp(name, "all", 3)) WRONG("read: %s", strerror(errno));
    if (readlink("/proc/self/exe", name, 0x7fffffff) <= 0) WRONG("readlink: %s", strerror(errno));
    /* Or it does mind, before anything has happened. */
    struct iovec vectors[2] = {{name, 4096}, {name, -1}};
    int file = open("/proc/self/exe", O_RDONLY);
    if (read(file, (char *)big, -1) != -1 || errno != EFAULT) WRONG("read of all there is: %s", strerror(errno));
    if (pread(file, (char *)big, (size_t)1 << 63, 0) != -1) WRONG("pread of half of it");
    if (readv(file, vectors, 2) != -1 || errno != EINVAL) WRONG("readv: %s", strerror(errno));
    /* No memory is mapped at the beginning, so the kernel changes nothing; the following range must not be walked. */
    char *low = (char *)(2 * PAGE), there = big[PAGE];
    if (!mprotect(low, 1ul << 62, PROT_NONE) || errno != ENOMEM) WRONG("mprotect: %s", strerror(errno));
    for (int part = 0; part < 4; part++)
        if (!madvise(part & 1 ? NULL : low, part & 1 ? -1 : -PAGE, part & 2 ? MADV_FREE : MADV_DONTNEED) || errno != EINVAL)
            WRONG("madvise %d: %s", part, strerror(errno));
    if (!there || big[PAGE] != there) WRONG("what was there is %d", big[PAGE]);
}

/* The kernel merges a moved mapping with its neighbours, most of all with untouched ones. All of that must keep its
   contents, though much of it is stored elsewhere. */
static void neighbours(void) {
    for (int turn = 0; turn < 4; turn++) {
        char *memory = mmap(NULL, 3 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *guest = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(memory, 5, 3 * PART);
        char inside = turn & 1 ? 6 : 0;
        if (inside) memset(guest, inside, PART);
        all();
        munmap(memory + PART, PART);
        if (mremap(guest, PART, PART, MREMAP_MAYMOVE | MREMAP_FIXED, memory + PART) != memory + PART) WRONG("mremap: %s", strerror(errno));
        if (turn & 2) all();
        for (size_t i = 0; i < 3 * PART; i++) if (memory[i] != (i / PART == 1 ? inside : 5)) WRONG("byte %zu is %d", i, memory[i]);
    }
}

/* Memory that the kernel unmaps before it returns an error is gone, and a later mapping there is new. */
static void gone(void) {
    char *memory = mmap(NULL, 2 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *place = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 5, 2 * PART);
    memset(place, 6, PART);
    if (mprotect(memory + PART, PART, PROT_READ)) WRONG("mprotect");
    if (mremap(memory, 2 * PART, 2 * PART + PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place - 2 * PART) != MAP_FAILED) WRONG("it moved");
    if (errno != EFAULT) WRONG("mremap: %s", strerror(errno));
    char *new = mmap(place, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_FIXED, -1, 0);
    memset(new, 7, PART);
    for (int i = 0; i < 3; i++) all();
    for (size_t i = 0; i < PART; i++) if (new[i] != 7) WRONG("byte %zu is %d", i, new[i]);
    for (size_t i = 0; i < 2 * PART; i++) if (memory[i] != 5) WRONG("byte %zu of what did not move is %d", i, memory[i]);
}

/* Freed as far as it is anonymous; the rest is a file. The kernel returns an error, but has freed the pages it walked.
 */
static void freed(void) {
    char *memory = mmap(NULL, 2 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = fileno(tmpfile());
    if (ftruncate(file, PART) || mmap(memory + PART, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) WRONG("mmap");
    for (int turn = 0; turn < 3; turn++) {
        memset(memory, 5, 2 * PART);
        if (madvise(memory, 2 * PART, MADV_FREE) != -1 || errno != EINVAL) WRONG("it was freed");
        all();
        for (size_t i = 0; i < 2 * PART; i++) if (memory[i] != 5 && (memory[i] || i >= PART)) WRONG("byte %zu is %d", i, memory[i]);
    }
}

/* A mapping too small to be paged grows in place, is complete, and is one mapping to the kernel, which moves it. */
static void grows(void) {
    char *memory = mmap(NULL, 3 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 5, PART);
    munmap(memory + PART, 2 * PART);
    char *small = mmap(memory + PART, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(small, 7, PAGE);
    if (mremap(small, PAGE, PART, 0) != small) WRONG("in place: %s", strerror(errno));
    memset(small + PAGE, 8, PART - PAGE);
    all();
    small = mremap(small, PART, 64 * PART, MREMAP_MAYMOVE);
    if (small == MAP_FAILED) WRONG("mremap: %s", strerror(errno));
    memset(small + PART, 9, 63 * PART);
    all();
    for (size_t i = 0; i < 64 * PART; i++) if (small[i] != (i < PAGE ? 7 : i < PART ? 8 : 9)) WRONG("byte %zu is %d", i, small[i]);
    for (size_t i = 0; i < PART; i++) if (memory[i] != 5) WRONG("before: byte %zu is %d", i, memory[i]);
}

/* Beside memory that is paged, but was there before, lies a file that has no such page: a touch is the program's own affair. */
static sigjmp_buf out;
static void *volatile touched;
static void on_bus(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    touched = info->si_addr;
    siglongjmp(out, 1);
}
static void beside(void) {
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    char *memory = mmap(NULL, 2 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *small = (char *)(((size_t)memory + PART - 1) / PART * PART), *file = small + PART / 2;
    munmap(memory, 2 * PART);
    small = mmap(small, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(small, 7, PAGE);
    if (mremap(small, PAGE, PART / 2, 0) != small) WRONG("in place: %s", strerror(errno));
    if (mmap(file, PART / 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fileno(tmpfile()), 0) != file) WRONG("mmap");
    sigaction(SIGBUS, &action, NULL);
    for (int i = 0; i < 3; i++) {
        if (!sigsetjmp(out, 1)) { file[i * PAGE] = 1; WRONG("the file has a page %d", i); }
        if (touched != file + i * PAGE) WRONG("it was at %p, not at %p", touched, (void *)(file + i * PAGE));
    }
    for (size_t i = 0; i < PART / 2; i++) if (small[i] != (i < PAGE ? 7 : 0)) WRONG("byte %zu is %d", i, small[i]);
}

/* Passes more arguments than can be pinned at a time, while other threads evict them. */
static void *push(void *nothing) {
    for (;;) all();
    return nothing;
}
static void arguments(void) {
    enum { MANY = 400 };
    char *list[MANY + 4] = {"/bin/sh", "-c", "test $# = 399 && test ${#1} = 3000 && test ${#399} = 3000"};
    for (int i = 3; i < MANY + 3; i++) list[i] = memset(calloc(3001, 1), 'x', 3000);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, push, NULL);
    for (int i = 0; i < 10; i++) {
        pid_t child;
        int status, error = posix_spawn(&child, list[0], NULL, NULL, list, environ);
        if (error) WRONG("posix_spawn: %s", strerror(error));
        if (waitpid(child, &status, 0) != child || status) WRONG("the child ended with %x", status);
    }
    char *none[] = {"/bin/true", (char *)8, NULL};
    if (execv(none[0], none) != -1 || errno != EFAULT) WRONG("no such argument: %s", strerror(errno));
}

/* A device writes to memory (O_DIRECT), in more pieces than one would remember, while all of it is pushed out again and again. */
static void direct(void) {
    enum { PIECES = 200 };
    char *memory = mmap(NULL, 2 * PIECES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), name[] = "/var/tmp/masu-directXXXXXX";
    struct iovec pieces[PIECES];
    for (int i = 0; i < PIECES; i++) pieces[i] = (struct iovec){memory + 2 * i * PAGE, PAGE}, memset(pieces[i].iov_base, i + 1, PAGE);
    int fd = mkostemp(name, O_DIRECT);
    unlink(name);
    /* Not every file system reads past its cache. */
    if (fd < 0 && errno == EINVAL) return;
    if (fd < 0) WRONG("mkostemp: %s", strerror(errno));
    if (pwritev(fd, pieces, PIECES, 0) != PIECES * PAGE) WRONG("pwritev: %s", strerror(errno));
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, push, NULL);
    for (int turn = 0; turn < 60; turn++) {
        for (int i = 0; i < PIECES; i++) memset(pieces[i].iov_base, 0, PAGE);
        if (preadv(fd, pieces, PIECES, 0) != PIECES * PAGE) WRONG("preadv: %s", strerror(errno));
        for (int i = 0; i < PIECES; i++) for (int at = 0; at < PAGE; at += 64)
            if (memory[2 * i * PAGE + at] != (char)(i + 1)) WRONG("turn %d: byte %d of piece %d is %d", turn, at, i, memory[2 * i * PAGE + at]);
    }
}

static time_t end(const char *seconds) { return time(NULL) + atoi(seconds); }

/* Memory with holes, which the kernel closes by moving the pages of all programs together. */
static void holes(const char *seconds) {
    enum { PAGES = 20000 };
    int compact = open("/proc/sys/vm/compact_memory", O_WRONLY);
    if (compact < 0) WRONG("compact_memory: %s", strerror(errno));
    for (time_t until = end(seconds); time(NULL) < until;) {
        char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
        for (int i = 0; i < PAGES; i++) memory[i * PAGE] = 1;
        for (int i = 0; i < PAGES; i++) if (i % 4) madvise(memory + i * PAGE, PAGE, MADV_DONTNEED);
        if (write(compact, "1", 1) != 1) WRONG("compacting: %s", strerror(errno));
        munmap(memory, PAGES * PAGE);
    }
}

/* Reads and writes from one end to the other, again and again: pages are evicted and fetched at the highest rate. */
static void streams(const char *seconds) {
    enum { WORDS = PAGE / sizeof(long), PAGES = (64 << 20) / PAGE };
    long *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), turn = 0;
    for (time_t until = end(seconds); time(NULL) < until; turn++)
        for (int i = 0; i < PAGES; i++) {
            long *word = memory + i * WORDS + i % WORDS;
            if (*word != (turn ? turn + i : 0)) WRONG("turn %ld: page %d has %ld", turn, i, *word);
            *word = turn + 1 + i;
        }
}

/* A call as other programs make it, which know that it changes none of its arguments. */
static long plain(long number, int fd, volatile void *place, size_t bytes, off_t offset) {
    register long fourth __asm__("r10") = offset;
    long first = fd, third = (long)bytes, answer = number;
    volatile void *second = place;
    __asm__ volatile("syscall" : "+a"(answer), "+D"(first), "+S"(second), "+d"(third), "+r"(fourth) : : "rcx", "r11", "memory");
    if (first != fd || second != place || third != (long)bytes || fourth != offset) WRONG("call %ld changed an argument", number);
    return answer;
}
enum { LONG = 64 << 20, SHORT = 100000 };
static void reads(const char *what, long answer, long expected, const volatile char *memory, long from) {
    if (answer != expected) WRONG("%s: %ld bytes instead of %ld", what, answer, expected);
    for (long i = 0; i < answer; i++) if (memory[i] != (char)((from + i) % 251)) WRONG("%s: byte %ld is %d", what, i, memory[i]);
}
/* Files and pipes that return less than requested: the rest of the buffer must not be mapped in for it. */
static void buffers(void) {
    char *memory = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), written[SHORT];
    int file = memfd_create("short", 0), pipes[2];
    for (int i = 0; i < SHORT; i++) written[i] = (char)(i % 251);
    if (write(file, written, SHORT) != SHORT || pipe(pipes)) WRONG("cannot begin");
    reads("pread", plain(SYS_pread64, file, memory + 100, LONG - 100, 0), SHORT, memory + 100, 0);
    reads("pread from the middle", plain(SYS_pread64, file, memory, LONG, 251 * 100), SHORT - 251 * 100, memory, 0);
    reads("pread of a part", plain(SYS_pread64, file, memory, 80000, 7), 80000, memory, 7);
    reads("pread behind the end", plain(SYS_pread64, file, memory, LONG, SHORT), 0, memory, 0);
    reads("pread far behind the end", plain(SYS_pread64, file, memory, LONG, 1L << 40), 0, memory, 0);
    if (plain(SYS_read, pipes[1], memory, LONG, 0) != -EBADF) WRONG("read of the other end");
    lseek(file, 0, SEEK_SET);
    reads("read", plain(SYS_read, file, memory, LONG, 0), SHORT, memory, 0);
    reads("read at the end", plain(SYS_read, file, memory, LONG, 0), 0, memory, 0);
    if (pwrite(file, written + 100, 5000, SHORT) != 5000) WRONG("cannot go on");
    reads("read of what came since", plain(SYS_read, file, memory, LONG, 0), 5000, memory, 100);
    if (write(pipes[1], written, 10000) != 10000) WRONG("cannot write to a pipe");
    reads("read of a pipe", plain(SYS_read, pipes[0], memory, LONG, 0), 10000, memory, 0);
    if (plain(SYS_read, file, (void *)64, LONG, 0) != 0) WRONG("read of nothing to nowhere");
    if (plain(SYS_pread64, file, (void *)64, LONG, 0) != -EFAULT) WRONG("read to nowhere");
}
/* Calls that are made in parts, and sources not known to be short. */
static void parts(void) {
    char *memory = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), text[10000];
    int ends[2], maps = open("/proc/self/maps", O_RDONLY), file = memfd_create("long", 0);
    for (int i = 0; i < 10000; i++) text[i] = (char)(i % 251);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || write(ends[1], text, sizeof text) != sizeof text) WRONG("cannot begin");
    reads("read of a socket", plain(SYS_read, ends[0], memory, LONG, 0), sizeof text, memory, 0);
    if (plain(SYS_pread64, file, memory, LONG, -5) != -EINVAL) WRONG("pread from before the beginning");
    if (plain(SYS_read, 999, memory, LONG, 0) != -EBADF) WRONG("no such file");
    long bytes = 0, more;
    while ((more = plain(SYS_read, maps, memory + bytes, LONG - bytes, 0)) > 0) bytes += more;
    if (more || bytes < 1000 || !memmem(memory, bytes, "/hard", 5) || !memmem(memory, bytes, "[stack]", 7)) WRONG("maps are %ld bytes", bytes);
    for (long i = 0; i < LONG; i++) memory[i] = (char)(i % 251);
    if (plain(SYS_pwrite64, file, memory, LONG, 0) != LONG) WRONG("a long write");
    memset(memory, 0, LONG);
    reads("a long read", plain(SYS_pread64, file, memory, LONG, 0), LONG, memory, 0);
    reads("a long read of a little less", plain(SYS_pread64, file, memory, LONG, 251), LONG - 251, memory, 0);
}

/* Pages of zeros that were evicted and fetched, overwritten and emptied again: their earlier contents must not come
 * back. */
static void zeros(void) {
    enum { ALL = 32 << 20 };
    volatile char *memory = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < ALL; i += PAGE) memory[i] = 0;
    for (int round = 1; round < 4; round++) {
        /* Every 64th page has a byte, at its end, in every other round. */
        for (size_t i = PAGE - 1; i < ALL; i += 64 * PAGE) memory[i] = (char)(round % 2 * round);
        for (size_t i = 0; i < ALL; i++) {
            char expected = (char)(i % (64 * PAGE) == PAGE - 1 ? round % 2 * round : 0);
            if (memory[i] != expected) WRONG("round %d: byte %zu is %d", round, i, memory[i]);
        }
    }
    /* And moved to another address. */
    void *there = mmap(NULL, 2 * ALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memory = mremap((void *)memory, ALL, 2 * ALL, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    if (memory != there) WRONG("mremap: %s", strerror(errno));
    for (size_t i = 0; i < 2 * ALL; i++) {
        char expected = (char)(i < ALL && i % (64 * PAGE) == PAGE - 1 ? 3 : 0);
        if (memory[i] != expected) WRONG("moved: byte %zu is %d", i, memory[i]);
    }
}

/* Fills local memory, and beside it pages of zeros, and pages with zeros nearly everywhere. */
static void spare(void) {
    enum { ALL = 24 << 20 };
    volatile char *memory = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < ALL / PAGE; page++) {
        if (page % 2) memory[page * PAGE] = 0;
        else memory[page * PAGE + page % PAGE] = (char)(1 + page % 100);
    }
    for (int round = 0; round < 5; round++)
        for (size_t page = 0; page < ALL / PAGE; page += 2)
            if (memory[page * PAGE + page % PAGE] != (char)(1 + page % 100)) WRONG("round %d: page %zu", round, page);
    for (size_t i = 0; i < ALL; i++) {
        size_t page = i / PAGE;
        char expected = (char)(page % 2 == 0 && i % PAGE == page % PAGE ? 1 + page % 100 : 0);
        if (memory[i] != expected) WRONG("byte %zu is %d", i, memory[i]);
    }
}

/* Memory that becomes writable and executable, as of a compiler at run time: two threads write to it in turns. */
static char *code;
static void *write_code(void *first) {
    for (int round = 1; round <= 4; round++)
        for (size_t i = (size_t)first * PAGE; i < 2 * BIG; i += 2 * PAGE) {
            if (code[i] != (char)(i / PAGE + round)) return (void *)1;
            for (int k = 0; k < PAGE; k += 512) code[i + k]++;
        }
    return NULL;
}
static void executable(void) {
    void *failed[2];
    pthread_t threads[2];
    code = mmap(NULL, 2 * BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < 2 * BIG; i += 512) code[i] = (char)(i / PAGE + 1);
    char *fixed = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < BIG; i += PAGE) fixed[i] = (char)(i / PAGE);
    mprotect(fixed, BIG, PROT_READ);
    if (mprotect(code, 2 * BIG, PROT_READ | PROT_WRITE | PROT_EXEC)) WRONG("mprotect: %d", errno);
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, write_code, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], &failed[i]);
    if (failed[0] || failed[1]) WRONG("a page is not as it was written");
    for (size_t i = 0; i < 2 * BIG; i += 512) if (code[i] != (char)(i / PAGE + 5)) WRONG("byte %zu is %d", i, code[i]);
    for (size_t i = 0; i < BIG; i += PAGE) if (fixed[i] != (char)(i / PAGE)) WRONG("fixed byte %zu is %d", i, fixed[i]);
}

/* A thread that may not read the time stamp counter: it gets SIGSEGV, and its memory comes all the same. */
static sigjmp_buf back;
static void on_counter(int signal) { siglongjmp(back, signal); }
static int reads_counter(void) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) __builtin_ia32_rdtsc();
    return signal;
}
static void *counts(void *expected) {
    for (int round = 0; round < 3; round++) {
        all();
        if (reads_counter() != *(int *)expected) return (void *)1;
    }
    return NULL;
}
static void counter(void) {
    int none = 0, segv = SIGSEGV, mode = 0;
    void *failed;
    pthread_t thread;
    signal(SIGSEGV, on_counter);
    if (counts(&none) || prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) || counts(&segv)) WRONG("the thread itself");
    if (prctl(PR_GET_TSC, &mode) || mode != PR_TSC_SIGSEGV) WRONG("mode %d", mode);
    pthread_create(&thread, NULL, counts, &segv);
    pthread_join(thread, &failed);
    if (failed) WRONG("a new thread");
    if (prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0) || counts(&none)) WRONG("allowed again");
}

int main(int count, char **list) {
    big = malloc(BIG);
    memset((char *)big, 7, BIG);
    const char *part = count > 1 ? list[1] : "";
    if (!strcmp(part, "hole")) hole();
    else if (!strcmp(part, "interrupted")) interrupted();
    else if (!strcmp(part, "message")) message();
    else if (!strcmp(part, "stack")) stack();
    else if (!strcmp(part, "lengths")) lengths();
    else if (!strcmp(part, "neighbours")) neighbours();
    else if (!strcmp(part, "gone")) gone();
    else if (!strcmp(part, "freed")) freed();
    else if (!strcmp(part, "grows")) grows();
    else if (!strcmp(part, "beside")) beside();
    else if (!strcmp(part, "arguments")) arguments();
    else if (!strcmp(part, "direct")) direct();
    else if (!strcmp(part, "holes")) holes(list[2]);
    else if (!strcmp(part, "buffers")) buffers();
    else if (!strcmp(part, "parts")) parts();
    else if (!strcmp(part, "zeros")) zeros();
    else if (!strcmp(part, "spare")) spare();
    else if (!strcmp(part, "streams")) streams(list[2]);
    else if (!strcmp(part, "executable")) executable();
    else if (!strcmp(part, "counter")) counter();
    else WRONG("no part is called \"%s\"", part);
    printf("right\n");
    return 0;
}
