//! What a node must remember of programs that move, also over the end of its process. A record is on
//! the disk before anything that follows from it is sent; a *note* takes its place for the moment while
//! a program rests, and is sure as long as the system is not started anew.
//!
//! ```text
//!   ID.leaving  ID.arriving             records
//!   ID.leaving-note  ID.arriving-note   what was kept later, and need not be on the disk
//!
//!   version (1) | boot (16) | ns since the system was started (8) | postcard's encoding
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagefork_postcopy::{KnownRecords, MigrationId, SourceRecord, TargetRecord};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::wire::ProgramId;

/// The form of these files.
const VERSION: u8 = 2;

/// Bytes before a record: the form, when the system was started, and when it was written.
const HEAD: usize = 1 + size_of::<BootId>() + 8;

/// What tells one start of the system from others.
type BootId = [u8; 16];

/// Bytes of a record at most.
const SIZE_MAX: u64 = 1 << 20;

/// Of a program that moves away.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct LeavingRecord {
    pub(super) source: SourceRecord,
    pub(super) program: ProgramId,
    pub(super) name: String,
    /// The key of the node that is to have it.
    pub(super) to: [u8; 32],
}

/// Of a program that comes here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ArrivingRecord {
    pub(super) target: TargetRecord,
    pub(super) program: ProgramId,
    pub(super) name: String,
    /// The key of the node that has had it.
    pub(super) from: [u8; 32],
}

/// The directory of records.
#[derive(Debug)]
pub(super) struct MoveRecords {
    directory: PathBuf,
    boot: BootId,
    /// No other process of the node uses it.
    _lock: File,
}

/// Both kinds of records.
#[derive(Debug, Default)]
pub(super) struct AllRecords {
    pub(super) leaving: Vec<(LeavingRecord, KnownRecords)>,
    pub(super) arriving: Vec<(ArrivingRecord, KnownRecords)>,
}

