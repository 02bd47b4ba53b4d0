/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * hps: hot items of sparse windows move onto huge pages.
 *
 * HPS (Shimizu and Yamada, sections 4.3 and 6.4) for memcached 1.6.18 and masu's tracker. A thread of its own waits for the
 * tracker, which lists the pages of 4 KiB that are touched often. A window of 2 MiB that is mostly hot is left to the tracker:
 * it becomes a huge page as it is, once fetches are seen to make it hot. Of a window in which few pages are hot, the items
 * that make them so are moved into an arena of huge pages; their neighbours stay. Items of the arena that have cooled move
 * back when hotter ones want the room. Where the arena is full of hot ones, a window with a sixteenth of its pages hot becomes
 * huge where it lies, too, if all of it is in memory.
 *
 * WHAT IS HOT. Which item of a hot page it is, memcached knows: each fetch sets ITEM_HPS_HIT. A look at an item takes the bit
 * away and keeps count; an item found fetched at two looks in a row is hot. The arena is cleared by a clock over the same
 * bits. A look touches the page, too, and the tracker sees it: a page in which two looks found nothing hot is left alone for
 * some lists, ever more of them, or this thread would go on finding what it touched itself.
 *
 * WHERE CHUNKS LIE. The arena is cut into pages of a slab page's size, each for one class and carved as that class carves its
 * own, so that an item fits either. A page keeps its free chunks to itself: sets do not get them, and huge pages are not
 * filled with what may be cold. do_slabs_free() knows a chunk of the arena by its address. None of these pages is in a
 * slab_list, so the page mover never empties one.
 *
 * LOCKS. One move is: find the item, lock it, copy it, let the copy take its place, free the old chunk.
 *  1. This thread works only while it has the page mover's lock (slabs_rebalancer_pause), some BATCH_US at a time. So pages
 *     do not change their class under it; chunks are not looked at by address by anyone else; and the hash table is not
 *     swapped, for pause_threads() takes that lock first. A page once in a class's slab_list is never unmapped but by way of
 *     the page mover, so what the map says can be read. Nobody waits for that lock with any other one held.
 *  2. With slabs_lock held, a chunk with ITEM_LINKED and without ITEM_SLABBED is an item with a valid key, and cannot become
 *     another's: to be reused it would have to be freed first, which takes slabs_lock. So its lock is known; it is tried for,
 *     as the mover does, since the order is item lock before slabs_lock.
 *  3. With the item's lock held and ITEM_LINKED seen again, the item stays what it is. If its reference count is 1, which is
 *     the hash table's, nobody has its address: references are taken and dropped under the item's lock; and who finds it by
 *     the LRU has the LRU's lock and tries for the item's, in vain.
 *  4. The copy has the same flags, times, CAS, position in the LRU and size: no client and no counter of memcached sees the
 *     difference. do_item_relocate() changes the pointers to it, under the LRU's lock and the item's (the hash chain's).
 *  5. The old chunk is freed with the item's lock still held, as do_item_remove() does.
 * Chunked (large) items and their chunks are left alone.
 *
 * Of 3 memcached itself made no rule without exceptions; hooks.patch takes them away: an erroneous `mg` dropped its reference
 * without the lock, a stale item's token was written to the flags without it, and a crawler whose client had gone left the LRU
 * without the LRU's lock.
 *
 * What the tracker lists are numbers. They are compared with what slabs_pages() says; none is followed.
 *
 * Longer than 600 lines because memcached's build is to be told of one file: the arena, the map, one item, the lists, the thread,
 * options and statistics follow each other, in this order.
 */
#include "memcached.h"
#include "slabs.h"
#include "hps.h"

#include <errno.h>
#include <masu.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_BYTES (2u << 20)
#define SMALL_PAGE_BYTES 4096u
/* So long the page mover's lock is held, and what was begun is ended; and so long it is left alone then. */
#define BATCH_US 200
#define BREATH_US 200
/* So long, at most, items of one list are looked at, and so many of its pages, those with most page walks. */
#define LIST_US 250000
/* And for such a part of the time from list to list, in thousandths; the less of what is looked at moves, the smaller a part. */
#define SHARE_MOST 100u
#define SHARE_LEAST 10u
/* Besides, for asking what makes windows seem hot all over. */
#define SHARE_ASK 50u
#define LIST_PAGES_MOST 262144u
/* Items of classes with larger chunks are not moved: they fill pages by themselves, and copying takes its time. */
#define CHUNK_BYTES_MOST 65536u
/* Found fetched at so many looks in a row, an item is hot. */
#define HOT_SCORE 2
/* With no tracker, look for one so often. */
#define RETRY_S 10
/* A page with nothing hot in it is left alone for 2, 4, … lists, and so many at most. */
#define REST_LISTS_MOST 64
/* Pages whose rest is remembered: a power of two. Of two that share a place, the later one. */
#define RESTS 65536u
/* A page that is to go to another class and is not empty after so many lists stays. */
#define LEAVING_LISTS_MOST 100
/* So many lent chunks that come back are taken in one go, for the sake of who waits for the item's lock. */
#define LENT_MOST 16
/* Of a window that seems hot all over, so many pages are asked whether fetches make it so; a quarter of them is enough. */
#define SAMPLES 16u
/* What they said holds for so many lists; a first no for one, a second one for two, … */
#define ANSWER_LISTS 8
/* What seems so for longer than a pass over all items takes is believed. */
#define PASS_LISTS 16
#define PASS_S 120
/*
 * Where the arena is full, which so many hot items without room in one list show, a window becomes huge where it lies with so
 * many active pages already, if that takes no memory.
 */
#define FULL_ARENA_PAGES 32u
/* The arena has 1 / 125 of what items take, and one window: with what this file and libmasu keep beside it, below 1 % of some GiB. */
#define ARENA_PART 125u
/* Windows that are remembered: a power of two, and 128 GiB of those that lie beside each other. */
#define DOUBTS 65536u

bool hps_enabled = false;
uint64_t hps_pages_moved = 0;

/* `-o hps…` */
static struct {
    bool on;
    const char *needs_on; /* an option that means nothing without `hps` */
    unsigned int arena_mb;
    unsigned int period_ms;
    unsigned int every_ms;
    unsigned int threshold_pages;
    double rate;
    char *socket_path;
    unsigned int test_ms;
} options;

/* What `stats hps` says; written by this file's thread, read by any. */
static struct {
    uint64_t active_pages;
    uint64_t looked;
    uint64_t moved;
    uint64_t moved_back;
    uint64_t busy;
    uint64_t cold;
    uint64_t no_room;
    uint64_t doubted;
    uint64_t pages_late;
    uint64_t pages_reassigned;
    uint64_t last_compact_us;
    uint64_t longest_lock_ns;
} counts;

#define COUNT(name, n) __atomic_fetch_add(&counts.name, (n), __ATOMIC_RELAXED)
#define SET(name, n) __atomic_store_n(&counts.name, (n), __ATOMIC_RELAXED)
#define READ(name) ((unsigned long long)__atomic_load_n(&counts.name, __ATOMIC_RELAXED))

/* What libmasu said last. The lock is for these alone: no worker thread ever waits for libmasu. */
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static struct masu_track_counters said_of_track;
static struct masu_arena_counters said_of_arena;
static const char *tracker_is = "not asked yet";
static const char *tracker_why = NULL;
static unsigned int said_pages_allowed;

static masu_track *track;
static masu_arena *arena;

/*** The arena: pages and their free chunks ***/

typedef struct {
    char *start;
    item *free;             /* by item->next */
    unsigned int free_chunks;
    unsigned int chunks;
    unsigned int id;        /* the class; 0: of none yet */
    unsigned int leaving;   /* not 0: is being emptied, for so many lists */
} arena_page;

/* In order of address. Changed by this file's thread alone, with slabs_lock held; others read with slabs_lock held. */
static arena_page *pages;
static unsigned int pages_used;
static unsigned int pages_most;
/* By class: free chunks in pages that are not leaving. With slabs_lock held. */
static unsigned int chunks_free[MAX_NUMBER_OF_SLAB_CLASSES];
/* No window was to be had; asked again with the next list. */
static bool arena_refused;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static arena_page *page_of(const void *chunk) {
    unsigned int low = 0, high = pages_used;
    const char *at = chunk;
    if (high == 0 || at < pages[0].start || at >= pages[high - 1].start + settings.slab_page_size) {
        return NULL;
    }
    while (low < high) {
        unsigned int middle = low + (high - low) / 2;
        if (at < pages[middle].start) {
            high = middle;
        } else if (at >= pages[middle].start + settings.slab_page_size) {
            low = middle + 1;
        } else {
            return &pages[middle];
        }
    }
    return NULL;
}

/* With slabs_lock held. */
static void give_chunk(arena_page *page, item *it) {
    it->it_flags = ITEM_SLABBED;
    it->slabs_clsid = page->id;
    it->refcount = 0;
    it->prev = NULL;
    it->next = page->free;
    page->free = it;
    page->free_chunks++;
    if (!page->leaving) {
        chunks_free[page->id]++;
    }
}

/* With slabs_lock held. A chunk of the class; it is in nobody's list and belongs to the caller. */
static item *take_chunk(unsigned int id, bool from_leaving) {
    static unsigned int last[MAX_NUMBER_OF_SLAB_CLASSES];
    for (unsigned int tried = 0; tried < pages_used; tried++) {
        unsigned int number = (last[id] + tried) % pages_used;
        arena_page *page = &pages[number];
        if (page->id == id && page->free != NULL && (from_leaving || !page->leaving)) {
            item *it = page->free;
            page->free = it->next;
            page->free_chunks--;
            if (!page->leaving) {
                chunks_free[id]--;
            }
            it->it_flags = 0;
            last[id] = number;
            return it;
        }
    }
    return NULL;
}

/*
 * Where memory is at its limit and the class has no free chunk, whoever frees this one may have evicted an item for want of it:
 * then the class has it like any other, until it is freed again. Of a page that is being emptied it has another one, if it can.
 */
item *hps_chunk_free(item *it, bool lend) {
    arena_page *page = page_of(it);
    if (page == NULL || (lend && !page->leaving)) {
        return it;
    }
    item *other = lend ? take_chunk(page->id, false) : NULL;
    if (lend && other == NULL) {
        return it;
    }
    give_chunk(page, it);
    return other;
}

item *hps_last_chunk(unsigned int id) {
    slabs_mlock();
    item *it = take_chunk(id, true);
    if (it != NULL) {
        it->refcount = 1;
    }
    slabs_munlock();
    return it;
}

unsigned int hps_class_pages(unsigned int id, uint32_t *free_of_class) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < pages_used; i++) {
        if (pages[i].id == id) {
            *free_of_class += pages[i].free_chunks;
            count++;
        }
    }
    return count;
}

