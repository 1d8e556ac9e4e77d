-- What an application does with its database on any day. Run by SQLite in
-- Pagefork and by the host's own; both must print the same. Reals are multiples
-- of 1/8, which sums keep exact in any order.
PRAGMA foreign_keys = ON;
PRAGMA page_size = 1024;
PRAGMA cache_size = 20;

CREATE TABLE customer (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    city TEXT,
    since TEXT CHECK (since LIKE '____-__-__')
);
CREATE TABLE product (
    id INTEGER PRIMARY KEY,
    code TEXT UNIQUE NOT NULL,
    price REAL NOT NULL CHECK (price > 0),
    tags TEXT NOT NULL DEFAULT '[]',
    picture BLOB
);
CREATE TABLE purchase (
    id INTEGER PRIMARY KEY,
    customer INTEGER NOT NULL REFERENCES customer ON DELETE CASCADE,
    product INTEGER NOT NULL REFERENCES product,
    count INTEGER NOT NULL,
    day TEXT NOT NULL
);
CREATE INDEX purchase_customer ON purchase (customer, day);
CREATE INDEX purchase_large ON purchase (product) WHERE count > 7;

BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
INSERT INTO customer SELECT i, printf('customer %03d', i), CASE WHEN i % 7 THEN char(65 + i % 5) || 'ville' END, date('2020-01-01', printf('+%d days', i * 5)) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
INSERT INTO product SELECT i, printf('%c-%04x', 65 + i % 26, i * 7919 % 65536), i * 3 % 40 + 0.125 * (i % 8) + 1, json_array(i % 3, 'tag' || i % 4), CASE WHEN i % 5 = 0 THEN zeroblob(i) END FROM n;
WITH RECURSIVE n(i, x) AS (SELECT 1, 12345 UNION ALL SELECT i + 1, (x * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 20000)
INSERT INTO purchase SELECT i, x / 8 % 200 + 1, x / 4096 % 50 + 1, x / 65536 % 12 + 1, date('2024-01-01', printf('+%d days', x / 1024 % 366)) FROM n;
COMMIT;

-- Joins and aggregates.
SELECT count(*), min(day), max(day), sum(count), total(count), avg(count) IS NOT NULL FROM purchase;
SELECT city, count(DISTINCT customer.id), count(*), sum(price * count) FROM purchase JOIN customer ON customer.id = customer JOIN product ON product.id = product GROUP BY city HAVING count(*) > 100 ORDER BY city;
SELECT c.name, p.code, sum(u.count) AS n FROM customer c JOIN purchase u ON u.customer = c.id JOIN product p ON p.id = u.product GROUP BY 1, 2 ORDER BY n DESC, 1, 2 LIMIT 10 OFFSET 5;
SELECT a.code, b.code FROM product a LEFT JOIN product b ON b.price = a.price AND b.id > a.id ORDER BY a.id, b.id LIMIT 20;
SELECT count(*) FROM customer FULL JOIN product ON customer.id = product.id + 190;
SELECT name FROM customer WHERE EXISTS (SELECT 1 FROM purchase WHERE customer = customer.id AND count = 12 AND day BETWEEN '2024-03-01' AND '2024-03-04') ORDER BY name LIMIT 12;
SELECT id FROM customer EXCEPT SELECT customer FROM purchase WHERE count > 11 ORDER BY 1 LIMIT 10;
SELECT day, group_concat(DISTINCT product) FROM (SELECT * FROM purchase ORDER BY day, product, id) WHERE day < '2024-01-04' AND customer < 30 GROUP BY day ORDER BY day;
SELECT strftime('%m', day) AS month, count(*) FILTER (WHERE count > 6), max(count) FROM purchase GROUP BY month ORDER BY month;

-- Indexes: the same rows as without them.
SELECT sum(id), count(*) FROM purchase INDEXED BY purchase_large WHERE count > 7 AND product = 13;
SELECT sum(id), count(*) FROM purchase NOT INDEXED WHERE count > 7 AND product = 13;
SELECT sum(id), count(*) FROM purchase WHERE customer = 77 AND day >= '2024-06-01';
SELECT sum(id), count(*) FROM purchase NOT INDEXED WHERE customer = 77 AND day >= '2024-06-01';
CREATE INDEX product_tag ON product (json_extract(tags, '$[1]'), price);
SELECT code, price FROM product WHERE json_extract(tags, '$[1]') = 'tag2' ORDER BY price, code;
SELECT code FROM product WHERE code GLOB '[A-F]-*[0-4]' OR code LIKE 'z%' ORDER BY code;
SELECT id FROM customer WHERE name = 'CUSTOMER 042';

-- Window functions.
SELECT city, name, since, row_number() OVER w, rank() OVER (PARTITION BY city ORDER BY substr(since, 1, 4)), lag(since, 1, '-') OVER w, sum(id) OVER (w ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM customer WHERE id <= 60 WINDOW w AS (PARTITION BY city ORDER BY since) ORDER BY city, since;
SELECT id, price, ntile(4) OVER (ORDER BY price, id), percent_rank() OVER (ORDER BY id) > 0.5, first_value(code) OVER (PARTITION BY id % 3 ORDER BY price DESC, id), sum(price) OVER (ORDER BY id RANGE BETWEEN 3 PRECEDING AND 3 FOLLOWING EXCLUDE CURRENT ROW) FROM product ORDER BY id;

-- Text, numbers, blobs, dates, JSON.
SELECT upper('straße'), length('größe 漢字 🦀'), hex('é'), unicode('漢'), instr('größe', 'ß'), replace('a-b-c', '-', '+'), trim('  x '), substr('größe', -3, 2), quote('it''s'), x'6162' || 'c', typeof(1.0), typeof(x'');
SELECT 9223372036854775807, -9223372036854775807 - 1, 9223372036854775807 + 1.0, 7 / 2, -7 / 2, -7 % 3, 1 << 62, ~5, 5 & 3 | 8, 1 / 0, abs(-3.5), round(2.5), round(-2.625, 2), CAST('12abc' AS INTEGER), CAST(3.99 AS INTEGER), 0x7f, 1e300 * 1e10;
SELECT '10' < 9, 10 < '9', '10' < '9', NULL = NULL, NULL IS NULL, 1 IN (1, NULL), 2 IN (1, NULL), x'61' = 'a', 'a' < x'61', 'a' = 'A' COLLATE NOCASE, 1 BETWEEN 0 AND NULL;
SELECT date('2024-02-28', '+2 days'), julianday('2000-01-01 12:00:00'), strftime('%s', '2038-01-19 03:14:08'), time('23:59:30', '+45 seconds'), datetime(1e9, 'unixepoch'), date('2024-05-31', 'start of month', '-1 day', 'weekday 0');
SELECT json('{"a": [1, 2.5, null, "x\u00e9"]}') ->> '$.a[3]', json_group_array(value), max(json_type(value)) FROM json_each('[3, 1, 2]');
SELECT key, value, type, fullkey FROM json_tree('{"a": {"b": [true, 7]}, "c": "d"}') ORDER BY id;
UPDATE product SET picture = CAST(x'c0ffee' || code || x'00ff' AS BLOB) WHERE id % 10 = 3;
SELECT id, picture, length(picture), substr(picture, 2, 3) FROM product WHERE picture IS NOT NULL ORDER BY id;

-- What is refused, and that it changed nothing.
INSERT INTO customer VALUES (201, 'Customer 001', NULL, '2024-01-01');
INSERT INTO customer VALUES (201, 'new', NULL, 'yesterday');
INSERT INTO purchase VALUES (NULL, 999, 1, 1, '2024-01-01');
DELETE FROM product WHERE id = 1;
INSERT INTO product (code, price) VALUES ('free', 0);
SELECT * FROM nowhere;
SELECT unknown FROM product;
SELEC 1;
SELECT count(*) FROM customer;

-- Transactions, savepoints, triggers, views, upserts, cascades.
CREATE TABLE audit (id INTEGER PRIMARY KEY, line TEXT);
CREATE TRIGGER priced AFTER UPDATE OF price ON product WHEN new.price <> old.price BEGIN
    INSERT INTO audit (line) VALUES (old.code || ': ' || old.price || ' to ' || new.price);
END;
CREATE VIEW turnover AS SELECT product, sum(count * price) AS amount FROM purchase JOIN product ON product.id = product GROUP BY product;
BEGIN;
UPDATE product SET price = price + 0.5 WHERE id <= 4;
SAVEPOINT inner;
UPDATE product SET price = price * 2;
SELECT sum(price), (SELECT count(*) FROM audit) FROM product;
ROLLBACK TO inner;
SELECT sum(price), (SELECT count(*) FROM audit) FROM product;
RELEASE inner;
COMMIT;
SELECT line FROM audit ORDER BY id;
SELECT * FROM turnover ORDER BY amount DESC, product LIMIT 5;
BEGIN;
DELETE FROM purchase;
SELECT count(*) FROM purchase;
ROLLBACK;
SELECT count(*) FROM purchase;
DELETE FROM customer WHERE id % 3 = 0;
SELECT count(*), sum(count) FROM purchase;
INSERT INTO product (id, code, price) VALUES (1, 'again', 2.5) ON CONFLICT (id) DO UPDATE SET price = excluded.price, tags = '["new"]' RETURNING id, code, price, tags;
INSERT OR REPLACE INTO audit VALUES (1, 'replaced') RETURNING *;
ALTER TABLE audit ADD COLUMN extra DEFAULT 'none';
SELECT * FROM audit ORDER BY id;

-- Recursion: primes, and queens on a board.
WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 400) SELECT group_concat(i, ' ') FROM (SELECT i FROM n WHERE NOT EXISTS (SELECT 1 FROM n AS d WHERE d.i * d.i <= n.i AND n.i % d.i = 0) ORDER BY i);
WITH RECURSIVE queens(row, columns, falling, rising) AS (SELECT 0, ',', ',', ',' UNION ALL SELECT row + 1, columns || c || ',', falling || (c - row) || ',', rising || (c + row) || ',' FROM queens, (SELECT value AS c FROM json_each('[0,1,2,3,4,5]')) WHERE row < 6 AND instr(columns, ',' || c || ',') = 0 AND instr(falling, ',' || (c - row) || ',') = 0 AND instr(rising, ',' || (c + row) || ',') = 0) SELECT columns FROM queens WHERE row = 6 ORDER BY columns;

-- The file itself.
VACUUM;
PRAGMA integrity_check;
PRAGMA foreign_key_check;
PRAGMA page_size;
SELECT name, type FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY name;
