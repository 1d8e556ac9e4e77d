# What a Python program does on any day. Run by CPython in Pagefork and by the
# host's own; both must print the same. The argument is a directory to work in.
import base64
import collections
import dataclasses
import datetime
import decimal
import functools
import hashlib
import heapq
import itertools
import json
import math
import os
import random
import re
import struct
import sys
import zlib


@dataclasses.dataclass(order=True)
class Item:
    price: decimal.Decimal
    name: str
    tags: list = dataclasses.field(default_factory=list, compare=False)

    @property
    def label(self):
        return f"{self.name:>10}: {self.price:8.2f} {','.join(sorted(self.tags))}"


class Tree:
    def __init__(self):
        self.root, self.size = None, 0

    def add(self, key):
        self.root = self._add(self.root, key)

    def _add(self, node, key):
        if node is None:
            self.size += 1
            return [None, key, None]
        side = 0 if key < node[1] else 2
        node[side] = self._add(node[side], key)
        return node

    def __iter__(self):
        def walk(node):
            if node:
                yield from walk(node[0])
                yield node[1]
                yield from walk(node[2])
        return walk(self.root)


@functools.lru_cache(maxsize=None)
def ways(amount, coins):
    if amount == 0:
        return 1
    if amount < 0 or not coins:
        return 0
    return ways(amount - coins[0], coins) + ways(amount, coins[1:])


def classes():
    items = [Item(decimal.Decimal(p), n, t) for p, n, t in
             [("19.99", "lamp", ["home"]), ("3.50", "tea", ["food", "drink"]), ("120", "desk", [])]]
    for item in sorted(items):
        print(item.label)
    tree = Tree()
    random.seed(7)
    for _ in range(500):
        tree.add(random.randrange(10_000))
    keys = list(tree)
    print("tree", tree.size, keys == sorted(keys), keys[:3])


def text():
    log = "2024-02-29 12:00:01 GET /a?x=1 200\n2024-03-01 00:00:00 POST /b 503\n" * 3
    pattern = re.compile(r"^(?P<day>\S+) \S+ (?P<verb>[A-Z]+) (?P<path>[^?\s]+)\S* (?P<code>\d{3})$", re.M)
    counts = collections.Counter(m["verb"] + m["path"] + m["code"] for m in pattern.finditer(log))
    print(counts.most_common())
    print(re.sub(r"(\w)(\w*)", lambda m: m[1].upper() + m[2], "the größte stack is ünïcode — ok"))
    print(json.dumps(json.loads('{"b":[1,2.5,-3e-7,null,true],"a":{"\\u00e9":"\\ud83d\\ude00"}}'),
                     sort_keys=True, indent=1))
    print(datetime.date(2024, 2, 29) + datetime.timedelta(days=366), f"{2**200:,}"[-20:])


def numbers():
    print(ways(30, (1, 2, 5, 10, 20)))
    print(math.fsum(1 / n**2 for n in range(1, 5000)).hex(), 0.1 + 0.2, round(2.675, 2), -7 // 2, -7 % 3)
    print(heapq.nsmallest(5, (n * 7919 % 1009 for n in range(1000))))
    print(["".join(p) for p in itertools.permutations("abc")])
    print(decimal.Decimal(2).sqrt(), struct.pack(">Ihd", 1, -2, 3.5).hex())


def bytes_and_files(directory):
    data = bytes(n * n % 251 for n in range(100_000))
    print(hashlib.sha256(data).hexdigest(), zlib.crc32(data), hashlib.md5(data).hexdigest())
    packed = zlib.compress(data, 6)
    print(zlib.decompress(packed) == data, base64.b64encode(data[:30]))

    path = os.path.join(directory, "sub", "notes.txt")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for n in range(1000):
            file.write(f"line {n} äöü\n")
    with open(path, "a+", encoding="utf-8") as file:
        file.write("end")
        file.seek(0)
        lines = file.read().splitlines()
    print(len(lines), lines[0], lines[-1], os.path.getsize(path))
    with open(path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        print(file.read(), file.tell())
        file.truncate(12)
    os.rename(path, path + ".old")
    for root, dirs, files in sorted(os.walk(directory)):
        print(os.path.relpath(root, directory), sorted(dirs), sorted(files))
    print(os.stat(path + ".old").st_size, os.path.exists(path))
    os.remove(path + ".old")
    os.rmdir(os.path.dirname(path))
    try:
        open(path)
    except FileNotFoundError as error:
        print(type(error).__name__, error.errno == 2 or error.errno == 44)


def errors():
    # The guest's own stack, in its memory, is too small for the usual limit: it
    # traps then, in every runtime.
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(40)
    def deep(n):
        return 1 + deep(n - 1)
    try:
        deep(10**6)
    except RecursionError as error:
        print(type(error).__name__)
    sys.setrecursionlimit(usual)
    try:
        {}["missing"]
    except KeyError as error:
        print(repr(error))
    try:
        json.loads("[1,")
    except json.JSONDecodeError as error:
        print(error)


classes()
text()
numbers()
bytes_and_files(sys.argv[1])
errors()
print(sys.stdin.read().upper(), end="")
sys.exit(len(sys.argv) + 3)