static arena_page *unused_page(void) {
    for (unsigned int i = 0; i < pages_used; i++) {
        if (pages[i].id == 0) {
            return &pages[i];
        }
    }
    return NULL;
}

/* With hps_arena=0: a part of the memory that items lie in, in whole windows, so that little more is resident than without. */
static unsigned int pages_allowed;

static bool can_grow(void) {
    return unused_page() != NULL || (pages_used < pages_allowed && !arena_refused);
}

/* One more page for the class. Takes slabs_lock; not with the mover's lock held, for a window may take its time. */
static void grow(unsigned int id) {
    if (unused_page() == NULL) {
        void *window;
        if (masu_arena_window(arena, &window) != MASU_OK) {
            arena_refused = true;
            return;
        }
        slabs_mlock();
        unsigned int at = pages_used, per_window = WINDOW_BYTES / settings.slab_page_size;
        while (at > 0 && pages[at - 1].start > (char *)window) {
            at--;
        }
        memmove(&pages[at + per_window], &pages[at], (pages_used - at) * sizeof(arena_page));
        for (unsigned int i = 0; i < per_window; i++) {
            pages[at + i] = (arena_page){ .start = (char *)window + (size_t)i * settings.slab_page_size };
        }
        pages_used += per_window;
        slabs_munlock();
    }
    slabs_mlock();
    arena_page *page = unused_page();
    page->id = id;
    page->chunks = settings.slab_page_size / slabs_size(id);
    for (unsigned int i = page->chunks; i > 0; i--) {
        give_chunk(page, (item *)(page->start + (size_t)(i - 1) * slabs_size(id)));
    }
    slabs_count_memory(settings.slab_page_size);
    slabs_munlock();
}

/*** The map: which slab page an address lies in ***/

typedef struct {
    char *start;
    unsigned int id;
} slab_page;

static slab_page *map;
static size_t map_used, map_room;
static uint64_t map_moved = UINT64_MAX;

static size_t slab_page_bytes(unsigned int id) {
    return settings.slab_page_size / slabs_size(id) * slabs_size(id);
}

static int by_start(const void *a, const void *b) {
    const slab_page *left = a, *right = b;
    return left->start < right->start ? -1 : left->start > right->start;
}

/* With the mover's lock held: pages are added meanwhile, none goes. */
static void read_map(void) {
    map_used = 0;
    map_moved = hps_pages_moved;
    for (unsigned int id = POWER_SMALLEST; id < MAX_NUMBER_OF_SLAB_CLASSES; id++) {
        void *some[1024];
        unsigned int first = 0, count;
        if (slabs_size(id) == 0 || slabs_size(id) > CHUNK_BYTES_MOST) {
            continue;
        }
        while ((count = slabs_pages(id, first, some, 1024)) > 0) {
            if (map_used + count > map_room) {
                size_t room = (map_used + count) * 2;
                slab_page *larger = realloc(map, room * sizeof(slab_page));
                if (larger == NULL) {
                    break;
                }
                map = larger;
                map_room = room;
            }
            for (unsigned int i = 0; i < count; i++) {
                map[map_used++] = (slab_page){ some[i], id };
            }
            first += count;
        }
    }
    if (map_used > 0) {
        qsort(map, map_used, sizeof(slab_page), by_start);
    }
    if (options.arena_mb == 0) {
        unsigned int per_window = WINDOW_BYTES / settings.slab_page_size;
        pages_allowed = (map_used / ARENA_PART + per_window) / per_window * per_window;
        pages_allowed = pages_allowed < pages_most ? pages_allowed : pages_most;
    }
}

