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

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefork_image::PublicKey;
use pagefork_postcopy::{
    KnownRecords, MigrationId, SourceRecord, SourceState, TargetRecord, TargetState,
};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::remembered::RememberedMoves;
use super::wire::ProgramId;

/// The form of these files.
const VERSION: u8 = 3;

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
    /// It has come back since, and is over here; or nobody wants to know where it is.
    pub(super) is_over: bool,
}

/// Of a program that comes here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ArrivingRecord {
    pub(super) target: TargetRecord,
    pub(super) program: ProgramId,
    pub(super) name: String,
    /// The key of the node that has had it.
    pub(super) from: [u8; 32],
    /// That node knows for good what has become of it, and asks no more.
    pub(super) is_known: bool,
    /// It came here, and does not run here any more.
    pub(super) is_over: bool,
}

impl ArrivingRecord {
    /// Whether it says whose the program is.
    fn decides(&self) -> bool {
        matches!(self.target.state, TargetState::Own | TargetState::Declined)
    }

    /// Whether nobody needs it any more, but who has asked for it before.
    fn is_needless(&self) -> bool {
        self.is_known && (self.is_over || self.target.state == TargetState::Declined)
    }
}

/// The directory of records.
#[derive(Debug)]
pub(super) struct MoveRecords {
    directory: PathBuf,
    boot: BootId,
    /// Of programs that came here, or were declined.
    remembered: Mutex<RememberedMoves>,
    /// Of programs that have left: how often each was handed over when it did so last, and by what.
    left: Mutex<BTreeMap<ProgramId, (u64, MigrationId)>>,
    /// One record that says whose a program is is changed at a time.
    changing: Mutex<()>,
    /// Of programs that are not here, though a record may say so that could not be removed.
    unsure: Mutex<BTreeSet<MigrationId>>,
    /// The directory: nothing has to be opened to bring it to the disk.
    handle: File,
    /// No other process of the node uses it.
    _lock: File,
}

