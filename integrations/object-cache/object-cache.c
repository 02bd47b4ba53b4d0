/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An object cache that keeps what is hot on huge pages: the pattern of a program that has a say about its pages.
 *
 * A few objects of each 2 MiB are asked for all the time, each on a page of its own. To make all that memory huge pages
 * for their sake is dear, and a rule that counts hot pages does not do it. The tracker (`masu track`) tells the cache
 * which pages are hot, and the cache moves the hot objects together, onto a few huge pages. README.md explains. One file, to
 * be read from top to bottom; this is what a program needs for it, and where it stands:
 *
 *   from the address of a page to its objects     slabs: slots of one size                        slots_of
 *   which of them are hot                         a counter in each, for some of the gets         note_use
 *   to move one while others are asked for        nobody keeps an address but the table           move
 *   to keep others out while it moves             each server has a lock; who moves has all       begin_alone
 *   to come back from there                       what went cold in the arena is dropped          arena_slot
 *   somebody who listens to the tracker           a thread                                        cooperate
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <masu.h>

enum { PAGE = 4096, PAGES = 512, WINDOW = PAGE * PAGES };
enum { ENTRIES = 7, SAMPLE = 16, HOT = 2, SERVERS_MOST = 64, LAST = 5 };

typedef struct object {
    _Atomic uint64_t key;   /* 0: the slot is free, and value[0] leads to the next free one */
    _Atomic uint32_t used;  /* gets that were counted since somebody looked */
    uint32_t version;       /* how often it was set */
    uint64_t value[];
} object;

/* One line of the processor's cache. An entry is 16 bits of the key's hash above 48 of the address: an object is touched
 * only when it is the right one, so that a cold object in the same chain as a hot one stays cold in memory. */
typedef struct bucket {
    uint64_t entry[ENTRIES];
    struct bucket *next;
} bucket;

/* A thread that serves. The lock is its own, so that taking it costs little: only who moves or sets wants all of them. */
typedef struct server {
    _Alignas(64) pthread_mutex_t lock;
    _Atomic uint64_t gets, misses;
    pthread_t thread;
} server;

static uint64_t objects = 8 << 20, size = 256, hot_per_window = 32, seconds = 20, threads = 2, baseline = 5, sets = 1000;
static uint64_t shift, every_ms, arena_bytes;
static bool tracked = true, compacts = true, json;

static char *slabs;
static uint64_t slot_count, windows, buckets_mask, words, stride;
static bucket *table, *spare_bucket, *spare_end;
static object *free_slots;
static uint64_t hand;

static server servers[SERVERS_MOST];
static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool somebody_waits, over;
static _Atomic uint64_t hot_set; /* which one is asked for */

static masu_track *track;
static masu_arena *arena;
static char **arena_windows;
static uint64_t arena_count, arena_hand, arena_next;
static _Atomic uint64_t windows_compacted, objects_moved, objects_dropped, pause_ns_most;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "object-cache: %s\n", what);
    exit(2);
}

