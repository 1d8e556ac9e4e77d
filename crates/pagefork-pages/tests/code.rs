//! Machine code takes few maps however much of it there is, and is never writable
//! and executable at once.

mod common;

use std::collections::HashSet;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use common::*;
use pagefork_pages::procmaps::{self, Map};
use pagefork_pages::{CODE_FILES_MAX, CodeFile, CodePages};

/// A function that returns `number`, and `padding` bytes behind it.
fn code(number: u32, padding: usize) -> Vec<u8> {
    // mov eax, number; ret
    let mut code = vec![0xb8];
    code.extend(number.to_le_bytes());
    code.push(0xc3);
    code.extend(std::iter::repeat_n(0xcc, padding));
    code
}

fn call(start: *const u8) -> u32 {
    // SAFETY: the bytes of `code` are a function of this type.
    let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(start) };
    function()
}

fn map_of(address: *const u8) -> Map {
    let address = address.addr() as u64;
    let maps = procmaps::read().unwrap();
    maps.into_iter().find(|map| map.range.contains(&address)).unwrap()
}

fn no_map_is_writable_and_executable() {
    let maps = procmaps::read().unwrap();
    assert!(!maps.iter().any(|map| map.write && map.execute));
}

#[test]
fn two_thousand_pieces_of_code_share_a_few_maps() {
    in_own_process("two_thousand_pieces_of_code_share_a_few_maps", || {
        drop(CodePages::new(&code(0, 0)).unwrap());
        let before = held();
        let make =
            |number: u32| CodePages::new(&code(number, (number as usize * 7919) % 20_000)).unwrap();
        let mut pieces: Vec<CodePages> = (0..2000).map(make).collect();
        let many = held();
        assert!(many.maps <= before.maps + 4, "{before:?} {many:?}");
        no_map_is_writable_and_executable();
        for (number, piece) in pieces.iter().enumerate() {
            assert_eq!(call(piece.start()), number as u32);
            let map = map_of(piece.start());
            assert!(map.read && map.execute && !map.write);
        }

        // Every third goes; others take its place without new memory.
        let mut index = 0;
        let mut gone = HashSet::new();
        pieces.retain(|piece| {
            index += 1;
            let stays = index % 3 != 0;
            if !stays {
                gone.insert(piece.start().addr());
            }
            stays
        });
        for &address in &gone {
            assert!(!readable(address), "{address:#x}");
        }
        let reused: Vec<CodePages> = (0..600).map(|number| make(number * 3 + 2)).collect();
        assert!(reused.iter().all(|piece| gone.contains(&piece.start().addr())));
        for (index, piece) in reused.iter().enumerate() {
            assert_eq!(call(piece.start()), index as u32 * 3 + 2);
            let end = piece.start().wrapping_add(piece.bytes().len());
            let rest = end.addr().next_multiple_of(PAGE as usize) - end.addr();
            // SAFETY: the rest of a page that is readable.
            let rest = unsafe { std::slice::from_raw_parts(end, rest) };
            assert!(rest.iter().all(|&byte| byte == 0), "nothing of whoever was here before");
        }
        for piece in &pieces {
            let number = u32::from_le_bytes(piece.bytes()[1..5].try_into().unwrap());
            assert_eq!(call(piece.start()), number);
        }
        drop((pieces, reused));
        let last = held();
        assert!(last.maps <= before.maps, "{before:?} {last:?}");
        assert_eq!(last.mapped, before.mapped);
    });
}

#[test]
fn holes_are_bounded() {
    in_own_process("holes_are_bounded", || {
        let before = held();
        let mut pieces: Vec<Option<CodePages>> =
            (0..8000).map(|number| Some(CodePages::new(&code(number, 0)).unwrap())).collect();
        for piece in pieces.iter_mut().step_by(2) {
            *piece = None;
        }
        let maps = held().maps - before.maps;
        assert!((1000..2200).contains(&maps), "{maps}");
        no_map_is_writable_and_executable();
        // In holes that stayed executable there is nothing left.
        let kept: HashSet<usize> =
            pieces.iter().flatten().map(|piece| piece.start().addr()).collect();
        let hole = kept
            .iter()
            .map(|address| address + PAGE as usize)
            .find(|address| !kept.contains(address) && readable(*address))
            .unwrap();
        // SAFETY: just found readable; nobody else makes or drops code here.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(hole), PAGE as usize)
        };
        assert!(bytes.iter().all(|&byte| byte == 0));
        for piece in pieces.iter_mut().skip(1).step_by(2) {
            *piece = None;
        }
        assert!(held().maps <= before.maps + 4, "{before:?} {:?}", held());
    });
}

