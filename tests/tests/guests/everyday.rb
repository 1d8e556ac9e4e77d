# What a Ruby program does on any day. Run by Ruby in Pagefork; everyday_rb.py
# works the same out in Python, and both must print the same.
require "digest"
require "json"
require "set"
require "stringio"
require "zlib"

def show(name, *values) = puts("#{name}: #{values.join(' ')}")

# Text.
text = "The quick brown fox — größe, 漢字, 🦀 — jumps over the lazy dog"
show "text", text.length, text.bytesize, text.reverse, text.upcase, text.index("漢"), text[10..14]
show "words", text.scan(/[[:alpha:]]+/).map(&:capitalize).join("|")
show "format", format("%05d|%-6s|%+.3f|%x|%e|%08b", 42, "ab", 3.14159, 48879, 12345.678, 77)
show "swap", text.tr("a-y", "b-z"), text.delete("aeiou").squeeze, text.count("a-f"), text.sum
show "encoded", [text].pack("m0"), text.encode("UTF-16LE").bytes.sum, text.unpack("U*").max, text.hash == text.dup.hash
show "lines", (1..5).map { |n| "#{'*' * n}".center(9, ".") }.join("\n").lines.map(&:chomp).uniq.size
heredoc = <<~END
  first
    second
END
show "heredoc", heredoc.inspect

# Numbers.
factorial = (1..200).inject(:*)
show "bignum", factorial, factorial.to_s.chars.sum(&:to_i), 2**521 - 1, (2**521 - 1).to_s(36)
show "modular", 3.pow(10**18, 998_244_353), 2**100 % 97, -7 / 2, -7 % 3, -7.remainder(3), 7.divmod(-2).inspect
show "roots", Integer.sqrt(10**60), (10**60 + 1).gcd(10**30 + 3), 360.lcm(84), (1 << 130 | 12345).bit_length, ~(1 << 70)
fibonacci = Hash.new { |memo, n| memo[n] = n < 2 ? n : memo[n - 1] + memo[n - 2] }
show "fibonacci", fibonacci[300]
show "rational", Rational(3, 4) + Rational(5, 6), 0.1 + 0.2, 1e23, 1.0 / 3, 100.0, 2.5.round, -2.5.round(half: :even), 1234.5678.floor(2)
show "primes", (2..200).select { |n| (2..Integer.sqrt(n)).none? { |d| (n % d).zero? } }.each_slice(10).map(&:last).join(",")

# Hashes, sets, sorting.
counts = text.downcase.each_char.select { |c| c =~ /[a-z]/ }.tally
show "tally", counts.sort_by { |letter, n| [-n, letter] }.first(8).map { |pair| pair.join }.join(" ")
people = %w[Ann:41 Bob:29 Cid:41 Dee:35 Eve:29].map { |entry| entry.split(":") }.map { |name, age| { name: name, age: age.to_i } }
show "group", people.group_by { |person| person[:age] }.transform_values { |group| group.map { _1[:name] } }.sort.to_h.to_json
show "sort", people.sort_by { |person| [person[:age], person[:name]] }.map { |person| person[:name] }.join, people.minmax_by { |p| [p[:age], p[:name]] }.map { |p| p[:name] }.join("-")
numbers = [12345]
999.times { numbers << (numbers.last * 1103515245 + 12345) % 2147483648 }
show "numbers", numbers.sort.each_slice(125).map(&:first).join(" "), numbers.sum, numbers.max(3).join(","), numbers.partition(&:even?).map(&:size).join("/")
show "sets", (Set.new(numbers.map { |n| n % 50 }) & Set.new(0.step(100, 7))).sort.join(","), numbers.each_cons(2).count { |a, b| a < b }
show "lists", [3, 1, 2].permutation.map(&:join).join(" "), [1, [2, [3, [4]]]].flatten.inspect, (1..4).each_with_object([]) { |n, list| list.unshift(n) }.inspect, [1, 2, 3].zip([4, 5, 6]).transpose.inspect
deep = { "a" => [1, 2.5, nil, true, "x\"\n"], "b" => { "c" => "größe" } }
show "json", JSON.generate(deep), JSON.parse(JSON.generate(deep)) == deep, JSON.parse("[1e3,-0.5,\"\\u6f22\"]").join(";")

# Regular expressions.
log = (1..40).map { |n| "2024-0#{n % 9 + 1}-1#{n % 10} #{%w[INFO WARN ERROR][n % 3]} host#{n % 4}: took #{n * 37 % 101}ms" }
pattern = /(?<date>\d+-\d+-\d+) (?<level>WARN|ERROR) (?<host>\w+): took (?<time>\d+)ms/
slow = log.filter_map { |line| pattern.match(line) }.group_by { |match| match[:host] }.map { |host, found| [host, found.sum { |match| match[:time].to_i }] }.sort
show "log", slow.map { |pair| pair.join("=") }.join(" ")
show "gsub", "2024-05-06".gsub(/(\d+)-(\d+)-(\d+)/, '\3.\2.\1'), "hello world".gsub(/o(?= w)|(?<=w)o/) { |o| o.upcase }, "a1b22c333".gsub(/\d+/) { |d| (d.to_i * 2).to_s }
show "match", "foo.bar(baz)" =~ /\((.*)\)/, $1, "aaa".sub(/a{2}/, "b"), "x,y;z".split(/[,;]/).inspect, "größe" =~ /\p{L}ß/, "ab\ncd"[/^c./]

