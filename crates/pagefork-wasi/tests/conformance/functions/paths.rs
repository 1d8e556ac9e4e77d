//! Paths.

use super::*;
use crate::harness::{ALL, CREAT, DIRECTORY, EXCL, TRUNC};

/// Where the second path of a call is.
const OTHER: u32 = 0x7000;

/// Checks what a function says of paths and descriptors that are no good for
/// any function, given a call with the descriptor, address and size of a path.
fn bad_paths(
    call: impl Fn(&mut WasiCtx, &mut GuestMemory<'_>, u32, (u32, u32)) -> Result<(), Errno>,
) {
    let mut world = World::new();
    world.guest.put(OTHER, b"file");
    world.guest.bytes[OTHER as usize + 0x800..][..8192].fill(b'x');
    let good = world.put("new");
    world.each(
        &[(Errno::Badf, &CLOSED), (Errno::Notdir, &[0, 1, 2, SOCKET, LISTENER, FILE, POOR])],
        |ctx, memory, fd| call(ctx, memory, fd, good),
    );
    let long_name = "x".repeat(256);
    let deep = "x/".repeat(2100);
    for (path, expected) in [
        ("", Errno::Noent),
        ("\0", Errno::Inval),
        ("new\0", Errno::Inval),
        ("new\0/../..", Errno::Inval),
        (&long_name, Errno::Nametoolong),
        (&deep, Errno::Nametoolong),
        ("/", Errno::Perm),
        ("/new", Errno::Perm),
        ("//new", Errno::Perm),
        ("../new", Errno::Perm),
        ("sub/../../new", Errno::Perm),
        ("none/new", Errno::Noent),
        ("dangling/new", Errno::Noent),
        ("file/new", Errno::Notdir),
        ("link/new", Errno::Notdir),
        ("loop/new", Errno::Loop),
    ] {
        let (address, size) = world.put(path);
        let result = world.guest.call(|ctx, memory| call(ctx, memory, ROOT, (address, size)));
        assert_eq!(result, Err(expected), "{path:?}");
    }
    // A path of 4095 bytes would be the longest, but no name is as long.
    for size in [4095, 4096, 8000] {
        let long = (OTHER + 0x800, size);
        let result = world.guest.call(|ctx, memory| call(ctx, memory, ROOT, long));
        assert_eq!(result, Err(Errno::Nametoolong), "{size}");
    }
    world.faults(3, |ctx, memory, address| call(ctx, memory, ROOT, (address, 3)));
    let huge = world.guest.call(|ctx, memory| call(ctx, memory, ROOT, (DATA, u32::MAX)));
    assert_eq!(huge, Err(Errno::Fault));
    // Without any right.
    world.guest.set_rights(SUB, 0, 0).unwrap();
    let (address, size) = world.put("new");
    let result = world.guest.call(|ctx, memory| call(ctx, memory, SUB, (address, size)));
    assert_eq!(result, Err(Errno::Notcapable));

    let names = world.guest.readdir(ROOT, 4096, 0).unwrap();
    assert_eq!(Guest::entries(&names).len(), 7);
    assert!(!world.dir.has("new") && !world.dir.has("root/sub/new"));
    assert_eq!(world.file(), "0123456789");
}

mod path_create_directory {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (fd, path) in [(ROOT, "a"), (ROOT, "a/b"), (ROOT, "./a/../c/"), (SUB, "d"), (SUB, "é")]
        {
            let (path, size) = world.put(path);
            assert_eq!(call!(world.path_create_directory(fd, path, size)), Ok(()));
        }
        for name in ["a/b", "c", "sub/d", "sub/é"] {
            assert!(world.dir.join("root").join(name).is_dir(), "{name}");
        }
    }

    #[test]
    fn bad() {
        bad_paths(|ctx, memory, fd, (path, size)| {
            ctx.path_create_directory(memory, fd, path, size)
        });
        let mut world = World::new();
        for path in ["sub", "sub/", "file", "link", "dangling", "dangling/", ".", "sub/.."] {
            assert_eq!(world.guest.mkdir(ROOT, path), Err(Errno::Exist), "{path}");
        }
        assert!(!world.dir.has("root/nowhere"));
    }
}

