//! Answers with prime numbers, as a CGI program that can be started warm: it computes its table
//! once, and each fork has that. It answers as guest/c/primes.c does.

mod pagefork;

use std::env;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};

const LIMIT: usize = 1_000_000;

/// Requests that this instance has answered.
static ANSWERED: AtomicU32 = AtomicU32::new(0);

/// Tells when an instance is torn down.
struct TornDown;

impl Drop for TornDown {
    fn drop(&mut self) {
        eprintln!("torn down");
    }
}

fn primes() -> Vec<usize> {
    let mut composite = vec![false; LIMIT];
    let mut primes = Vec::new();
    for n in 2..LIMIT {
        if !composite[n] {
            primes.push(n);
            composite.iter_mut().skip(n * 2).step_by(n).for_each(|other| *other = true);
        }
    }
    primes
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| "none".to_owned())
}

/// The answer to the request that the environment describes.
fn answer(primes: &[usize], is_fork: bool) -> io::Result<String> {
    let mut body = Vec::new();
    let unknown = if is_fork { u64::MAX } else { 0 };
    let size = variable("CONTENT_LENGTH").parse().unwrap_or(unknown);
    io::stdin().take(size).read_to_end(&mut body)?;
    let sum: u32 = body.iter().copied().map(u32::from).sum();
    let answered = ANSWERED.fetch_add(1, Ordering::Relaxed) + 1;
    let path = variable("PATH_INFO");
    // "/25" asks for the 25th.
    let which = path.strip_prefix('/').and_then(|number| number.parse::<usize>().ok());
    let prime = which.and_then(|which| primes.get(which.checked_sub(1)?));
    let prime = prime.map_or("none".to_owned(), usize::to_string);
    Ok(format!(
        "method: {}\npath: {path}\nquery: {}\nlength: {}\nbody: {} bytes, sum {sum}\nmode: {}\n\
         scgi: {}\nanswered: {answered}\nprime: {prime} of {}\n",
        variable("REQUEST_METHOD"),
        variable("QUERY_STRING"),
        variable("CONTENT_LENGTH"),
        body.len(),
        variable("MODE"),
        variable("SCGI"),
        primes.len(),
    ))
}

fn main() {
    let _torn_down = TornDown;
    let primes = primes();
    let number = pagefork::snapshot();
    if number != 0 {
        match pagefork::Head::read() {
            Ok(head) => head.set_environment(),
            Err(error) => {
                eprintln!("sieve: {error}");
                pagefork::end(1)
            }
        }
    }
    let head = "Content-Type: text/plain; charset=utf-8\r\n\r\n";
    let written = answer(&primes, number != 0)
        .and_then(|answer| io::stdout().write_all((head.to_owned() + &answer).as_bytes()));
    pagefork::end(i32::from(written.is_err()))
}
