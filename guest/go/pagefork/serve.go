package pagefork

import (
	"io"
	"net/http"
	"net/http/cgi"
	"os"
)

// Snapshot says that the program is to be captured here, unless that was at an earlier read of
// standard input. It returns the fork's number, from 1; 0 in a program that is run and not forked.
//
// A module imports `pagefork.snapshot` if it calls this function or Serve, and does not otherwise.
// WebAssembly has no optional imports: a module that has the import starts only where that is
// defined, as by all commands of `pagefork` that run programs. Native programs get 0. A program
// that only calls ReadRequest needs no import and is captured there.
func Snapshot() uint32 { return snapshot() }

// Serve is net/http/cgi's Serve for a program that may be forked: it is captured here, and each
// fork answers the request that comes on its standard input. A body whose size is not known is
// read to its end. Where the program is not forked, its variables are in the environment.
//
// The response is complete when Serve returns. A program that returns from main then, or calls
// os.Exit, ends at once: Go tears nothing down.
func Serve(handler http.Handler) error {
	if Snapshot() == 0 {
		return cgi.Serve(handler)
	}
	if err := ReadRequest(); err != nil {
		return err
	}
	if handler == nil {
		handler = http.DefaultServeMux
	}
	if _, isKnown := os.LookupEnv("CONTENT_LENGTH"); isKnown {
		return cgi.Serve(handler)
	}
	return cgi.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = io.NopCloser(os.Stdin)
		r.ContentLength = -1
		handler.ServeHTTP(w, r)
	}))
}
