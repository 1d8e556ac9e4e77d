//! Listing directories.

use pagefork_wasi::Errno;

use crate::harness::*;

/// Lists as a C library does: from the last whole entry, until a call leaves
/// room.
fn list(guest: &mut Guest, fd: u32, room: u32) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let cookie = entries.last().map_or(0, |entry| entry.next);
        let bytes = guest.readdir(fd, room, cookie).unwrap();
        entries.extend(Guest::entries(&bytes));
        if bytes.len() < room as usize {
            return entries;
        }
    }
}

fn names(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn entries_have_names_types_and_inodes() {
    let dir = TempDir::new();
    dir.write("file", "");
    dir.mkdir("sub");
    dir.symlink("file", "link");
    let mut guest = Guest::with_dir(&dir);
    let entries = list(&mut guest, DIR, 4096);
    assert_eq!(names(&entries), [".", "..", "file", "link", "sub"]);
    let types: Vec<u8> = entries.iter().map(|entry| entry.filetype).collect();
    assert_eq!(types, [3, 3, 4, 7, 3]);
    for entry in &entries[2..] {
        let stat = guest.path_stat(DIR, &entry.name, false).unwrap();
        assert_eq!(entry.inode, stat.inode);
    }
    assert_eq!(entries[0].inode, guest.stat(DIR).unwrap().inode);
}

#[test]
fn an_empty_directory_has_two_names() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    assert_eq!(names(&list(&mut guest, sub, 4096)), [".", ".."]);
}

#[test]
fn many_entries_come_in_pieces_of_any_size() {
    let dir = TempDir::new();
    let mut expected = vec![".".to_string(), "..".to_string()];
    for index in 0..300 {
        let name = format!("{index:03}{}", "x".repeat(index % 40));
        dir.write(&name, "");
        expected.push(name);
    }
    expected.sort();
    let mut guest = Guest::with_dir(&dir);
    // 67 bytes hold exactly the longest entry.
    for room in [67, 68, 100, 127, 128, 1000, 4096, 100_000] {
        assert_eq!(names(&list(&mut guest, DIR, room)), expected, "room {room}");
    }
}

#[test]
fn a_full_buffer_ends_in_a_cut_entry() {
    let dir = TempDir::new();
    dir.write("name", "");
    let mut guest = Guest::with_dir(&dir);
    let whole = guest.readdir(DIR, 4096, 0).unwrap();
    assert_eq!(whole.len(), 3 * 24 + 1 + 2 + 4);
    for room in 0..=whole.len() as u32 {
        let part = guest.readdir(DIR, room, 0).unwrap();
        assert_eq!(part, &whole[..room as usize]);
    }
}

#[test]
fn cookies_lead_back_and_beyond_the_end_is_nothing() {
    let dir = TempDir::new();
    for name in ["a", "b", "c"] {
        dir.write(name, "");
    }
    let mut guest = Guest::with_dir(&dir);
    let entries = list(&mut guest, DIR, 4096);
    let from_b = guest.readdir(DIR, 4096, entries[2].next).unwrap();
    assert_eq!(names(&Guest::entries(&from_b)), ["b", "c"]);
    assert_eq!(guest.readdir(DIR, 4096, entries[4].next).unwrap(), b"");
    assert_eq!(guest.readdir(DIR, 4096, 1 << 40).unwrap(), b"");
    assert_eq!(guest.readdir(DIR, 4096, u64::MAX).unwrap(), b"");
    // A descriptor that has not listed yet takes cookies too.
    let again = guest.open(DIR, ".", directory()).unwrap();
    let from_b = guest.readdir(again, 4096, entries[2].next).unwrap();
    assert_eq!(names(&Guest::entries(&from_b)), ["b", "c"]);
}

#[test]
fn removing_what_is_listed_misses_nothing() {
    let dir = TempDir::new();
    for index in 0..200 {
        dir.write(&format!("file{index}"), "");
    }
    let mut guest = Guest::with_dir(&dir);
    let (mut cookie, mut removed) = (0, 0);
    loop {
        let entries = Guest::entries(&guest.readdir(DIR, 200, cookie).unwrap());
        let Some(last) = entries.last() else { break };
        cookie = last.next;
        for entry in &entries {
            if entry.filetype == 4 {
                guest.unlink(DIR, &entry.name).unwrap();
                removed += 1;
            }
        }
    }
    assert_eq!(removed, 200);
    assert_eq!(names(&list(&mut guest, DIR, 4096)), [".", ".."]);
}

#[test]
fn beginning_anew_sees_what_has_changed() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(list(&mut guest, DIR, 4096).len(), 2);
    dir.write("new", "");
    assert_eq!(list(&mut guest, DIR, 4096).len(), 3);
}

#[test]
fn only_directories_are_listed() {
    let dir = TempDir::new();
    dir.write("file", "");
    let mut guest = Guest::with_dir(&dir);
    let file = guest.open(DIR, "file", reading()).unwrap();
    assert_eq!(guest.readdir(file, 100, 0), Err(Errno::Notdir));
    assert_eq!(guest.readdir(0, 100, 0), Err(Errno::Notdir));
    assert_eq!(guest.readdir(99, 100, 0), Err(Errno::Badf));
}