/* The first page of the map that ends beyond `address`; map_used if there is none. */
static size_t map_at(uintptr_t address) {
    size_t low = 0, high = map_used;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)map[middle].start + slab_page_bytes(map[middle].id) <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool map_has(uintptr_t address, size_t bytes) {
    size_t at = map_at(address);
    return at < map_used && (uintptr_t)map[at].start < address + bytes;
}

/*** One item ***/

/* While the mover's lock is held: until when. And until when this list is worked on. */
static uint64_t batch_end_ns, work_end_ns;

static void enter(void) {
    slabs_rebalancer_pause();
    batch_end_ns = now_ns() + BATCH_US * 1000;
    if (map_moved != hps_pages_moved) {
        read_map();
    }
}

static void leave(void) {
    slabs_rebalancer_resume();
    usleep(BREATH_US);
}

static uint32_t some_number(void) {
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static unsigned int score_of(const item *it) {
    return (it->it_flags & ITEM_HPS_SCORE) >> ITEM_HPS_SCORE_SHIFT;
}

/* With the item's lock held. Nothing is written that is so already. */
static void set_score(item *it, unsigned int score) {
    unsigned int flags = (it->it_flags & ~(ITEM_HPS_HIT | ITEM_HPS_SCORE)) | (score << ITEM_HPS_SCORE_SHIFT);
    if (it->it_flags != flags) {
        it->it_flags = flags;
    }
}

static bool is_item(const item *it) {
    return (it->it_flags & (ITEM_LINKED | ITEM_SLABBED | ITEM_CHUNKED | ITEM_CHUNK | ITEM_HDR)) == ITEM_LINKED;
}

/* The lock of the item in this chunk; NULL if there is none in it that can be moved, or it is locked. See 2 and 3 above. */
static void *lock_item(item *it, unsigned int id, uint32_t *hv) {
    void *lock = NULL;
    slabs_mlock();
    if (is_item(it)) {
        *hv = hash(ITEM_key(it), it->nkey);
        lock = item_trylock(*hv);
        if (lock == NULL) {
            COUNT(busy, 1);
        } else if (!is_item(it) || ITEM_clsid(it) != id || hash(ITEM_key(it), it->nkey) != *hv) {
            item_trylock_unlock(lock);
            lock = NULL;
        }
    }
    slabs_munlock();
    return lock;
}

/* With the item's lock held: whether the hash table has it and nobody else, and it is worth the copy. */
static bool can_move(item *it, uint32_t hv) {
    if (it->refcount != 1 || assoc_find(ITEM_key(it), it->nkey, hv) != it) {
        COUNT(busy, 1);
        return false;
    }
    return (it->exptime == 0 || it->exptime > current_time) && !item_is_flushed(it);
}

/* With the item's lock held. The old chunk is the caller's then. */
static void move_item(item *it, item *to, uint32_t hv) {
    memcpy(to, it, ITEM_ntotal(it));
    do_item_relocate(it, to, hv);
    it->it_flags &= ~ITEM_LINKED;
    it->refcount = 0;
}

static void unlock_item(void *lock, uint64_t since_ns) {
    item_trylock_unlock(lock);
    uint64_t held_ns = now_ns() - since_ns;
    if (held_ns > READ(longest_lock_ns)) {
        SET(longest_lock_ns, held_ns);
    }
}

/*** Out of the arena ***/

/* By class: where its clock stands, and how many chunks it may pass for this list. */
static struct {
    unsigned int page;
    unsigned int chunk;
    unsigned int left;
} hands[MAX_NUMBER_OF_SLAB_CLASSES];

enum evicted {
    EVICTED,        /* a chunk is free now */
    EVICTED_NOT,    /* none is cold */
    EVICTED_LATER,  /* one is cold, but its class has no free chunk for it */
    EVICTED_LATE    /* the time for this list is over, and not all were asked */
};

/* With the item's lock held: moves it to an ordinary chunk. */
static enum evicted move_back(item *it, unsigned int id, uint32_t hv) {
    item *to;
    for (unsigned int lent = 0;; lent++) {
        to = slabs_alloc(ITEM_ntotal(it), id, SLABS_ALLOC_NO_NEWPAGE);
        if (to == NULL) {
            return EVICTED_LATER;
        }
        slabs_mlock();
        arena_page *page = page_of(to);
        if (page != NULL) {
            /* It was lent, and comes back: as good as another, unless its page is being emptied. */
            give_chunk(page, to);
        }
        slabs_munlock();
        if (page == NULL) {
            break;
        }
        if (!page->leaving || lent == LENT_MOST) {
            return EVICTED;
        }
    }
    set_score(it, 0);
    move_item(it, to, hv);
    slabs_mlock();
    give_chunk(page_of(it), it);
    slabs_munlock();
    COUNT(moved_back, 1);
    return EVICTED;
}

/* The next chunk of the class's pages, or NULL: it has none. */
static item *advance(unsigned int id) {
    for (unsigned int tried = 0; tried <= pages_used; tried++) {
        if (hands[id].page >= pages_used) {
            hands[id].page = 0;
            hands[id].chunk = 0;
        }
        arena_page *page = &pages[hands[id].page];
        if (page->id == id && !page->leaving && hands[id].chunk < page->chunks) {
            return (item *)(page->start + (size_t)hands[id].chunk++ * slabs_size(id));
        }
        hands[id].page++;
        hands[id].chunk = 0;
    }
    return NULL;
}

/* May leave and enter in between: what an address that is not the arena's means may be another thing then. */
static enum evicted evict_one(unsigned int id) {
    while (hands[id].left > 0) {
        uint64_t now = now_ns();
        if (now > work_end_ns) {
            return EVICTED_LATE;
        }
        if (now > batch_end_ns) {
            leave();
            enter();
        }
        hands[id].left--;
        item *it = advance(id);
        if (it == NULL) {
            break;
        }
        uint32_t hv;
        void *lock = lock_item(it, id, &hv);
        if (lock == NULL) {
            continue;
        }
        uint64_t since_ns = now_ns();
        enum evicted result = EVICTED_NOT;
        bool is_hit = it->it_flags & ITEM_HPS_HIT;
        unsigned int score = score_of(it);
        if (options.test_ms ? some_number() % 2 : is_hit) {
            set_score(it, score < 3 ? score + 1 : 3);
        } else if (score > 0 && !options.test_ms) {
            set_score(it, score / 2);
        } else if (can_move(it, hv)) {
            result = move_back(it, id, hv);
        }
        unlock_item(lock, since_ns);
        if (result == EVICTED_LATER) {
            /* The same one is the first to be asked next time. */
            hands[id].chunk--;
            hands[id].left++;
        }
        if (result != EVICTED_NOT) {
            return result;
        }
    }
    return EVICTED_NOT;
}

/*** Into the arena ***/

enum looked { LOOKED, LOOKED_MOVED, LOOKED_NO_ROOM };

/* The number of the list that is worked on, or was last. */
static uint32_t lists;

/* By class: hot items of this list for which nothing cold made room, and the last list that had more than a few; 0: none. */
static unsigned int wanted[MAX_NUMBER_OF_SLAB_CLASSES];
static uint32_t wanted_list[MAX_NUMBER_OF_SLAB_CLASSES];

/* Looks at what lies in the chunk, and moves it if it is hot and more than `spare` chunks are free. */
static enum looked look(item *it, unsigned int id, unsigned int spare) {
    uint32_t hv;
    void *lock = lock_item(it, id, &hv);
    if (lock == NULL) {
        return LOOKED;
    }
    uint64_t since_ns = now_ns();
    enum looked result = LOOKED;
    unsigned int score = score_of(it);
    bool is_hit = it->it_flags & ITEM_HPS_HIT;
    bool is_hot = options.test_ms ? some_number() % 2 : is_hit && score + 1 >= HOT_SCORE;
    if (!is_hot) {
        set_score(it, is_hit ? score + 1 : 0);
        COUNT(cold, 1);
    } else if (can_move(it, hv)) {
        slabs_mlock();
        item *to = chunks_free[id] > spare ? take_chunk(id, false) : NULL;
        slabs_munlock();
        if (to == NULL) {
            /* It keeps its marks, and is hot the next time, too. */
            result = LOOKED_NO_ROOM;
        } else {
            size_t bytes = ITEM_ntotal(it);
            set_score(it, HOT_SCORE);
            move_item(it, to, hv);
            slabs_free(it, bytes, id);
            COUNT(moved, 1);
            result = LOOKED_MOVED;
        }
    }
    unlock_item(lock, since_ns);
    return result;
}

/*
 * With one chunk kept in reserve, a hot item and a cold one can change places even where memory is full: the hot one takes the
 * reserve, and the cold one what that left.
 */
static void look_and_make_room(item *it, unsigned int id) {
    COUNT(looked, 1);
    if (look(it, id, 1) != LOOKED_NO_ROOM) {
        return;
    }
    enum looked again = LOOKED_NO_ROOM;
    enum evicted evicted = EVICTED;
    uint64_t moved_before = map_moved;
    if (can_grow()) {
        leave();
        grow(id);
        enter();
    } else {
        evicted = evict_one(id);
    }
    if (map_moved != moved_before || evicted == EVICTED_LATE) {
        return; /* The chunk may be another class's now; or this is left for the next list. */
    }
    if (evicted != EVICTED_NOT) {
        again = look(it, id, evicted == EVICTED ? 1 : 0);
    }
    if (evicted == EVICTED_LATER && again == LOOKED_MOVED) {
        evict_one(id);
    }
    if (again == LOOKED_NO_ROOM) {
        COUNT(no_room, 1);
    }
    if (evicted == EVICTED_NOT && ++wanted[id] >= FULL_ARENA_PAGES) {
        wanted_list[id] = lists;
    }
}

/* Pages in which nothing hot was found. */
typedef struct {
    uint32_t page;      /* its number, as far as it fits */
    uint32_t until;     /* the list with which it is looked at again */
    uint32_t looks;     /* since something hot was found */
} page_rest;

static page_rest rests[RESTS];

static page_rest *rest_of(uintptr_t address) {
    uint32_t page = address / SMALL_PAGE_BYTES;
    page_rest *rest = &rests[page * 2654435761u / (UINT32_MAX / RESTS + 1)];
    if (rest->page != page) {
        *rest = (page_rest){ page, lists, 0 };
    }
    return rest;
}

/* It was looked at. It takes two looks in a row to find something hot; after each two in vain it rests. */
static void note_look(page_rest *rest, bool has_moved) {
    rest->looks = has_moved ? 0 : rest->looks + 1;
    rest->until = lists + 1;
    if (rest->looks > 0 && rest->looks % 2 == 0) {
        rest->until += rest->looks < 12 ? 1u << rest->looks / 2 : REST_LISTS_MOST;
    }
}

/*
 * The items in this page of 4 KiB: those of which it holds the part that each fetch touches. One that reaches into it from the
 * page before is found there.
 */
static void look_at_page(uintptr_t address) {
    uint64_t moved_before = map_moved;
    unsigned long long items_before = READ(moved);
    page_rest *rest = rest_of(address);
    if ((int32_t)(lists - rest->until) < 0 && !options.test_ms) {
        return;
    }
    for (size_t at = map_at(address); at < map_used; at++) {
        uintptr_t start = (uintptr_t)map[at].start, touched = start + offsetof(item, it_flags), end = address + SMALL_PAGE_BYTES;
        if (touched >= end) {
            break;
        }
        unsigned int id = map[at].id, bytes = slabs_size(id), chunks = settings.slab_page_size / bytes;
        unsigned int first = touched > address ? 0 : (address - touched + bytes - 1) / bytes;
        unsigned int last = (end - 1 - touched) / bytes;
        for (unsigned int i = first; i <= last && i < chunks; i++) {
            look_and_make_room((item *)(start + (size_t)i * bytes), id);
            if (map_moved != moved_before) {
                return;
            }
        }
    }
    note_look(rest, READ(moved) > items_before);
}

/*** Windows that seem hot all over ***/

/*
 * What fills memcached, and its crawler, touch every page, though nobody asks for what is there; and where windows are huge
 * already, hot items cannot be found any more. So the items of some pages are asked, with two lists in a row: with the first
 * the marks of old fetches go, with the second those of fetches in between are counted. What is only set has no such marks.
 */
typedef struct {
    uint64_t since_ns;          /* since then it has seemed so in each list */
    uint32_t window;            /* its number, as far as it fits */
    uint32_t list;              /* the last one in which it seemed so; 0: none */
    uint32_t asked;             /* the list with which its pages were asked first; 0: none */
    uint32_t answered;          /* the one with which they were asked again; 0: none */
    uint16_t pages[SAMPLES];    /* which */
    uint16_t count;
    uint16_t seemed;            /* in so many lists in a row */
    uint16_t holds;             /* the answer, for so many lists */
    bool is_fetched;            /* the answer */
} window_doubt;

static window_doubt doubts[DOUBTS];

/* Windows to be asked: with this list for the first time, and with this one for the second. */
typedef struct {
    struct {
        uint64_t address;
        window_doubt *doubt;
    } *windows;
    size_t used, room;
} window_queue;

static window_queue first_time, second_time;

static bool queue_window(window_queue *queue, uint64_t address, window_doubt *doubt) {
    if (queue->used == queue->room) {
        size_t room = queue->room == 0 ? 64 : queue->room * 2;
        void *larger = realloc(queue->windows, room * sizeof(*queue->windows));
        if (larger == NULL) {
            return false;
        }
        queue->windows = larger;
        queue->room = room;
    }
    queue->windows[queue->used].address = address;
    queue->windows[queue->used++].doubt = doubt;
    return true;
}

/* Some of its active pages in which items lie, from one end to the other. */
static void choose_pages(const struct masu_window *window, window_doubt *doubt) {
    uint32_t step = window->hot / SAMPLES + 1, first = some_number() % step;
    doubt->count = 0;
    for (uint32_t i = first; i < window->hot && doubt->count < SAMPLES; i += step) {
        if (map_has(window->pages[i].address, SMALL_PAGE_BYTES)) {
            doubt->pages[doubt->count++] = (window->pages[i].address - window->address) / SMALL_PAGE_BYTES;
        }
    }
}

enum answer { ANSWER_YES, ANSWER_NO, ANSWER_OPEN };

/*
 * Whether fetches are what makes a window hot; if that is not known, it is asked with this list and the next one. If it is dense,
 * and has seemed hot for longer than a pass over all items takes, something else does, and that is reason enough.
 */
static enum answer is_fetched(const struct masu_window *window, bool is_dense) {
    uint32_t number = window->address / WINDOW_BYTES, list_now = lists + 1;
    window_doubt *doubt = &doubts[number % DOUBTS];
    if (doubt->window != number || doubt->list == 0) {
        if (doubt->list != 0 && list_now - doubt->list <= ANSWER_LISTS) {
            return ANSWER_NO; /* It waits until the other one has gone. */
        }
        *doubt = (window_doubt){ .window = number };
    }
    if (list_now - doubt->list > 1) {
        doubt->seemed = 0;
        doubt->since_ns = now_ns();
    }
    doubt->list = list_now;
    doubt->seemed += doubt->seemed < UINT16_MAX;
    bool is_answered = doubt->answered != 0 && list_now - doubt->answered <= doubt->holds;
    if (is_answered && doubt->is_fetched) {
        return ANSWER_YES;
    }
    if (is_dense && doubt->seemed > PASS_LISTS && now_ns() - doubt->since_ns > PASS_S * 1000000000ull) {
        return ANSWER_YES;
    }
    if (is_answered) {
        return ANSWER_NO;
    }
    if (doubt->asked == 0 || list_now - doubt->asked > 1) {
        choose_pages(window, doubt);
        if (doubt->count == 0) {
            return is_dense ? ANSWER_YES : ANSWER_NO; /* Too little of it is items. */
        }
        if (!queue_window(&first_time, window->address, doubt)) {
            COUNT(pages_late, doubt->count);
        }
    }
    return ANSWER_OPEN;
}

/* Whether what is hot in a sparse window would find no room in the arena, and to make it huge takes no memory. */
static bool is_better_huge(const struct masu_window *window) {
    if (window->resident != WINDOW_BYTES / SMALL_PAGE_BYTES || can_grow()) {
        return false;
    }
    uint32_t crowded = 0;
    size_t at = map_at(window->address);
    for (uint32_t i = 0; i < window->hot; i++) {
        uintptr_t address = window->pages[i].address;
        while (at < map_used && (uintptr_t)map[at].start + slab_page_bytes(map[at].id) <= address) {
            at++;
        }
        if (at < map_used && (uintptr_t)map[at].start < address + SMALL_PAGE_BYTES) {
            uint32_t since = wanted_list[map[at].id];
            crowded += since != 0 && lists + 1 - since <= ANSWER_LISTS;
        }
    }
    return crowded >= FULL_ARENA_PAGES;
}

/* Takes the mark of a fetch from the item in this chunk: true if it had one. */
static bool ask_item(item *it, unsigned int id) {
    uint32_t hv;
    void *lock = lock_item(it, id, &hv);
    if (lock == NULL) {
        return false;
    }
    uint64_t since_ns = now_ns();
    unsigned int score = score_of(it);
    bool is_hit = it->it_flags & ITEM_HPS_HIT;
    set_score(it, !is_hit ? 0 : score < 3 ? score + 1 : 3);
    unlock_item(lock, since_ns);
    return is_hit;
}

/* Asks all items that lie in this page, or reach into it: true if one was fetched. */
static bool ask_page(uintptr_t address) {
    bool is_fetched = false;
    for (size_t at = map_at(address); at < map_used && (uintptr_t)map[at].start < address + SMALL_PAGE_BYTES; at++) {
        uintptr_t start = (uintptr_t)map[at].start;
        unsigned int id = map[at].id, bytes = slabs_size(id), chunks = settings.slab_page_size / bytes;
        unsigned int first = start >= address ? 0 : (address - start) / bytes;
        unsigned int last = (address + SMALL_PAGE_BYTES - 1 - start) / bytes;
        for (unsigned int i = first; i <= last && i < chunks; i++) {
            is_fetched |= ask_item((item *)(start + (size_t)i * bytes), id);
        }
    }
    return is_fetched;
}

static unsigned int ask_window(uint64_t address, const window_doubt *doubt) {
    unsigned int fetched = 0;
    for (unsigned int i = 0; i < doubt->count; i++) {
        if (now_ns() > batch_end_ns) {
            leave();
            enter();
        }
        fetched += ask_page(address + (uint64_t)doubt->pages[i] * SMALL_PAGE_BYTES);
    }
    return fetched;
}

/* Those first that were asked with the list before; of the others as many as there is time for, not always the same ones. */
static void ask_windows(uint64_t end_ns) {
    for (size_t i = 0; i < second_time.used; i++) {
        window_doubt *doubt = second_time.windows[i].doubt;
        uint64_t address = second_time.windows[i].address;
        if (doubt->window != (uint32_t)(address / WINDOW_BYTES) || lists - doubt->asked != 1) {
            continue;
        }
        if (now_ns() > end_ns) {
            COUNT(pages_late, doubt->count);
            continue;
        }
        doubt->is_fetched = ask_window(address, doubt) * 4 >= doubt->count;
        doubt->answered = lists;
        doubt->holds = doubt->is_fetched ? ANSWER_LISTS : doubt->holds < ANSWER_LISTS ? doubt->holds + 1 : ANSWER_LISTS;
    }
    second_time.used = 0;
    size_t begin = first_time.used > 0 ? some_number() % first_time.used : 0;
    for (size_t i = 0; i < first_time.used; i++) {
        size_t at = (begin + i) % first_time.used;
        window_doubt *doubt = first_time.windows[at].doubt;
        uint64_t address = first_time.windows[at].address;
        if (now_ns() > end_ns || !queue_window(&second_time, address, doubt)) {
            COUNT(pages_late, doubt->count);
            continue;
        }
        ask_window(address, doubt);
        doubt->asked = lists;
    }
    first_time.used = 0;
}

/*** One list ***/

typedef struct {
    uint64_t address;
    float rate;
} active_page;

static active_page *list;
static size_t list_used, list_room;

static int by_rate(const void *a, const void *b) {
    const active_page *left = a, *right = b;
    return left->rate > right->rate ? -1 : left->rate < right->rate;
}

/* Below that, pages of this list are too many. */
static float list_least;

/* Of more than there is room for, those with fewest page walks are left out: half of them, now and then. */
static bool make_room_in_list(void) {
    size_t room = list_room == 0 ? 4096 : list_room * 2;
    active_page *larger = room > LIST_PAGES_MOST ? NULL : realloc(list, room * sizeof(active_page));
    if (larger != NULL) {
        list = larger;
        list_room = room;
        return true;
    }
    if (list_used == 0) {
        return false;
    }
    qsort(list, list_used, sizeof(active_page), by_rate);
    COUNT(pages_late, list_used - list_used / 2);
    list_used /= 2;
    list_least = list[list_used].rate;
    return true;
}

static void note(uint64_t address, float rate) {
    if (rate < list_least || (list_used == list_room && !make_room_in_list())) {
        COUNT(pages_late, 1);
        return;
    }
    list[list_used++] = (active_page){ address, rate };
}

/* Called back by libmasu, without any lock of memcached's. */
static int decide(const struct masu_window *window, void *user) {
    if (!map_has(window->address, WINDOW_BYTES)) {
        return window->suggested == MASU_PROMOTE ? MASU_PROMOTE : MASU_LEAVE;
    }
    bool is_dense = window->suggested == MASU_PROMOTE;
    if (!is_dense && !is_better_huge(window)) {
        return MASU_COMPACT;
    }
    switch (is_fetched(window, is_dense)) {
    case ANSWER_YES:
        return MASU_PROMOTE;
    case ANSWER_NO:
        COUNT(doubted, is_dense);
        return is_dense ? MASU_LEAVE : MASU_COMPACT;
    default:
        /* A look at its items would take the marks away that are asked for. */
        COUNT(doubted, 1);
        return MASU_LEAVE;
    }
}

/* Called back by libmasu as well, whose lock is held: the work is done when it has returned. */
static void compact(const struct masu_window *windows, size_t count, void *user) {
    for (size_t i = 0; i < count; i++) {
        for (uint32_t page = 0; page < windows[i].hot; page++) {
            note(windows[i].pages[page].address, windows[i].pages[page].rate);
        }
    }
}

/* Moves what still lies in a page that is to be another class's, and takes the page when it is empty. */
static void empty_page(arena_page *page) {
    unsigned int id = page->id, again = 0;
    for (unsigned int i = 0; i < page->chunks; i++) {
        item *it = (item *)(page->start + (size_t)i * slabs_size(id));
        if (now_ns() > batch_end_ns) {
            leave();
            enter();
        }
        uint32_t hv;
        void *lock = lock_item(it, id, &hv);
        if (lock == NULL) {
            continue;
        }
        uint64_t since_ns = now_ns();
        enum evicted result = can_move(it, hv) ? move_back(it, id, hv) : EVICTED_NOT;
        unlock_item(lock, since_ns);
        if (result == EVICTED && is_item(it) && again++ < page->chunks) {
            i--; /* Lent chunks came back instead. */
        }
        if (result == EVICTED_LATER) {
            break;
        }
    }
    slabs_mlock();
    if (page->free_chunks == page->chunks) {
        *page = (arena_page){ .start = page->start };
        slabs_count_memory(-settings.slab_page_size);
        COUNT(pages_reassigned, 1);
    } else if (++page->leaving > LEAVING_LISTS_MOST) {
        page->leaving = 0;
        chunks_free[id] += page->free_chunks;
    }
    slabs_munlock();
}

/* Its items that were fetched of late, about: no lock is held, and flags change under it. Its chunks stay where they are. */
static unsigned int hot_items(const arena_page *page) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < page->chunks; i++) {
        if (i % 256 == 0 && now_ns() > batch_end_ns) {
            leave();
            enter();
        }
        const item *it = (const item *)(page->start + (size_t)i * slabs_size(page->id));
        count += is_item(it) && it->it_flags & (ITEM_HPS_HIT | ITEM_HPS_SCORE);
    }
    return count;
}

