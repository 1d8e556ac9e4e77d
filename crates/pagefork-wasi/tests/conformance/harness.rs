//! A guest without code: memory, state, and a method for each call that puts
//! its arguments into memory and takes the results out.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use pagefork_wasi::{Errno, GuestMemory, Permissions, WasiCtx, WasiCtxBuilder};

/// Descriptor of the first preopened directory.
pub(crate) const DIR: u32 = 3;

pub(crate) const READ: u64 = 1 << 1;
pub(crate) const SEEK: u64 = 1 << 2;
pub(crate) const TELL: u64 = 1 << 5;
pub(crate) const WRITE: u64 = 1 << 6;
pub(crate) const ALL: u64 = (1 << 30) - 1;

pub(crate) const CREAT: u32 = 1;
pub(crate) const DIRECTORY: u32 = 2;
pub(crate) const EXCL: u32 = 4;
pub(crate) const TRUNC: u32 = 8;

pub(crate) const APPEND: u32 = 1;
pub(crate) const NONBLOCK: u32 = 4;

pub(crate) const PEEK: u32 = 1;
pub(crate) const WAITALL: u32 = 2;

/// A directory of its own for a test, removed with it.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pagefork-wasi-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: &str) {
        std::fs::write(self.join(name), contents).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.join(name)).unwrap()
    }

    pub(crate) fn mkdir(&self, name: &str) {
        std::fs::create_dir_all(self.join(name)).unwrap();
    }

    pub(crate) fn symlink(&self, target: impl AsRef<Path>, name: &str) {
        std::os::unix::fs::symlink(target, self.join(name)).unwrap();
    }

    /// Makes a named pipe.
    pub(crate) fn fifo(&self, name: &str) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, self.join(name), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    /// Whether there is such a name, be it a dangling link.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.join(name).symlink_metadata().is_ok()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const RESULT: u32 = 0x10;
const RESULT_2: u32 = 0x18;
const STAT: u32 = 0x40;
const IOVS: u32 = 0x100;
const PATH: u32 = 0x1000;
const PATH_2: u32 = 0x3000;
const BUFFER: u32 = 0x1_0000;
const MEMORY_SIZE: usize = 0x8_0000;

/// How to open a file; the default is for reading, following links.
#[derive(Clone, Copy)]
pub(crate) struct Open {
    pub(crate) follow: bool,
    pub(crate) flags: u32,
    pub(crate) rights: u64,
    pub(crate) inheriting: u64,
    pub(crate) fd_flags: u32,
}

impl Default for Open {
    fn default() -> Self {
        Open { follow: true, flags: 0, rights: ALL & !WRITES, inheriting: ALL, fd_flags: 0 }
    }
}

/// Rights that ask for writing.
pub(crate) const WRITES: u64 = 1 << 6 | 1 << 8 | 1 << 22;

pub(crate) fn reading() -> Open {
    Open::default()
}

pub(crate) fn writing() -> Open {
    Open { rights: ALL, ..Open::default() }
}

pub(crate) fn creating() -> Open {
    Open { flags: CREAT, ..writing() }
}

pub(crate) fn directory() -> Open {
    Open { flags: DIRECTORY, ..reading() }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) filetype: u8,
    pub(crate) links: u64,
    pub(crate) size: u64,
    pub(crate) atim: u64,
    pub(crate) mtim: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FdStat {
    pub(crate) filetype: u8,
    pub(crate) flags: u16,
    pub(crate) base: u64,
    pub(crate) inheriting: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) next: u64,
    pub(crate) inode: u64,
    pub(crate) filetype: u8,
    pub(crate) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) userdata: u64,
    pub(crate) error: u16,
    pub(crate) event_type: u8,
    pub(crate) available: u64,
    pub(crate) hangup: bool,
}

pub(crate) const FD_READ: u8 = 1;
pub(crate) const FD_WRITE: u8 = 2;
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// A subscription of the monotonic clock, in a number of nanoseconds.
pub(crate) fn clock(userdata: u64, timeout: u64) -> [u8; 48] {
    clock_subscription(userdata, 1, timeout, 0)
}

