//! Nodes that are processes of their own, at the ends of a line.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::first;
use super::limited::MemoryLimit;
use super::network::Namespaces;
use super::parts::{self, COLUMNS, Run, Served, Values, Way};
use super::relay::Trouble;
use super::shell;

/// A memory node at one end of the line. It ends with its input.
pub(super) struct Server<'a> {
    line: &'a Namespaces,
    directory: &'a Path,
    process: ServerProcess,
    served: Served,
    limit: Option<MemoryLimit>,
}

impl<'a> Server<'a> {
    pub(super) fn new(
        line: &'a Namespaces,
        directory: &'a Path,
        pages: u32,
        trouble: Trouble,
    ) -> Self {
        let mut command = line.command(0, std::env::current_exe().expect("this program"));
        command.args(["--part", "postcopy", "serve", &Namespaces::ip(0).to_string()]);
        command.arg(directory).arg(pages.to_string());
        let numbers = [trouble.delay.as_micros() as u32, trouble.lost, trouble.reordered];
        command.args(numbers.map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let input = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let words = read_line(&mut output);
        let words: Vec<&str> = words.split_whitespace().collect();
        let (served, limit) = (Served::of_words(&words), None);
        Self { line, directory, process: ServerProcess { child, input, output }, served, limit }
    }

    /// What it has taken of processors, in milliseconds.
    fn cpu(&mut self) -> f64 {
        self.process.input.write_all(b"\n").expect("it lives");
        read_line(&mut self.process.output).trim().parse().expect("a number")
    }

    /// A process at the other end.
    fn other<W: AsRef<OsStr>>(&self, what: &str, words: impl IntoIterator<Item = W>) -> Command {
        let mut command = self.line.command(1, std::env::current_exe().expect("this program"));
        command.args(["--part", "postcopy", what]).arg(self.directory);
        command.args(words).args(self.served.words());
        match &self.limit {
            Some(limit) => limit.command(&command),
            None => command,
        }
    }

    /// Has the processes at the other end have no more memory than that.
    pub(super) fn limited(self, limit: MemoryLimit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Forks a second of each of so many nodes at once, of an image of which all is there.
    pub(super) fn crowd(&self, nodes: usize, pages: u32) -> Vec<f64> {
        let begin = |_| {
            let mut command = self.other("crowd", [pages.to_string()]);
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut child = child.expect("it starts");
            let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
            assert_eq!(read_line(&mut output).trim(), "ready");
            (child, output)
        };
        let mut all: Vec<_> = (0..nodes).map(begin).collect();
        for (child, _) in &mut all {
            child.stdin.take().expect("a pipe").write_all(b"\n").expect("it lives");
        }
        let end = |(mut child, mut output): (Child, BufReader<ChildStdout>)| {
            let rate = read_line(&mut output).trim().parse().expect("a number");
            assert!(child.wait().expect("it ends").success());
            rate
        };
        all.into_iter().map(end).collect()
    }

    /// What a process at the other end says.
    fn ask<W: AsRef<OsStr>>(&self, what: &str, words: impl IntoIterator<Item = W>) -> Vec<f64> {
        let mut command = self.other(what, words);
        let output = command.stderr(Stdio::inherit()).output().expect("it starts");
        assert!(output.status.success(), "{command:?} has failed");
        let text = String::from_utf8(output.stdout).expect("text");
        text.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    pub(super) fn run(&mut self, run: &Run) -> Values {
        let cpu = self.cpu();
        let mut values = self.ask("run", run.words());
        let there = COLUMNS.iter().position(|column| *column == "CPU there");
        values[there.expect("a column")] = self.cpu() - cpu;
        values.try_into().expect("a value for each column")
    }

    pub(super) fn first(&self, way: Way, what: &str) -> Vec<f64> {
        self.ask("first", [way.name(), what])
    }

    /// By the command.
    pub(super) fn from_shell(&self, way: Way, what: &str) -> Vec<f64> {
        self.ask("shell", [way.name(), what])
    }

    pub(super) fn forks(&self, way: Way, pages: u32) -> Vec<f64> {
        self.ask("forks", [way.name(), &pages.to_string()])
    }
}

/// Its process, which ends with this.
struct ServerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("it lives");
    line
}

/// What a process of this benchmark does.
///
/// # Panics
/// If it is asked for something else.
pub fn part(arguments: &[&str]) {
    // It would wait for nodes that are gone.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let print = |values: &[f64]| {
        let words: Vec<String> = values.iter().map(f64::to_string).collect();
        println!("{}", words.join(" "));
    };
    match *arguments {
        ["serve", ip, directory, pages, delay, lost, reordered] => {
            let number = |text: &str| text.parse::<u32>().expect("a number");
            let delay = Duration::from_micros(u64::from(number(delay)));
            let trouble = Trouble { delay, lost: number(lost), reordered: number(reordered) };
            let ip = ip.parse().expect("an address");
            let served = parts::serve(ip, Path::new(directory), number(pages), trouble);
            println!("{}", served.words().join(" "));
            for _ in std::io::stdin().lines() {
                print(&[parts::process_cpu().as_secs_f64() * 1e3]);
            }
        }
        ["run", directory, ref rest @ ..] if rest.len() == 10 => {
            let (run, served) = (Run::of_words(&rest[..6]), Served::of_words(&rest[6..]));
            print(&parts::run(&run, served, Path::new(directory)));
        }
        ["first", directory, way, what, ref served @ ..] if served.len() == 4 => {
            let (way, served) = (Way::of_name(way), Served::of_words(served));
            print(&first::run(way, what, served, Path::new(directory)));
        }
        ["shell", directory, way, what, ref served @ ..] if served.len() == 4 => {
            let (way, served) = (Way::of_name(way), Served::of_words(served));
            print(&shell::run(way, what, served, Path::new(directory)));
        }
        ["crowd", directory, pages, ref served @ ..] if served.len() == 4 => {
            let pages = pages.parse().expect("a number");
            let resident =
                first::Resident::new(pages, Served::of_words(served), Path::new(directory));
            // All of them begin at once.
            println!("ready");
            read_line(&mut std::io::stdin().lock());
            print(&[resident.rate()]);
        }
        ["forks", directory, way, pages, ref served @ ..] if served.len() == 4 => {
            let (way, served) = (Way::of_name(way), Served::of_words(served));
            let pages = pages.parse().expect("a number");
            print(&first::forks(way, pages, served, Path::new(directory)));
        }
        _ => panic!("the benchmark has no such part: {arguments:?}"),
    }
}
