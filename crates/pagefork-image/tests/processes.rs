//! Several processes at one store: nothing that one of them uses is lost, whatever the others do,
//! and a full disk harms nothing.

#![cfg(unix)]
#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use common::*;
use pagefork_image::*;

/// What a process of its own does, and where.
const ROLE: &str = "PAGEFORK_IMAGE_ROLE";
const PLACE: &str = "PAGEFORK_IMAGE_PLACE";
const SEED: &str = "PAGEFORK_IMAGE_SEED";
const MILLISECONDS: &str = "PAGEFORK_IMAGE_MILLISECONDS";

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("pagefork-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SIZE: u64 = 1 << 20;

/// An image whose contents follow from its fuel.
fn draft(number: i64) -> (Manifest, PageRuns) {
    let mut manifest = manifest(&[SIZE]);
    manifest.fuel = number;
    let code = ContentHash::of(&code(number as u64 % 3));
    manifest.instances[0].code.hash = code;
    let pages = PageRuns::new(vec![runs(&expected(number))]);
    (manifest, pages)
}

fn code(number: u64) -> Vec<u8> {
    vec![number as u8; 1000]
}

fn expected(number: i64) -> Contents {
    let mut numbers = Numbers(number as u64);
    (0..4).map(|_| (numbers.below(SIZE / PAGE_SIZE) * PAGE_SIZE, numbers.page(9))).collect()
}

/// A page of each kind is what it has to be; of deltas, those that they name.
fn check(image: &StoredImage) {
    let number = image.chain().tip().manifest().fuel;
    let found = contents(image.chain(), 0);
    for (offset, page) in expected(number) {
        assert_eq!(found.get(&offset), Some(&page), "image {}", image.hash());
    }
}

/// Saves, loads, names, removes and collects at random.
fn act(store: &ImageStore, mut numbers: Numbers, time: Duration) -> u64 {
    let (mut held, mut codes): (Vec<StoredImage>, Vec<StoredCode>) = (Vec::new(), Vec::new());
    let is_gone = |error: &ImageError| {
        matches!(error, ImageError::NotFound { .. } | ImageError::InUse { .. })
    };
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < time {
        count += 1;
        let name = format!("name-{}", numbers.below(6));
        let picked = (!held.is_empty()).then(|| numbers.below(held.len() as u64) as usize);
        match (numbers.below(12), picked) {
            (0..2, _) => {
                let (manifest, pages) = draft(numbers.below(40) as i64);
                held.push(store.save(ImageDraft::new(manifest, &pages)).unwrap());
            }
            (2..5, Some(picked)) => {
                let (mut manifest, pages) = draft(numbers.below(40) as i64);
                manifest.instances[0].parent_instance = Some(0);
                match held[picked].chain().delta(manifest, &pages) {
                    Ok(draft) => held.push(store.save(draft).unwrap()),
                    Err(error) => assert!(matches!(error, ImageError::TooLarge { .. }), "{error}"),
                }
            }
            (5, Some(picked)) => store.set_name(&name, held[picked].hash()).unwrap(),
            (6, _) => drop(store.remove_name(&name).unwrap()),
            (7, _) => match store.find(&name).and_then(|hash| store.load(hash)) {
                Ok(image) => held.push(image),
                Err(error) => assert!(is_gone(&error) || matches!(error, ImageError::Invalid(_))),
            },
            (8, _) => {
                let report = store.collect().unwrap();
                assert_eq!(report.damaged, []);
                assert!(held.iter().all(|held| !report.images.contains(&held.hash())));
                assert!(codes.iter().all(|code| !report.code.contains(&code.hash())));
            }
            (9, _) => {
                let images = store.images().unwrap();
                if let Some(hash) = images.get(numbers.below(images.len().max(1) as u64) as usize) {
                    let result = store.remove(*hash);
                    assert!(result.as_ref().err().is_none_or(is_gone), "{result:?}");
                }
            }
            (10, _) => {
                codes.push(store.save_code(&code(numbers.below(3))).unwrap());
                codes.truncate(2);
            }
            (_, Some(picked)) => {
                // What is used is there, for whoever looks, with all that it needs.
                let image = store.load(held[picked].hash()).unwrap();
                image.chain().verify().unwrap();
                check(&image);
                for code in &codes {
                    assert_eq!(store.load_code(code.hash()).unwrap().size(), code.size());
                }
            }
            _ => {}
        }
        while held.len() > 5 {
            check(&held.swap_remove(numbers.below(5) as usize));
        }
    }
    held.iter().for_each(check);
    count
}

/// Run in processes of their own by the tests below.
#[test]
fn role() {
    let Ok(role) = env::var(ROLE) else { return };
    let place = env::var(PLACE).unwrap();
    let number = |name: &str| env::var(name).unwrap().parse::<u64>().unwrap();
    let store = match ImageStore::open(place) {
        Ok(store) => store,
        Err(error) if role == "fill a disk" => return say_full(&error),
        Err(error) => panic!("{error}"),
    };
    match &role[..] {
        "act" => {
            let time = Duration::from_millis(number(MILLISECONDS));
            println!("{} steps", act(&store, Numbers(number(SEED)), time));
        }
        "fill" => fill(&store),
        "fill a disk" => {
            fill_disk(&store);
            println!("whole");
        }
        "read alone" => {
            whole(&store);
            let named = store.load(store.find("kept").unwrap()).unwrap();
            let (manifest, pages) = draft(8);
            let error = store.save(ImageDraft::new(manifest, &pages)).unwrap_err();
            let ImageError::Io { error, .. } = error else { panic!("{error}") };
            assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            assert_eq!(store.collect().unwrap().images, []);
            check(&named);
            println!("read alone");
        }
        "share" => share(&store),
        other => panic!("there is no role {other}"),
    }
}

fn command(role: &str, place: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture", "--test-threads", "1"]);
    command.env(ROLE, role).env(PLACE, place);
    command
}

fn whole(store: &ImageStore) {
    for hash in store.images().unwrap() {
        store.verify(hash).unwrap();
        check(&store.load(hash).unwrap());
    }
    for hash in store.codes().unwrap() {
        store.verify_code(hash).unwrap();
    }
    for hash in store.names().unwrap().into_values() {
        store.load(hash).unwrap();
    }
}

fn together(name: &str, time: Duration, is_killed: bool) {
    let scratch = Scratch::new(name);
    let store = ImageStore::open(&scratch.0).unwrap();
    let spawn = |seed: u64| {
        let mut command = command("act", &scratch.0);
        command.env(SEED, seed.to_string()).env(MILLISECONDS, time.as_millis().to_string());
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let start = Instant::now();
    let mut processes: Vec<Child> = (1..=2).map(spawn).collect();
    let mut numbers = Numbers(77);
    let mut seed = 3;
    while is_killed && start.elapsed() < time.mul_f64(0.8) {
        std::thread::sleep(Duration::from_millis(20 + numbers.below(200)));
        let mut victim = spawn(seed);
        seed += 1;
        std::thread::sleep(Duration::from_millis(numbers.below(150)));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    whole(&store);
    let report = store.collect().unwrap();
    assert_eq!((report.in_use, report.damaged), (vec![], vec![]));
    whole(&store);
    assert_eq!(fs::read_dir(scratch.0.join("unfinished")).unwrap().count(), 0);
}

#[test]
fn processes_lose_nothing_in_use_while_others_remove_collect_and_are_killed() {
    together("together", Duration::from_millis(2500), true);
}

/// The same for a minute.
#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn processes_lose_nothing_in_use_for_a_minute() {
    together("together-long", Duration::from_secs(60), true);
}

/// Writes with a limit of the size of files, as on a full disk: it works or is an error.
fn fill(store: &ImageStore) {
    let named = store.load(store.find("kept").unwrap()).unwrap();
    let (manifest, pages) = draft(9);
    let full = store.save(ImageDraft::new(manifest, &pages));
    let (mut manifest, pages) = draft(11);
    manifest.instances[0].parent_instance = Some(0);
    let delta = store.save(named.chain().delta(manifest, &pages).unwrap());
    let code = store.save_code(&code(1));
    let name = store.set_name("more", named.hash());
    #[cfg(feature = "transport")]
    let _ = store.import(&store.export(&[named.hash()], Vec::new(), 1).unwrap()[..]);
    for error in [full.err(), delta.err(), code.err(), name.err()].into_iter().flatten() {
        assert!(matches!(error, ImageError::Io { .. }), "{error}");
        println!("refused");
    }
    check(&named);
}

#[test]
fn a_full_disk_at_any_size_leaves_the_store_whole() {
    let mut seen = [0; 5];
    // In units of 512 bytes or of 1 KiB, as the shell has it.
    for limit in [0, 1, 2, 4, 8, 9, 16, 20, 100, 400, 1000, 1500, 2000, 2040, 4200] {
        let scratch = Scratch::new("full-disk");
        let store = ImageStore::open(&scratch.0).unwrap();
        let (manifest, pages) = draft(7);
        let kept = store.save(ImageDraft::new(manifest, &pages)).unwrap();
        store.set_name("kept", kept.hash()).unwrap();
        let filling = command("fill", &scratch.0);
        let mut shell = Command::new("sh");
        // The kernel would end it by a signal.
        let script = format!("ulimit -f {limit}; exec \"$@\"");
        shell.args(["-c", &script, "sh"]).arg(filling.get_program()).args(filling.get_args());
        shell.env(ROLE, "fill").env(PLACE, &scratch.0);
        let output = shell.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{limit}: {text}");
        seen[text.matches("refused").count()] += 1;
        whole(&store);
        assert_eq!(fs::read_dir(scratch.0.join("unfinished")).unwrap().count(), 0);
        let (manifest, pages) = draft(9);
        check(&store.save(ImageDraft::new(manifest, &pages)).unwrap());
    }
    assert!(seen[0] > 0 && seen[4] > 0 && seen[1..4].iter().sum::<i32>() > 0, "{seen:?}");
}

/// Says that a disk is full, which is the only error that is expected.
fn say_full(error: &ImageError) {
    let ImageError::Io { error, .. } = error else { panic!("{error}") };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    println!("refused");
}

/// Writes to a disk that is full at some moment.
fn fill_disk(store: &ImageStore) {
    let (manifest, pages) = draft(7);
    match store.save(ImageDraft::new(manifest, &pages)) {
        Ok(kept) => match store.set_name("kept", kept.hash()) {
            Ok(()) => {
                drop(kept);
                fill(store);
            }
            Err(error) => say_full(&error),
        },
        Err(error) => say_full(&error),
    }
    whole(store);
    let unfinished = store.path().join("unfinished");
    assert_eq!(fs::read_dir(unfinished).unwrap().count(), 0);
    // What nobody needs makes room for what was refused.
    if store.find("kept").is_ok() {
        store.remove_name("kept").unwrap();
        store.remove_name("more").unwrap();
        store.collect().unwrap();
        assert_eq!(store.images().unwrap(), []);
        let (manifest, pages) = draft(7);
        check(&store.save(ImageDraft::new(manifest, &pages)).unwrap());
    }
}

/// How `unshare` gives a process mounts of its own.
#[cfg(target_os = "linux")]
const OWN_MOUNTS: [&str; 2] = ["--map-root-user", "--mount"];

#[cfg(target_os = "linux")]
#[test]
fn a_store_that_nobody_can_write_is_read() {
    let scratch = Scratch::new("read-only");
    let store = ImageStore::open(&scratch.0).unwrap();
    let (manifest, pages) = draft(7);
    let kept = store.save(ImageDraft::new(manifest, &pages)).unwrap();
    store.set_name("kept", kept.hash()).unwrap();
    store.save_code(&code(1)).unwrap();
    drop(kept);
    let reading = command("read alone", &scratch.0);
    let mut shell = Command::new("unshare");
    let script = "mount --bind -o ro \"$1\" \"$1\" || exit 77; shift; exec \"$@\"";
    shell.args(OWN_MOUNTS).args(["sh", "-c", script, "sh"]).arg(&scratch.0);
    shell.arg(reading.get_program()).args(reading.get_args());
    shell.envs(reading.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let Ok(output) = shell.output() else { return println!("skipped: there is no `unshare`") };
    if matches!(output.status.code(), Some(1 | 77)) {
        return println!("skipped: a process may have no mounts of its own here");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("read alone"), "{text}{errors}");
}

/// A disk of each size up to one that holds all, and with few files: each step of writing meets the
/// full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_at_any_step_leaves_the_store_whole() {
    let mut mount = Command::new("unshare");
    mount.args(OWN_MOUNTS).args(["mount", "-t", "tmpfs", "none", "/tmp"]);
    if !mount.status().is_ok_and(|status| status.success()) {
        println!("skipped: a process may have no mounts of its own here");
        return;
    }
    let on_a_disk = |limit: &str| {
        let scratch = Scratch::new("disk");
        fs::create_dir_all(&scratch.0).unwrap();
        let filling = command("fill a disk", &scratch.0.join("store"));
        // A mount of its own, which goes with the process.
        let mut shell = Command::new("unshare");
        let script = "chmod 700 \"$1\" && mount -t tmpfs -o \"$2,mode=700\" none \"$1\" && shift 2 && exec \"$@\"";
        shell.args(OWN_MOUNTS).args(["sh", "-c", script, "sh"]);
        shell.arg(&scratch.0).arg(limit).arg(filling.get_program()).args(filling.get_args());
        shell.envs(filling.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = shell.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{limit}: {text}{errors}");
        (text.matches("refused").count(), text.contains("whole"))
    };
    for unit in ["size=4096*", "nr_inodes="] {
        let mut seen = Vec::new();
        for number in 1.. {
            assert!(number < 200, "{seen:?}");
            let limit = match unit.strip_suffix("4096*") {
                Some(size) => format!("{size}{}", 4096 * number),
                None => format!("{unit}{number}"),
            };
            let found = on_a_disk(&limit);
            seen.push(found);
            if found == (0, true) {
                break;
            }
        }
        let full = &seen[..seen.len() - 1];
        assert!(full.iter().all(|(refused, _)| *refused > 0), "{seen:?}");
        assert!(full.iter().filter(|(_, is_open)| *is_open).count() > 3, "{seen:?}");
    }
}

/// Makes a delta of many pages whole, and says what room that takes.
fn share(store: &ImageStore) {
    let instance = SavedInstance {
        extents: vec![0..32 << 20],
        parent_instance: Some(0),
        ..SavedInstance::default()
    };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let mut numbers = Numbers(1);
    let mut first = manifest.clone();
    first.instances[0].parent_instance = None;
    let bytes = (0..32 << 17).flat_map(|_| numbers.below(u64::MAX).to_le_bytes()).collect();
    let source = PageRuns::new(vec![vec![(0, bytes)]]);
    let full = store.save(ImageDraft::new(first, &source)).unwrap();
    let page = |at: u64| (at * PAGE_SIZE, vec![at as u8 | 1; PAGE_SIZE as usize]);
    let changed = PageRuns::new(vec![(100..1100).map(page).collect()]);
    let delta = store.save(full.chain().delta(manifest, &changed).unwrap()).unwrap();
    let free = || {
        rustix::fs::syncfs(fs::File::open(store.path()).unwrap()).unwrap();
        let found = rustix::fs::statvfs(store.path()).unwrap();
        found.f_bfree * found.f_frsize
    };
    let before = free();
    let whole = store.load_whole(delta.hash()).unwrap();
    store.verify(whole.hash()).unwrap();
    assert_eq!(whole.chain().differing(0, delta.chain(), 0).unwrap(), []);
    println!("{} KiB taken", (before - free()) >> 10);
}

/// On a file system that can share blocks, of its own.
#[cfg(target_os = "linux")]
#[test]
fn a_delta_that_is_made_whole_shares_blocks_with_its_root() {
    let scratch = Scratch::new("shared");
    let (disk, place) = (scratch.0.join("disk"), scratch.0.join("place"));
    fs::create_dir_all(&place).unwrap();
    fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    let made = Command::new("mkfs.btrfs").arg("-q").arg(&disk).stdout(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        return println!("skipped: there is no `mkfs.btrfs`");
    }
    let sharing = command("share", &place.join("store"));
    let mut shell = Command::new("unshare");
    let script = "mount -o loop \"$1\" \"$2\" || exit 77; chmod 700 \"$2\"; shift 2; exec \"$@\"";
    shell.args(["--mount", "sh", "-c", script, "sh"]).arg(&disk).arg(&place);
    shell.arg(sharing.get_program()).args(sharing.get_args());
    shell.envs(sharing.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.output().unwrap();
    if matches!(output.status.code(), Some(1 | 77)) {
        return println!("skipped: no disk image can be mounted here");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let taken = text.split_whitespace().zip(text.split_whitespace().skip(1));
    let taken = taken.filter(|(_, unit)| *unit == "KiB").find_map(|(kib, _)| kib.parse().ok());
    let taken: u64 = taken.unwrap_or_else(|| panic!("{text}{errors}"));
    // A thousand pages of 8,192 have changed.
    assert!(taken < 8 << 10, "{taken} KiB");
}
