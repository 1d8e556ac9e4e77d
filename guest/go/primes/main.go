// Answers with prime numbers, as a CGI program that can be started warm: it computes its table
// once, and each fork has that. It answers as guest/c/primes.c does.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"

	"pagefork"
)

const limit = 1000000

func compute() []int {
	composite := make([]bool, limit)
	var primes []int
	for n := 2; n < limit; n++ {
		if composite[n] {
			continue
		}
		primes = append(primes, n)
		for multiple := n * 2; multiple < limit; multiple += n {
			composite[multiple] = true
		}
	}
	return primes
}

func variable(name string) string {
	if value, isSet := os.LookupEnv(name); isSet {
		return value
	}
	return "none"
}

func main() {
	log.SetFlags(0)
	primes := compute()
	answered := 0 // Requests that this instance has answered.
	err := pagefork.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		sum := 0
		for _, value := range body {
			sum += int(value)
		}
		answered++
		// "/25" asks for the 25th.
		prime := "none"
		which, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err == nil && which >= 1 && which <= len(primes) {
			prime = strconv.Itoa(primes[which-1])
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "method: %s\npath: %s\nquery: %s\n", r.Method, r.URL.Path, r.URL.RawQuery)
		fmt.Fprintf(w, "length: %s\nbody: %d bytes, sum %d\n",
			variable("CONTENT_LENGTH"), len(body), sum)
		fmt.Fprintf(w, "mode: %s\nscgi: %s\nanswered: %d\n",
			variable("MODE"), variable("SCGI"), answered)
		fmt.Fprintf(w, "prime: %s of %d\n", prime, len(primes))
	}))
	if err != nil {
		log.Fatalf("primes: %v", err)
	}
}
