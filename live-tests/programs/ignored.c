// Signals that the program ignores: `ignored PART`. Each part prints `right`, also without masu.

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { printf("wrong: %s, line %d, errno %d\n", #x, __LINE__, errno); exit(1); } } while (0)

enum { BYTES = 12345678, PAGE = 4096 };
static char *data;
static volatile int goes_on, handled;

static void count(int number) { (void)number, handled++; }

static void handle(int number, int flags)
{
    struct sigaction counted = { .sa_handler = count, .sa_flags = SA_RESTART | flags };
    CHECK(!sigaction(number, &counted, NULL));
}

/* A pipe with a thread that writes `length` bytes at a time, and one that reads them slowly. */
static struct pipe { int ends[2]; size_t length; long writes, in_part; pthread_t writer, reader; } now;

static void *writes(void *given)
{
    (void)given;
    for (; goes_on; now.writes++)
        now.in_part += write(now.ends[1], data, now.length) != (ssize_t)now.length;
    close(now.ends[1]);
    return NULL;
}

static void *reads(void *given)
{
    static _Thread_local char chunk[30000];
    (void)given;
    while (read(now.ends[0], chunk, sizeof chunk) > 0)
        usleep(200);
    close(now.ends[0]);
    return NULL;
}

static void begin(size_t length)
{
    now = (struct pipe){ .length = length };
    goes_on = 1;
    CHECK(!pipe(now.ends) && !pthread_create(&now.reader, NULL, reads, NULL));
    CHECK(!pthread_create(&now.writer, NULL, writes, NULL));
}

static void end(void)
{
    goes_on = 0;
    CHECK(!pthread_join(now.writer, NULL) && !pthread_join(now.reader, NULL) && now.writes > 0);
    if (now.in_part) {
        printf("wrong: %ld of %ld writes of %zu bytes in part\n", now.in_part, now.writes, now.length);
        exit(1);
    }
}

static void have_child(int how)
{
    pid_t child = how ? vfork() : syscall(SYS_fork);
    if (!child)
        _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
}

/* Writes are whole beside children that end, however SIGCHLD came to be ignored. */
static void children(void)
{
    for (int how = 0; how < 8; how++) {
        if (how & 4) {
            /* Handled once, and ignored from then on. */
            handle(SIGCHLD, SA_RESETHAND);
            have_child(1);
        } else {
            handle(SIGCHLD, 0);
            signal(SIGCHLD, SIG_DFL);
        }
        begin(how & 2 ? BYTES : 100000);
        for (int child = 0; child < 150; child++)
            have_child(how & 1);
        end();
    }
    /* Its handler is called for each child, and for none while it is ignored. */
    for (int child = 0; child < 400; child++) {
        handle(SIGCHLD, 0);
        int before = handled;
        have_child(child % 2);
        CHECK(handled == before + 1);
        signal(SIGCHLD, child % 3 ? SIG_DFL : SIG_IGN);
        signal(SIGCHLD, SIG_DFL);
        have_child(child % 2);
        CHECK(handled == before + 1);
    }
}

/* Another process sends an ignored signal while this thread handles others. */
static void handlers(void)
{
    for (volatile int how = 0; how < 2; how++) {
        if (how)
            handle(SIGPIPE, 0);
        /* One handler is there before, and one comes after. */
        handle(SIGUSR1, 0);
        signal(SIGPIPE, SIG_IGN);
        handle(SIGUSR2, 0);
        pid_t own = getpid(), sender = fork();
        if (!sender) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;; usleep(20))
                kill(own, SIGPIPE);
        }
        if (how) {
            /* It changes its own action, not this process's. */
            pid_t child = vfork();
            if (!child) {
                signal(SIGPIPE, SIG_DFL);
                _exit(0);
            }
            CHECK(waitpid(child, NULL, 0) == child);
        }
        begin(100000);
        for (int number = 0; number < 50000; number++)
            raise(how ? SIGUSR1 : SIGUSR2);
        end();
        CHECK(!kill(sender, SIGKILL) && waitpid(sender, NULL, 0) == sender);
    }
    CHECK(handled == 100000);
}

/* Blocked signals stay pending when the handler of another one returns. */
static void pending(void)
{
    sigset_t set, now_pending;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGUSR2);
    CHECK(!sigprocmask(SIG_BLOCK, &set, NULL));
    signal(SIGUSR2, SIG_IGN);
    handle(SIGUSR1, 0);
    int descriptor = signalfd(-1, &set, 0);
    pid_t child = fork();
    if (!child)
        _exit(0);
    siginfo_t info;
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT) && !raise(SIGUSR2));
    for (int time = 0; time < 100; time++) {
        CHECK(!raise(SIGUSR1) && !sigpending(&now_pending));
        CHECK(sigismember(&now_pending, SIGCHLD) && sigismember(&now_pending, SIGUSR2));
    }
    struct pollfd ready = { .fd = descriptor, .events = POLLIN };
    CHECK(poll(&ready, 1, 10000) == 1 && handled == 100);
}

static void *uses(void *given)
{
    (void)given;
    while (goes_on)
        for (size_t at = 0; at < BYTES; at += PAGE)
            data[at]++;
    return NULL;
}

/* A signal is handled as of now that a thread ignored when its last fault or call began: it is not lost. */
static void changed(void)
{
    goes_on = 1;
    pthread_t threads[2];
    for (int number = 0; number < 2; number++)
        CHECK(!pthread_create(threads + number, NULL, uses, NULL));
    for (int change = 0; change < 3000; change++) {
        int number = change & 1 ? SIGURG : SIGUSR1;
        signal(number, change & 1 ? SIG_DFL : SIG_IGN);
        /* It may wait for the end of a fault that began before, and come after all. */
        for (int thread = 0; thread < 2 && !(change & 2); thread++)
            CHECK(!pthread_kill(threads[thread], number));
        handle(number, change & 2 ? SA_RESETHAND : 0);
        int before = handled;
        CHECK(!pthread_kill(threads[change >> 2 & 1], number));
        for (int waits = 0; handled == before; waits++, usleep(100))
            CHECK(waits < 100000);
    }
    goes_on = 0;
    for (int number = 0; number < 2; number++)
        CHECK(!pthread_join(threads[number], NULL));
}

int main(int words, char **list)
{
    static const struct { const char *name; void (*part)(void); } parts[] = {
        { "children", children }, { "handlers", handlers }, { "pending", pending }, { "changed", changed },
    };
    data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(words == 2 && data != MAP_FAILED);
    memset(data, 1, BYTES);
    for (size_t number = 0; number < sizeof parts / sizeof *parts; number++)
        if (!strcmp(list[1], parts[number].name)) {
            parts[number].part();
            puts("right");
            return 0;
        }
    return 2;
}