/* Whole windows of memory. */
static void *memory(uint64_t bytes)
{
    bytes = (bytes + WINDOW - 1) / WINDOW * WINDOW;
    char *start = mmap(NULL, bytes + WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        fail("cannot get that much memory");
    return start + (WINDOW - (uintptr_t)start % WINDOW) % WINDOW;
}

/* ---- Objects and their values -------------------------------------------------------------------------------------- */

static uint64_t key_of(const object *o) { return atomic_load_explicit(&o->key, memory_order_relaxed); }
static uint32_t use_of(const object *o) { return atomic_load_explicit(&o->used, memory_order_relaxed); }
static void set_key(object *o, uint64_t key) { atomic_store_explicit(&o->key, key, memory_order_relaxed); }
static void set_use(object *o, uint32_t used) { atomic_store_explicit(&o->used, used, memory_order_relaxed); }
static object *slot(uint64_t number) { return (object *)(slabs + number * size); }

/* Each word of a value follows from the key and the version, so that a get can tell whether it got what was set. */
static void fill(object *o, uint64_t key)
{
    uint64_t base = mix(key ^ (uint64_t)o->version << 40);
    for (uint64_t word = 0; word < words; word++)
        o->value[word] = base + word;
}

static void verify(const object *o, uint64_t key)
{
    uint64_t base = mix(key ^ (uint64_t)o->version << 40), wrong = 0;
    for (uint64_t word = 0; word < words; word++)
        wrong |= o->value[word] ^ (base + word);
    if (wrong) {
        fprintf(stderr, "object-cache: wrong value: key %" PRIu64 ", version %" PRIu32 ", at %p\n", key, o->version, (void *)o);
        exit(1);
    }
}

/* Some of the gets are counted, up to a few: a store for each would cost more than it tells. Several servers may do so for
 * one object at a time; a count that gets lost is no harm. */
static void note_use(object *o, uint64_t random)
{
    if (random % SAMPLE == 0 && use_of(o) < HOT)
        set_use(o, use_of(o) + 1);
}

/* ---- The table ------------------------------------------------------------------------------------------------------ */

static uint64_t tag_of(uint64_t hash) { return (hash >> 48 | 1) << 48; }
static object *object_of(uint64_t entry) { return (object *)(uintptr_t)(entry & (((uint64_t)1 << 48) - 1)); }

static uint64_t *find(uint64_t key)
{
    uint64_t hash = mix(key), tag = tag_of(hash);
    for (bucket *b = &table[hash & buckets_mask]; b; b = b->next)
        for (int n = 0; n < ENTRIES; n++)
            if (b->entry[n] && (b->entry[n] ^ tag) >> 48 == 0 && key_of(object_of(b->entry[n])) == key)
                return &b->entry[n];
    return NULL;
}

/* A free entry for the key; NULL when there is no bucket left for a longer chain. */
static uint64_t *free_entry(uint64_t key)
{
    for (bucket *b = &table[mix(key) & buckets_mask];; b = b->next) {
        for (int n = 0; n < ENTRIES; n++)
            if (!b->entry[n])
                return &b->entry[n];
        if (!b->next && spare_bucket < spare_end)
            b->next = spare_bucket++;
        if (!b->next)
            return NULL;
    }
}

/* ---- The cache ------------------------------------------------------------------------------------------------------ */

/* Keeps all servers out. They ask before each get whether somebody waits, so that nobody waits for long. */
static void begin_alone(void)
{
    pthread_mutex_lock(&alone);
    atomic_store(&somebody_waits, true);
    for (uint64_t n = 0; n < threads; n++)
        pthread_mutex_lock(&servers[n].lock);
}

static void end_alone(void)
{
    atomic_store(&somebody_waits, false);
    for (uint64_t n = 0; n < threads; n++)
        pthread_mutex_unlock(&servers[n].lock);
    pthread_mutex_unlock(&alone);
}

static void give_slot(object *o)
{
    set_key(o, 0);
    o->value[0] = (uintptr_t)free_slots;
    free_slots = o;
}

/* A slot of the slabs: a free one, or that of the next object that was not used since the clock's hand came by. */
static object *slab_slot(void)
{
    object *o = free_slots;
    if (o)
        free_slots = (object *)(uintptr_t)o->value[0];
    while (!o) {
        object *next = slot(hand);
        hand = hand + 1 == slot_count ? 0 : hand + 1;
        if (key_of(next) && !use_of(next)) {
            *find(key_of(next)) = 0;
            o = next;
        }
        set_use(next, 0);
    }
    return o;
}

static bool cache_get(server *me, uint64_t key, uint64_t random)
{
    if (atomic_load_explicit(&somebody_waits, memory_order_relaxed)) {
        pthread_mutex_lock(&alone);
        pthread_mutex_unlock(&alone);
    }
    pthread_mutex_lock(&me->lock);
    uint64_t *entry = find(key);
    if (entry) {
        object *o = object_of(*entry);
        verify(o, key); /* another cache would copy the value out */
        note_use(o, random);
    }
    pthread_mutex_unlock(&me->lock);
    return entry != NULL;
}

/* Sets a value: another version of the one that is there, or a new one. Needs all locks. */
static void cache_set(uint64_t key)
{
    uint64_t *entry = find(key);
    object *o = entry ? object_of(*entry) : slab_slot();
    if (!entry) {
        o->version = 0;
        set_use(o, 0);
        set_key(o, key);
        entry = free_entry(key);
        if (!entry) {
            give_slot(o); /* a cache may */
            return;
        }
        *entry = tag_of(mix(key)) | (uintptr_t)o;
    }
    o->version++;
    fill(o, key);
}

/* ---- The say: what is hot moves to huge pages --------------------------------------------------------------------------- */

/* Gets huge pages for so many more objects, as far as there are any. Before anybody is kept out, for it takes its time. */
static void make_room(uint64_t count)
{
    void *window;
    while (arena_next + count > arena_count * (WINDOW / size) && masu_arena_window(arena, &window) == MASU_OK)
        arena_windows[arena_count++] = window;
}

static object *slot_of_arena(uint64_t number)
{
    return (object *)(arena_windows[number / (WINDOW / size)] + number % (WINDOW / size) * size);
}

/* A slot of the arena: a new one, or that of an object that went cold there, which is dropped from the cache. NULL when the
 * hand has come round: all that lies there is hot. */
static object *arena_slot(void)
{
    if (arena_next < arena_count * (WINDOW / size))
        return slot_of_arena(arena_next++);
    while (arena_hand < arena_next) {
        object *o = slot_of_arena(arena_hand++);
        if (!use_of(o)) {
            *find(key_of(o)) = 0;
            objects_dropped++;
            return o;
        }
    }
    return NULL;
}

/* What lies there must be used until the next time, or counts as cold then. */
static void begin_anew(void)
{
    for (arena_hand = arena_next; arena_hand > 0; arena_hand--)
        set_use(slot_of_arena(arena_hand - 1), 0);
}

/* Moves one object. Its old slot is free for the next one that is set. */
static bool move(object *o)
{
    object *to = arena_slot();
    if (!to)
        return false;
    uint64_t *entry = find(key_of(o));
    memcpy(to, o, size);
    *entry = tag_of(mix(key_of(o))) | (uintptr_t)to;
    give_slot(o);
    return true;
}

/* The slots of a page that may be worth moving. No lock is held: what is found is looked at again before it is moved. */
static uint64_t slots_of(uint64_t page, object **found)
{
    uint64_t count = 0;
    for (uint64_t byte = 0; byte < PAGE; byte += size) {
        object *o = (object *)(uintptr_t)(page + byte);
        if (key_of(o) && use_of(o) >= HOT)
            found[count++] = o;
        else if (use_of(o))
            set_use(o, 0); /* it must earn it before the next look */
    }
    return count;
}

/* Called by masu_track_handle(): these windows have some active pages, but too few for a huge page. One window at a time, so
 * that gets wait for some microseconds and not for all of it. */
static void compact(const struct masu_window *list, size_t count, void *nothing)
{
    static object *found[WINDOW / 64];
    (void)nothing;
    bool room = true;
    for (size_t n = 0; n < count && room && !over; n++) {
        /* All of the program's memory is in the list, its stacks and the table too. */
        if (list[n].address - (uintptr_t)slabs >= windows * WINDOW)
            continue;
        uint64_t hot = 0, moved = 0;
        for (uint32_t page = 0; page < list[n].hot; page++)
            hot += slots_of(list[n].pages[page].address, found + hot);
        if (hot == 0)
            continue;
        make_room(hot);
        uint64_t began = now_ns(CLOCK_MONOTONIC);
        begin_alone();
        for (uint64_t m = 0; m < hot && room; m++)
            if (key_of(found[m]) && use_of(found[m]) >= HOT && (room = move(found[m])))
                moved++;
        end_alone();
        uint64_t took = now_ns(CLOCK_MONOTONIC) - began;
        if (took > pause_ns_most)
            pause_ns_most = took;
        objects_moved += moved;
        windows_compacted += moved > 0;
    }
    begin_anew();
}

/* The thread that listens to the tracker. */
static void *cooperate(void *nothing)
{
    int result;
    while ((result = masu_track_wait(track, -1, NULL)) == MASU_OK)
        masu_track_handle(track);
    if (!over)
        fprintf(stderr, "object-cache: not tracked any more: %s; going on without\n", masu_result_text(result));
    return nothing;
}

static bool begin_cooperation(pthread_t *listener)
{
    masu_track_set_functions(track, NULL, compacts ? compact : NULL, NULL);
    int result = masu_track_enable(track);
    if (result == MASU_OK)
        return pthread_create(listener, NULL, cooperate, NULL) == 0;
    const char *why = result == MASU_REFUSED ? masu_track_reason(track) : masu_result_text(result);
    fprintf(stderr, "object-cache: not tracked: %s; going on without\n", why);
    return false;
}

/* ---- The work --------------------------------------------------------------------------------------------------------- */

/* One of the keys that are asked for: `hot_per_window` in each window, each on another page. The cache does not know them. */
static uint64_t hot_key(uint64_t random)
{
    uint64_t window = (random >> 32) * windows >> 32, number = (random & UINT32_MAX) * hot_per_window >> 32;
    uint64_t own = mix((window * hot_per_window + number) ^ atomic_load_explicit(&hot_set, memory_order_relaxed) << 48);
    uint64_t page = window * PAGES + number * stride + (own & UINT32_MAX) * stride / ((uint64_t)1 << 32);
    return page * (PAGE / size) + (own >> 32) % (PAGE / size) + 1;
}

static void *serve(void *argument)
{
    server *me = argument;
    uint64_t random = mix((uint64_t)(me - servers) + 1), gets = 0;
    while (!over) {
        for (int n = 0; n < 64; n++, gets++) {
            random = random * 6364136223846793005 + 1442695040888963407;
            uint64_t key = hot_key(mix(random));
            if (!cache_get(me, key, random >> 32)) {
                begin_alone();
                cache_set(key);
                end_alone();
                me->misses++;
            }
        }
        atomic_store_explicit(&me->gets, gets, memory_order_relaxed);
    }
    return NULL;
}

/* New objects push out old ones, and any object is set anew: that much goes on beside the gets. */
static void *set_some(void *argument)
{
    uint64_t random = 1, newest = slot_count;
    while (!over) {
        for (uint64_t n = 0; n < (sets + 99) / 100 && !over; n++) {
            random = random * 6364136223846793005 + 1442695040888963407;
            uint64_t key = n % 2 ? ++newest : (mix(random) >> 32) * slot_count / ((uint64_t)1 << 32) + 1;
            begin_alone();
            cache_set(key);
            end_alone();
        }
        usleep(10000);
    }
    return argument;
}

static void build(void)
{
    slot_count = (objects * size + WINDOW - 1) / WINDOW * (WINDOW / size);
    windows = slot_count * size / WINDOW;
    words = (size - sizeof(object)) / sizeof(uint64_t);
    stride = PAGES / hot_per_window;
    slabs = memory(slot_count * size);
    uint64_t buckets = 1;
    while (buckets * 4 < slot_count)
        buckets *= 2;
    buckets_mask = buckets - 1;
    /* A get reads one line of the table, at random: so it lies on huge pages from the beginning. */
    uint64_t bytes = (buckets + buckets / 4 + 1) * sizeof(bucket);
    table = memory(bytes);
    madvise(table, bytes, MADV_HUGEPAGE);
    spare_bucket = table + buckets;
    spare_end = spare_bucket + buckets / 4;
    /* Key N lies in slot N - 1. */
    for (uint64_t key = 1; key <= slot_count; key++) {
        object *o = slot(key - 1);
        set_key(o, key);
        uint64_t *entry = free_entry(key);
        if (!entry) {
            give_slot(o);
            continue;
        }
        fill(o, key);
        *entry = tag_of(mix(key)) | (uintptr_t)o;
    }
}

/* ---- What came of it -------------------------------------------------------------------------------------------------- */

typedef struct sample {
    uint64_t at_ns, gets, serving_ns;
} sample;

static sample take_sample(void)
{
    sample now = { .at_ns = now_ns(CLOCK_MONOTONIC) };
    for (uint64_t n = 0; n < threads; n++) {
        clockid_t clock;
        now.gets += atomic_load(&servers[n].gets);
        if (pthread_getcpuclockid(servers[n].thread, &clock) == 0)
            now.serving_ns += now_ns(clock);
    }
    return now;
}

/* Processor time for each get: what others take of the processor does not count. */
static double ns_per_get(sample from, sample to)
{
    return to.gets > from.gets ? (double)(to.serving_ns - from.serving_ns) / (double)(to.gets - from.gets) : 0;
}

static uint64_t rss_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%lu %lu", &all, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t windows_of_arena(void)
{
    struct masu_arena_counters counters = { .size = sizeof counters };
    return arena && masu_arena_stats(arena, &counters) == MASU_OK ? counters.windows : 0;
}

static void print_second(uint64_t second, sample from, sample to)
{
    double rate = (double)(to.gets - from.gets) * 1e9 / (double)(to.at_ns - from.at_ns), ns = ns_per_get(from, to);
    uint64_t compacted = windows_compacted, moved = objects_moved, held = windows_of_arena(), rss = rss_bytes();
    if (json)
        printf("{\"event\":\"second\",\"at_s\":%" PRIu64 ",\"gets_per_s\":%.0f,\"get_ns\":%.1f,\"windows_compacted\":%" PRIu64
               ",\"objects_moved\":%" PRIu64 ",\"arena_windows\":%" PRIu64 ",\"rss_bytes\":%" PRIu64 "}\n",
               second, rate, ns, compacted, moved, held, rss);
    else
        printf("%5" PRIu64 "   %10.0f   %6.1f   %17" PRIu64 "   %13" PRIu64 "   %13" PRIu64 "   %8.1f\n", second, rate, ns,
               compacted, moved, held, (double)rss / (1 << 20));
    fflush(stdout);
}

static void print_summary(double before, double after, uint64_t rss_before)
{
    struct masu_track_counters counters = { .size = sizeof counters };
    uint64_t misses = 0, held = windows_of_arena(), rss = rss_bytes();
    if (!track || masu_track_stats(track, &counters) != MASU_OK)
        counters.promoted = 0;
    for (uint64_t n = 0; n < threads; n++)
        misses += servers[n].misses;
    if (json) {
        printf("{\"event\":\"summary\",\"get_ns_before\":%.1f,\"get_ns_after\":%.1f,\"windows_compacted\":%" PRIu64
               ",\"objects_moved\":%" PRIu64 ",\"objects_dropped\":%" PRIu64 ",\"arena_windows\":%" PRIu64
               ",\"windows_promoted\":%" PRIu64 ",\"pause_us_max\":%.0f,\"misses\":%" PRIu64 ",\"rss_before_bytes\":%" PRIu64
               ",\"rss_after_bytes\":%" PRIu64 "}\n",
               before, after, windows_compacted, objects_moved, objects_dropped, held, counters.promoted,
               (double)pause_ns_most / 1e3, misses, rss_before, rss);
        return;
    }
    double ratio = after > 0 ? before / after : 0;
    printf("\nbefore: %.1f ns a get   at the end: %.1f ns, %.2f times as fast\n", before, after, ratio);
    printf("%" PRIu64 " objects of %" PRIu64 " windows moved to %" PRIu64 " huge pages; %" PRIu64 " dropped again, %" PRIu64
           " windows promoted by the tracker\n",
           objects_moved, windows_compacted, held, objects_dropped, counters.promoted);
    printf("resident memory %+.1f MiB; longest pause %.0f us; %" PRIu64 " misses, no wrong value\n",
           (double)(int64_t)(rss - rss_before) / (1 << 20), (double)pause_ns_most / 1e3, misses);
}

/* ---- The command -------------------------------------------------------------------------------------------------------- */

static const char help[] =
    "Usage: object-cache [OPTIONS]\n\n"
    "A cache in one program, to try out what a say about one's pages is worth. It fills itself with objects,\n"
    "then asks for a few of each 2 MiB, at random, all the time: too few for a huge page. Once the tracker has\n"
    "told it which pages are hot, it moves the hot objects together. Start the tracker first, as root:\n\n"
    "  masu track &\n"
    "  object-cache\n\n"
    "  --objects N          objects in the cache [8M]\n"
    "  --size BYTES         of each, with 16 bytes for the cache: a power of two, 64 to 4096 [256]\n"
    "  --hot-per-window N   objects of each 2 MiB that are asked for, each on a page of its own, up to 512 [32]\n"
    "  --seconds S          how long gets are served [20]\n"
    "  --baseline S         seconds of these before the tracker is asked to watch [5]\n"
    "  --threads N          threads that serve, up to 64 [2]\n"
    "  --sets N             sets a second beside the gets: half anew, half new objects, which push out old ones [1000]\n"
    "  --shift S            every S seconds other objects are asked for [never]\n"
    "  --every MS           have the tracker look so often [as fast as it goes, then ever more seldom]\n"
    "  --arena BYTES        the most that the huge pages for hot objects may take [1/16 of the objects]\n"
    "  --no-compact         move nothing: the tracker promotes what its rule finds hot enough, and no more\n"
    "  --no-track           ask for no tracker\n"
    "  --json               one object per second, then the summary, a line each\n\n"
    "N and BYTES may end in K, M or G. Each get is verified; a wrong value ends the program with status 1.\n\n"
    "Columns: ns/get is processor time of the serving threads for each get. windows compacted: of 2 MiB, those\n"
    "from which objects were moved. arena windows: huge pages onto which. RSS: without pages from the hugetlb pool.\n\n"
    "Try:\n"
    "  object-cache --no-compact                    promotion alone: these windows are too sparse for it\n"
    "  object-cache --hot-per-window 200            dense enough: the tracker promotes\n"
    "  masu run -- object-cache --no-track          all of it on huge pages from the first touch, for comparison\n"
    "  object-cache --size 1K --objects 4M          4 GiB\n\n"
    "What this does to your machine: it takes the memory that you ask for, and --threads processors.\n";

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    const char *units = "KMG", *unit = *end ? strchr(units, *end) : NULL;
    if (unit && end[1] == 0) {
        value <<= 10 * (unit - units + 1);
        end++;
    }
    if (*text < '0' || *text > '9' || *end || value < least || value > most) {
        fprintf(stderr, "object-cache: %s: expected a number from %" PRIu64 " to %" PRIu64 "\n", text, least, most);
        exit(2);
    }
    return value;
}

