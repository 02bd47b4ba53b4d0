// Transfers larger than the pins of one call: `transfers PART`. Each part prints `right`, also without masu.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { printf("wrong: %s, line %d, errno %d\n", #x, __LINE__, errno); exit(1); } } while (0)

enum { BYTES = 12345678, PAGE = 4096 };
static unsigned char *data;
static volatile long hits;

static unsigned char byte_at(size_t at) { return (unsigned char)(at * 2654435761u >> 13); }

static void fill(void) { for (size_t at = 0; at < BYTES; at++) data[at] = byte_at(at); }

static void is_filled(size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        if (data[at] != byte_at(at)) { printf("wrong: byte %zu\n", at); exit(1); }
}

/* The other end of a pipe or socket, unpaged: reads `limit` bytes at most, slowly, and returns how many came right. */
struct reader { int fd; size_t limit; int pause_us; size_t came; int wrong; };

static void *reads(void *given)
{
    static _Thread_local unsigned char chunk[30000];
    struct reader *reader = given;
    while (reader->came < reader->limit) {
        size_t left = reader->limit - reader->came;
        ssize_t got = read(reader->fd, chunk, left < sizeof chunk ? left : sizeof chunk);
        if (got <= 0)
            break;
        for (ssize_t at = 0; at < got; at++)
            reader->wrong |= chunk[at] != byte_at((reader->came + at) % BYTES);
        reader->came += got;
        if (reader->pause_us)
            usleep(reader->pause_us);
    }
    close(reader->fd);
    return NULL;
}

static pthread_t start(void *(*what)(void *), void *given)
{
    /* Signals are for the first thread. */
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    CHECK(!pthread_sigmask(SIG_BLOCK, &all, &before) && !pthread_create(&thread, NULL, what, given));
    CHECK(!pthread_sigmask(SIG_SETMASK, &before, NULL));
    return thread;
}

static void pair(int ends[2], int kind)
{
    if (kind == 0) { CHECK(!pipe(ends)); return; }
    int sockets[2];
    if (kind == 1) {
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    } else {
        struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t length = sizeof at;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(!bind(listener, (void *)&at, length) && !listen(listener, 1));
        CHECK(!getsockname(listener, (void *)&at, &length));
        sockets[1] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(!connect(sockets[1], (void *)&at, length));
        sockets[0] = accept(listener, NULL, NULL);
        CHECK(sockets[0] >= 0 && !close(listener));
    }
    ends[0] = sockets[0], ends[1] = sockets[1];
}

/* write, writev or send of all bytes; writev in 40 pieces of odd lengths. */
static ssize_t put(int fd, int how)
{
    struct iovec pieces[40];
    size_t at = 0;
    switch (how) {
    case 0: return write(fd, data, BYTES);
    case 1: return send(fd, data, BYTES, MSG_NOSIGNAL);
    }
    for (int number = 0; number < 40; number++) {
        size_t bytes = number == 39 ? BYTES - at : number % 7 == 3 ? 0 : (size_t)BYTES / 50 + number;
        pieces[number] = (struct iovec){ data + at, bytes };
        at += bytes;
    }
    return writev(fd, pieces, 40);
}

static void whole(void)
{
    for (int kind = 0; kind < 3; kind++)
        for (int how = 0; how < 3; how++) {
            if (kind == 0 && how == 1)
                continue;
            int ends[2];
            pair(ends, kind);
            fill();
            struct reader reader = { .fd = ends[0], .limit = SIZE_MAX };
            pthread_t thread = start(reads, &reader);
            ssize_t put_now = put(ends[1], how);
            if (put_now != BYTES) { printf("wrong: kind %d, way %d: %zd\n", kind, how, put_now); exit(1); }
            CHECK(!close(ends[1]) && !pthread_join(thread, NULL));
            CHECK(reader.came == BYTES && !reader.wrong);
            is_filled(BYTES);
        }
}