mod path_remove_directory {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        let (path, size) = world.put("sub");
        assert_eq!(call!(world.path_remove_directory(ROOT, path, size)), Ok(()));
        assert!(!world.dir.has("root/sub"));
        // Its descriptor leads to a directory that nothing can be made in.
        assert_eq!(world.guest.mkdir(SUB, "x"), Err(Errno::Noent));
    }

    #[test]
    fn bad() {
        bad_paths(|ctx, memory, fd, (path, size)| {
            ctx.path_remove_directory(memory, fd, path, size)
        });
        let mut world = World::new();
        world.dir.mkdir("root/full/inner");
        for (path, errno) in [
            ("none", Errno::Noent),
            ("file", Errno::Notdir),
            ("file/", Errno::Notdir),
            ("link", Errno::Notdir),
            ("full", Errno::Notempty),
            (".", Errno::Inval),
            ("sub/.", Errno::Inval),
        ] {
            assert_eq!(world.guest.rmdir(ROOT, path), Err(errno), "{path}");
        }
    }
}

mod path_unlink_file {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for path in ["dangling", "loop", "link", "sub/../file"] {
            let (path, size) = world.put(path);
            assert_eq!(call!(world.path_unlink_file(ROOT, path, size)), Ok(()));
        }
        assert_eq!(Guest::entries(&world.guest.readdir(ROOT, 4096, 0).unwrap()).len(), 3);
    }

    #[test]
    fn bad() {
        bad_paths(|ctx, memory, fd, (path, size)| ctx.path_unlink_file(memory, fd, path, size));
        let mut world = World::new();
        for (path, errno) in [
            ("none", Errno::Noent),
            ("none/", Errno::Noent),
            ("file/", Errno::Notdir),
            ("link/", Errno::Notdir),
            ("sub", Errno::Isdir),
            ("sub/", Errno::Isdir),
            (".", Errno::Isdir),
        ] {
            assert_eq!(world.guest.unlink(ROOT, path), Err(errno), "{path}");
        }
    }
}

mod path_rename {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        let (path, size) = world.put("file");
        world.guest.put(OTHER, b"moved");
        assert_eq!(call!(world.path_rename(ROOT, path, size, SUB, OTHER, 5)), Ok(()));
        assert_eq!(world.dir.read("root/sub/moved"), "0123456789");
        // One range of memory for both: nothing to do.
        world.put("sub/moved");
        assert_eq!(call!(world.path_rename(ROOT, DATA, 9, ROOT, DATA, 9)), Ok(()));
        assert_eq!(world.guest.rename(ROOT, "link", ROOT, "dangling"), Ok(()));
        assert_eq!(world.guest.readlink(ROOT, "dangling", 9).unwrap(), "file");
    }

    #[test]
    fn bad() {
        bad_paths(|ctx, memory, fd, (path, size)| {
            ctx.path_rename(memory, fd, path, size, ROOT, OTHER, 4)
        });
        bad_paths(|ctx, memory, fd, (path, size)| {
            ctx.path_rename(memory, ROOT, OTHER, 4, fd, path, size)
        });
        let mut world = World::new();
        world.dir.mkdir("root/full/inner");
        for (old, new, errno) in [
            ("none", "new", Errno::Noent),
            ("file", "sub", Errno::Isdir),
            ("file", "sub/", Errno::Notdir),
            ("file", "new/", Errno::Notdir),
            ("sub", "file", Errno::Notdir),
            ("sub", "full", Errno::Notempty),
            ("full", "full/inner/x", Errno::Inval),
            (".", "new", Errno::Busy),
        ] {
            assert_eq!(world.guest.rename(ROOT, old, ROOT, new), Err(errno), "{old} to {new}");
        }
        assert_eq!(world.file(), "0123456789");
    }
}

