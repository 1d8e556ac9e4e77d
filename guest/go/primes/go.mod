module primes

go 1.21

require pagefork v0.0.0

replace pagefork => ../pagefork
