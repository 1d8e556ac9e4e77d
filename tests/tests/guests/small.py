# Python that MicroPython and CPython understand alike; both must print the same.
# MicroPython raises by unwinding the guest's stack with exceptions of WebAssembly,
# so that is what most of this does. `host_double` is the host's function there.
import gc
import hashlib
import heapq
import json
import math
import re
import struct
import sys

try:
    import host

    def host_double(value):
        answer = json.loads(host.call("double", json.dumps({"args": [value], "kwargs": {}})))
        if not answer["ok"]:
            raise ValueError(answer["error"])
        return answer["value"]

except ImportError:

    def host_double(value):
        if not isinstance(value, int):
            raise ValueError("no number")
        return 2 * value


# The collector of this MicroPython frees what only the guest's locals hold, in
# any host: the script makes do with the heap as it is.
gc.disable()


class Refused(Exception):
    def __init__(self, depth):
        super().__init__("refused at %d" % depth)
        self.depth = depth


class Guard:
    def __init__(self, name, log, swallows=False):
        self.name, self.log, self.swallows = name, log, swallows

    def __enter__(self):
        self.log.append("enter " + self.name)
        return self

    def __exit__(self, kind, error, trace):
        self.log.append("leave %s with %s" % (self.name, kind.__name__ if kind else None))
        return self.swallows


def descend(depth, limit):
    if depth == limit:
        raise Refused(depth)
    try:
        return descend(depth + 1, limit)
    finally:
        unwound.append(depth)


# Raising through many frames, each with something to finish.
unwound = []
for limit in (0, 1, 30):
    try:
        descend(0, limit)
    except Refused as refused:
        print("depth", refused, refused.depth, len(unwound), sum(unwound))

# What the interpreter itself raises.
samples = [
    "1 // 0", "[][1]", "{}['x']", "None.x", "int('x')", "unknown", "'a' + 1", "next(iter([]))",
    "(lambda: 0)(1)", "[1, 2].remove(3)", "bytes([300])", "1 +", "assert_ = 1", "{[]: 1}",
    "max([])", "1 << -1", "'%d' % 'x'", "iter(3)", "a, b",
]
for sample in samples:
    try:
        print("eval", sample, eval(sample))
    except Exception as error:
        print("eval", sample, type(error).__name__)

# Contexts, chains of handlers, raising again, else and finally.
log = []
try:
    with Guard("outer", log), Guard("inner", log, swallows=True):
        raise KeyError("swallowed")
    with Guard("second", log):
        try:
            raise ValueError("first")
        except ValueError as error:
            raise TypeError(str(error) + ", then this")
        finally:
            log.append("finally")
except (OSError, TypeError) as error:
    log.append(type(error).__name__ + ": " + str(error))
else:
    log.append("not here")
print("log", log)


def early():
    for n in range(5):
        try:
            if n == 1:
                continue
            if n == 3:
                return "returned %d" % n
        except ValueError:
            return "not here"
        finally:
            log.append(n)


def again(error):
    try:
        raise error
    except Exception:
        try:
            raise
        except ValueError:
            return "value"
        except Exception as other:
            return type(other).__name__


log = []
print("early", early(), log)
print("again", again(ValueError()), again(KeyError()), again(Refused(1)))

# Thousands of exceptions, caught in a loop.
caught = 0
for n in range(3000):
    try:
        if n % 3 == 0:
            raise Refused(n)
        if n % 7 == 0:
            {}[n]
    except Refused:
        caught += 1
    except KeyError:
        caught += 1000
print("caught", caught)


# Generators that are thrown into, closed, and delegate.
def inner():
    received = []
    while True:
        try:
            received.append((yield len(received)))
        except ValueError as error:
            received.append(str(error))
        except GeneratorExit:
            log.append("closed with %r" % received)
            raise
        if len(received) == 4:
            return received


def outer():
    received = yield from inner()
    yield "done", received
    yield from inner()


log = []
generator = outer()
print("generator", next(generator), generator.send("a"), generator.throw(ValueError("b")), generator.send("c"), generator.send("d"))
print("generator", next(generator), generator.send(7))
generator.close()
print("generator", log)


def deep(n):
    return deep(n + 1) + 1


try:
    deep(0)
except RuntimeError as error:
    print("deep", isinstance(error, RuntimeError))

# The host's function, good and bad.
print("host", host_double(21), host_double(host_double(-8)))
try:
    host_double("x")
except ValueError as error:
    print("host", error)

# And what a program does besides.
words = "the cat sat on the mat with the other cat".split()
counts = {}
for word in words:
    counts[word] = counts.get(word, 0) + 1
print("words", sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
print("big", 3**200, (2**127 - 1) % 1000003, pow(7, 100, 13), -17 // 5, -17 % 5, 1 << 90, hex(2**70))
print("float", 1 / 3, 1e100, math.sqrt(2), round(2.71828, 2), math.floor(-1.5), "%.3f" % math.pi, float("inf"))
print("digest", hashlib.sha256(b"pagefork" * 100).digest().hex())
print("struct", struct.pack("<IhB", 70000, -2, 255), struct.unpack(">Hf", b"\x01\x02\x3f\x80\x00\x00"))
print("re", re.match(r"(\w+)-(\d+)", "abc-123").group(2), re.sub("[aeiou]", "*", "unwinding"), re.search("x", "abc"))
print("text", "größe 漢字"[-2:], "{:>8}|{:08.3f}".format("abc".upper(), 3.14159), "a,b,,c".split(","), "\u00e9".encode())
heap = []
for n in range(40):
    heapq.heappush(heap, n * 17 % 41)
print("heap", [heapq.heappop(heap) for _ in range(12)], json.loads('{"a": [1, null, "\\u6f22"]}')["a"][2])
primes = [n for n in range(2, 300) if all(n % d for d in range(2, int(n**0.5) + 1))]
print("primes", len(primes), primes[-5:], {n % 10 for n in primes} == {1, 2, 3, 5, 7, 9})
with open("input/numbers.txt") as file:
    print("file", sum(int(line) for line in file))
try:
    open("input/none.txt")
except OSError as error:
    print("missing", error.args[0] in (2, 44))
sys.exit(7)
