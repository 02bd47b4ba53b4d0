-- A table of orders in memory: filled, indexed, looked up at random by key and by customer, grouped, and sorted.
-- ROWS is put in by the benchmark and has no factor in common with 2246822519, which maps its part of 0 … ROWS - 1 onto different keys.
PRAGMA temp_store = MEMORY;
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, amount INTEGER NOT NULL, note TEXT NOT NULL);
BEGIN;
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT ROWS)
INSERT INTO orders SELECT n, n * 2654435761 % 40009, n * 40503 % 1009, printf('%0120d', n) FROM numbers;
COMMIT;
CREATE INDEX by_customer ON orders (customer, amount);
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT 50000)
SELECT 'checksum=points-' || sum(length(note) + amount) FROM numbers CROSS JOIN orders ON id = n * 2246822519 % ROWS;
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers LIMIT 2000)
SELECT 'checksum=customers-' || sum(amount + CAST(substr(note, -6) AS INTEGER))
FROM numbers CROSS JOIN orders ON customer = n * 7919 % 40009;
SELECT 'checksum=groups-' || sum(best * (total % 1000))
FROM (SELECT max(amount) AS best, sum(length(note)) AS total FROM orders GROUP BY customer);
SELECT 'checksum=notes-' || sum(id % 97) FROM (SELECT id FROM orders ORDER BY note DESC LIMIT 1000);