/// A subscription of a clock, as it lies in memory.
pub(crate) fn clock_subscription(userdata: u64, clock: u32, timeout: u64, flags: u16) -> [u8; 48] {
    let mut bytes = descriptor(userdata, 0, clock);
    bytes[24..32].copy_from_slice(&timeout.to_le_bytes());
    bytes[40..42].copy_from_slice(&flags.to_le_bytes());
    bytes
}

/// A subscription of a descriptor, as it lies in memory.
pub(crate) fn descriptor(userdata: u64, tag: u8, fd: u32) -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[0..8].copy_from_slice(&userdata.to_le_bytes());
    bytes[8] = tag;
    bytes[16..20].copy_from_slice(&fd.to_le_bytes());
    bytes
}

/// An event without anything special.
pub(crate) fn event(userdata: u64, event_type: u8) -> Event {
    Event { userdata, error: 0, event_type, available: 0, hangup: false }
}

pub(crate) struct Guest {
    pub(crate) ctx: WasiCtx,
    pub(crate) bytes: Vec<u8>,
}

impl Guest {
    pub(crate) fn new(builder: &WasiCtxBuilder) -> Self {
        Guest { ctx: builder.build().unwrap(), bytes: vec![0; MEMORY_SIZE] }
    }

    /// A guest with one directory, as descriptor 3.
    pub(crate) fn with_dir(dir: &TempDir) -> Self {
        Self::with_permissions(dir, Permissions::ReadWrite)
    }

    pub(crate) fn with_permissions(dir: &TempDir, permissions: Permissions) -> Self {
        let mut builder = WasiCtx::builder();
        builder.preopened_dir(dir.path(), "/dir", permissions).unwrap();
        Self::new(&builder)
    }

