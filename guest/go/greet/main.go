// Greets whoever asks: a handler of Go's own net/http, run as a CGI program.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Method", r.Method)
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprintf(w, "hello %s, %d bytes from %s\n", r.FormValue("name"), len(body), r.Host)
	})
	if err := cgi.Serve(nil); err != nil {
		log.Fatal(err)
	}
}
