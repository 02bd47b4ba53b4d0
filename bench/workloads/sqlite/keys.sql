-- Inserts rows in a random order of their keys into a database in memory, looks them up in another order, and changes some.
-- ROWS is a power of two, put in by the benchmark; an odd factor then maps 0 … ROWS - 1 onto itself.
PRAGMA journal_mode = OFF;
PRAGMA temp_store = MEMORY;
CREATE TABLE entries (key INTEGER PRIMARY KEY, value TEXT NOT NULL);
BEGIN;
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT ROWS)
INSERT INTO entries SELECT n * 2654435761 % ROWS, printf('%0200d', n) FROM numbers;
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT ROWS / 4)
INSERT OR REPLACE INTO entries SELECT n * 40503 % ROWS, printf('%0210d', n) FROM numbers;
COMMIT;
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT ROWS)
SELECT 'checksum=' || sum(length(value) * (n % 1000) + CAST(substr(value, -6) AS INTEGER))
FROM numbers CROSS JOIN entries ON key = n * 2246822519 % ROWS;
