"""Plays a trace to pycachesim and prints what it found: python3 speed.py TRACE, a file of addresses of 8 bytes each."""
import array
import json
import os
import sys
import time

import cachesim

addresses = array.array("Q")
with open(sys.argv[1], "rb") as file:
    addresses.fromfile(file, os.path.getsize(sys.argv[1]) // 8)
memory = cachesim.MainMemory()
llc = cachesim.Cache("LLC", 16384, 20, 64, "LRU")
memory.load_to(llc)
memory.store_from(llc)
second = cachesim.Cache("L2", 512, 8, 64, "LRU", store_to=llc, load_from=llc)
first = cachesim.Cache("L1", 64, 8, 64, "LRU", store_to=second, load_from=second)
simulator = cachesim.CacheSimulator(first, memory)
begun = time.process_time()
simulator.load(addresses)
seconds = time.process_time() - begun
hits = [level.stats()["HIT_count"] for level in (first, second, llc)]
print(json.dumps({"seconds": seconds, "hits": hits}))