static void *sends(void *given)
{
    static _Thread_local unsigned char chunk[20000];
    struct reader *writer = given;
    while (writer->came < writer->limit) {
        size_t bytes = writer->limit - writer->came < sizeof chunk ? writer->limit - writer->came : sizeof chunk;
        for (size_t at = 0; at < bytes; at++)
            chunk[at] = byte_at(writer->came + at);
        ssize_t put_now = send(writer->fd, chunk, bytes, MSG_NOSIGNAL);
        if (put_now <= 0)
            break;
        writer->came += put_now;
    }
    close(writer->fd);
    return NULL;
}

static void receive(void)
{
    for (int kind = 1; kind < 3; kind++)
        for (int ends_early = 0; ends_early < 2; ends_early++) {
            int ends[2];
            size_t bytes = ends_early ? BYTES - 1000000 : BYTES;
            pair(ends, kind);
            memset(data, 0, BYTES);
            struct reader writer = { .fd = ends[1], .limit = bytes };
            pthread_t thread = start(sends, &writer);
            CHECK(recv(ends[0], data, BYTES, MSG_WAITALL) == (ssize_t)bytes);
            is_filled(bytes);
            CHECK(!pthread_join(thread, NULL) && !close(ends[0]));
        }
}

/* No page stays zeros. */
static void random_bytes(void)
{
    memset(data, 0, BYTES);
    CHECK(getrandom(data, BYTES, 0) == BYTES);
    for (size_t page = 0; page < BYTES / PAGE; page++) {
        int set = 0;
        for (int at = 0; at < PAGE; at++)
            set |= data[page * PAGE + at];
        CHECK(set);
    }
}

static void count(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    hits++;
}

static void handle(int number, int flags)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO | flags };
    action.sa_sigaction = count;
    CHECK(!sigaction(number, &action, NULL));
}

static void timer(int us)
{
    struct itimerval every = { { 0, us }, { 0, us } };
    CHECK(!setitimer(ITIMER_REAL, &every, NULL));
}

/* Signals in the middle: counts agree with the other end, registers stay, and a loop sends all. */
static void interrupted(void)
{
    long short_counts = 0;
    for (int round = 0; round < 4; round++)
        for (int kind = 0; kind < 3; kind++) {
            int ends[2];
            handle(SIGALRM, round & 1 ? SA_RESTART : 0);
            pair(ends, kind);
            fill();
            struct reader reader = { .fd = ends[0], .limit = SIZE_MAX, .pause_us = round < 2 ? 200 : 0 };
            pthread_t thread = start(reads, &reader);
            size_t done = 0;
            hits = 0;
            timer(round < 2 ? 20000 : 1000);
            while (done < BYTES) {
                register long kept asm("r12") = 4711;
                long answer;
                register long flags asm("r10") = 0x1010, address asm("r8") = 0x8080, length asm("r9") = 0x9090;
                long fd = ends[1];
                unsigned char *from = data + done;
                size_t bytes = BYTES - done;
                asm volatile("syscall" : "=a"(answer), "+D"(fd), "+S"(from), "+d"(bytes), "+r"(flags), "+r"(address),
                             "+r"(length), "+r"(kept) : "0"(1L) : "rcx", "r11", "memory");
                CHECK(kept == 4711 && flags == 0x1010 && address == 0x8080 && length == 0x9090);
                CHECK(fd == ends[1] && from == data + done && bytes == BYTES - done);
                if (answer < 0) {
                    CHECK(answer == -EINTR && !(round & 1));
                    continue;
                }
                CHECK(answer > 0 && (size_t)answer <= BYTES - done);
                short_counts += (size_t)answer < BYTES - done;
                done += answer;
            }
            timer(0);
            CHECK(hits > 0);
            CHECK(!close(ends[1]) && !pthread_join(thread, NULL));
            CHECK(reader.came == BYTES && !reader.wrong);
        }
    CHECK(short_counts > 0);
}