#[test]
fn code_larger_than_a_region_has_one_of_its_own() {
    let big = code(77, 40 << 20);
    let piece = CodePages::new(&big).unwrap();
    assert_eq!(call(piece.start()), 77);
    assert!(piece.bytes() == big);
    assert!(CodePages::new(&[]).unwrap().bytes().is_empty());
}

#[test]
fn code_is_mapped_from_so_many_files_and_what_lies_behind_is_not_executable() {
    in_own_process(
        "code_is_mapped_from_so_many_files_and_what_lies_behind_is_not_executable",
        || {
            let path = std::env::temp_dir().join(format!("pagefork-code-{}", std::process::id()));
            let mut file = std::fs::File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
                .unwrap();
            std::fs::remove_file(&path).unwrap();
            file.seek(SeekFrom::Start(PAGE)).unwrap();
            file.write_all(&code(5, PAGE as usize - 6)).unwrap();
            file.write_all(b"behind").unwrap();
            let (size, code) = (PAGE as usize + 6, PAGE as usize);
            // SAFETY: nobody but this test has the file.
            let map = || unsafe { CodeFile::map(file.as_fd(), PAGE, size, code) }.unwrap();
            let before = held();
            let mapped: Vec<CodeFile> = (0..CODE_FILES_MAX)
                .map(|_| {
                    assert!(CodeFile::has_room());
                    map()
                })
                .collect();
            assert!(!CodeFile::has_room());
            for file in &mapped[..10] {
                assert_eq!(call(file.start()), 5);
                assert!(file.bytes().ends_with(b"\xccbehind"));
                let behind = map_of(file.start().wrapping_add(PAGE as usize));
                assert!(behind.read && !behind.execute && !behind.write);
            }
            no_map_is_writable_and_executable();
            drop(mapped);
            assert!(CodeFile::has_room());
            assert_eq!(held(), before);
        },
    );
}

#[cfg(debug_assertions)]
#[test]
fn whatever_fails_leaves_nothing() {
    use pagefork_pages::inject::fail_nth;
    use pagefork_pages::{Call, PagesError};

    in_own_process("whatever_fails_leaves_nothing", || {
        let _one = CodePages::new(&code(1, 0)).unwrap();
        let before = held();
        // Of its own region, and in one that is there.
        for padding in [0, 20 << 20] {
            let bytes = code(9, padding);
            let make = || CodePages::new(&bytes);
            for nth in 0.. {
                let outcome = fail_nth(nth, libc::EACCES, make);
                if let Ok(piece) = &outcome.value {
                    assert_eq!(call(piece.start()), 9);
                }
                if outcome.failed == Some(Call::MakeExecutable) {
                    let error = outcome.value.as_ref().unwrap_err();
                    let call = Call::MakeExecutable;
                    assert_eq!(*error, PagesError::System { call, code: libc::EACCES });
                }
                let failed = outcome.failed;
                drop(outcome);
                if failed != Some(Call::Release) {
                    assert!(held().maps <= before.maps + 2, "after {failed:?}");
                }
                if failed.is_none() {
                    break;
                }
            }
        }
        assert_eq!(held(), before);
        // A failure while it is given back.
        for nth in 0..2 {
            let piece = CodePages::new(&code(3, 0)).unwrap();
            let start = piece.start();
            let outcome = fail_nth(nth, libc::ENOMEM, || drop(piece));
            assert!(matches!(outcome.failed, Some(Call::Protect | Call::Discard)));
            let again = CodePages::new(&code(4, 0)).unwrap();
            assert_eq!(again.start(), start);
            assert_eq!(call(start), 4);
        }
    });
}