static void read_arguments(int argc, char **argv)
{
    static const struct option known[] = {
        { "objects", 1, 0, 'o' },  { "size", 1, 0, 's' },     { "hot-per-window", 1, 0, 'w' }, { "seconds", 1, 0, 't' },
        { "baseline", 1, 0, 'b' }, { "threads", 1, 0, 'n' },  { "sets", 1, 0, 'e' },           { "arena", 1, 0, 'a' },
        { "no-compact", 0, 0, 'c' }, { "no-track", 0, 0, 'k' }, { "json", 0, 0, 'j' },         { "help", 0, 0, 'h' },
        { "shift", 1, 0, 'i' },    { "every", 1, 0, 'v' },    { 0, 0, 0, 0 },
    };
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'o': objects = number(optarg, 1, (uint64_t)1 << 31); break;
        case 's': size = number(optarg, 64, PAGE); break;
        case 'w': hot_per_window = number(optarg, 1, PAGES); break;
        case 't': seconds = number(optarg, 1, 86400); break;
        case 'b': baseline = number(optarg, 0, 86400); break;
        case 'n': threads = number(optarg, 1, SERVERS_MOST); break;
        case 'e': sets = number(optarg, 0, 1 << 20); break;
        case 'a': arena_bytes = number(optarg, WINDOW, (uint64_t)1 << 40); break;
        case 'i': shift = number(optarg, 1, 86400); break;
        case 'v': every_ms = number(optarg, 1, 86400000); break;
        case 'c': compacts = false; break;
        case 'k': tracked = false; break;
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); exit(0);
        default: fputs("Try object-cache --help\n", stderr); exit(2);
        }
    }
    if (optind < argc)
        fail("it takes options only; try --help");
    if (size & (size - 1))
        fail("--size: expected a power of two");
    if (arena_bytes == 0)
        arena_bytes = objects * size / 16 < 8 * WINDOW ? 8 * WINDOW : objects * size / 16;
}

