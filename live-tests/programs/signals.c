// Signals on stacks of the program's own: `signals PART`. Each part prints `right`, also without masu.

#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { printf("wrong: %s, line %d, errno %d\n", #x, __LINE__, errno); exit(1); } } while (0)

enum { STACK = 256 << 10, PRESSURE = 6 << 20, FIBERS = 100, PAGE = 4096 };
static char *much, *other_stack;
static volatile long hits;
static volatile int order[4], ordered;
static sigjmp_buf back;

/* Touches more than is local at `--local 4MiB`: pages of stacks leave. */
static void press(void) { for (size_t at = 0; at < PRESSURE; at += PAGE) much[at]++; }

static void handle(int number, void (*with)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO | flags }, told;
    action.sa_sigaction = with;
    CHECK(!sigaction(number, &action, NULL) && !sigaction(number, NULL, &told) && told.sa_sigaction == with);
}

static void set_other_stack(void)
{
    stack_t stack = { .ss_sp = other_stack, .ss_size = STACK };
    CHECK(!sigaltstack(&stack, NULL));
}

static void count(int number, siginfo_t *info, void *context) { (void)number, (void)info, (void)context; hits++; }

static void press_and_count(int number, siginfo_t *info, void *context)
{
    sigset_t mask;
    (void)context;
    CHECK(!sigprocmask(0, NULL, &mask) && sigismember(&mask, number) && info->si_signo == number);
    press();
    hits++;
}

static void on_other_stack(int number, siginfo_t *info, void *context)
{
    char here;
    stack_t stack, none = { .ss_flags = SS_DISABLE };
    CHECK(&here > other_stack && &here < other_stack + STACK);
    CHECK(!sigaltstack(NULL, &stack) && stack.ss_flags & SS_ONSTACK && stack.ss_sp == other_stack);
    CHECK(sigaltstack(&none, NULL) == -1 && errno == EPERM);
    CHECK(((ucontext_t *)context)->uc_stack.ss_sp == other_stack);
    press_and_count(number, info, context);
}

static void jump(int number, siginfo_t *info, void *context) { press_and_count(number, info, context); siglongjmp(back, 1); }
static void nest(int number, siginfo_t *info, void *context) { raise(SIGUSR2); press_and_count(number, info, context); }
static void note(int number, siginfo_t *info, void *context) { (void)info, (void)context; order[ordered++ & 3] = number; }

static void repair(int number, siginfo_t *info, void *context)
{
    char *page = (char *)((unsigned long)info->si_addr & ~(PAGE - 1UL));
    press_and_count(number, info, context);
    CHECK(!mprotect(page, PAGE, PROT_READ | PROT_WRITE));
}

/* Stacks of fibers, from malloc. */
static ucontext_t outside, fibers[FIBERS];
static int running;

static int deep(int depth)
{
    volatile char frame[1000];
    frame[depth] = (char)depth;
    for (volatile int turn = 0; turn < 2000; turn++) {}
    return depth ? deep(depth - 1) + frame[depth] : 0;
}

static void fiber(void) { for (;;) { deep(150); swapcontext(&fibers[running], &outside); } }

static void ticks(long us)
{
    struct itimerval every = { { 0, us }, { 0, us } };
    CHECK(!setitimer(ITIMER_REAL, &every, NULL));
}

static void fiber_part(void)
{
    for (int number = 0; number < FIBERS; number++) {
        getcontext(&fibers[number]);
        fibers[number].uc_stack.ss_sp = malloc(STACK);
        fibers[number].uc_stack.ss_size = STACK;
        makecontext(&fibers[number], fiber, 0);
    }
    handle(SIGALRM, count, SA_RESTART);
    ticks(500);
    for (int round = 0; round < 3; round++)
        for (running = 0; running < FIBERS; running++) swapcontext(&outside, &fibers[running]);
    ticks(0);
    CHECK(hits > 0);
}

static void *on_heap(void *nothing)
{
    for (int turn = 0; turn < 20; turn++) { press(); raise(SIGUSR1); }
    return nothing;
}

static void stack_part(void)
{
    set_other_stack();
    handle(SIGUSR1, on_other_stack, SA_ONSTACK);
    for (int turn = 0; turn < 20; turn++) { press(); raise(SIGUSR1); }
    handle(SIGUSR1, jump, SA_ONSTACK);
    for (volatile int turn = 0; turn < 20; turn++) if (!sigsetjmp(back, 1)) { raise(SIGUSR1); CHECK(0); }
    handle(SIGUSR1, nest, 0), handle(SIGUSR2, press_and_count, 0);
    for (int turn = 0; turn < 20; turn++) raise(SIGUSR1);
    CHECK(hits == 80);
    handle(SIGSEGV, repair, SA_ONSTACK);
    char *closed = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page < 64; page++) closed[page * PAGE] = (char)page;
    CHECK(hits == 144 && closed[63 * PAGE] == 63);
    handle(SIGUSR1, press_and_count, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    void *stack;
    CHECK(!posix_memalign(&stack, PAGE, STACK) && !pthread_attr_init(&attributes));
    CHECK(!pthread_attr_setstack(&attributes, stack, STACK) && !pthread_create(&thread, &attributes, on_heap, NULL));
    CHECK(!pthread_join(thread, NULL) && hits == 164);
}

