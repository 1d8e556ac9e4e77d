//! A second process that lives as long as a test, and is asked to go on with what was saved.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pagefork::image::{ImageStore, SecretKey, TrustedKeys};

const DIRECTORY: &str = "PAGEFORK_TEST_PARTNER";
const ANSWER: &str = "answer: ";

/// Both processes sign by this key, and trust it.
pub(crate) fn key() -> SecretKey {
    SecretKey::from_seed([0x2f; 32])
}

/// Whom both processes trust.
pub(crate) fn trusted() -> TrustedKeys {
    TrustedKeys::from_iter([key().public()])
}

/// A second process, which runs an ignored test of the same file.
pub(crate) struct Partner {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    directory: PathBuf,
}

impl Partner {
    /// Starts it, with a store of images that both use.
    pub(crate) fn start(test: &str, name: &str) -> (Self, ImageStore) {
        let directory =
            std::env::temp_dir().join(format!("pagefork-partner-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let images = ImageStore::open(&directory).expect("a directory of ours");
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(DIRECTORY, &directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be run");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        (Self { child, input, output, directory }, images)
    }

    /// Its answer to a line.
    pub(crate) fn ask(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").expect("the other process reads");
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.output.read_line(&mut line).expect("the other process writes");
            assert!(count > 0, "the other process has ended");
            if let Some(answer) = line.trim_end().strip_prefix(ANSWER) {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What the second process does: it answers lines until there are no more. Nothing, in others.
pub(crate) fn serve(begin: impl FnOnce(&Path) -> Box<dyn FnMut(&str) -> String>) {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let mut answer = begin(Path::new(&directory));
    for line in std::io::stdin().lines() {
        let answer = answer(&line.expect("text"));
        println!("\n{ANSWER}{answer}");
    }
}