mod path_link {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        let (path, size) = world.put("link");
        world.guest.put(OTHER, b"hard");
        assert_eq!(call!(world.path_link(ROOT, 1, path, size, SUB, OTHER, 4)), Ok(()));
        world.guest.put(OTHER, b"soft");
        assert_eq!(call!(world.path_link(ROOT, 0, path, size, SUB, OTHER, 4)), Ok(()));
        assert_eq!(world.guest.path_stat(SUB, "hard", false).unwrap().links, 2);
        assert_eq!(world.guest.path_stat(SUB, "soft", false).unwrap().filetype, 7);
    }

    #[test]
    fn bad() {
        for follow in [0, 1] {
            bad_paths(|ctx, memory, fd, (path, size)| {
                ctx.path_link(memory, fd, follow, path, size, ROOT, OTHER, 4)
            });
            bad_paths(|ctx, memory, fd, (path, size)| {
                ctx.path_link(memory, ROOT, follow, OTHER, 4, fd, path, size)
            });
        }
        let mut world = World::new();
        for (old, new, errno) in [
            ("none", "new", Errno::Noent),
            ("dangling", "new", Errno::Noent),
            ("loop", "new", Errno::Loop),
            ("sub", "new", Errno::Perm),
            ("file", "link", Errno::Exist),
            ("file", "file", Errno::Exist),
            ("file", "new/", Errno::Noent),
        ] {
            assert_eq!(world.guest.link(ROOT, true, old, ROOT, new), Err(errno), "{old} {new}");
        }
        let (path, size) = world.put("file");
        world.guest.put(OTHER, b"new");
        for flags in [2, 3, 1 << 16, u32::MAX] {
            let result = call!(world.path_link(ROOT, flags, path, size, ROOT, OTHER, 3));
            assert_eq!(result, Err(Errno::Inval));
        }
    }
}

mod path_symlink {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (target, path) in [("file", "a"), ("../..", "b"), ("no/such", "sub/c"), (".", "d")] {
            let (target_at, target_size) = world.put(target);
            world.guest.put(OTHER, path.as_bytes());
            let size = path.len() as u32;
            let made = call!(world.path_symlink(target_at, target_size, ROOT, OTHER, size));
            assert_eq!(made, Ok(()));
            assert_eq!(world.guest.readlink(ROOT, path, 99).unwrap(), target);
        }
    }

    #[test]
    fn bad() {
        bad_paths(|ctx, memory, fd, (path, size)| {
            ctx.path_symlink(memory, OTHER, 4, fd, path, size)
        });
        let mut world = World::new();
        for (target, path, errno) in [
            ("", "new", Errno::Noent),
            ("a\0", "new", Errno::Inval),
            ("/", "new", Errno::Perm),
            ("/etc/passwd", "new", Errno::Perm),
            ("//x", "new", Errno::Perm),
            ("x", "file", Errno::Exist),
            ("x", "sub", Errno::Exist),
            ("x", "dangling", Errno::Exist),
            ("x", "new/", Errno::Noent),
            ("x", "sub/", Errno::Exist),
        ] {
            assert_eq!(world.guest.symlink(target, ROOT, path), Err(errno), "{target:?} {path}");
        }
        world.guest.put(OTHER, b"new");
        world
            .faults(4, |ctx, memory, address| ctx.path_symlink(memory, address, 4, ROOT, OTHER, 3));
        assert!(!world.dir.has("root/new"));
    }
}

mod path_readlink {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (room, target) in [(99, "file"), (4, "file"), (3, "fil"), (0, "")] {
            world.guest.put(OUT, &[b'#'; 8]);
            let (path, size) = world.put("link");
            assert_eq!(call!(world.path_readlink(ROOT, path, size, OUT, room, OUT_2)), Ok(()));
            assert_eq!(world.u32_at(OUT_2), target.len() as u32);
            assert_eq!(world.guest.bytes_at(OUT, target.len() as u32), target.as_bytes());
            // No NUL follows.
            assert_eq!(world.guest.bytes[OUT as usize + target.len()], b'#');
        }
        // Over the path itself.
        let (path, size) = world.put("dangling");
        assert_eq!(call!(world.path_readlink(ROOT, path, size, path, 99, OUT_2)), Ok(()));
        assert_eq!(world.guest.bytes_at(DATA, 8), b"nowhereg");
    }

    #[test]
    fn bad() {
        bad_paths(|ctx, memory, fd, (path, size)| {
            ctx.path_readlink(memory, fd, path, size, OUT, 99, OUT_2)
        });
        let mut world = World::new();
        world.dir.symlink("/etc/passwd", "root/absolute");
        for (path, errno) in [
            ("none", Errno::Noent),
            ("file", Errno::Inval),
            ("sub", Errno::Inval),
            (".", Errno::Inval),
            ("link/", Errno::Notdir),
            ("absolute", Errno::Perm),
        ] {
            assert_eq!(world.guest.readlink(ROOT, path, 99), Err(errno), "{path}");
        }
        let (path, size) = world.put("link");
        world.faults(9, |ctx, memory, address| {
            ctx.path_readlink(memory, ROOT, path, size, address, 9, OUT)
        });
        world.faults(4, |ctx, memory, address| {
            ctx.path_readlink(memory, ROOT, path, size, OUT, 9, address)
        });
        let huge = call!(world.path_readlink(ROOT, path, size, 1, u32::MAX, OUT));
        assert_eq!(huge, Err(Errno::Fault));
    }
}

