"""A table of numbers as an analyst treats it: centred, scaled, correlated, sorted by one column, counted by group, smoothed.
Usage: columns.py ROWS. Prints a checksum and the time after the table was filled."""

import sys
import time

import numpy as np

rows, columns = int(sys.argv[1]), 16
place = np.arange(rows, dtype=np.uint64)
table = np.empty((rows, columns))
for column in range(columns):
    scrambled = (place + np.uint64(column * rows)) * np.uint64(0x9E3779B97F4A7C15)
    scrambled ^= scrambled >> np.uint64(29)
    table[:, column] = (scrambled >> np.uint64(40)).astype(np.float64)
del place, scrambled

begun = time.perf_counter()
whole = table.copy()
table -= table.mean(axis=0)
table /= table.std(axis=0)
together = table.T @ table / rows
assert abs(np.trace(together) - columns) < 1e-6, "the diagonal of a correlation is 1"
order = np.argsort(table[:, 3], kind="stable")
by_rank = whole[order[: rows // 2]]
assert np.all(np.diff(by_rank[:, 3]) >= 0), "sorted by the fourth column"
groups = (whole[:, 7].astype(np.int64)) & 1023
counts = np.bincount(groups, weights=whole[:, 5], minlength=1024)
assert counts.sum() == whole[:, 5].sum(), "every row has a group"
running = np.cumsum(whole[:, 9])
smooth = running[64:] - running[:-64]
elapsed = time.perf_counter() - begun

# Only what does not depend on the order in which a library adds: whole numbers below 2^53, and the order itself.
words = [int(by_rank.sum()), int((counts * (np.arange(1024) % 7)).sum()), int(smooth.sum()), int(order[::101].sum())]
print("checksum=" + "-".join(str(word) for word in words))
print(f"elapsed_s={elapsed}")