impl MoveRecords {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let mut options = OpenOptions::new();
        let lock = options.create(true).append(true).mode(0o600).open(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another process of this node runs"),
            TryLockError::Error(error) => error,
        })?;
        Ok(Self { directory: directory.to_owned(), boot: boot()?, _lock: lock })
    }

    pub(super) fn keep_leaving(&self, record: &LeavingRecord) -> io::Result<()> {
        self.keep(record.source.migration, "leaving", record)
    }

    pub(super) fn keep_arriving(&self, record: &ArrivingRecord) -> io::Result<()> {
        self.keep(record.target.migration, "arriving", record)
    }

    /// As [`Self::keep_leaving`], without waiting for a disk.
    pub(super) fn note_leaving(&self, record: &LeavingRecord) -> io::Result<()> {
        self.note(record.source.migration, "leaving", record)
    }

    /// As [`Self::keep_arriving`], without waiting for a disk.
    pub(super) fn note_arriving(&self, record: &ArrivingRecord) -> io::Result<()> {
        self.note(record.target.migration, "arriving", record)
    }

    /// What was kept last, as far as that is known.
    pub(super) fn arriving(
        &self,
        migration: MigrationId,
    ) -> io::Result<Option<(ArrivingRecord, KnownRecords)>> {
        self.read(&self.path(migration, "arriving"))
    }

    /// Forgets that a program has left, or did not.
    pub(super) fn forget_leaving(&self, migration: MigrationId) -> io::Result<()> {
        self.forget(migration, "leaving")
    }

    /// Forgets that a program might have come.
    pub(super) fn forget_arriving(&self, migration: MigrationId) -> io::Result<()> {
        self.forget(migration, "arriving")
    }

    /// All that were kept. What is none is passed over, and said.
    pub(super) fn read_all(&self, say: &dyn Fn(&str)) -> io::Result<AllRecords> {
        let mut all = AllRecords::default();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
            let kept = match kind {
                "leaving" => self.read(&path).map(|record| all.leaving.extend(record)),
                "arriving" => self.read(&path).map(|record| all.arriving.extend(record)),
                _ => Ok(()),
            };
            if let Err(error) = kept {
                say(&format!("{} is no record of a program that moves: {error}", path.display()));
            }
        }
        Ok(all)
    }

    fn path(&self, migration: MigrationId, kind: &str) -> PathBuf {
        self.directory.join(format!("{}.{kind}", ProgramId(migration.0)))
    }

    fn keep(&self, id: MigrationId, kind: &str, record: &impl Serialize) -> io::Result<()> {
        self.write(&self.path(id, kind), record, File::sync_all)?;
        self.sync()?;
        // It is of an earlier moment, which is seen where it comes back.
        remove(&self.path(id, &note_kind(kind)))
    }

    fn note(&self, id: MigrationId, kind: &str, record: &impl Serialize) -> io::Result<()> {
        self.write(&self.path(id, &note_kind(kind)), record, |_| Ok(()))
    }

    fn forget(&self, id: MigrationId, kind: &str) -> io::Result<()> {
        remove(&self.path(id, &note_kind(kind)))?;
        remove(&self.path(id, kind))?;
        self.sync()
    }

    fn write(
        &self,
        path: &Path,
        record: &impl Serialize,
        settle: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.boot);
        bytes.extend(since_boot().to_le_bytes());
        let bytes = postcard::to_extend(record, bytes).map_err(io::Error::other)?;
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push("-unfinished");
        let mut options = OpenOptions::new();
        let mut file =
            options.create(true).write(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&bytes)?;
        settle(&file)?;
        fs::rename(&unfinished, path)
    }

    /// What was kept last: a note, if the system has not been started anew since and no later record
    /// is there.
    fn read<R: DeserializeOwned>(&self, path: &Path) -> io::Result<Option<(R, KnownRecords)>> {
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        let Some(kept) = read::<R>(path)? else { return Ok(None) };
        // What is left of one by the end of the system means nothing.
        let note = read::<R>(&path.with_extension(note_kind(kind))).ok().flatten();
        let note = note.filter(|note| note.boot == self.boot);
        let latest = match note {
            Some(note) if kept.boot != self.boot || note.written > kept.written => note,
            _ => kept,
        };
        let knows = match latest.boot == self.boot {
            true => KnownRecords::All,
            false => KnownRecords::OnDisk,
        };
        Ok(Some((latest.record, knows)))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

fn note_kind(kind: &str) -> String {
    format!("{kind}-note")
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What this start of the system is known by.
fn boot() -> io::Result<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(number.to_be_bytes())
}

/// Nanoseconds since the system was started. They never go back, also from one process to the next.
fn since_boot() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A file of a record.
struct KeptRecord<R> {
    boot: BootId,
    written: u64,
    record: R,
}

fn read<R: DeserializeOwned>(path: &Path) -> io::Result<Option<KeptRecord<R>>> {
    let nonsense = || io::Error::new(ErrorKind::InvalidData, "it means nothing here");
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > SIZE_MAX => return Err(nonsense()),
        Ok(_) => {}
    }
    let bytes = fs::read(path)?;
    let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or_else(nonsense)?;
    let (version, head) = head.split_first().expect("it has a first byte");
    let (boot, written) = head.split_first_chunk().expect("it has as many");
    let written = u64::from_le_bytes(written.try_into().expect("the rest is eight bytes"));
    match postcard::take_from_bytes(rest) {
        Ok((record, [])) if *version == VERSION => {
            Ok(Some(KeptRecord { boot: *boot, written, record }))
        }
        _ => Err(nonsense()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefork_postcopy::{SourceState, TargetState};

    #[test]
    fn records_are_there_when_a_process_ends_and_damaged_ones_are_said() {
        let path = std::env::temp_dir().join(format!("pagefork-records-{}", std::process::id()));
        let records = MoveRecords::open(&path).unwrap();
        let migration = MigrationId([7; 16]);
        let source = SourceRecord { migration, epoch: 1, state: SourceState::Offered };
        let program = ProgramId([1; 16]);
        let mut leaving = LeavingRecord { source, program, name: "a".into(), to: [2; 32] };
        records.keep_leaving(&leaving).unwrap();
        leaving.source.state = SourceState::Taken;
        records.keep_leaving(&leaving).unwrap();
        let target = TargetRecord { migration, epoch: 1, state: TargetState::Own };
        let arriving = ArrivingRecord { target, program, name: "a".into(), from: [3; 32] };
        records.keep_arriving(&arriving).unwrap();
        fs::write(path.join("x.leaving"), [VERSION, 1, 2]).unwrap();

        let said = std::cell::RefCell::new(Vec::new());
        assert!(MoveRecords::open(&path).is_err(), "it is used");
        drop(records);
        let records = MoveRecords::open(&path).unwrap();
        let all = records.read_all(&|text| said.borrow_mut().push(text.to_owned())).unwrap();
        let known = KnownRecords::All;
        assert_eq!(all.leaving, [(leaving, known)]);
        assert_eq!(all.arriving, [(arriving.clone(), known)]);
        assert!(said.borrow()[0].contains("x.leaving"));
        assert_eq!(records.arriving(migration).unwrap(), Some((arriving, known)));
        records.forget_leaving(migration).unwrap();
        assert!(records.read_all(&|_| ()).unwrap().leaving.is_empty());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn notes_are_believed_until_the_system_is_started_anew() {
        let path = std::env::temp_dir().join(format!("pagefork-notes-{}", std::process::id()));
        let mut records = MoveRecords::open(&path).unwrap();
        let migration = MigrationId([7; 16]);
        let record = |state| {
            let target = TargetRecord { migration, epoch: 1, state };
            ArrivingRecord { target, program: ProgramId([1; 16]), name: "a".into(), from: [3; 32] }
        };
        let found = |records: &MoveRecords| {
            let (record, knows) = records.arriving(migration).unwrap().unwrap();
            (record.target.state, knows)
        };
        records.keep_arriving(&record(TargetState::Accepted)).unwrap();
        assert_eq!(found(&records), (TargetState::Accepted, KnownRecords::All));
        records.note_arriving(&record(TargetState::Own)).unwrap();
        assert_eq!(found(&records), (TargetState::Own, KnownRecords::All));
        let (note, this_boot) = (records.path(migration, "arriving-note"), records.boot);
        let bytes = fs::read(&note).unwrap();

        // Whatever is left of a note by the end of the system, it may not have been the last.
        records.boot = [9; 16];
        for left in [Some(&bytes[..]), Some(&bytes[..30]), Some(&[]), None] {
            match left {
                Some(left) => fs::write(&note, left).unwrap(),
                None => fs::remove_file(&note).unwrap(),
            }
            assert_eq!(found(&records), (TargetState::Accepted, KnownRecords::OnDisk));
        }
        records.keep_arriving(&record(TargetState::Declined)).unwrap();
        assert_eq!(found(&records), (TargetState::Declined, KnownRecords::All));
        // One that was to be removed, and comes back.
        fs::write(&note, &bytes).unwrap();
        assert_eq!(found(&records), (TargetState::Declined, KnownRecords::All));
        records.boot = this_boot;
        records.keep_arriving(&record(TargetState::Declined)).unwrap();
        fs::write(&note, &bytes).unwrap();
        assert_eq!(found(&records), (TargetState::Declined, KnownRecords::All));
        records.forget_arriving(migration).unwrap();
        assert!(records.arriving(migration).unwrap().is_none() && !note.exists());
        fs::remove_dir_all(path).unwrap();
    }
}
