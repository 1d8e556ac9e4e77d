//! What a node must remember of programs that move, also over the end of its process. A record is on
//! the disk before anything that follows from it is sent.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagefork_postcopy::{MigrationId, SourceRecord, TargetRecord};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::wire::ProgramId;

/// The form of these files.
const VERSION: u8 = 1;

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
    /// No other process of the node uses it.
    _lock: File,
}

/// Both kinds of records.
#[derive(Debug, Default)]
pub(super) struct AllRecords {
    pub(super) leaving: Vec<LeavingRecord>,
    pub(super) arriving: Vec<ArrivingRecord>,
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
        Ok(Self { directory: directory.to_owned(), _lock: lock })
    }

    pub(super) fn keep_leaving(&self, record: &LeavingRecord) -> io::Result<()> {
        self.keep(record.source.migration, "leaving", record)
    }

    pub(super) fn keep_arriving(&self, record: &ArrivingRecord) -> io::Result<()> {
        self.keep(record.target.migration, "arriving", record)
    }

    pub(super) fn arriving(&self, migration: MigrationId) -> io::Result<Option<ArrivingRecord>> {
        read(&self.path(migration, "arriving"))
    }

    /// Forgets that a program has left, or did not.
    pub(super) fn forget_leaving(&self, migration: MigrationId) -> io::Result<()> {
        match fs::remove_file(self.path(migration, "leaving")) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        }
    }

    /// All that were kept. What is none is passed over, and said.
    pub(super) fn read_all(&self, say: &dyn Fn(&str)) -> io::Result<AllRecords> {
        let mut all = AllRecords::default();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
            let kept = match kind {
                "leaving" => read(&path).map(|record| all.leaving.extend(record)),
                "arriving" => read(&path).map(|record| all.arriving.extend(record)),
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
        let bytes = postcard::to_extend(record, vec![VERSION]).map_err(io::Error::other)?;
        let path = self.path(id, kind);
        let unfinished = path.with_extension(format!("{kind}-unfinished"));
        let mut options = OpenOptions::new();
        let mut file =
            options.create(true).write(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

fn read<R: DeserializeOwned>(path: &Path) -> io::Result<Option<R>> {
    let nonsense = || io::Error::new(ErrorKind::InvalidData, "it means nothing here");
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > SIZE_MAX => return Err(nonsense()),
        Ok(_) => {}
    }
    let bytes = fs::read(path)?;
    let record = bytes.strip_prefix(&[VERSION]).map(postcard::take_from_bytes);
    match record {
        Some(Ok((record, []))) => Ok(Some(record)),
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
        assert_eq!((all.leaving, all.arriving), (vec![leaving], vec![arriving.clone()]));
        assert!(said.borrow()[0].contains("x.leaving"));
        assert_eq!(records.arriving(migration).unwrap(), Some(arriving));
        records.forget_leaving(migration).unwrap();
        assert!(records.read_all(&|_| ()).unwrap().leaving.is_empty());
        fs::remove_dir_all(path).unwrap();
    }
}