/// Both kinds of records.
#[derive(Debug, Default)]
pub(super) struct AllRecords {
    /// Those that mean nothing, of programs that may have left.
    pub(super) unreadable: BTreeSet<MigrationId>,
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
        let (handle, directory, boot) = (File::open(directory)?, directory.to_owned(), boot()?);
        let (remembered, left, changing, unsure) = <_>::default();
        Ok(Self { directory, boot, remembered, left, changing, unsure, handle, _lock: lock })
    }

    /// Whose programs are remembered, after they came here or were declined.
    pub(super) fn remembered(&self) -> MutexGuard<'_, RememberedMoves> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, record: &ArrivingRecord) {
        if record.decides() {
            let from = PublicKey::from_bytes(record.from);
            self.remembered().keep(record.target.migration, from, record.is_needless());
        }
    }

    /// A connection has ended, which [began](RememberedMoves::begin) by this number.
    ///
    /// # Errors
    /// If a record cannot be removed that nobody needs any more.
    pub(super) fn end_connection(&self, number: u64, from: Option<PublicKey>) -> io::Result<()> {
        let _changing = self.changing();
        self.remembered().end(number, from);
        self.forget_needless()
    }

    fn forget_needless(&self) -> io::Result<()> {
        let needless = self.remembered().needless();
        for migration in &needless {
            self.remove(*migration, "arriving")?;
            self.remembered().forget(*migration);
        }
        // Who waits for a record to be changed does not wait for each of these.
        if needless.is_empty() { Ok(()) } else { self.sync() }
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep_leaving(&self, record: &LeavingRecord) -> io::Result<()> {
        let _changing = self.changing();
        self.note_left(record);
        let migration = record.source.migration;
        // Nobody wants to know of it any more, though its last state comes to the disk only now.
        let found = self.read::<LeavingRecord>(&self.path(migration, "leaving")).ok().flatten();
        let is_over = record.is_over || found.is_some_and(|(found, _)| found.is_over);
        self.keep(migration, "leaving", &LeavingRecord { is_over, ..record.clone() })
    }

    fn note_left(&self, record: &LeavingRecord) {
        if record.source.state == SourceState::Taken {
            let left = (record.source.epoch, record.source.migration);
            let mut all = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let last = all.entry(record.program).or_insert(left);
            *last = left.max(*last);
        }
    }

    /// Where a program has gone from here is of no interest any more, as long as it does not leave again.
    pub(super) fn end_leaving(&self, program: ProgramId) -> io::Result<()> {
        let _changing = self.changing();
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).remove(&program);
        let Some((_, migration)) = left else { return Ok(()) };
        let found = self.read::<LeavingRecord>(&self.path(migration, "leaving"))?;
        let Some((record, _)) = found else { return Ok(()) };
        self.keep(migration, "leaving", &LeavingRecord { is_over: true, ..record })
    }

    pub(super) fn keep_arriving(&self, record: &ArrivingRecord) -> io::Result<()> {
        let _changing = self.changing();
        let kept = self.keep(record.target.migration, "arriving", record);
        if kept.is_err() && record.target.state == TargetState::Own {
            // It may be there all the same, and the program is not. None was there before.
            self.unsure().insert(record.target.migration);
            let _ = self.remove_unsure(record.target.migration);
        }
        kept?;
        self.remember(record);
        Ok(())
    }

    fn unsure(&self) -> MutexGuard<'_, BTreeSet<MigrationId>> {
        self.unsure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what may be there of a program that is not.
    fn remove_unsure(&self, migration: MigrationId) -> io::Result<()> {
        let mut unsure = self.unsure();
        if unsure.contains(&migration) {
            remove(&self.path(migration, "arriving"))?;
            self.sync()?;
            unsure.remove(&migration);
        }
        Ok(())
    }

    /// Changes a record that says whose a program is, and brings it to the disk, if anybody needs it then.
    pub(super) fn change_arriving(
        &self,
        migration: MigrationId,
        change: impl FnOnce(&mut ArrivingRecord),
    ) -> io::Result<()> {
        let _changing = self.changing();
        let found = self.arriving(migration)?.map(|(record, _)| record);
        let Some(before) = found.filter(ArrivingRecord::decides) else { return Ok(()) };
        let mut record = before.clone();
        change(&mut record);
        if record == before && !self.path(migration, &note_kind("arriving")).exists() {
            return Ok(());
        }
        self.remember(&record);
        self.keep(migration, "arriving", &record)?;
        self.forget_needless()
    }

    /// As [`Self::keep_leaving`], without waiting for a disk.
    pub(super) fn note_leaving(&self, record: &LeavingRecord) -> io::Result<()> {
        self.note_left(record);
        self.note(record.source.migration, "leaving", record)
    }

    /// As [`Self::keep_arriving`], without waiting for a disk.
    pub(super) fn note_arriving(&self, record: &ArrivingRecord) -> io::Result<()> {
        self.note(record.target.migration, "arriving", record)?;
        self.remember(record);
        Ok(())
    }

    /// What was kept last, as far as that is known.
    ///
    /// # Errors
    /// If it cannot be read; or it may say that a program is here which is not, and cannot be removed.
    pub(super) fn arriving(
        &self,
        migration: MigrationId,
    ) -> io::Result<Option<(ArrivingRecord, KnownRecords)>> {
        self.remove_unsure(migration)?;
        self.read(&self.path(migration, "arriving"))
    }

    /// Forgets that a program has left, or did not.
    pub(super) fn forget_leaving(&self, migration: MigrationId) -> io::Result<()> {
        self.forget(migration, "leaving")
    }

    /// Forgets that a program might have come.
    pub(super) fn forget_arriving(&self, migration: MigrationId) -> io::Result<()> {
        self.remembered().forget(migration);
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
                let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
                if let Some(id) = name.parse::<ProgramId>().ok().filter(|_| kind == "leaving") {
                    all.unreadable.insert(MigrationId(id.0));
                }
                say(&format!("{} is no record of a program that moves: {error}", path.display()));
            }
        }
        // No connection is there yet.
        let needless = all.arriving.extract_if(.., |(record, _)| record.is_needless());
        for (record, _) in needless {
            self.forget_arriving(record.target.migration)?;
        }
        all.arriving.iter().for_each(|(record, _)| self.remember(record));
        all.leaving.iter().for_each(|(record, _)| self.note_left(record));
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
        self.remove(id, kind)?;
        self.sync()
    }

    fn remove(&self, id: MigrationId, kind: &str) -> io::Result<()> {
        remove(&self.path(id, &note_kind(kind)))?;
        remove(&self.path(id, kind))
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
        self.handle.sync_all()
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
    impl ArrivingRecord {
        fn of(target: TargetRecord, program: ProgramId, from: [u8; 32]) -> Self {
            let (name, is_known, is_over) = ("a".to_owned(), false, false);
            Self { target, program, name, from, is_known, is_over }
        }
    }

    #[test]
    fn records_are_there_when_a_process_ends_and_damaged_ones_are_said() {
        let path = std::env::temp_dir().join(format!("pagefork-records-{}", std::process::id()));
        let records = MoveRecords::open(&path).unwrap();
        let migration = MigrationId([7; 16]);
        let source = SourceRecord { migration, epoch: 1, state: SourceState::Offered };
        let program = ProgramId([1; 16]);
        let (name, to, is_over) = ("a".to_owned(), [2; 32], false);
        let mut leaving = LeavingRecord { source, program, name, to, is_over };
        records.keep_leaving(&leaving).unwrap();
        leaving.source.state = SourceState::Taken;
        records.keep_leaving(&leaving).unwrap();
        let target = TargetRecord { migration, epoch: 1, state: TargetState::Own };
        let arriving = ArrivingRecord::of(target, program, [3; 32]);
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
    fn what_could_not_be_kept_for_good_says_nothing() {
        let path = std::env::temp_dir().join(format!("pagefork-not-kept-{}", std::process::id()));
        let records = MoveRecords::open(&path).unwrap();
        let (migration, from) = (MigrationId([7; 16]), [3; 32]);
        let target = TargetRecord { migration, epoch: 1, state: TargetState::Own };
        let record = ArrivingRecord::of(target, ProgramId([1; 16]), from);
        // What is removed last is no file.
        let note = records.path(migration, "arriving-note");
        fs::create_dir(&note).unwrap();
        records.keep_arriving(&record).unwrap_err();
        assert!(records.arriving(migration).unwrap().is_none(), "nobody has the program");
        assert!(records.unsure().is_empty());
        assert_eq!(records.remembered().count(&PublicKey::from_bytes(from)), 0);
        fs::remove_dir(note).unwrap();
        records.keep_arriving(&record).unwrap();
        assert!(records.arriving(migration).unwrap().is_some());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn what_could_neither_be_kept_nor_removed_is_not_believed() {
        let path = std::env::temp_dir().join(format!("pagefork-unsure-{}", std::process::id()));
        let records = MoveRecords::open(&path).unwrap();
        let migration = MigrationId([7; 16]);
        let target = TargetRecord { migration, epoch: 1, state: TargetState::Own };
        let record = ArrivingRecord::of(target, ProgramId([1; 16]), [3; 32]);
        records.keep_arriving(&record).unwrap();
        records.unsure().insert(migration);
        let kept = records.path(migration, "arriving");
        let elsewhere = path.join("elsewhere");
        fs::rename(&kept, &elsewhere).unwrap();
        // What is no file cannot be removed.
        fs::create_dir(&kept).unwrap();
        records.arriving(migration).unwrap_err();
        records.change_arriving(migration, |_| ()).unwrap_err();
        fs::remove_dir(&kept).unwrap();
        fs::rename(&elsewhere, &kept).unwrap();
        assert!(records.arriving(migration).unwrap().is_none(), "nobody has the program");
        records.keep_arriving(&record).unwrap();
        assert!(records.arriving(migration).unwrap().is_some());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn notes_are_believed_until_the_system_is_started_anew() {
        let path = std::env::temp_dir().join(format!("pagefork-notes-{}", std::process::id()));
        let mut records = MoveRecords::open(&path).unwrap();
        let migration = MigrationId([7; 16]);
        let record = |state| {
            let target = TargetRecord { migration, epoch: 1, state };
            ArrivingRecord::of(target, ProgramId([1; 16]), [3; 32])
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