/* Where a class finds no room, a page goes to it in which another class, that wants none, keeps little that is hot. */
static void reassign_pages(uint64_t end_ns) {
    static unsigned int begin;
    bool is_wanted = false;
    arena_page *coldest = NULL;
    unsigned int least = 0;
    for (unsigned int id = 0; id < MAX_NUMBER_OF_SLAB_CLASSES; id++) {
        is_wanted |= wanted[id] > 0;
    }
    for (unsigned int i = 0; i < pages_used; i++) {
        if (pages[i].leaving) {
            empty_page(&pages[i]);
            return;
        }
    }
    if (!is_wanted || can_grow()) {
        return;
    }
    for (unsigned int tried = 0; tried < pages_used && now_ns() < end_ns; tried++) {
        unsigned int i = begin++ % pages_used;
        if (wanted[pages[i].id] > 0) {
            continue;
        }
        unsigned int hot = hot_items(&pages[i]);
        if (hot <= pages[i].chunks / 8 && (coldest == NULL || hot < least)) {
            coldest = &pages[i];
            least = hot;
        }
    }
    if (coldest != NULL) {
        slabs_mlock();
        coldest->leaving = 1;
        chunks_free[coldest->id] -= coldest->free_chunks;
        slabs_munlock();
        empty_page(coldest);
    }
}