/* A stop ends a write after some bytes in the kernel, too, and begins one again that has none. */
static void stopped(void)
{
    int ends[2];
    pair(ends, 0);
    fill();
    struct reader reader = { .fd = ends[0], .limit = SIZE_MAX, .pause_us = 300 };
    pthread_t thread = start(reads, &reader);
    pid_t self = getpid();
    int go[2];
    CHECK(!pipe(go));
    /* A shell, since the fork of a paged program needs all of its memory. */
    char command[200];
    snprintf(command, sizeof command,
             "for i in 1 2 3 4; do sleep 0.05; kill -STOP %d; sleep 0.03; kill -CONT %d; done 2>/dev/null", self, self);
    FILE *shell = popen(command, "r");
    CHECK(shell);
    for (size_t done = 0; done < BYTES;) {
        ssize_t put_now = write(ends[1], data + done, BYTES - done);
        CHECK(put_now > 0);
        done += put_now;
    }
    CHECK(pclose(shell) != -1 && !close(ends[1]) && !pthread_join(thread, NULL));
    CHECK(reader.came == BYTES && !reader.wrong);
}

/* The reader goes after `limit` bytes: the count so far, and then EPIPE. A pipe raises SIGPIPE at once. */
static void broken_at(int kind, int how, int handled, size_t limit)
{
    int ends[2];
    pair(ends, kind);
    if (handled) handle(SIGPIPE, 0); else signal(SIGPIPE, SIG_IGN);
    hits = 0;
    struct reader reader = { .fd = ends[0], .limit = limit };
    pthread_t thread = start(reads, &reader);
    ssize_t put_now = put(ends[1], how);
    /* The buffers of TCP may take all the rest. */
    CHECK(put_now >= (ssize_t)limit - (kind == 2 ? 1000000 : 0) && (put_now < BYTES || kind == 2));
    CHECK(hits == (handled && kind == 0));
    CHECK(!pthread_join(thread, NULL) && !reader.wrong);
    put_now = write(ends[1], data, BYTES);
    CHECK(put_now == -1 && (errno == EPIPE || errno == ECONNRESET));
    CHECK(!close(ends[1]));
}

static void broken(void)
{
    fill();
    for (int kind = 0; kind < 3; kind++)
        for (int handled = 0; handled < 2; handled++) {
            broken_at(kind, 0, handled, 7000000);
            broken_at(kind, 2, handled, 7000000);
        }
    /* A part of 504 pages has taken nothing yet, for most of these. */
    for (int number = 0; number < 60; number++)
        broken_at(1, number % 2 ? 0 : 2, 1, 504 * PAGE * (1 + number % 4) - number / 4 * 20000);
}

/* Devices whose reads return all bytes, also without waiting. */
static void endless(void)
{
    static const char *const names[] = { "/dev/zero", "/dev/full", "/dev/urandom" };
    for (int number = 0; number < 6; number++) {
        int fd = open(names[number / 2], O_RDONLY | (number % 2 ? O_NONBLOCK : 0));
        struct iovec pieces[2] = { { data, BYTES / 3 }, { data + BYTES / 3, BYTES - BYTES / 3 } };
        CHECK(fd >= 0);
        fill();
        CHECK(read(fd, data, BYTES) == BYTES && readv(fd, pieces, 2) == BYTES && pread(fd, data, BYTES, 7) == BYTES);
        size_t zeros = 0;
        for (size_t at = 0; at < BYTES; at++)
            zeros += data[at] == 0;
        CHECK(number < 4 ? zeros == BYTES : zeros < BYTES / 128);
        CHECK(!close(fd));
    }
    int null = open("/dev/null", O_WRONLY);
    CHECK(write(null, data, BYTES) == BYTES && put(null, 2) == BYTES && !close(null));
}

