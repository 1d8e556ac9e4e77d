# What everyday.rb prints, worked out in Python. The argument is a directory to
# work in.
import base64
import binascii
import collections
import datetime
import functools
import hashlib
import heapq
import itertools
import json
import math
import os
import re
import struct
import sys
import zlib
from fractions import Fraction

work = sys.argv[1]


def text_of(value):
    return {True: "true", False: "false", None: ""}[value] if value is None or isinstance(value, bool) else str(value)


def show(name, *values):
    print(f"{name}: {' '.join(map(text_of, values))}")


def listed(values):
    """As Ruby's inspect shows lists of numbers and text."""
    if isinstance(values, (list, tuple)):
        return "[" + ", ".join(map(listed, values)) + "]"
    return json.dumps(values, ensure_ascii=False)


def squeezed(text):
    return "".join(key for key, _ in itertools.groupby(text))


def base36(number):
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def centred(text, width, pad):
    """Ruby puts what is odd to the right."""
    left = (width - len(text)) // 2
    return pad * left + text + pad * (width - len(text) - left)


# Text.
text = "The quick brown fox — größe, 漢字, 🦀 — jumps over the lazy dog"
show("text", len(text), len(text.encode()), text[::-1], text.upper(), text.index("漢"), text[10:15])
show("words", "|".join(word.capitalize() for word in re.findall(r"[^\W\d_]+", text)))
show("format", f"{42:05d}|{'ab':<6}|{3.14159:+.3f}|{48879:x}|{12345.678:e}|{77:08b}")
shift = str.maketrans({chr(c): chr(c + 1) for c in range(ord("a"), ord("z"))})
without = squeezed("".join(c for c in text if c not in "aeiou"))
show("swap", text.translate(shift), without, sum(c in "abcdef" for c in text), sum(text.encode()) % 65536)
show("encoded", base64.b64encode(text.encode()).decode(), sum(text.encode("utf-16-le")), max(map(ord, text)), hash(text) == hash(text[:] + ""))
show("lines", len({centred("*" * n, 9, ".") for n in range(1, 6)}))
show("heredoc", json.dumps("first\n  second\n"))

# Numbers.
factorial = math.factorial(200)
show("bignum", factorial, sum(map(int, str(factorial))), 2**521 - 1, base36(2**521 - 1))
show("modular", pow(3, 10**18, 998_244_353), 2**100 % 97, -7 // 2, -7 % 3, math.fmod(-7, 3).__int__(), listed(divmod(7, -2)))
show("roots", math.isqrt(10**60), math.gcd(10**60 + 1, 10**30 + 3), math.lcm(360, 84), (1 << 130 | 12345).bit_length(), ~(1 << 70))
a, b = 0, 1
for _ in range(300):
    a, b = b, a + b
show("fibonacci", a)
show("rational", Fraction(3, 4) + Fraction(5, 6), 0.1 + 0.2, "1.0e+23" if repr(1e23) == "1e+23" else "", 1 / 3, 100.0, math.floor(2.5 + 0.5), round(-2.5), math.floor(1234.5678 * 100) / 100)
primes = [n for n in range(2, 201) if all(n % d for d in range(2, math.isqrt(n) + 1))]
show("primes", ",".join(str(primes[i : i + 10][-1]) for i in range(0, len(primes), 10)))

# Hashes, sets, sorting.
counts = collections.Counter(c for c in text.lower() if "a" <= c <= "z")
show("tally", " ".join(f"{c}{n}" for c, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:8]))
people = [("Ann", 41), ("Bob", 29), ("Cid", 41), ("Dee", 35), ("Eve", 29)]
groups = collections.defaultdict(list)
for name, age in people:
    groups[age].append(name)
show("group", json.dumps(dict(sorted(groups.items())), separators=(",", ":")))
ordered = [name for name, _ in sorted(people, key=lambda person: (person[1], person[0]))]
show("sort", "".join(ordered), f"{ordered[0]}-{ordered[-1]}")
numbers = [12345]
for _ in range(999):
    numbers.append((numbers[-1] * 1103515245 + 12345) % 2147483648)
even = sum(n % 2 == 0 for n in numbers)
show("numbers", " ".join(map(str, sorted(numbers)[::125])), sum(numbers), ",".join(map(str, heapq.nlargest(3, numbers))), f"{even}/{1000 - even}")
show("sets", ",".join(map(str, sorted({n % 50 for n in numbers} & set(range(0, 101, 7))))), sum(a < b for a, b in zip(numbers, numbers[1:])))
show("lists", " ".join("".join(p) for p in itertools.permutations("312")), listed([1, 2, 3, 4]), listed([4, 3, 2, 1]), listed([[1, 2, 3], [4, 5, 6]]))
deep = {"a": [1, 2.5, None, True, 'x"\n'], "b": {"c": "größe"}}
compact = json.dumps(deep, ensure_ascii=False, separators=(",", ":"))
show("json", compact, json.loads(compact) == deep, ";".join(map(str, json.loads('[1e3,-0.5,"\\u6f22"]'))))