/* What may be done in the time since the last list. */
static uint64_t part_of(uint64_t since_ns, unsigned int share) {
    uint64_t most_ns = LIST_US * 1000ull;
    return options.test_ms == 0 && since_ns < most_ns * 1000 / share ? since_ns * share / 1000 : most_ns;
}

/* Which part of the time is for looking, by what came of it the last time. What only changes places gains little. */
static unsigned int share_of_looks(void) {
    static uint64_t last_looked, last_moved, last_back;
    static unsigned int share = SHARE_MOST;
    uint64_t looked = READ(looked) - last_looked, moved = READ(moved) - last_moved, back = READ(moved_back) - last_back;
    last_looked += looked;
    last_moved += moved;
    last_back += back;
    share = moved * 100 >= looked + back * 100 ? share * 2 : share / 2;
    share = share > SHARE_MOST ? SHARE_MOST : share < SHARE_LEAST ? SHARE_LEAST : share;
    return share;
}

static void work_on_list(void) {
    static uint64_t last_ns;
    uint64_t start_ns = now_ns(), since_ns = start_ns - last_ns;
    last_ns = start_ns;
    arena_refused = false;
    memset(wanted, 0, sizeof(wanted));
    for (unsigned int id = 0; id < MAX_NUMBER_OF_SLAB_CLASSES; id++) {
        hands[id].left = 0;
    }
    for (unsigned int i = 0; i < pages_used; i++) {
        hands[pages[i].id].left += pages[i].chunks;
    }
    if (list_used > 0) {
        qsort(list, list_used, sizeof(active_page), by_rate);
    }
    enter();
    work_end_ns = start_ns + part_of(since_ns, SHARE_ASK);
    ask_windows(work_end_ns);
    work_end_ns = now_ns() + part_of(since_ns, share_of_looks());
    for (size_t i = 0; i < list_used; i++) {
        if (now_ns() > batch_end_ns) {
            leave();
            if (now_ns() > work_end_ns) {
                COUNT(pages_late, list_used - i);
                enter();
                break;
            }
            enter();
        }
        look_at_page(list[i].address);
    }
    reassign_pages(now_ns() + part_of(since_ns, SHARE_LEAST));
    leave();
    list_used = 0;
    list_least = 0;
    SET(last_compact_us, (now_ns() - start_ns) / 1000);
}