static void setting_part(void)
{
    struct sigaction told;
    handle(SIGUSR2, press_and_count, SA_RESETHAND);
    raise(SIGUSR2);
    CHECK(!sigaction(SIGUSR2, NULL, &told) && told.sa_handler == SIG_DFL && hits == 1);
    /* Both handlers run before sigsuspend returns: its mask is in effect until then. */
    sigset_t both, none, now;
    handle(SIGUSR1, note, 0), handle(SIGUSR2, note, 0);
    sigemptyset(&none), sigemptyset(&both), sigaddset(&both, SIGUSR1), sigaddset(&both, SIGUSR2);
    CHECK(!sigprocmask(SIG_BLOCK, &both, NULL) && !raise(SIGUSR1) && !raise(SIGUSR2));
    CHECK(sigsuspend(&none) == -1 && errno == EINTR && ordered == 2);
    CHECK(!sigprocmask(SIG_UNBLOCK, &both, &now) && sigismember(&now, SIGUSR1) && sigismember(&now, SIGUSR2));
    /* Registers of floating point outlive a handler, and a call that it interrupts goes on. */
    handle(SIGALRM, count, SA_RESTART);
    ticks(300);
    double sum = 0;
    for (int number = 1; number <= 3000000; number++) sum += number * 0.5;
    CHECK(sum == 0.5 * 3000000.0 * 3000001.0 / 2);
    int ends[2], status;
    char byte;
    CHECK(!pipe(ends));
    pid_t child = fork();
    if (!child) { usleep(50000); _exit(write(ends[1], "x", 1) != 1); }
    CHECK(child > 0 && read(ends[0], &byte, 1) == 1 && waitpid(child, &status, 0) == child && !status);
    ticks(0);
    CHECK(hits > 1);
    /* A forked child has the same settings. */
    set_other_stack();
    handle(SIGUSR1, on_other_stack, SA_ONSTACK);
    child = fork();
    if (!child) {
        stack_t stack;
        hits = 0;
        CHECK(!sigaltstack(NULL, &stack) && stack.ss_sp == other_stack && stack.ss_flags == 0);
        CHECK(!raise(SIGUSR1) && hits == 1 && !sigaction(SIGUSR1, NULL, &told) && told.sa_sigaction == on_other_stack);
        _exit(9);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

/* A debugger: the child asks to be traced, looks for its program along a path, and becomes it. */
static void debugger_part(void)
{
    int status, stops = 0;
    pid_t child = vfork();
    if (!child) {
        setpgid(0, 0);
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(1);
        execl("/nowhere/true", "true", (char *)NULL);
        execl("/", "true", (char *)NULL);
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0);
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        int number = WSTOPSIG(status);
        CHECK(stops++ == 0 && number == SIGTRAP);
        CHECK(!ptrace(PTRACE_CONT, child, 0, (long)(number == SIGTRAP ? 0 : number)));
    }
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status) && stops >= 1);
}

/* The parent of a vfork waits with its own mask: a signal ends it. */
static void parent_part(void)
{
    pid_t runs = getpid();
    if (!vfork()) { kill(runs, SIGTERM); sleep(60); _exit(0); }
}

/* A thousand handled signals, for a count of system calls. */
static void thousand_part(void)
{
    pid_t process = getpid();
    handle(SIGUSR1, count, 0);
    for (int number = 0; number < 1000; number++)
        syscall(SYS_tgkill, process, process, SIGUSR1);
    CHECK(hits == 1000);
}

static void *frames[50];
static int found;
static pid_t forked;

static void look_back(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    found = backtrace(frames, 50);
    forked = fork();
}

__attribute__((noinline)) static void interrupted(void)
{
    raise(SIGUSR1);
    __asm__ volatile("");
}

/* A backtrace passes the handler's frame; a child that was forked in a handler returns from it. */
static void return_part(void)
{
    int status, through = 0;
    handle(SIGUSR1, look_back, 0);
    interrupted();
    for (int number = 0; number < found; number++)
        through += (char *)frames[number] > (char *)interrupted && (char *)frames[number] < (char *)interrupted + 64;
    CHECK(through >= 1);
    if (!forked)
        _exit(7);
    CHECK(waitpid(forked, &status, 0) == forked && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

/* Prints its number and the address of its memory, of which each page begins with its number, and waits. */
static void shown_part(void)
{
    char end;
    for (size_t at = 0; at < PRESSURE; at += PAGE) *(long *)(much + at) = (long)(at / PAGE) + 1;
    printf("%d %lu\n", getpid(), (unsigned long)much);
    fflush(stdout);
    CHECK(read(0, &end, 1) == 0);
    for (size_t at = 0; at < PRESSURE; at += PAGE) CHECK(*(long *)(much + at) == (long)(at / PAGE) + 1);
}

int main(int words, char **list)
{
    const char *part = words > 1 ? list[1] : "";
    struct { const char *name; void (*run)(void); } parts[] = { { "fiber", fiber_part }, { "stack", stack_part },
        { "setting", setting_part }, { "debugger", debugger_part }, { "parent", parent_part }, { "thousand", thousand_part },
        { "return", return_part }, { "shown", shown_part } };
    much = mmap(NULL, PRESSURE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    other_stack = malloc(STACK);
    for (size_t number = 0; number < sizeof parts / sizeof *parts; number++)
        if (!strcmp(part, parts[number].name)) { parts[number].run(); puts("right"); return 0; }
    return 2;
}
