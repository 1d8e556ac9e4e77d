// Digest prints the SHA-256 digest of each file under its arguments, sorted by
// name, as sha256sum does. Each file is read by a goroutine of its own.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

type result struct {
	path string
	sum  []byte
	err  error
}

func main() {
	var paths []string
	for _, root := range os.Args[1:] {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "digest:", err)
			os.Exit(1)
		}
	}

	results := make(chan result)
	for _, path := range paths {
		go func(path string) {
			sum, err := digest(path)
			results <- result{path, sum, err}
		}(path)
	}
	sums := make(map[string][]byte)
	failed := false
	for range paths {
		done := <-results
		if done.err != nil {
			fmt.Fprintln(os.Stderr, "digest:", done.err)
			failed = true
			continue
		}
		sums[done.path] = done.sum
	}

	sort.Strings(paths)
	for _, path := range paths {
		if sum, ok := sums[path]; ok {
			fmt.Printf("%x  %s\n", sum, path)
		}
	}
	if failed {
		os.Exit(1)
	}
}

func digest(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return nil, err
	}
	return hash.Sum(nil), nil
}