/*** The thread ***/

static void note_state(const char *is, const char *why) {
    struct masu_track_counters of_track = { .size = sizeof(of_track) };
    struct masu_arena_counters of_arena = { .size = sizeof(of_arena) };
    bool has_track = track != NULL && masu_track_stats(track, &of_track) == MASU_OK;
    bool has_arena = arena != NULL && masu_arena_stats(arena, &of_arena) == MASU_OK;
    pthread_mutex_lock(&said_lock);
    tracker_is = is;
    tracker_why = why;
    said_pages_allowed = pages_allowed;
    if (has_track) {
        said_of_track = of_track;
    }
    if (has_arena) {
        said_of_arena = of_arena;
    }
    pthread_mutex_unlock(&said_lock);
}

/* With a tracker, until it ends. */
static void follow(void) {
    for (;;) {
        uint64_t active = 0;
        int result = masu_track_wait(track, 1000, &active);
        if (result == MASU_OK) {
            SET(active_pages, active);
            slabs_rebalancer_pause();
            read_map();
            slabs_rebalancer_resume();
            result = masu_track_handle(track);
            lists++;
            if (list_used > 0 || first_time.used > 0 || second_time.used > 0) {
                work_on_list();
            }
        }
        if (result != MASU_OK && result != MASU_NOTHING) {
            note_state(masu_result_text(result), NULL);
            return;
        }
        note_state("watched", NULL);
    }
}