    /// Calls a function with the guest's state and memory.
    pub(crate) fn call<R>(&mut self, f: impl FnOnce(&mut WasiCtx, &mut GuestMemory<'_>) -> R) -> R {
        f(&mut self.ctx, &mut GuestMemory::new(&mut self.bytes[..]))
    }

    pub(crate) fn put(&mut self, address: u32, bytes: &[u8]) -> (u32, u32) {
        let start = address as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        (address, bytes.len() as u32)
    }

    fn path(&mut self, path: &str) -> (u32, u32) {
        self.put(PATH, path.as_bytes())
    }

    fn paths(&mut self, first: &str, second: &str) -> ((u32, u32), (u32, u32)) {
        (self.path(first), self.put(PATH_2, second.as_bytes()))
    }

    pub(crate) fn u32_at(&self, address: u32) -> u32 {
        u32::from_le_bytes(self.bytes_at(address, 4).try_into().unwrap())
    }

    pub(crate) fn u64_at(&self, address: u32) -> u64 {
        u64::from_le_bytes(self.bytes_at(address, 8).try_into().unwrap())
    }

    pub(crate) fn bytes_at(&self, address: u32, size: u32) -> &[u8] {
        &self.bytes[address as usize..(address + size) as usize]
    }

    pub(crate) fn open(&mut self, fd: u32, path: &str, open: Open) -> Result<u32, Errno> {
        let (address, size) = self.path(path);
        let Open { follow, flags, rights, inheriting, fd_flags } = open;
        self.call(|ctx, memory| {
            ctx.path_open(
                memory,
                fd,
                u32::from(follow),
                address,
                size,
                flags,
                rights,
                inheriting,
                fd_flags,
                RESULT,
            )
        })?;
        Ok(self.u32_at(RESULT))
    }

    pub(crate) fn close(&mut self, fd: u32) -> Result<(), Errno> {
        self.call(|ctx, memory| ctx.fd_close(memory, fd))
    }

    /// Writes iovecs for buffers that follow each other.
    pub(crate) fn iovecs(&mut self, sizes: &[u32]) -> (u32, u32) {
        let mut address = BUFFER;
        for (index, size) in sizes.iter().enumerate() {
            let at = IOVS + index as u32 * 8;
            self.put(at, &address.to_le_bytes());
            self.put(at + 4, &size.to_le_bytes());
            address += size;
        }
        (IOVS, sizes.len() as u32)
    }

    pub(crate) fn read(&mut self, fd: u32, size: u32) -> Result<Vec<u8>, Errno> {
        self.read_v(fd, &[size])
    }

    pub(crate) fn read_v(&mut self, fd: u32, sizes: &[u32]) -> Result<Vec<u8>, Errno> {
        let (iovs, count) = self.iovecs(sizes);
        self.call(|ctx, memory| ctx.fd_read(memory, fd, iovs, count, RESULT))?;
        Ok(self.bytes_at(BUFFER, self.u32_at(RESULT)).to_vec())
    }

    pub(crate) fn pread(&mut self, fd: u32, size: u32, offset: u64) -> Result<Vec<u8>, Errno> {
        let (iovs, count) = self.iovecs(&[size]);
        self.call(|ctx, memory| ctx.fd_pread(memory, fd, iovs, count, offset, RESULT))?;
        Ok(self.bytes_at(BUFFER, self.u32_at(RESULT)).to_vec())
    }

    pub(crate) fn write(&mut self, fd: u32, bytes: &[u8]) -> Result<u32, Errno> {
        self.write_v(fd, &[bytes])
    }

    pub(crate) fn write_v(&mut self, fd: u32, parts: &[&[u8]]) -> Result<u32, Errno> {
        self.put(BUFFER, &parts.concat());
        let sizes: Vec<u32> = parts.iter().map(|part| part.len() as u32).collect();
        let (iovs, count) = self.iovecs(&sizes);
        self.call(|ctx, memory| ctx.fd_write(memory, fd, iovs, count, RESULT))?;
        Ok(self.u32_at(RESULT))
    }

    pub(crate) fn pwrite(&mut self, fd: u32, bytes: &[u8], offset: u64) -> Result<u32, Errno> {
        self.put(BUFFER, bytes);
        let (iovs, count) = self.iovecs(&[bytes.len() as u32]);
        self.call(|ctx, memory| ctx.fd_pwrite(memory, fd, iovs, count, offset, RESULT))?;
        Ok(self.u32_at(RESULT))
    }

    pub(crate) fn seek(&mut self, fd: u32, delta: i64, whence: u32) -> Result<u64, Errno> {
        self.call(|ctx, memory| ctx.fd_seek(memory, fd, delta, whence, RESULT))?;
        Ok(self.u64_at(RESULT))
    }

    pub(crate) fn tell(&mut self, fd: u32) -> Result<u64, Errno> {
        self.call(|ctx, memory| ctx.fd_tell(memory, fd, RESULT))?;
        Ok(self.u64_at(RESULT))
    }

    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result<(), Errno> {
        self.call(|ctx, memory| ctx.fd_renumber(memory, from, to))
    }

    pub(crate) fn fdstat(&mut self, fd: u32) -> Result<FdStat, Errno> {
        self.call(|ctx, memory| ctx.fd_fdstat_get(memory, fd, STAT))?;
        Ok(FdStat {
            filetype: self.bytes[STAT as usize],
            flags: u16::from_le_bytes(self.bytes_at(STAT + 2, 2).try_into().unwrap()),
            base: self.u64_at(STAT + 8),
            inheriting: self.u64_at(STAT + 16),
        })
    }

    pub(crate) fn set_flags(&mut self, fd: u32, flags: u32) -> Result<(), Errno> {
        self.call(|ctx, memory| ctx.fd_fdstat_set_flags(memory, fd, flags))
    }

    pub(crate) fn set_rights(&mut self, fd: u32, base: u64, inheriting: u64) -> Result<(), Errno> {
        self.call(|ctx, memory| ctx.fd_fdstat_set_rights(memory, fd, base, inheriting))
    }

    pub(crate) fn set_size(&mut self, fd: u32, size: u64) -> Result<(), Errno> {
        self.call(|ctx, memory| ctx.fd_filestat_set_size(memory, fd, size))
    }

    pub(crate) fn stat(&mut self, fd: u32) -> Result<Stat, Errno> {
        self.call(|ctx, memory| ctx.fd_filestat_get(memory, fd, STAT))?;
        Ok(self.stat_result())
    }

    pub(crate) fn path_stat(&mut self, fd: u32, path: &str, follow: bool) -> Result<Stat, Errno> {
        let (address, size) = self.path(path);
        self.call(|ctx, memory| {
            ctx.path_filestat_get(memory, fd, u32::from(follow), address, size, STAT)
        })?;
        Ok(self.stat_result())
    }

    fn stat_result(&self) -> Stat {
        Stat {
            device: self.u64_at(STAT),
            inode: self.u64_at(STAT + 8),
            filetype: self.bytes[STAT as usize + 16],
            links: self.u64_at(STAT + 24),
            size: self.u64_at(STAT + 32),
            atim: self.u64_at(STAT + 40),
            mtim: self.u64_at(STAT + 48),
        }
    }

    pub(crate) fn path_set_times(
        &mut self,
        fd: u32,
        path: &str,
        follow: bool,
        (atim, mtim, flags): (u64, u64, u32),
    ) -> Result<(), Errno> {
        let (address, size) = self.path(path);
        let follow = u32::from(follow);
        self.call(|ctx, memory| {
            ctx.path_filestat_set_times(memory, fd, follow, address, size, atim, mtim, flags)
        })
    }

    pub(crate) fn mkdir(&mut self, fd: u32, path: &str) -> Result<(), Errno> {
        let (address, size) = self.path(path);
        self.call(|ctx, memory| ctx.path_create_directory(memory, fd, address, size))
    }

    pub(crate) fn rmdir(&mut self, fd: u32, path: &str) -> Result<(), Errno> {
        let (address, size) = self.path(path);
        self.call(|ctx, memory| ctx.path_remove_directory(memory, fd, address, size))
    }

    pub(crate) fn unlink(&mut self, fd: u32, path: &str) -> Result<(), Errno> {
        let (address, size) = self.path(path);
        self.call(|ctx, memory| ctx.path_unlink_file(memory, fd, address, size))
    }

    pub(crate) fn rename(
        &mut self,
        fd: u32,
        old: &str,
        new_fd: u32,
        new: &str,
    ) -> Result<(), Errno> {
        let ((old, old_size), (new, new_size)) = self.paths(old, new);
        self.call(|ctx, memory| ctx.path_rename(memory, fd, old, old_size, new_fd, new, new_size))
    }

    pub(crate) fn link(
        &mut self,
        fd: u32,
        follow: bool,
        old: &str,
        new_fd: u32,
        new: &str,
    ) -> Result<(), Errno> {
        let ((old, old_size), (new, new_size)) = self.paths(old, new);
        let follow = u32::from(follow);
        self.call(|ctx, memory| {
            ctx.path_link(memory, fd, follow, old, old_size, new_fd, new, new_size)
        })
    }

    pub(crate) fn symlink(&mut self, target: &str, fd: u32, path: &str) -> Result<(), Errno> {
        let ((target, target_size), (path, path_size)) = self.paths(target, path);
        self.call(|ctx, memory| ctx.path_symlink(memory, target, target_size, fd, path, path_size))
    }

    pub(crate) fn readlink(&mut self, fd: u32, path: &str, room: u32) -> Result<String, Errno> {
        let (address, size) = self.path(path);
        self.call(|ctx, memory| {
            ctx.path_readlink(memory, fd, address, size, BUFFER, room, RESULT)
        })?;
        let target = self.bytes_at(BUFFER, self.u32_at(RESULT)).to_vec();
        Ok(String::from_utf8(target).unwrap())
    }

    /// One call of `fd_readdir`: the bytes it wrote.
    pub(crate) fn readdir(&mut self, fd: u32, room: u32, cookie: u64) -> Result<Vec<u8>, Errno> {
        self.call(|ctx, memory| ctx.fd_readdir(memory, fd, BUFFER, room, cookie, RESULT))?;
        Ok(self.bytes_at(BUFFER, self.u32_at(RESULT)).to_vec())
    }

    /// The whole entries among the bytes of one call.
    pub(crate) fn entries(mut bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        while bytes.len() >= 24 {
            let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let size = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
            if bytes.len() < 24 + size {
                break;
            }
            entries.push(Entry {
                next: u64_at(0),
                inode: u64_at(8),
                filetype: bytes[20],
                name: String::from_utf8(bytes[24..24 + size].to_vec()).unwrap(),
            });
            bytes = &bytes[24 + size..];
        }
        entries
    }

    /// `poll_oneoff` with subscriptions as they lie in memory.
    pub(crate) fn poll(&mut self, subscriptions: &[[u8; 48]]) -> Result<Vec<Event>, Errno> {
        const EVENTS: u32 = 0x4_0000;
        self.put(BUFFER, &subscriptions.concat());
        let count = subscriptions.len() as u32;
        self.call(|ctx, memory| ctx.poll_oneoff(memory, BUFFER, EVENTS, count, RESULT))?;
        let event = |index| {
            let at = EVENTS + index * 32;
            Event {
                userdata: self.u64_at(at),
                error: u16::from_le_bytes(self.bytes_at(at + 8, 2).try_into().unwrap()),
                event_type: self.bytes[at as usize + 10],
                available: self.u64_at(at + 16),
                hangup: self.bytes[at as usize + 24] == 1,
            }
        };
        Ok((0..self.u32_at(RESULT)).map(event).collect())
    }

    /// `sock_accept`.
    pub(crate) fn accept(&mut self, fd: u32, flags: u32) -> Result<u32, Errno> {
        self.call(|ctx, memory| ctx.sock_accept(memory, fd, flags, RESULT))?;
        Ok(self.u32_at(RESULT))
    }

    /// `sock_recv`.
    pub(crate) fn recv(&mut self, fd: u32, sizes: &[u32], flags: u32) -> Result<Vec<u8>, Errno> {
        let (iovs, count) = self.iovecs(sizes);
        self.call(|ctx, memory| ctx.sock_recv(memory, fd, iovs, count, flags, RESULT, RESULT_2))?;
        Ok(self.bytes_at(BUFFER, self.u32_at(RESULT)).to_vec())
    }

    /// `clock_time_get`.
    pub(crate) fn time(&mut self, clock: u32) -> Result<u64, Errno> {
        self.call(|ctx, memory| ctx.clock_time_get(memory, clock, 0, RESULT))?;
        Ok(self.u64_at(RESULT))
    }

    /// Calls a `*_sizes_get` and its `*_get`, and returns the strings.
    pub(crate) fn strings(&mut self, environment: bool) -> Result<Vec<Vec<u8>>, Errno> {
        self.call(|ctx, memory| match environment {
            false => ctx.args_sizes_get(memory, RESULT, RESULT_2),
            true => ctx.environ_sizes_get(memory, RESULT, RESULT_2),
        })?;
        let (count, size) = (self.u32_at(RESULT), self.u32_at(RESULT_2));
        self.call(|ctx, memory| match environment {
            false => ctx.args_get(memory, PATH, BUFFER),
            true => ctx.environ_get(memory, PATH, BUFFER),
        })?;
        let mut strings = Vec::new();
        let mut used = 0;
        for index in 0..count {
            let address = self.u32_at(PATH + index * 4);
            assert_eq!(address, BUFFER + used);
            let string: Vec<u8> =
                self.bytes[address as usize..].iter().copied().take_while(|&b| b != 0).collect();
            used += string.len() as u32 + 1;
            strings.push(string);
        }
        assert_eq!(used, size);
        Ok(strings)
    }
}
