//! The command `pagefork restore NODE/IMAGE`, started as a shell starts it.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::first::{COLUMNS, PYTHON};
use super::pages::first_word;
use super::parts::{self, Served, Way, here, key, milliseconds, received, there};
use crate::image::programs as python;

/// Says where the command is that is measured; `cargo xtask bench` builds it and sets this.
const PLACE: &str = "PAGEFORK_COMMAND";

/// The command, if it is known where it is.
pub(super) fn command() -> Option<PathBuf> {
    env::var_os(PLACE).map(PathBuf::from)
}

/// What there is to say where it is not.
pub(super) fn missing() -> String {
    format!("Skipped: from the shell, as {PLACE} names no command.")
}

/// What the rows are called.
pub(super) fn name(way: Way) -> String {
    format!("{}, from the shell", way.name())
}

/// Starts programs of an image of the node, each by a process of the command: one that touches nothing, until
/// its process has ended; and one that reads its last page, until the first byte of its output, as which it
/// has what it read. CPython has its answer alone.
///
/// # Panics
/// If the command fails, or an answer is wrong.
pub(super) fn run(way: Way, what: &str, served: Served, directory: &Path) -> [f64; COLUMNS.len()] {
    let shell = Shell { command: command().expect("it was looked for"), directory };
    shell.trust(way, served);
    if what == PYTHON {
        let answered = shell.restore(PYTHON, &[], &[], python::INPUT);
        assert_eq!(answered.output, python::ANSWER);
        return [f64::NAN, answered.first_byte, answered.wire];
    }
    let pages: u32 = what.parse().expect("a number of pages");
    let name = parts::name(pages);
    let began = shell.restore(&name, &["--invoke", "begin"], &[], "");
    assert_eq!(began.output, b"");
    let last = (pages - 1).to_string();
    let answered = shell.restore(&name, &["--invoke", "word"], &[&last], "");
    assert_eq!(answered.output, format!("{}\n", first_word(pages - 1)).as_bytes());
    [began.end, answered.first_byte, answered.wire]
}

/// How the command is started.
struct Shell<'a> {
    command: PathBuf,
    directory: &'a Path,
}

/// What came of a process: when, in milliseconds since it was started.
struct Ended {
    first_byte: f64,
    end: f64,
    wire: f64,
    output: Vec<u8>,
}

impl Shell<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.env("XDG_CONFIG_HOME", self.directory.join("shell")).stdin(Stdio::null());
        command
    }

    /// Makes the node known as `there`, and who has signed its images.
    fn trust(&self, way: Way, served: Served) {
        let peer = served.peer(way);
        for signer in [key(3), python::key()] {
            let mut command = self.command();
            command.args(["node", "trust", "there", &peer.key.to_string()]);
            command.args(["--address", &peer.address, "--signer", &signer.public().to_string()]);
            let output = command.output().expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Goes on with a program of an image that is not here.
    fn restore(&self, name: &str, options: &[&str], words: &[&str], input: &str) -> Ended {
        let images = here(self.directory);
        let hash = there(self.directory).find(name).expect("it was saved");
        if images.load(hash).is_ok() {
            images.remove(hash).expect("nobody uses it");
        }
        let _ = fs::remove_dir_all(self.directory.join("here/touched"));
        let mut command = self.command();
        command.args(["restore", "--store"]).arg(self.directory.join("here")).args(options);
        command.arg(format!("there/{name}")).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (began, wire) = (Instant::now(), received());
        let mut child = command.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        // One that asks for none may have ended.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let mut stdout = child.stdout.take().expect("a pipe");
        let mut output = vec![0; 1];
        let size = stdout.read(&mut output).expect("a pipe");
        let first_byte = if size == 0 { f64::NAN } else { milliseconds(began.elapsed()) };
        output.truncate(size);
        stdout.read_to_end(&mut output).expect("a pipe");
        let ended = child.wait_with_output().expect("it ends");
        let (end, wire) = (milliseconds(began.elapsed()), received() - wire);
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        Ended { first_byte, end, wire, output }
    }
}
