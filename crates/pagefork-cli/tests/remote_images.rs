//! Programs of images that are at another node: many of one image, requests that are answered before it
//! is here, and what a report says of it.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use common::command;
use common::remote::{Relay, SUMMER, Started, confined, sum_of_words, two_nodes, two_nodes_of};
use common::users::{User, pass_without_rights};

/// Nothing may take longer.
const LIMIT: Duration = Duration::from_secs(60);

/// What the image holds of bytes that nothing compresses.
const CONTENTS: u64 = 16 << 20;

/// Fills its memory as `SUMMER` does, and answers requests: sums up only for those with a long path, of which
/// what is read first, their variables, is full.
fn answering() -> String {
    let end = SUMMER.rfind("(func (export \"_start\")").expect("it is a program");
    let begins = &SUMMER[..end];
    format!(
        r#"{begins}
    (data (i32.const 2048) "Content-Type: text/plain\0a\0ahere\0a")
    (func (export "_start")
        (call $fill)
        (call $read)
        (if (i32.eq (i32.load (i32.const 8)) (i32.const 1024))
            (then (call $print (i32.const 2048) (i32.const 26)) (call $print_number (call $sum)))
            (else (call $print (i32.const 2048) (i32.const 31)))))"#
    )
}

/// A server of requests, which ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(user: &User, words: &str) -> Self {
        Self::start_by(Command::new(command()), user, words)
    }

    fn start_by(mut command: Command, user: &User, words: &str) -> Self {
        let mut child = command
            .args(["serve", "--addr", "127.0.0.1:0", "--store"])
            .arg(&user.store)
            .args(words.split(' '))
            .env("XDG_CONFIG_HOME", &user.config)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = loop {
            let line = lines.next().expect("it serves").unwrap();
            if line.contains("answers at http://") {
                break line;
            }
        };
        thread::spawn(move || lines.for_each(drop));
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().trim();
        Self { child, address: address.to_owned() }
    }

    fn ask(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let request = format!("GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn given(relay: &Relay) -> u64 {
    relay.given.bytes.load(Ordering::Relaxed)
}

#[test]
fn requests_are_answered_before_the_image_is_here_and_those_that_need_the_rest_wait() {
    let (_maker, runner, _serving, relay) = two_nodes_of("served", &answering(), 2 << 20);
    let server = Server::start(&runner, "--from maker/big");
    for _ in 0..3 {
        let answer = server.ask("");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("here\n"), "{answer}");
    }
    assert!(given(&relay) < 3 << 20, "all else is held back");
    // One that needs all of it waits for that, and others are answered meanwhile.
    thread::scope(|scope| {
        let sums = scope.spawn(|| server.ask(&"sum".repeat(400)));
        assert!(server.ask("").contains("here\n"));
        assert!(!sums.is_finished(), "what it needs is held back");
        relay.limit(u64::MAX);
        let answer = sums.join().unwrap();
        assert!(answer.contains(sum_of_words().trim()), "{answer}");
    });
}

/// How many groups are here, and how many there are, as a report says it.
#[track_caller]
fn groups(report: &str) -> (u64, u64) {
    let said = report.lines().find(|line| line.contains("groups of 16 KiB are here"));
    let words: Vec<&str> = said.expect(report).split_whitespace().collect();
    let at = words.iter().position(|word| *word == "groups").expect(report);
    (words[at - 3].parse().expect(report), words[at - 1].parse().expect(report))
}

/// The number in this column of a row of a report's tables.
#[track_caller]
fn number<N: std::str::FromStr>(report: &str, row: &str, column: usize) -> N {
    let line = report.lines().find(|line| line.split_whitespace().next() == Some(row));
    let word = line.and_then(|line| line.split_whitespace().nth(column));
    let number = word.and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("no number of {row}: {report}"))
}

/// The layers of a plan, as reports call them.
const LAYERS: [&str; 5] = ["fault", "certain", "recorded", "stride", "background"];