# Regular expressions.
log = [f"2024-0{n % 9 + 1}-1{n % 10} {['INFO', 'WARN', 'ERROR'][n % 3]} host{n % 4}: took {n * 37 % 101}ms" for n in range(1, 41)]
pattern = re.compile(r"(?P<date>\d+-\d+-\d+) (?P<level>WARN|ERROR) (?P<host>\w+): took (?P<time>\d+)ms")
slow = collections.Counter()
for match in filter(None, map(pattern.match, log)):
    slow[match["host"]] += int(match["time"])
show("log", " ".join(f"{host}={time}" for host, time in sorted(slow.items())))
show("gsub", re.sub(r"(\d+)-(\d+)-(\d+)", r"\3.\2.\1", "2024-05-06"), re.sub(r"o(?= w)|(?<=w)o", lambda o: o[0].upper(), "hello world"), re.sub(r"\d+", lambda d: str(int(d[0]) * 2), "a1b22c333"))
call = re.search(r"\((.*)\)", "foo.bar(baz)")
show("match", call.start(), call[1], re.sub("a{2}", "b", "aaa", count=1), listed(re.split("[,;]", "x,y;z")), re.search(r"[^\W\d_]ß", "größe").start(), re.search(r"(?m)^c.", "ab\ncd")[0])

# Control flow.
product = next(f"{a}*{b}" for a in range(1, 10) for b in range(1, 10) if a * b == 42)
many = [n * n for n in range(1, 20) if n % 2 == 0 and n % 3][:4]
show("control", "ArgumentError:deep", "ensured", 4, product, 300, '[[], "rescued"]', "none", "zero", listed(many), sum(1 if n % 2 else n for n in range(1, 10_001)))

# Fibers.
numbers_of_fibonacci = [0, 1]
while len(numbers_of_fibonacci) < 20:
    numbers_of_fibonacci.append(sum(numbers_of_fibonacci[-2:]))
show("fiber", " ".join(map(str, numbers_of_fibonacci)))
show("external", "[10, 0]", "[20, 1]", "[20, 1]", "[30, 2]", "end")
show("fibers", " ".join(str(sum(round + n * round for n in range(30))) for round in range(5)), "done30")
show("merged", "".join(map(str, heapq.merge([1, 4, 7, 9], [2, 3, 8]))))

# Objects.
points = [(2, 1), (1, 5), (1, 2)]
total = functools.reduce(lambda p, q: [p[0] + q[0], p[1] + q[1]], points)
show("points", listed(sorted(points)), listed(total), listed(max(points)), (1, 2) == points[2], points[2] <= points[1] <= points[0])
show("ghost", "walks(1,2)", True, "none")
show("match", 21 * 2, 7 * 3, "circle of 3", min(5, 3), "nil")
show("garbage", True, True)

# Digests, compression, time, files.
show("digest", hashlib.sha256(text.encode()).hexdigest(), hashlib.md5(b"").hexdigest(), binascii.crc32(text.encode()))
packed = zlib.compress(text.encode() * 50, 9)
show("zlib", len(packed) < 400, zlib.decompress(packed) == text.encode() * 50)
moment = datetime.datetime.fromtimestamp(1_700_000_000, datetime.timezone.utc)
february = datetime.date(2024, 3, 1) - datetime.date(2024, 2, 1)
show("time", moment.strftime("%Y-%m-%d %H:%M:%S %a %j"), february.days * 86400, datetime.date(2024, 12, 30).timetuple().tm_yday)
made = os.path.join(work, "made")
os.mkdir(made)
with open(os.path.join(made, "renamed.txt"), "wb") as file:
    file.write("".join(f"{n}\n" for n in numbers[:100]).encode() + struct.pack("<IH", 1, 2) + struct.pack(">H", 3))
with open(os.path.join(made, "renamed.txt"), "rb") as file:
    lines = file.read()
show("unpacked", listed([*struct.unpack("<IH", lines[-8:-2]), *struct.unpack(">H", lines[-2:])]))
show("files", len(lines), hashlib.sha256(lines).hexdigest(), listed(os.listdir(made)), os.path.exists(os.path.join(made, "lines.txt")), len(lines))
show("missing", "Errno::ENOENT", "Errno::EEXIST")
show("captured", json.dumps("captured\n"))