/* Once a second a line. */
static void watch(void)
{
    pthread_t listener;
    bool listens = false;
    uint64_t rss_before = rss_bytes();
    sample first = take_sample(), last = first, warm = first, tracked_from = first, at_the_end = first;
    if (!json)
        printf("    s       gets/s   ns/get   windows compacted   objects moved   arena windows    RSS MiB\n");
    for (uint64_t second = 1; second <= seconds; second++) {
        struct timespec until = { .tv_sec = (time_t)(last.at_ns / 1000000000 + 1), .tv_nsec = (long)(last.at_ns % 1000000000) };
        hot_set = shift ? (second - 1) / shift : 0;
        if (tracked && second == baseline + 1)
            listens = begin_cooperation(&listener);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
            ; /* the tracker's signal may come to this thread */
        sample now = take_sample();
        print_second(second, last, now);
        last = now;
        if (second == 1)
            warm = now;
        if (second <= baseline || second == 1)
            tracked_from = now;
        if (second + LAST == seconds)
            at_the_end = now;
    }
    print_summary(ns_per_get(baseline > 1 ? warm : first, tracked_from), ns_per_get(at_the_end, last), rss_before);
    over = true;
    if (listens) {
        masu_track_disable(track);
        pthread_join(listener, NULL);
    }
}