/* In place of the tracker, for tests: random pages are active, and every other item is hot. */
static void test(void) {
    for (;;) {
        usleep(options.test_ms * 1000);
        slabs_rebalancer_pause();
        read_map();
        slabs_rebalancer_resume();
        for (unsigned int i = 0; i < 2048 && map_used > 0; i++) {
            slab_page page = map[some_number() % map_used];
            note(((uintptr_t)page.start + some_number() % slab_page_bytes(page.id)) & ~(uintptr_t)(SMALL_PAGE_BYTES - 1), 1);
        }
        SET(active_pages, list_used);
        lists++;
        work_on_list();
        note_state("test", NULL);
    }
}

static void *hps_thread(void *arg) {
    if (options.test_ms > 0) {
        test();
    }
    for (;;) {
        int result = masu_track_enable(track);
        if (result == MASU_OK || result == MASU_ALREADY) {
            note_state("watched", NULL);
            lists += ANSWER_LISTS + 1; /* What was said before is out of date. */
            follow();
        } else {
            const char *why = result == MASU_REFUSED ? masu_track_reason(track) : NULL;
            if (why != NULL && why != tracker_why) {
                fprintf(stderr, "hps: the tracker refuses to watch: %s\n", why);
            }
            note_state(masu_result_text(result), why);
        }
        sleep(RETRY_S);
    }
    return NULL;
}

void hps_init(void) {
    if (!options.on) {
        return;
    }
    struct masu_track_settings of_track;
    struct masu_arena_settings of_arena;
    sigset_t signals;

    if (options.socket_path != NULL) {
        setenv("MASU_TRACK", options.socket_path, 1);
    }
    masu_track_settings_init(&of_track, sizeof of_track);
    of_track.delivery = MASU_BY_WAITING;
    /* One of our choice, so that it can be blocked in all threads before there is any; only the thread that waits takes it. */
    of_track.signal = SIGRTMAX;
    if (options.period_ms > 0) {
        of_track.period_ms = options.period_ms;
    }
    if (options.threshold_pages > 0) {
        of_track.threshold_pages = options.threshold_pages;
    }
    if (options.rate > 0) {
        of_track.hot_rate = options.rate;
    }
    of_track.every_ms = options.every_ms;
    int result = masu_track_new(&of_track, &track);
    if (result != MASU_OK) {
        fprintf(stderr, "hps: cannot use these options: %s\n", masu_result_text(result));
        exit(EXIT_FAILURE);
    }
    masu_track_set_functions(track, decide, compact, NULL);

    masu_arena_settings_init(&of_arena, sizeof of_arena);
    of_arena.bytes = options.arena_mb > 0 ? options.arena_mb * 1024ull * 1024 : settings.maxbytes / 100;
    of_arena.bytes = (of_arena.bytes + WINDOW_BYTES - 1) / WINDOW_BYTES * WINDOW_BYTES;
    of_arena.small_pages_too = options.test_ms > 0;
    said_pages_allowed = pages_allowed = pages_most = of_arena.bytes / settings.slab_page_size;
    pages = calloc(pages_most, sizeof(arena_page));
    result = pages == NULL ? MASU_NO_MEMORY : masu_arena_new(&of_arena, options.test_ms > 0 ? NULL : track, &arena);
    if (result != MASU_OK) {
        fprintf(stderr, "hps: cannot reserve %llu MB of addresses for the arena: %s\n    Give hps_arena a smaller number.\n",
                (unsigned long long)of_arena.bytes >> 20, masu_result_text(result));
        exit(EXIT_FAILURE);
    }
    sigemptyset(&signals);
    sigaddset(&signals, SIGRTMAX);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    hps_enabled = true;
}

int hps_start(void) {
    pthread_t thread;
    if (!hps_enabled) {
        return 0;
    }
    int result = pthread_create(&thread, NULL, hps_thread, NULL);
    if (result != 0) {
        fprintf(stderr, "hps: cannot start its thread: %s\n", strerror(result));
        return -1;
    }
    thread_setname(thread, "mc-hps");
    return 0;
}

/*** Options ***/

static const char *value_of(const char *text, const char *name) {
    size_t bytes = strlen(name);
    if (strncmp(text, name, bytes) != 0 || (text[bytes] != '=' && text[bytes] != '\0')) {
        return NULL;
    }
    return text[bytes] == '=' ? text + bytes + 1 : "";
}

enum hps_option hps_option(const char *text) {
    static const struct {
        const char *name;
        unsigned int *number;
    } numbers[] = {
        { "hps_arena", &options.arena_mb },
        { "hps_period", &options.period_ms },
        { "hps_every", &options.every_ms },
        { "hps_threshold", &options.threshold_pages },
        { "hps_test", &options.test_ms },
    };
    const char *value;
    if (text == NULL) {
        return HPS_OPTION_FOREIGN;
    }
    if (strcmp(text, "hps") == 0) {
        options.on = true;
        return HPS_OPTION_OURS;
    }
    if ((value = value_of(text, "hps_socket")) != NULL) {
        options.needs_on = "hps_socket";
        options.socket_path = strdup(value);
        if (*value != '/') {
            fprintf(stderr, "hps_socket=%s: expected an absolute path, such as /run/masu/track.sock\n", value);
            return HPS_OPTION_WRONG;
        }
        if (strlen(value) >= sizeof(((struct sockaddr_un *)NULL)->sun_path)) {
            fprintf(stderr, "hps_socket=%s: expected a path of at most %zu bytes, as sockets have\n", value,
                    sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1);
            return HPS_OPTION_WRONG;
        }
        return HPS_OPTION_OURS;
    }
    if ((value = value_of(text, "hps_rate")) != NULL) {
        char *end;
        options.needs_on = "hps_rate";
        options.rate = strtod(value, &end);
        if (end == value || *end != '\0' || !(options.rate > 0) || !isfinite(options.rate)) {
            fprintf(stderr, "hps_rate=%s: expected page walks a second, above 0, such as 0.1\n", value);
            return HPS_OPTION_WRONG;
        }
        return HPS_OPTION_OURS;
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if ((value = value_of(text, numbers[i].name)) != NULL) {
            options.needs_on = numbers[i].name;
            if (!safe_strtoul(value, numbers[i].number) || *numbers[i].number > 1u << 30) {
                fprintf(stderr, "%s=%s: expected a whole number from 0 to %u\n", numbers[i].name, value, 1u << 30);
                return HPS_OPTION_WRONG;
            }
            return HPS_OPTION_OURS;
        }
    }
    return HPS_OPTION_FOREIGN;
}

