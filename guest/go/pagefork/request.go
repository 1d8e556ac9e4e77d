// Package pagefork helps programs that are started once and then forked, as `pagefork serve
// --warm` and `pagefork fork` do.
//
//	func main() {
//		http.HandleFunc("/", answer)
//		buildTables()             // Once, when the server starts.
//		err := pagefork.Serve(nil) // Each fork goes on from here.
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
// Such a program is a plain CGI program too, where it is not forked.
package pagefork

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// HeadMax is the most bytes that the head of a request may have.
const HeadMax = 1 << 20

// Errors of ReadRequest. Those of reading standard input are wrapped beside.
var (
	ErrCutShort    = errors.New("standard input ends within the head of the request")
	ErrNoSize      = errors.New("standard input does not begin with the size of a request's head")
	ErrTooLong     = errors.New("the head of the request is too long")
	ErrNoComma     = errors.New("the head of the request does not end with a comma")
	ErrNoVariables = errors.New("the head of the request does not hold the variables of SCGI")
)

// Variable is a variable of a request.
type Variable struct{ Name, Value string }

// ReadRequest reads the head of a request from standard input and makes its variables those of
// the environment. The body comes next from os.Stdin: CONTENT_LENGTH bytes, or all that there are
// if that variable is not set. After an error the environment is as it was.
//
// A program that has not been captured before is captured here, when it first reads.
func ReadRequest() error {
	variables, err := ReadHead(os.Stdin)
	if err != nil {
		return err
	}
	for _, variable := range variables {
		// The size of the body is empty where it is not known; SCGI is no variable of CGI.
		if variable.Name == "SCGI" || variable.Name == "CONTENT_LENGTH" && variable.Value == "" {
			err = os.Unsetenv(variable.Name)
		} else {
			err = os.Setenv(variable.Name, variable.Value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ReadHead reads the head of a request, and not a byte more. The variables come as they are, in
// order, CONTENT_LENGTH and SCGI among them.
func ReadHead(input io.Reader) ([]Variable, error) {
	size, err := readSize(input)
	if err != nil {
		return nil, err
	}
	head := make([]byte, size+1)
	if err := readFull(input, head); err != nil {
		return nil, err
	}
	if head[size] != ',' {
		return nil, ErrNoComma
	}
	return split(head[:size])
}

// readSize reads the size of a head, in bytes, and the colon after it.
func readSize(input io.Reader) (int, error) {
	size, digits := 0, 0
	for {
		var read [1]byte
		if err := readFull(input, read[:]); err != nil {
			return 0, err
		}
		switch digit := read[0]; {
		case digit == ':' && digits > 0:
			return size, nil
		// Digits do not begin with a zero.
		case digit < '0' || digit > '9' || digits > 0 && size == 0:
			return 0, ErrNoSize
		default:
			size = size*10 + int(digit-'0')
			digits++
		}
		if size > HeadMax {
			return 0, ErrTooLong
		}
	}
}

func readFull(input io.Reader, into []byte) error {
	_, err := io.ReadFull(input, into)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return ErrCutShort
	case err != nil:
		return fmt.Errorf("standard input cannot be read: %w", err)
	}
	return nil
}

// split gives the names and values of a head.
func split(head []byte) ([]Variable, error) {
	words := bytes.Split(head, []byte{0})
	// Each word ends with a NUL, so that what comes after the last is empty.
	last := len(words) - 1
	if last == 0 || last%2 != 0 || len(words[last]) != 0 {
		return nil, ErrNoVariables
	}
	variables := make([]Variable, 0, last/2)
	isSCGI := false
	for at := 0; at < last; at += 2 {
		name, value := string(words[at]), string(words[at+1])
		// The size of the body comes first, and once.
		if name == "" || bytes.IndexByte(words[at], '=') >= 0 || (at == 0) != (name == "CONTENT_LENGTH") {
			return nil, ErrNoVariables
		}
		if at == 0 && !isSize(value) {
			return nil, ErrNoVariables
		}
		isSCGI = isSCGI || name == "SCGI" && value == "1"
		variables = append(variables, Variable{name, value})
	}
	if !isSCGI {
		return nil, ErrNoVariables
	}
	return variables, nil
}

func isSize(value string) bool {
	for _, digit := range value {
		if digit < '0' || digit > '9' {
			return false
		}
	}
	return len(value) <= 19
}