mod path_filestat_get {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (flags, path, filetype) in [
            (0, "file", 4),
            (1, "file", 4),
            (0, "link", 7),
            (1, "link", 4),
            (0, "sub/", 3),
            (1, ".", 3),
        ] {
            let (path, size) = world.put(path);
            world.guest.put(OUT_2, &[0xff; 72]);
            assert_eq!(call!(world.path_filestat_get(ROOT, flags, path, size, OUT_2)), Ok(()));
            assert_eq!(world.guest.bytes[OUT_2 as usize + 16], filetype);
            assert_eq!(world.u64_at(OUT_2 + 64), u64::MAX);
        }
        // Over the path.
        let (path, size) = world.put("file");
        assert_eq!(call!(world.path_filestat_get(ROOT, 0, path, size, path)), Ok(()));
        assert_eq!(world.u64_at(DATA + 32), 10);
    }

    #[test]
    fn bad() {
        for flags in [0, 1] {
            bad_paths(|ctx, memory, fd, (path, size)| {
                ctx.path_filestat_get(memory, fd, flags, path, size, OUT)
            });
        }
        let mut world = World::new();
        for (path, errno) in [
            ("none", Errno::Noent),
            ("dangling", Errno::Noent),
            ("loop", Errno::Loop),
            ("file/", Errno::Notdir),
            ("file/.", Errno::Notdir),
        ] {
            assert_eq!(world.guest.path_stat(ROOT, path, true), Err(errno), "{path}");
        }
        let (path, size) = world.put("file");
        for flags in [2, 3, u32::MAX] {
            let result = call!(world.path_filestat_get(ROOT, flags, path, size, OUT));
            assert_eq!(result, Err(Errno::Inval));
        }
        world.faults(64, |ctx, memory, address| {
            ctx.path_filestat_get(memory, ROOT, 0, path, size, address)
        });
    }
}

mod path_filestat_set_times {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        let untouched = world.guest.path_stat(ROOT, "link", false).unwrap().mtim;
        for (lookup, path) in [(0, "file"), (1, "link"), (0, "sub"), (1, "sub/")] {
            let (at, size) = world.put(path);
            let set = call!(world.path_filestat_set_times(ROOT, lookup, at, size, 21, 22, 1 | 4));
            assert_eq!(set, Ok(()));
            let stat = world.guest.path_stat(ROOT, path, true).unwrap();
            assert_eq!((stat.atim, stat.mtim), (21, 22), "{path}");
        }
        assert_eq!(world.guest.path_stat(ROOT, "link", false).unwrap().mtim, untouched);
        let (at, size) = world.put("link");
        let set = call!(world.path_filestat_set_times(ROOT, 0, at, size, 0, 33, 4));
        assert_eq!(set, Ok(()));
        assert_eq!(world.guest.path_stat(ROOT, "link", false).unwrap().mtim, 33);
    }

    #[test]
    fn bad() {
        for lookup in [0, 1] {
            bad_paths(|ctx, memory, fd, (path, size)| {
                ctx.path_filestat_set_times(memory, fd, lookup, path, size, 1, 1, 1)
            });
        }
        let mut world = World::new();
        for (path, errno) in [
            ("none", Errno::Noent),
            ("dangling", Errno::Noent),
            ("loop", Errno::Loop),
            ("file/", Errno::Notdir),
        ] {
            let result = world.guest.path_set_times(ROOT, path, true, (1, 1, 1));
            assert_eq!(result, Err(errno), "{path}");
        }
        let (path, size) = world.put("file");
        for (lookup, flags) in [(2, 1), (u32::MAX, 1), (0, 3), (0, 12), (0, 16), (0, u32::MAX)] {
            let set = call!(world.path_filestat_set_times(ROOT, lookup, path, size, 1, 1, flags));
            assert_eq!(set, Err(Errno::Inval));
        }
    }
}