int main(int argc, char **argv)
{
    pthread_t setter;
    read_arguments(argc, argv);
    build();
    if (tracked) {
        struct masu_track_settings terms;
        struct masu_arena_settings settings;
        masu_track_settings_init(&terms, sizeof terms);
        terms.every_ms = (uint32_t)every_ms;
        masu_arena_settings_init(&settings, sizeof settings);
        settings.bytes = arena_bytes;
        arena_windows = calloc(arena_bytes / WINDOW + 1, sizeof *arena_windows);
        if (!arena_windows || masu_track_new(&terms, &track) != MASU_OK || masu_arena_new(&settings, track, &arena) != MASU_OK)
            fail("no memory for the arena");
    }
    for (uint64_t n = 0; n < threads; n++)
        pthread_mutex_init(&servers[n].lock, NULL);
    for (uint64_t n = 0; n < threads; n++)
        if (pthread_create(&servers[n].thread, NULL, serve, &servers[n]) != 0)
            fail("cannot start a thread");
    if (pthread_create(&setter, NULL, set_some, NULL) != 0)
        fail("cannot start a thread");
    watch();
    for (uint64_t n = 0; n < threads; n++)
        pthread_join(servers[n].thread, NULL);
    pthread_join(setter, NULL);
    masu_arena_free(arena);
    masu_track_free(track);
    return 0;
}