#[test]
fn a_hundred_forks_of_an_image_of_another_node_fetch_each_page_once() {
    let (_maker, runner, _serving, relay) = two_nodes("forks", u64::MAX);
    let ended = runner.run("fork --store STORE --report --from maker/big -n 100", "");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let sum = sum_of_words();
    assert_eq!(ended.stdout.matches(sum.trim()).count(), 100, "each has summed all of it up");
    let came = given(&relay);
    // All of it, and beside it code, proofs and records of TLS.
    assert!((CONTENTS..CONTENTS + (2 << 20)).contains(&came), "{came} bytes came");
    let (here, all) = groups(&ended.stderr);
    assert_eq!(here, all, "{}", ended.stderr);
    let sum = |column| LAYERS.iter().map(|layer| number::<u64>(&ended.stderr, layer, column)).sum();
    let (asked, arrived): (u64, u64) = (sum(1), sum(2));
    assert_eq!((asked, arrived), (all, all), "each group is asked for once: {}", ended.stderr);
    // Several run at once: their times are told together.
    assert!(ended.stderr.contains(": 100 runs of guests: "), "{}", ended.stderr);
    let (wall, cpu) =
        (number::<f64>(&ended.stderr, "guests", 1), number::<f64>(&ended.stderr, "guests", 3));
    assert!(cpu > 0.0 && cpu <= wall, "{}", ended.stderr);
    assert!(milliseconds(&ended.stderr, ", waited ") <= wall, "{}", ended.stderr);
}

#[test]
fn where_the_system_tells_nothing_of_faults_forks_and_requests_have_all_of_it_first() {
    let (_maker, runner, _serving, relay) = two_nodes_of("unserved", &answering(), u64::MAX);
    let how = "without-userfaultfd";
    let server = Server::start_by(confined(how), &runner, "--from maker/big");
    assert!(given(&relay) > CONTENTS, "all of it is here");
    assert!(server.ask("").contains("here\n"));
    let answer = server.ask(&"sum".repeat(400));
    assert!(answer.contains(sum_of_words().trim()), "{answer}");

    let (_maker, runner, _serving, relay) = two_nodes("unserved-forks", u64::MAX);
    let words = "fork --store STORE --report --from maker/big -n 10";
    let ended = Started::of(confined(how), &runner, words).finish("");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout.matches(sum_of_words().trim()).count(), 10, "{}", ended.stdout);
    assert!(given(&relay) < CONTENTS + (2 << 20), "it came once");
}

#[test]
fn images_of_other_nodes_are_the_same_to_users_without_rights() {
    let tests = [
        "requests_are_answered_before_the_image_is_here_and_those_that_need_the_rest_wait",
        "a_hundred_forks_of_an_image_of_another_node_fetch_each_page_once",
        "where_the_system_tells_nothing_of_faults_forks_and_requests_have_all_of_it_first",
    ];
    pass_without_rights("remote-images", &tests);
}

/// The milliseconds that stand behind these words.
#[track_caller]
fn milliseconds(report: &str, words: &str) -> f64 {
    let behind = report.split_once(words).unwrap_or_else(|| panic!("no {words:?}: {report}")).1;
    behind.split_whitespace().next().unwrap().parse().expect(report)
}

