/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A client of memcached, on libmemcached: fills it, and asks for keys in an order that was drawn beforehand.
 *
 *     load SOCKET DRAWN CONNECTIONS BYTES
 *
 * DRAWN is a file of item numbers, 32 bits each, read again and again. A value is BYTES long and repeats eight bytes
 * that its number gives. It prints `ready`, and answers a line with a line:
 *
 *     set FROM TO       items FROM to TO - 1, answered when the server has them all
 *     check FROM TO     the same, each value compared byte by byte: missing=
 *     get KEYS MS       for MS milliseconds, KEYS keys a request: requests= gets= misses= seconds=
 *     latency           of the requests since the last `latency`: requests= p50_us= p99_us= p999_us= max_us=
 *
 * Each connection has one request under way: while the server works on one, the answer to another is looked at. A value
 * that is not its key's ends the program. Of a value that `get` fetched, its length and its first eight bytes are
 * compared.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <libmemcached/memcached.h>

enum { CONNECTIONS_MOST = 64, KEYS_MOST = 1024, BYTES_MOST = 1 << 20, NAME_BYTES = 20 };

static struct connection {
	memcached_st *memcached;
	memcached_result_st result;
	uint32_t numbers[KEYS_MOST];
	size_t count;
	uint64_t sent_ns;
} connections[CONNECTIONS_MOST];

static size_t connections_used;
static const uint32_t *drawn;
static size_t drawn_count, next_drawn;
static size_t value_bytes;
static uint64_t misses;