/* A file ends at the limit of file sizes: a short count, and SIGXFSZ at the next write alone. */
static void limited(void)
{
    char name[] = "/var/tmp/masu-transfers-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && !unlink(name));
    handle(SIGXFSZ, 0);
    fill();
    for (int number = 0; number < 24; number++) {
        rlim_t limit = number < 8 ? (rlim_t)(number + 1) << 20 : (rlim_t)PAGE * 504 * (1 + number % 4);
        int how = number % 3 == 1 ? 0 : number % 3 * 2;
        off_t begin = number % 5 * 1000;
        struct rlimit to = { limit, RLIM_INFINITY };
        CHECK(!ftruncate(fd, 0) && lseek(fd, begin, SEEK_SET) == begin && !setrlimit(RLIMIT_FSIZE, &to));
        hits = 0;
        CHECK(put(fd, how) == (ssize_t)limit - begin && hits == 0);
        CHECK(put(fd, how) == -1 && errno == EFBIG && hits == 1);
        CHECK(pwrite(fd, data, BYTES, 4096) == (ssize_t)limit - 4096 && hits == 1);
        to.rlim_cur = RLIM_INFINITY;
        CHECK(!setrlimit(RLIMIT_FSIZE, &to));
    }
    CHECK(!close(fd));
}

/* Buffers beyond all memory: EFAULT, and nothing moves. */
static void refused(void)
{
    for (int kind = 0; kind < 3; kind++) {
        int ends[2], waiting = 1;
        struct iovec pieces[2] = { { data, BYTES }, { (void *)(1ul << 62), 10 } };
        pair(ends, kind);
        CHECK(write(ends[1], data, SIZE_MAX / 2 - 4096) == -1 && errno == EFAULT);
        CHECK(writev(ends[1], pieces, 2) == -1 && errno == EFAULT);
        CHECK(!ioctl(ends[0], FIONREAD, &waiting) && waiting == 0);
        CHECK(!close(ends[0]) && !close(ends[1]));
    }
}

static void nonblocking(void)
{
    for (int kind = 0; kind < 3; kind++) {
        int ends[2];
        pair(ends, kind);
        fill();
        CHECK(!fcntl(ends[1], F_SETFL, O_NONBLOCK));
        ssize_t put_now = write(ends[1], data, BYTES);
        CHECK(put_now > 0 && put_now < BYTES);
        CHECK(!fcntl(ends[1], F_SETFL, 0));
        if (kind > 0) {
            put_now = send(ends[1], data, BYTES, MSG_DONTWAIT);
            CHECK((put_now > 0 && put_now < BYTES) || (put_now == -1 && errno == EAGAIN));
        }
        CHECK(!close(ends[0]) && !close(ends[1]));
    }
}

/* Sends after a pause, so that the receiver waits. */
static void *sends_late(void *given)
{
    static unsigned char text[70000];
    struct reader *writer = given;
    usleep(100000);
    for (size_t at = 0; at < writer->limit; at++)
        text[at] = byte_at(at);
    CHECK(send(writer->fd, text, writer->limit, 0) == (ssize_t)writer->limit);
    return NULL;
}

static ssize_t take(int fd, int how)
{
    struct iovec pieces[2] = { { data, 100 }, { data + 100, BYTES - 100 } };
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    switch (how) {
    case 0: return recv(fd, data, BYTES, 0);
    case 1: return read(fd, data, BYTES);
    case 2: return recvfrom(fd, data, BYTES, 0, (void *)&from, &length);
    default: return readv(fd, pieces, 2);
    }
}

