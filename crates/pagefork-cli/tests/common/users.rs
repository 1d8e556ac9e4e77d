//! Users on one machine, each with a store, keys and nodes that they know.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use super::remote::confined_other;
use super::{COMMAND_OF_USER, Ended, SCRATCH_OF_USER, command, pagefork_as, scratch};

/// A user, with directories of their own.
pub(crate) struct User {
    pub(crate) config: PathBuf,
    pub(crate) store: PathBuf,
    pub(crate) node_key: String,
    pub(crate) image_key: String,
}

impl User {
    pub(crate) fn new(name: &str) -> Self {
        let path = scratch().join(format!("nodes-{name}"));
        let _ = fs::remove_dir_all(&path);
        let (config, store) = (path.join("config"), path.join("store"));
        let init = pagefork_as("node init", "", &config);
        assert_eq!(init.code, 0, "{}", init.stderr);
        let again = pagefork_as("node init", "", &config);
        assert_eq!(again.stdout, init.stdout, "keys are made once");
        let key = |kind| {
            let mut lines = init.stdout.lines();
            lines.find_map(|line| line.strip_prefix(kind)).expect("it is printed").to_owned()
        };
        let (node_key, image_key) = (key("node key "), key("image key "));
        assert_ne!(node_key, image_key);
        Self { config, store, node_key, image_key }
    }

    /// Runs a command, in which STORE stands for the user's store.
    pub(crate) fn run(&self, words: &str, input: &str) -> Ended {
        let words = words.replace("STORE", &self.store.display().to_string());
        pagefork_as(&words, input, &self.config)
    }

    #[track_caller]
    pub(crate) fn does(&self, words: &str) -> String {
        let ended = self.run(words, "");
        assert_eq!(ended.code, 0, "{words}: {}", ended.stderr);
        ended.stdout
    }

    #[track_caller]
    pub(crate) fn fails(&self, words: &str, complaint: &str) {
        let ended = self.run(words, "");
        assert_eq!(ended.code, 1, "{words}: {}", ended.stderr);
        assert!(ended.stderr.contains(complaint), "{words}: {}", ended.stderr);
    }

    pub(crate) fn serve(&self) -> Serving {
        self.listen("serve")
    }

    /// Listens at a free port.
    pub(crate) fn listen(&self, action: &str) -> Serving {
        self.listen_at(action, "127.0.0.1:0")
    }

    /// Runs `pagefork node serve`, or `run`.
    pub(crate) fn listen_at(&self, action: &str, address: &str) -> Serving {
        self.listen_with(&format!("{action} --addr {address}"))
    }

    /// Runs it with these words.
    pub(crate) fn listen_with(&self, words: &str) -> Serving {
        self.listen_by(Command::new(command()), words)
    }

    /// The same by another command, as `confined` makes one.
    pub(crate) fn listen_by(&self, mut command: Command, words: &str) -> Serving {
        let mut child = command
            .arg("node")
            .args(words.split_whitespace())
            .arg("--store")
            .arg(&self.store)
            .env("XDG_CONFIG_HOME", &self.config)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let line = lines.next().expect("a line").expect("text");
        let (_, address) = line.rsplit_once(' ').expect("it ends with the address");
        let address = address.to_owned();
        // It must not wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Serving { child, address }
    }
}

/// A memory node, which ends with the test.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this user has all rights.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A user without rights, whom root can be. What it uses is copied to where it can reach it.
pub(crate) struct Nobody {
    /// Its directory, in which its own are; what lies beside those is root's.
    pub(crate) scratch: PathBuf,
    /// The command.
    pub(crate) command: PathBuf,
    /// The tests that run now.
    pub(crate) tests: PathBuf,
}

impl Nobody {
    pub(crate) fn new(name: &str) -> Self {
        let scratch =
            env::temp_dir().join(format!("pagefork-nobody-{name}-{}", std::process::id()));
        fs::create_dir(&scratch).unwrap();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)).unwrap();
        let [command, tests] = ["pagefork", "tests"].map(|name| scratch.join(name));
        fs::copy(super::command(), &command).unwrap();
        fs::copy(env::current_exe().unwrap(), &tests).unwrap();
        let own = scratch.join("own");
        fs::create_dir(&own).unwrap();
        chown(&own, Some(65534), Some(65534)).unwrap();
        Self { scratch, command, tests }
    }

    /// Runs this one as that user.
    pub(crate) fn command(&self, command: &Path) -> Command {
        let own = self.scratch.join("own");
        let mut confined = confined_other("as-nobody");
        confined.arg(command).current_dir(&own);
        for variable in ["HOME", "TMPDIR", SCRATCH_OF_USER] {
            confined.env(variable, &own);
        }
        for variable in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"] {
            confined.env(variable, own.join(variable));
        }
        confined.env(COMMAND_OF_USER, &self.command);
        confined
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Runs others of the same tests by a user who has no rights: where this one has none that is what they are
/// run by already.
pub(crate) fn pass_without_rights(name: &str, tests: &[&str]) {
    if !is_root() {
        println!("all these tests run as a user without rights");
        return;
    }
    let user = Nobody::new(name);
    let ended = user
        .command(&user.tests)
        .args(["--exact", "--test-threads=1"])
        .args(tests)
        .output()
        .unwrap();
    let [said, complaints] =
        [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
    let passed = format!("test result: ok. {} passed", tests.len());
    assert!(ended.status.success() && said.contains(&passed), "{said}\n{complaints}");
}
