# What guest/c/sql.c does, with the host's SQLite: runs SQL from standard input,
# statement by statement, and prints every row.
import sqlite3
import sys


def shown(value):
    if value is None:
        return b"NULL"
    if isinstance(value, bytes):
        return b"x" + value.hex().encode()
    if isinstance(value, float):
        return b"%.17g" % value
    return str(value).encode()


database = sqlite3.connect(sys.argv[1] if len(sys.argv) > 1 else ":memory:", isolation_level=None)
failures = 0
sql = ""
for line in sys.stdin.buffer:
    sql += line.decode()
    if not sqlite3.complete_statement(sql):
        continue
    try:
        for row in database.execute(sql):
            sys.stdout.buffer.write(b"|".join(map(shown, row)) + b"\n")
    except sqlite3.Error as error:
        sys.stdout.buffer.write(f"error: {error}\n".encode())
        failures += 1
    sql = ""
database.close()
sys.exit(2 if failures else 0)
