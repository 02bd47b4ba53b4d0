"""Gathers from, sorts, counts and transposes large arrays. Usage: arrays.py BYTES. Prints a checksum and the time after the
arrays were filled."""

import sys
import time

import numpy as np

# At most five arrays of eight bytes are alive at a time.
count = 1 << (int(sys.argv[1]) // 40).bit_length() - 1
values = np.arange(count, dtype=np.uint64)
values *= np.uint64(0x9E3779B97F4A7C15)
index = np.arange(count, dtype=np.uint64)
for _ in range(2):  # each step maps 0 … count - 1 onto itself
    index *= np.uint64(0x5851F42D4C957F2D)
    index &= np.uint64(count - 1)
    index ^= index >> np.uint64(count.bit_length() // 2)
index = index.astype(np.int64)

begun = time.perf_counter()
total = 0
for _ in range(2):
    gathered = values[index]
    total ^= int(np.bitwise_xor.reduce(gathered[::3]))
    values += gathered
side = int(count**0.5)
turned = np.ascontiguousarray(values[: side * side].reshape(side, side).T)
total ^= int(np.bitwise_xor.reduce(turned.ravel()[::5]))
sums = np.bincount(index[: count // 4] >> 3, minlength=count // 8)
total ^= int(np.bitwise_xor.reduce(sums * np.arange(len(sums))))
part = np.sort(values[: count // 8])
total ^= int(np.bitwise_xor.reduce(part[::7]))
print(f"checksum={total & (2**63 - 1)} work_s={time.perf_counter() - begun}")