bool hps_check(bool preallocated, bool has_storage) {
    if (!options.on) {
        if (options.needs_on != NULL) {
            fprintf(stderr, "-o %s does nothing without -o hps: give both.\n", options.needs_on);
        }
        return options.needs_on == NULL;
    }
    if (settings.memory_file != NULL) {
        fprintf(stderr, "-o hps cannot go with -e: what lies on its huge pages would not be in the memory file. Leave out one.\n");
    } else if (preallocated) {
        fprintf(stderr, "-o hps cannot go with -L: that puts all memory on huge pages, so there is nothing to move. Leave out one.\n");
    } else if (has_storage) {
        fprintf(stderr, "-o hps cannot go with ext_path: items that lie in external storage are not moved. Leave out one.\n");
    } else if (options.period_ms != 0 && (options.period_ms < 10 || options.period_ms > 600000)) {
        fprintf(stderr, "hps_period=%u: expected 10 to 600000 milliseconds\n", options.period_ms);
    } else if (options.every_ms > 86400000) {
        fprintf(stderr, "hps_every=%u: expected at most 86400000 milliseconds\n", options.every_ms);
    } else {
        return true;
    }
    return false;
}

void hps_usage(void) {
    printf("   - hps:                 move hot items onto huge pages, as masu's tracker (`masu track`) finds them.\n"
           "   - hps_arena:           megabytes of huge pages to move them to, at most. (default: 0, 1%% of -m)\n"
           "   - hps_period:          milliseconds that one observation takes (default: masu's, 1280)\n"
           "   - hps_every:           milliseconds from one observation to the next, at least (default: 0)\n"
           "   - hps_threshold:       active pages below which the tracker says nothing (default: masu's, 1)\n"
           "   - hps_rate:            page walks a second that make a page active (default: masu's, 0.1)\n"
           "   - hps_socket:          where the tracker listens (default: /run/masu/track.sock)\n");
}

/*** Statistics ***/

void hps_stats_settings(ADD_STAT add_stats, void *c) {
    APPEND_STAT("hps", "%s", hps_enabled ? "yes" : "no");
}

void hps_stats(ADD_STAT add_stats, void *c) {
    struct masu_track_counters of_track;
    struct masu_arena_counters of_arena;
    const char *is, *why, *socket_path = getenv("MASU_TRACK");
    unsigned long long chunks = 0, chunks_idle = 0, arena_bytes = 0, arena_limit;

    APPEND_STAT("enabled", "%d", hps_enabled);
    if (hps_enabled) {
        pthread_mutex_lock(&said_lock);
        of_track = said_of_track;
        of_arena = said_of_arena;
        is = tracker_is;
        why = tracker_why;
        arena_limit = (unsigned long long)said_pages_allowed * settings.slab_page_size;
        pthread_mutex_unlock(&said_lock);
        slabs_mlock();
        for (unsigned int i = 0; i < pages_used; i++) {
            chunks += pages[i].chunks;
            chunks_idle += pages[i].free_chunks;
            arena_bytes += settings.slab_page_size;
        }
        slabs_munlock();
        if (why == NULL) {
            APPEND_STAT("tracker", "%.100s", is);
        } else {
            APPEND_STAT("tracker", "refused: %.100s", why);
        }
        APPEND_STAT("tracker_socket", "%.110s", socket_path != NULL ? socket_path : "/run/masu/track.sock");
        APPEND_STAT("notifications", "%llu", (unsigned long long)of_track.notifications);
        APPEND_STAT("lists", "%llu", (unsigned long long)of_track.lists);
        APPEND_STAT("active_pages", "%llu", READ(active_pages));
        APPEND_STAT("windows_left", "%llu", (unsigned long long)of_track.verdicts[MASU_LEAVE]);
        APPEND_STAT("windows_compacted", "%llu", (unsigned long long)of_track.verdicts[MASU_COMPACT]);
        APPEND_STAT("windows_promoted", "%llu", (unsigned long long)of_track.verdicts[MASU_PROMOTE]);
        APPEND_STAT("windows_doubted", "%llu", READ(doubted));
        APPEND_STAT("items_looked_at", "%llu", READ(looked));
        APPEND_STAT("items_moved", "%llu", READ(moved));
        APPEND_STAT("items_moved_back", "%llu", READ(moved_back));
        APPEND_STAT("items_cold", "%llu", READ(cold));
        APPEND_STAT("items_busy", "%llu", READ(busy));
        APPEND_STAT("items_no_room", "%llu", READ(no_room));
        APPEND_STAT("pages_late", "%llu", READ(pages_late));
        APPEND_STAT("chunks", "%llu", chunks);
        APPEND_STAT("chunks_free", "%llu", chunks_idle);
        APPEND_STAT("arena_limit_bytes", "%llu", arena_limit);
        APPEND_STAT("arena_bytes", "%llu", arena_bytes);
        APPEND_STAT("arena_windows_hugetlb", "%llu", (unsigned long long)of_arena.windows_hugetlb);
        APPEND_STAT("arena_windows_thp", "%llu", (unsigned long long)of_arena.windows_thp);
        APPEND_STAT("arena_windows_small", "%llu", (unsigned long long)of_arena.windows_small);
        APPEND_STAT("arena_windows_refused", "%llu", (unsigned long long)of_arena.refused);
        APPEND_STAT("arena_pages_reassigned", "%llu", READ(pages_reassigned));
        APPEND_STAT("tracker_rounds", "%llu", (unsigned long long)of_track.rounds);
        APPEND_STAT("tracker_promoted", "%llu", (unsigned long long)of_track.promoted);
        APPEND_STAT("tracker_demoted", "%llu", (unsigned long long)of_track.demoted);
        APPEND_STAT("tracker_refused", "%llu", (unsigned long long)of_track.refused);
        APPEND_STAT("tracker_extra_rss_bytes", "%llu", (unsigned long long)of_track.extra_rss_bytes);
        APPEND_STAT("last_compact_us", "%llu", READ(last_compact_us));
        APPEND_STAT("longest_item_lock_us", "%llu", READ(longest_lock_ns) / 1000);
    }
    add_stats(NULL, 0, NULL, 0, c);
}