mod path_open {
    use super::*;

    #[test]
    fn good() {
        let mut world = World::new();
        for (lookup, path, flags, fd_flags, filetype) in [
            (0, "file", 0, 0, 4),
            (1, "link", 0, 0, 4),
            (0, "sub", 0, 0, 3),
            (0, "sub/", DIRECTORY, 0, 3),
            (0, ".", DIRECTORY, 0, 3),
            (0, "new", CREAT | EXCL, 1 | 2 | 4 | 8 | 16, 4),
            (1, "new", CREAT | TRUNC, 0, 4),
            (1, "dangling", CREAT, 0, 4),
        ] {
            let rights = if flags & CREAT == 0 { 1 << 1 | 1 << 14 } else { ALL };
            let (at, size) = world.put(path);
            let opened =
                call!(world.path_open(ROOT, lookup, at, size, flags, rights, ALL, fd_flags, OUT_2));
            assert_eq!(opened, Ok(()), "{path}");
            let fd = world.u32_at(OUT_2);
            assert_eq!(fd, POOR + 1);
            let stat = world.guest.fdstat(fd).unwrap();
            assert_eq!((stat.filetype, u32::from(stat.flags)), (filetype, fd_flags), "{path}");
            world.guest.close(fd).unwrap();
        }
        // Unknown rights are left out.
        let (at, size) = world.put("file");
        let opened = call!(world.path_open(ROOT, 0, at, size, 0, u64::MAX, u64::MAX, 0, OUT));
        assert_eq!(opened, Ok(()));
        assert_eq!(world.guest.fdstat(POOR + 1).unwrap().base & !ALL, 0);
        assert!(world.dir.has("root/nowhere"));
    }

    #[test]
    fn bad() {
        for lookup in [0, 1] {
            for flags in [0, CREAT, DIRECTORY, TRUNC] {
                bad_paths(|ctx, memory, fd, (path, size)| {
                    ctx.path_open(memory, fd, lookup, path, size, flags, 2, 0, 0, OUT)
                });
            }
        }
        let mut world = World::new();
        for (lookup, path, flags, rights, errno) in [
            (1, "none", 0, 2, Errno::Noent),
            (1, "dangling", 0, 2, Errno::Noent),
            (1, "loop", 0, 2, Errno::Loop),
            (0, "link", 0, 2, Errno::Loop),
            (1, "file/", 0, 2, Errno::Notdir),
            (1, "file", DIRECTORY, 2, Errno::Notdir),
            (1, "sub", 0, ALL, Errno::Isdir),
            (1, "new/", CREAT, ALL, Errno::Isdir),
            (1, "file", CREAT | EXCL, ALL, Errno::Exist),
            (1, "sub", CREAT | EXCL, ALL, Errno::Exist),
            (1, "new", CREAT | DIRECTORY, ALL, Errno::Inval),
            (1, "sub", EXCL | DIRECTORY, 2, Errno::Inval),
            (1, "sub", TRUNC | DIRECTORY, 2, Errno::Inval),
            (2, "file", 0, 2, Errno::Inval),
            (u32::MAX, "file", 0, 2, Errno::Inval),
            (1, "file", 16, 2, Errno::Inval),
            (1, "file", 1 << 16, 2, Errno::Inval),
        ] {
            let (at, size) = world.put(path);
            let opened = call!(world.path_open(ROOT, lookup, at, size, flags, rights, 0, 0, OUT));
            assert_eq!(opened, Err(errno), "{path} {flags}");
        }
        let (at, size) = world.put("file");
        for fd_flags in [32, 1 << 16, u32::MAX] {
            let opened = call!(world.path_open(ROOT, 0, at, size, 0, 2, 0, fd_flags, OUT));
            assert_eq!(opened, Err(Errno::Inval));
        }
        let (at, size) = world.put("new");
        world.faults(4, |ctx, memory, address| {
            ctx.path_open(memory, ROOT, 0, at, size, CREAT, ALL, 0, 0, address)
        });
        assert!(!world.dir.has("root/new"));
        assert_eq!(world.guest.ctx.descriptors().count(), POOR as usize + 1);
    }
}
