// What a JavaScript program does on any day. Run by QuickJS in Pagefork and by
// the host's own Node.js; both must print the same. The argument is a directory.
const quick = typeof std === "object" && typeof os === "object";
const directory = quick ? scriptArgs[1] : process.argv[2];
const files = quick
    ? {
        write(path, text) { const file = std.open(path, "w"); file.puts(text); file.close(); },
        read: (path) => std.loadFile(path),
        list: (path) => os.readdir(path)[0].filter((name) => name !== "." && name !== ".."),
        remove: (path) => { os.remove(path); },
    }
    : {
        write: (path, text) => require("fs").writeFileSync(path, text),
        read: (path) => require("fs").readFileSync(path, "utf8"),
        list: (path) => require("fs").readdirSync(path),
        remove: (path) => require("fs").unlinkSync(path),
    };

class Shape {
    #name;
    constructor(name) { this.#name = name; }
    get name() { return this.#name; }
    static *all() { yield new Circle(2); yield new Square(3); }
    toString() { return `${this.name} of area ${this.area().toFixed(3)}`; }
}
class Circle extends Shape {
    constructor(r) { super("circle"); this.r = r; }
    area() { return Math.PI * this.r ** 2; }
}
class Square extends Shape {
    constructor(a) { super("square"); this.a = a; }
    area() { return this.a * this.a; }
}
console.log([...Shape.all()].join("; "));

const log = "2024-02-29 GET /a 200\n2024-03-01 POST /b 503\n".repeat(3);
const counts = new Map();
for (const { groups } of log.matchAll(/^(?<day>\S+) (?<verb>[A-Z]+) \S+ (?<code>\d{3})$/gm)) {
    const key = groups.verb + groups.code;
    counts.set(key, (counts.get(key) ?? 0) + 1);
}
console.log(JSON.stringify([...counts]));
console.log("größte 😀 stack".replace(/\b(\w)/gu, (c) => c.toUpperCase()), [..."😀é"].length);
console.log(JSON.stringify(JSON.parse('{"b":[1,2.5,-3e-7,null,true],"a":{"\\u00e9":"x"}}'), null, 1));

console.log(0.1 + 0.2, (1 / 3).toPrecision(10), 1e21, -0 === 0, (255).toString(36), parseFloat("1e-7"));
console.log(String(2n ** 200n), String((-7n) / 2n), BigInt.asIntN(8, 255n).toString());
const primes = [];
for (let n = 2; primes.length < 2000; n++)
    if (primes.every((p) => p * p > n || n % p !== 0)) primes.push(n);
console.log(primes.at(-1), primes.reduce((a, b) => (a * 31 + b) % 1000000007, 7));
const bytes = new Uint8Array(1 << 16).map((_, i) => (i * i) & 255);
console.log(new DataView(bytes.buffer).getFloat64(800), bytes.subarray(10, 20).join());
console.log([5, 1, 10].sort().join(), [5, 1, 10].sort((a, b) => a - b).join());
console.log(new Date(Date.UTC(2024, 1, 29, 12)).toISOString());

const path = directory + "/notes.txt";
files.write(path, "line äöü\n".repeat(1000));
console.log(files.read(path).length, files.list(directory).join());
files.remove(path);
console.log(files.list(directory).length);

try { null.x; } catch (error) { console.log(error instanceof TypeError); }
try { JSON.parse("[1,"); } catch (error) { console.log(error.name); }
// No deeper: the guest's own stack, in its memory, is small.
const depth = (n) => (n === 0 ? 0 : 1 + depth(n - 1));
console.log(depth(100));
(async () => {
    const values = await Promise.all([1, 2, 3].map(async (n) => { await null; return n * n; }));
    console.log(values.join());
    await new Promise((resolve) => (quick ? os.setTimeout : setTimeout)(resolve, 5));
    console.log("later");
})();