#[test]
fn the_parts_of_a_report_are_the_whole_and_the_code_is_told_apart() {
    let (_maker, runner, _serving, _relay) = two_nodes("parts", u64::MAX);
    for ahead in ["none", "certain,recorded", "certain,recorded,stride,background"] {
        let words = format!("restore --store STORE --report --fetch-ahead {ahead} maker/big");
        let ended = Started::new(&runner, &words).finish("go\nsum\n");
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let report = &ended.stderr;
        // Each number is rounded.
        let rounding = 0.04;
        let began = milliseconds(report, "could go on after ");
        let (head, code) =
            (milliseconds(report, "its head took "), milliseconds(report, "its code "));
        assert!(head > 0.0 && head + code <= began + rounding, "{report}");
        let took = |row| (number::<f64>(report, row, 1), number::<f64>(report, row, 3));
        let loading = took("loading");
        assert!((head + code + loading.0 - began).abs() <= rounding, "{report}");
        assert!((took("head").0, took("code").0) == (head, code), "{report}");
        let (wall, cpu) = took("guests");
        for (wall, cpu) in [took("head"), took("code"), loading, (wall, cpu)] {
            assert!(cpu <= wall + rounding, "one thread takes one processor: {report}");
        }
        assert!(report.contains(": 1 run of guests: "), "{report}");
        assert!(cpu > 0.0 && milliseconds(report, "they computed for ") == cpu, "{report}");
        // What a guest cannot do until its pages are here is a part of its run, and all of it is told.
        let blocked = milliseconds(report, ", waited ");
        let other = milliseconds(report, "for groups, and ");
        assert!(blocked > 0.0 && blocked <= wall + rounding, "{report}");
        assert!((cpu + blocked + other - wall).abs() <= rounding, "{report}");
        let waited = milliseconds(report, "groups were waited for, ");
        assert!(blocked <= waited + rounding, "{report}");
        let parts = ["network", "server", "handle", "install", "rest"];
        let sum: f64 = parts.iter().map(|row| number::<f64>(report, row, 1)).sum();
        assert!((sum - waited).abs() <= rounding, "{sum} of {waited} ms: {report}");
        // The server has read, compressed and sent what has come.
        assert!(number::<f64>(report, "server", 3) > 0.0, "{report}");
        let (here, _) = groups(report);
        let came: u64 = LAYERS.iter().map(|layer| number::<u64>(report, layer, 2)).sum();
        assert_eq!(came, here, "{report}");
    }
}

/// Loads modules, waits for a line, and computes with them. Words are apart by tabs: the command's are by
/// spaces.
const SCRIPT: &str = "import\tjson,re,random
line=input()
random.seed(5)
text=json.dumps({'line':line,'numbers':[random.random()for\t_\tin\trange(500)]})
print(sum(map(int,re.findall('0[.]([0-9]{3})',text))),line)";

#[test]
fn the_second_start_of_cpython_waits_for_a_tenth_of_what_the_first_one_did() {
    let guests = match std::env::var_os("PAGEFORK_GUESTS") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guests"),
    };
    let python = guests.join("python.wasm");
    if !python.exists() {
        let reason = format!("there is no {}: run `cargo xtask guests`", python.display());
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
        println!("skipped: {reason}");
        return;
    }
    let (maker, runner) = (User::new("cpython-maker"), User::new("cpython-runner"));
    maker.does(&format!("snapshot --store STORE -o python {} -c {SCRIPT}", python.display()));
    let serving = maker.serve();
    maker.does(&format!("node trust runner {} --serve", runner.node_key));
    let (key, address, signer) = (&maker.node_key, &serving.address, &maker.image_key);
    runner.does(&format!("node trust maker {key} --address {address} --signer {signer}"));
    // Nothing asks for what is not touched, so the image is not kept.
    let start = |ahead: &str, line: &str| {
        let words = format!("restore --store STORE --report --fetch-ahead {ahead} maker/python");
        let ended = Started::new(&runner, &words).finish(line);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stdout.contains(line.trim()), "{}", ended.stdout);
        (number::<u64>(&ended.stderr, "fault", 1), number::<u64>(&ended.stderr, "recorded", 1))
    };
    let (first, recorded) = start("recorded", "one\n");
    assert_eq!(recorded, 0, "nothing is known yet");
    assert!(first > 50, "{first} groups were waited for");
    // Another line, as another request is.
    let (second, recorded) = start("recorded", "another\n");
    println!("{first} groups were waited for, and {second} then, of {recorded} recorded");
    assert!(
        second * 10 <= first,
        "{first} groups first, and {second} then, of {recorded} recorded"
    );
}
