// Fills memory, waits for a line, checks that all is as it left it, and changes it meanwhile.
//
// `memory_checker MIB SECONDS`: each wait is for a line, or for the end of the input. `rest` is printed before memory is
// touched.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
enum { THREADS = 2, WORDS = 512 };
static unsigned long (*memory)[WORDS];
static unsigned long each;
static double seconds;
static void stop(const char *said) { char line[64]; printf("%s %d\n", said, getpid()); fflush(stdout); if (!fgets(line, sizeof line, stdin)) return; }
static void check(unsigned long page) {
    unsigned long version = memory[page][0];
    for (unsigned long word = 1; word < WORDS; word++)
        if (memory[page][word] != (page * 31 + version * 7 + word)) { printf("wrong page %lu\n", page); fflush(stdout); _exit(3); }
}
static void put(unsigned long page, unsigned long version) {
    memory[page][0] = version;
    for (unsigned long word = 1; word < WORDS; word++) memory[page][word] = page * 31 + version * 7 + word;
}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *work(void *first) {
    unsigned long start = (unsigned long)first * each, random = start + 1;
    double end = now() + seconds;
    while (now() < end) {
        random = random * 6364136223846793005 + 1442695040888963407;
        unsigned long page = start + (random >> 33) % each;
        check(page);
        if (random >> 40 & 1) put(page, random >> 20);
    }
    return NULL;
}
int main(int count, char **list) {
    /* A thread's stack is not paged, and before Linux 6.7 may get a huge page, which would seem to exceed the budget.
     */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    unsigned long pages = strtoul(list[1], NULL, 10) * 256;
    seconds = atof(list[2]);
    each = pages / THREADS;
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stop("rest");
    for (unsigned long page = 0; page < pages; page++) put(page, page + 1);
    stop("full");
    pthread_t thread[THREADS];
    for (unsigned long i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (unsigned long page = 0; page < pages; page++) check(page);
    printf("right\n");
    return 0;
}