# Control flow: each of these unwinds the guest's stack.
def nested(depth) = depth.zero? ? raise(ArgumentError, "deep") : nested(depth - 1)
log = []
begin
  nested(50)
rescue ArgumentError => error
  log << "#{error.class}:#{error.message}"
ensure
  log << "ensured"
end
attempts = 0
begin
  attempts += 1
  Integer("x" * attempts) if attempts < 4
rescue ArgumentError
  retry
end
log << attempts << catch(:found) { (1..9).each { |a| (1..9).each { |b| throw :found, [a, b] if a * b == 42 } } }.join("*")
log << [1, 2, 3, 4].each { |n| break n * 100 if n == 3 } << [nil.to_a, (raise rescue "rescued")].inspect
log << begin; {}.fetch(:none); rescue KeyError => e; e.key; end << (begin; 1 / 0; rescue ZeroDivisionError; "zero"; end)
def many = (1..).lazy.map { |n| n * n }.select(&:even?).reject { |n| n % 3 == 0 }.first(4)
log << many.inspect << (1..10_000).sum { |n| begin; raise StopIteration if n.odd?; n; rescue StopIteration; 1; end }
show "control", *log

# Fibers: each has a stack of its own.
generator = Fiber.new { a, b = 0, 1; loop { Fiber.yield a; a, b = b, a + b } }
show "fiber", 20.times.map { generator.resume }.join(" ")
external = [10, 20, 30].each_with_index
show "external", external.next.inspect, external.peek.inspect, external.next.inspect, external.next.inspect, (begin; external.next; rescue StopIteration; "end"; end)
fibers = 30.times.map { |n| Fiber.new { |x| 5.times { |k| x = Fiber.yield(x + n * k) }; :done } }
show "fibers", 5.times.map { |round| fibers.sum { |fiber| fiber.resume(round) } }.join(" "), fibers.map { |fiber| fiber.resume(0) }.tally.map { |key, n| "#{key}#{n}" }.join
merged = Enumerator.new { |out| left, right = [1, 4, 7, 9].each, [2, 3, 8].each; loop { out << (left.peek < right.peek ? left : right).next }; loop { out << left.next }; loop { out << right.next } }
show "merged", merged.to_a.join

# Objects.
Point = Struct.new(:x, :y) do
  include Comparable
  def <=>(other) = [x, y] <=> [other.x, other.y]
  def +(other) = Point.new(x + other.x, y + other.y)
end
class Ghost
  def method_missing(name, *args) = name.end_with?("?") ? super : "#{name}(#{args.join(',')})"
  def respond_to_missing?(name, all = false) = !name.end_with?("?")
end
points = [Point.new(2, 1), Point.new(1, 5), Point.new(1, 2)]
show "points", points.sort.map(&:to_a).inspect, points.inject(:+).to_a.inspect, points.max.to_a.inspect, Point.new(1, 2) == points[2], points[1].between?(points[2], points[0])
show "ghost", Ghost.new.walks(1, 2), Ghost.new.respond_to?(:any), (begin; Ghost.new.really?; rescue NoMethodError; "none"; end)
%w[twice thrice].each_with_index { |name, n| Integer.define_method(name) { self * (n + 2) } }
result = case { kind: :circle, size: [3, 4] }
         in { kind: :square } then "square"
         in { kind: Symbol => kind, size: [Integer => a, *] } if a > 2 then "#{kind} of #{a}"
         end
show "match", 21.twice, 7.thrice, result, 5.clamp(..3), __method__.inspect

# The garbage collector must find what only the stack holds.
kept = (1..300).map { |n| "kept #{n}" * 3 }
40.times { |n| Array.new(4000) { |k| "garbage #{n} #{k}" }; GC.start if n % 10 == 0 }
show "garbage", kept.each_with_index.all? { |string, n| string == "kept #{n + 1}" * 3 }, ObjectSpace.count_objects[:TOTAL] > 1000

# Digests, compression, time, files.
show "digest", Digest::SHA256.hexdigest(text), Digest::MD5.hexdigest(""), Zlib.crc32(text)
packed = Zlib::Deflate.deflate(text * 50, 9)
show "zlib", packed.bytesize < 400, Zlib::Inflate.inflate(packed) == text.b * 50
show "time", Time.at(1_700_000_000).utc.strftime("%Y-%m-%d %H:%M:%S %a %j"), (Time.utc(2024, 3, 1) - Time.utc(2024, 2, 1)).to_i, Time.utc(2024, 12, 30).yday
Dir.mkdir("/box/made")
File.open("/box/made/lines.txt", "w") { |file| numbers.first(100).each { |n| file.puts n } }
File.open("/box/made/lines.txt", "a+b") { |file| file.write([1, 2, 3].pack("Vvn")); file.seek(-8, IO::SEEK_END); show "unpacked", file.read.unpack("Vvn").inspect }
File.rename("/box/made/lines.txt", "/box/made/renamed.txt")
lines = File.binread("/box/made/renamed.txt")
show "files", lines.bytesize, Digest::SHA256.hexdigest(lines), Dir.children("/box/made").inspect, File.exist?("/box/made/lines.txt"), File.size("/box/made/renamed.txt")
show "missing", (begin; File.read("/box/none"); rescue SystemCallError => e; e.class; end), (begin; Dir.mkdir("/box/made"); rescue SystemCallError => e; e.class; end)
buffer = StringIO.new
$stdout = buffer
puts "captured"
$stdout = STDOUT
show "captured", buffer.string.inspect
$stdout.flush
