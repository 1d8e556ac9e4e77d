# What an interpreter is kept busy with: objects, strings, dictionaries, numbers,
# regular expressions, JSON. The result is the same everywhere.
import hashlib, json, re, sys

class Vector:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)
    def dot(self, other):
        return self.x * other.x + self.y * other.y

def sieve(limit):
    prime = bytearray([1]) * limit
    for i in range(2, int(limit ** 0.5) + 1):
        if prime[i]:
            prime[i * i::i] = bytes(len(range(i * i, limit, i)))
    return sum(prime) - 2

def words(count):
    seed, found = 1, {}
    for _ in range(count):
        seed = (seed * 1103515245 + 12345) & 0x7fffffff
        word = "w%x" % (seed >> 20)
        found[word] = found.get(word, 0) + 1
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:50]

def queens(n, row=0, columns=0, up=0, down=0):
    if row == n:
        return 1
    count, free = 0, ~(columns | up | down) & ((1 << n) - 1)
    while free:
        bit = free & -free
        free ^= bit
        count += queens(n, row + 1, columns | bit, (up | bit) << 1, (down | bit) >> 1)
    return count

scale = int(sys.argv[1])
total = Vector(0, 0)
for i in range(2000 * scale):
    total = total + Vector(i, i ^ 5)
text = " ".join("%s=%d;" % item for item in words(3000 * scale))
fields = dict(re.findall(r"(\w+)=(\d+);", text))
record = json.loads(json.dumps({"fields": fields, "list": list(range(200 * scale))}))
harmonic = 0.0
for n in range(1, 3000 * scale):
    harmonic += 1 / n
result = [
    total.dot(Vector(1, 2)), sieve(20000 * scale), queens(7 if scale > 1 else 5),
    len(record["fields"]), sum(record["list"]), repr(harmonic),
    "".join(reversed(text))[:20], [n * n for n in range(2000 * scale) if n % 3 == 0][-1],
]
print(hashlib.md5(json.dumps(result).encode()).hexdigest())
