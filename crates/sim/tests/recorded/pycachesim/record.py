"""Writes what pycachesim finds for some walks, for crates/llc/tests/pycachesim.rs to compare with.

    python3 -m venv target/pycachesim && target/pycachesim/bin/pip install pycachesim==0.3.1
    target/pycachesim/bin/python crates/llc/tests/recorded/pycachesim/record.py > /tmp/counts.txt
    diff /tmp/counts.txt crates/llc/tests/recorded/pycachesim/counts.txt

pycachesim is only run, as a program of its own. A walk is made by the rule below, which the test has as well, so that no trace need be
stored: xorshift64 (Marsaglia, 2003), whose high bits choose among the lines, most of them near the last one.
"""
import cachesim

MASK = (1 << 64) - 1


def walk(seed, lines, accesses):
    state, near = seed, 0
    for _ in range(accesses):
        state ^= state << 13 & MASK
        state ^= state >> 7
        state ^= state << 17 & MASK
        draw = state >> 33
        if draw & 3 == 0:
            near = (draw >> 2) % lines
        else:
            near = (near + (draw >> 2) % 64) % lines
        yield near


def count(policy, sets, ways, seed, lines, accesses):
    memory = cachesim.MainMemory()
    cache = cachesim.Cache("LLC", sets, ways, 64, policy)
    memory.load_to(cache)
    memory.store_from(cache)
    simulator = cachesim.CacheSimulator(cache, memory)
    for line in walk(seed, lines, accesses):
        simulator.load(line * 64)
    stats = cache.stats()
    return stats["HIT_count"], stats["MISS_count"]


print("# pycachesim", "0.3.1")
print("# policy sets ways seed lines accesses hits misses")
for policy in ("LRU", "FIFO"):
    for sets, ways in ((1, 4), (16, 1), (64, 8), (256, 11), (128, 16), (512, 20), (8192, 20)):
        for seed in (1, 88172645463325252, 0xDEADBEEF):
            held = sets * ways
            for lines in (max(held * 9 // 10, 1), held + held // 4 + 1, held * 3):
                accesses = 20_000 if held < 20_000 else 400_000
                hits, misses = count(policy, sets, ways, seed, lines, accesses)
                print(policy, sets, ways, seed, lines, accesses, hits, misses)
