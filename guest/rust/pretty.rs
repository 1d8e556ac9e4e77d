//! Formats the JSON of standard input, four blanks a level; with `--compact`,
//! no blanks at all. Strings and numbers stay as they were written.

use std::io::{Read, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let compact = std::env::args().any(|argument| argument == "--compact");
    let mut input = Vec::new();
    if let Err(error) = std::io::stdin().read_to_end(&mut input) {
        eprintln!("pretty: cannot read standard input: {error}");
        return ExitCode::FAILURE;
    }
    let mut formatter = Formatter { input: &input, at: 0, output: Vec::new(), compact, depth: 0 };
    match formatter.document() {
        Ok(()) => match std::io::stdout().write_all(&formatter.output) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(expected) => {
            let before = &input[..formatter.at];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            let column = 1 + before.iter().rev().take_while(|byte| **byte != b'\n').count();
            eprintln!("pretty: line {line}, column {column}: expected {expected}");
            ExitCode::FAILURE
        }
    }
}

struct Formatter<'a> {
    input: &'a [u8],
    at: usize,
    output: Vec<u8>,
    compact: bool,
    depth: usize,
}

/// The error is what was expected at `at`.
type Parsed = Result<(), &'static str>;

impl Formatter<'_> {
    fn document(&mut self) -> Parsed {
        self.value()?;
        self.output.push(b'\n');
        match self.peek() {
            None => Ok(()),
            Some(_) => Err("the end"),
        }
    }

    fn value(&mut self) -> Parsed {
        match self.peek() {
            Some(b'{') => self.list(b'}', |this| {
                this.string()?;
                if this.peek() != Some(b':') {
                    return Err("`:`");
                }
                this.at += 1;
                this.output.extend_from_slice(if this.compact { b":" } else { b": " });
                this.value()
            }),
            Some(b'[') => self.list(b']', Self::value),
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => {
                self.take_while(|byte| b"+-.eE".contains(&byte) || byte.is_ascii_digit());
                Ok(())
            }
            _ => {
                let rest = &self.input[self.at..];
                let word = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word));
                let word = word.ok_or("a value")?;
                self.output.extend_from_slice(word);
                self.at += word.len();
                Ok(())
            }
        }
    }

    fn list(&mut self, end: u8, item: fn(&mut Self) -> Parsed) -> Parsed {
        if self.depth == 1000 {
            return Err("at most 1000 levels");
        }
        self.output.push(self.input[self.at]);
        self.at += 1;
        if self.peek() == Some(end) {
            self.at += 1;
            self.output.push(end);
            return Ok(());
        }
        self.depth += 1;
        loop {
            self.new_line();
            item(self)?;
            match self.peek() {
                Some(b',') => self.output.push(b','),
                Some(byte) if byte == end => break,
                _ => return Err("`,` or the end of the list"),
            }
            self.at += 1;
        }
        self.at += 1;
        self.depth -= 1;
        self.new_line();
        self.output.push(end);
        Ok(())
    }

    fn string(&mut self) -> Parsed {
        if self.peek() != Some(b'"') {
            return Err("a string");
        }
        let start = self.at;
        self.at += 1;
        loop {
            match self.input.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
                None => {
                    self.at = self.input.len();
                    return Err("the string's closing quote");
                }
            }
        }
        self.at += 1;
        self.output.extend_from_slice(&self.input[start..self.at]);
        Ok(())
    }

    fn take_while(&mut self, belongs: fn(u8) -> bool) {
        let rest = &self.input[self.at..];
        let length = rest.iter().take_while(|byte| belongs(**byte)).count();
        self.output.extend_from_slice(&rest[..length]);
        self.at += length;
    }

    fn peek(&mut self) -> Option<u8> {
        while self.input.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.input.get(self.at).copied()
    }

    fn new_line(&mut self) {
        if !self.compact {
            self.output.push(b'\n');
            self.output.resize(self.output.len() + 4 * self.depth, b' ');
        }
    }
}