static _Noreturn void fail(const char *what, const char *why)
{
	fprintf(stderr, "load: cannot %s: %s\n", what, why);
	exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/*** Latency: times in steps of less than 1 %, 128 to each power of two of nanoseconds ***/

#define STEPS_LOG2 7
#define STEPS (1u << STEPS_LOG2)
#define BUCKETS (STEPS * 40)

static uint32_t buckets[BUCKETS];
static uint64_t timed, longest_ns;

static void note_time(uint64_t ns)
{
	size_t bucket = ns;
	if (ns >= STEPS) {
		unsigned int power = 63 - (unsigned int)__builtin_clzll(ns) - STEPS_LOG2;
		bucket = ((size_t)(power + 1) << STEPS_LOG2) + ((ns >> power) - STEPS);
	}
	buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
	timed++;
	if (ns > longest_ns)
		longest_ns = ns;
}

/* Upper end of the bucket that holds the quantile `part`. */
static double quantile_us(double part)
{
	uint64_t wanted = (uint64_t)((double)timed * part), seen = 0;
	size_t bucket = 0;
	while (bucket < BUCKETS - 1 && (seen += buckets[bucket]) <= wanted)
		bucket++;
	if (bucket < STEPS)
		return (double)(bucket + 1) / 1e3;
	unsigned int power = (unsigned int)(bucket >> STEPS_LOG2) - 1;
	return (double)((STEPS + bucket % STEPS + 1) << power) / 1e3;
}

static void tell_latency(void)
{
	printf("requests=%" PRIu64 " p50_us=%.1f p99_us=%.1f p999_us=%.1f max_us=%.1f\n", timed, quantile_us(0.5),
	       quantile_us(0.99), quantile_us(0.999), (double)longest_ns / 1e3);
	memset(buckets, 0, sizeof buckets);
	timed = longest_ns = 0;
}

/*** Keys and values ***/

/* A pseudo-random number from an index. */
static uint64_t scrambled(uint64_t place)
{
	place += 0x9e3779b97f4a7c15u;
	place = (place ^ (place >> 30)) * 0xbf58476d1ce4e5b9u;
	place = (place ^ (place >> 27)) * 0x94d049bb133111ebu;
	return place ^ (place >> 31);
}

/* Key in YCSB's form: `user` and a hash of the number. */
static void name_of(uint32_t number, char *name)
{
	uint64_t hash = scrambled(number);
	memcpy(name, "user", 4);
	for (int digit = 0; digit < 16; digit++)
		name[4 + digit] = "0123456789abcdef"[hash >> (60 - 4 * digit) & 15];
}

static uint64_t token_of(uint32_t number)
{
	return scrambled(~(uint64_t)number);
}

static void fill(char *value, uint32_t number)
{
	uint64_t token = token_of(number);
	for (size_t at = 0; at < value_bytes; at += 8)
		memcpy(value + at, &token, value_bytes - at < 8 ? value_bytes - at : 8);
}

static int is_right(const char *value, size_t bytes, uint32_t number, int whole)
{
	uint64_t token = token_of(number);
	if (bytes != value_bytes || memcmp(value, &token, 8) != 0)
		return 0;
	for (size_t at = 8; whole && at < bytes; at += 8)
		if (memcmp(value + at, &token, bytes - at < 8 ? bytes - at : 8) != 0)
			return 0;
	return 1;
}

/*** Requests ***/

static void connect_to(const char *socket, size_t count)
{
	for (connections_used = 0; connections_used < count; connections_used++) {
		struct connection *one = &connections[connections_used];
		one->memcached = memcached_create(NULL);
		if (one->memcached == NULL || memcached_result_create(one->memcached, &one->result) == NULL)
			fail("connect", "no memory");
		memcached_return_t said = memcached_server_add_unix_socket(one->memcached, socket);
		if (memcached_failed(said))
			fail("connect", memcached_strerror(one->memcached, said));
	}
}

/* Asks for `count` keys. */
static void ask(struct connection *one, const uint32_t *numbers, size_t count)
{
	static char names[KEYS_MOST][NAME_BYTES];
	static const char *keys[KEYS_MOST];
	static size_t lengths[KEYS_MOST];
	for (size_t at = 0; at < count; at++) {
		name_of(numbers[at], names[at]);
		keys[at] = names[at];
		lengths[at] = NAME_BYTES;
	}
	memcpy(one->numbers, numbers, count * sizeof numbers[0]);
	one->count = count;
	one->sent_ns = now_ns();
	memcached_return_t said = memcached_mget(one->memcached, keys, lengths, count);
	if (memcached_failed(said))
		fail("ask for keys", memcached_last_error_message(one->memcached));
}

/* Reads the answer. The server answers in the order of the keys, and leaves out missing ones. */
static void hear(struct connection *one, int whole)
{
	char name[NAME_BYTES];
	size_t at = 0;
	memcached_return_t said;
	while (memcached_fetch_result(one->memcached, &one->result, &said) != NULL) {
		const char *key = memcached_result_key_value(&one->result);
		for (; at < one->count; at++, misses++) {
			name_of(one->numbers[at], name);
			if (memcmp(name, key, NAME_BYTES) == 0)
				break;
		}
		if (at == one->count)
			fail("understand an answer", "it is to a key that was not asked for");
		const char *value = memcached_result_value(&one->result);
		if (!is_right(value, memcached_result_length(&one->result), one->numbers[at], whole))
			fail("go on", "a value is not the one that was set");
		at++;
	}
	if (said != MEMCACHED_END && said != MEMCACHED_NOTFOUND)
		fail("hear an answer", memcached_strerror(one->memcached, said));
	misses += one->count - at;
}

static void set(uint32_t from, uint32_t to)
{
	static char value[BYTES_MOST];
	struct connection *one = &connections[0];
	char name[NAME_BYTES];
	/* Requests without single answers, many at a time: an `end` that is answered comes after them. */
	memcached_behavior_set(one->memcached, MEMCACHED_BEHAVIOR_NOREPLY, 1);
	memcached_behavior_set(one->memcached, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1);
	for (uint32_t number = from; number < to; number++) {
		name_of(number, name);
		fill(value, number);
		memcached_return_t said = memcached_set(one->memcached, name, NAME_BYTES, value, value_bytes, 0, 0);
		if (memcached_failed(said))
			fail("set an item", memcached_last_error_message(one->memcached));
	}
	memcached_flush_buffers(one->memcached);
	memcached_behavior_set(one->memcached, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 0);
	memcached_behavior_set(one->memcached, MEMCACHED_BEHAVIOR_NOREPLY, 0);
	if (to > from) {
		uint32_t last = to - 1;
		ask(one, &last, 1);
		hear(one, 1);
	}
	printf("set=%" PRIu32 "\n", to - from);
}

static void check(uint32_t from, uint32_t to)
{
	uint32_t numbers[64];
	misses = 0;
	while (from < to) {
		size_t count = 0;
		while (count < 64 && from < to)
			numbers[count++] = from++;
		ask(&connections[0], numbers, count);
		hear(&connections[0], 1);
	}
	printf("missing=%" PRIu64 "\n", misses);
}

static void ask_for_drawn(struct connection *one, size_t keys)
{
	if (drawn_count - next_drawn < keys)
		next_drawn = 0;
	ask(one, drawn + next_drawn, keys);
	next_drawn += keys;
}

static void get(size_t keys, uint64_t ms)
{
	uint64_t begun = now_ns(), end = begun + ms * 1000000u, now = begun, requests = 0;
	misses = 0;
	for (size_t at = 0; at < connections_used; at++)
		ask_for_drawn(&connections[at], keys);
	for (size_t at = 0; now < end; at = (at + 1) % connections_used) {
		hear(&connections[at], 0);
		now = now_ns();
		note_time(now - connections[at].sent_ns);
		requests++;
		ask_for_drawn(&connections[at], keys);
	}
	/* The answers that are still under way are not counted. */
	uint64_t missed = misses;
	for (size_t at = 0; at < connections_used; at++)
		hear(&connections[at], 0);
	printf("requests=%" PRIu64 " gets=%" PRIu64 " misses=%" PRIu64 " seconds=%.6f\n", requests, requests * keys, missed,
	       (double)(now - begun) / 1e9);
}

static void map_drawn(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	struct stat about;
	if (file < 0 || fstat(file, &about) != 0)
		fail("read what was drawn", path);
	drawn_count = (size_t)about.st_size / sizeof drawn[0];
	drawn = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
	if (drawn == MAP_FAILED || drawn_count < KEYS_MOST)
		fail("read what was drawn", "it is too short");
}

int main(int count, char **words)
{
	if (count != 5)
		fail("start", "expected SOCKET DRAWN CONNECTIONS BYTES");
	size_t wanted = strtoul(words[3], NULL, 10);
	value_bytes = strtoul(words[4], NULL, 10);
	if (wanted < 1 || wanted > CONNECTIONS_MOST || value_bytes < 8 || value_bytes > BYTES_MOST)
		fail("start", "expected 1 to 64 connections, and 8 to 1048576 bytes");
	map_drawn(words[2]);
	connect_to(words[1], wanted);
	printf("ready\n");
	fflush(stdout);
	char line[128];
	while (fgets(line, sizeof line, stdin) != NULL) {
		unsigned long first, second;
		if (sscanf(line, "set %lu %lu", &first, &second) == 2)
			set((uint32_t)first, (uint32_t)second);
		else if (sscanf(line, "check %lu %lu", &first, &second) == 2)
			check((uint32_t)first, (uint32_t)second);
		else if (sscanf(line, "get %lu %lu", &first, &second) == 2 && first >= 1 && first <= KEYS_MOST)
			get(first, second);
		else if (strcmp(line, "latency\n") == 0)
			tell_latency();
		else
			fail("understand", line);
		fflush(stdout);
	}
	return 0;
}