/* Short messages into a long buffer: there already, awaited, with signals meanwhile, and none at all. */
static void messages(void)
{
    for (int kind = 0; kind < 3; kind++)
        for (int how = 0; how < 4; how++) {
            int ends[2];
            if (kind < 2) {
                CHECK(!socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_DGRAM, 0, ends));
            } else {
                struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
                socklen_t length = sizeof at;
                ends[0] = socket(AF_INET, SOCK_DGRAM, 0), ends[1] = socket(AF_INET, SOCK_DGRAM, 0);
                CHECK(!bind(ends[0], (void *)&at, length) && !getsockname(ends[0], (void *)&at, &length));
                CHECK(!connect(ends[1], (void *)&at, length));
            }
            CHECK(recv(ends[0], data, BYTES, MSG_DONTWAIT) == -1 && errno == EAGAIN);
            CHECK(send(ends[1], "four", 4, 0) == 4 && send(ends[1], "", 0, 0) == 0 && send(ends[1], "seventh", 7, 0) == 7);
            CHECK(take(ends[0], how) == 4 && !memcmp(data, "four", 4));
            CHECK(take(ends[0], how) == 0);
            CHECK(take(ends[0], how) == 7 && !memcmp(data, "seventh", 7));
            for (int round = 0; round < 3; round++) {
                /* Round 0 without signals, 1 with SA_RESTART, 2 without it. */
                struct reader writer = { .fd = ends[1], .limit = 60000 };
                ssize_t got;
                int interrupted = 0;
                handle(SIGALRM, round == 1 ? SA_RESTART : 0);
                memset(data, 0, 60000);
                pthread_t thread = start(sends_late, &writer);
                timer(round ? 7000 : 0);
                while ((got = take(ends[0], how)) == -1 && errno == EINTR)
                    interrupted++;
                timer(0);
                CHECK(got == 60000 && (interrupted > 0) == (round == 2));
                is_filled(60000);
                CHECK(!pthread_join(thread, NULL));
            }
            if (kind == 1) {
                CHECK(!close(ends[1]) && take(ends[0], how) == 0);
            }
            /* A timeout of the socket's. */
            if (kind != 1) {
                struct timeval time = { 0, 30000 };
                CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
                CHECK(take(ends[0], how) == -1 && errno == EAGAIN && !close(ends[1]));
            }
            CHECK(!close(ends[0]));
        }
}

/* A message of 150,000 bytes comes whole, or is refused and stays: none is cut. */
static void long_message(void)
{
    /* Shared memory is not paged, and sendmsg is not judged by its length: the pins do not limit this send. */
    unsigned char *text = mmap(NULL, 150000, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ends[2];
    CHECK(text != MAP_FAILED);
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    for (size_t at = 0; at < 150000; at++)
        text[at] = byte_at(at);
    struct iovec piece = { text, 150000 };
    struct msghdr header = { .msg_iov = &piece, .msg_iovlen = 1 };
    CHECK(sendmsg(ends[1], &header, 0) == 150000);
    ssize_t got = recv(ends[0], data, BYTES, 0);
    CHECK(got == 150000 || (got == -1 && errno == EMSGSIZE));
    if (got == 150000)
        is_filled(150000);
    else
        CHECK(recv(ends[0], NULL, 0, MSG_PEEK | MSG_TRUNC) == 150000);
}

/* In a virtual machine without other programs nobody has brought it up. */
static void bring_up_loopback(void)
{
    struct ifreq request = { .ifr_name = "lo" };
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd >= 0 && !ioctl(fd, SIOCGIFFLAGS, &request) && !(request.ifr_flags & IFF_UP)) {
        request.ifr_flags |= IFF_UP;
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
    close(fd);
}

int main(int arguments, char **argument)
{
    static const struct { const char *name; void (*part)(void); } parts[] = {
        { "whole", whole }, { "receive", receive }, { "random", random_bytes }, { "interrupted", interrupted },
        { "stopped", stopped }, { "broken", broken }, { "nonblocking", nonblocking },
        { "endless", endless }, { "limited", limited }, { "refused", refused },
        { "messages", messages }, { "long", long_message },
    };
    CHECK(arguments == 2);
    bring_up_loopback();
    data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    for (size_t number = 0; number < sizeof parts / sizeof *parts; number++)
        if (!strcmp(argument[1], parts[number].name)) {
            parts[number].part();
            puts("right");
            return 0;
        }
    return 2;
}
