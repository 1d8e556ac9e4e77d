// What an interpreter is kept busy with: objects, strings, maps, numbers, regular
// expressions, JSON. The result is the same everywhere.
class Vector {
    constructor(x, y) { this.x = x; this.y = y; }
    add(other) { return new Vector(this.x + other.x, this.y + other.y); }
    dot(other) { return this.x * other.x + this.y * other.y; }
}
function sieve(limit) {
    const composite = new Uint8Array(limit);
    let count = 0;
    for (let i = 2; i < limit; i++) {
        if (composite[i]) continue;
        count++;
        for (let k = i * i; k < limit; k += i) composite[k] = 1;
    }
    return count;
}
function words(count) {
    let seed = 1;
    const found = new Map();
    for (let i = 0; i < count; i++) {
        seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
        const word = "w" + (seed >> 20).toString(16);
        found.set(word, (found.get(word) ?? 0) + 1);
    }
    return [...found].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 50);
}
function queens(n, row = 0, columns = 0, up = 0, down = 0) {
    if (row === n) return 1;
    let count = 0, free = ~(columns | up | down) & ((1 << n) - 1);
    while (free) {
        const bit = free & -free;
        free ^= bit;
        count += queens(n, row + 1, columns | bit, (up | bit) << 1, (down | bit) >> 1);
    }
    return count;
}
const scale = globalThis.scale ?? Number(process.argv[2]);
let total = new Vector(0, 0);
for (let i = 0; i < 3000 * scale; i++) total = total.add(new Vector(i, i ^ 5));
const text = words(3000 * scale).map(([word, count]) => `${word}=${count};`).join(" ");
const fields = {};
for (const [, name, value] of text.matchAll(/(\w+)=(\d+);/g)) fields[name] = Number(value);
const record = JSON.parse(JSON.stringify({ fields, list: [...Array(300 * scale).keys()] }));
let harmonic = 0;
for (let n = 1; n < 3000 * scale; n++) harmonic += 1 / n;
const result = JSON.stringify([
    total.dot(new Vector(1, 2)), sieve(20000 * scale), queens(scale > 1 ? 8 : 5),
    Object.keys(record.fields).length, record.list.reduce((a, b) => a + b, 0), harmonic,
    [...text].reverse().join("").slice(0, 20),
]);
let hash = 0;
for (const letter of result) hash = (Math.imul(hash, 31) + letter.charCodeAt(0)) | 0;
console.log(hash >>> 0);
