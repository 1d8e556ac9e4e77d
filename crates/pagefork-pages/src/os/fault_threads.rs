//! Threads that give pages their contents: userfaultfd, by which whoever touches a page that has none
//! waits, and a message says so to others.
//!
//! ```text
//!  touches a page, waits ---message---> a thread of ours copies it -----> goes on
//!                                       cannot: has the page refused --> SIGBUS, as by who touches himself
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, mem, ptr};

use pagefork_layout::page::{PAGE_SIZE, round_down};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::os::error::Call;
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::signal_file::SignalFile;
use crate::os::sys::{CallFailure, attempt};
use crate::os::userfaultfd::{FaultMessage, Userfaultfd};

/// How long a thread waits before it tries again what the system refuses.
const PAUSE: Duration = Duration::from_millis(1);

/// Gives pages at some addresses their contents.
pub(crate) trait Pager: fmt::Debug + Send + Sync {
    /// Gives the page at an address contents, and perhaps some behind it. Who waits for them goes on.
    fn give(&self, address: u64, is_write: bool) -> Giving;
}

/// What giving a page contents came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Giving {
    /// It has them now.
    Now,
    /// It has had them.
    Already,
    /// It has none.
    Never,
}

/// So many threads, for all who ask for that number in this process. They end when nobody has them
/// any more.
#[derive(Debug)]
pub(crate) struct FaultThreads {
    shared: Arc<SharedFaults>,
    threads: Vec<JoinHandle<()>>,
    count: u32,
    /// The process that has the threads.
    process: u64,
}

/// What threads need.
#[derive(Debug)]
struct SharedFaults {
    file: Arc<Userfaultfd>,
    end: SignalFile,
    /// By their first address. Who gives contents reads it, so nothing goes meanwhile that contents are
    /// in.
    pagers: RwLock<BTreeMap<u64, (u64, Arc<dyn Pager>)>>,
}

impl FaultThreads {
    /// # Errors
    /// If the system refuses what tells of touches, or as many threads.
    pub(crate) fn of_this_process(count: u32) -> Result<Arc<Self>, CallFailure> {
        static OPEN: Mutex<Vec<Weak<FaultThreads>>> = Mutex::new(Vec::new());
        let process = this_process();
        let mut open = lock(&OPEN);
        open.retain(|known| known.strong_count() > 0);
        for known in &*open {
            if let Some(known) = known.upgrade()
                && (known.count, known.process) == (count, process)
            {
                return Ok(known);
            }
        }
        let started = Arc::new(Self::start(count, process)?);
        open.push(Arc::downgrade(&started));
        Ok(started)
    }

    fn start(count: u32, process: u64) -> Result<Self, CallFailure> {
        let calls = [Call::ServeFaults, Call::UnserveFaults];
        let file = Arc::new(Userfaultfd::open_for_messages(calls)?);
        let pagers = RwLock::new(BTreeMap::new());
        let shared = Arc::new(SharedFaults { file, end: SignalFile::new()?, pagers });
        let mut started = Self { shared, threads: Vec::new(), count, process };
        for _ in 0..count {
            let shared = Arc::clone(&started.shared);
            let builder = thread::Builder::new().name("pagefork-faults".to_owned());
            let refused =
                |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
            // Those that were started end when `started` goes.
            let thread = attempt(Call::StartThread, 0, || {
                builder.spawn(move || shared.serve_messages()).map_err(refused)
            })?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// What pages are to be registered with, and given contents by.
    pub(crate) fn file(&self) -> &Arc<Userfaultfd> {
        &self.shared.file
    }

    /// Has touches at addresses served. They are no other's.
    pub(crate) fn add(&self, addresses: Range<u64>, pager: Arc<dyn Pager>) {
        let mut pagers = self.shared.pagers.write().unwrap_or_else(PoisonError::into_inner);
        pagers.insert(addresses.start, (addresses.end, pager));
    }

    /// Has them served no more. Once it returns no thread is about to, and none waits for that.
    pub(crate) fn remove(&self, addresses: Range<u64>) {
        let mut pagers = self.shared.pagers.write().unwrap_or_else(PoisonError::into_inner);
        pagers.remove(&addresses.start);
        drop(pagers);
        // Nobody uses the pages any more who may; who does all the same must not wait for ever.
        self.shared.file.wake(addresses);
    }
}

impl Drop for FaultThreads {
    fn drop(&mut self) {
        let threads = mem::take(&mut self.threads);
        if self.process != this_process() {
            // They are threads of the process that this was forked from, and go on there.
            threads.into_iter().for_each(mem::forget);
            return;
        }
        self.shared.end.raise();
        for thread in threads {
            // A thread that panics all the same has ended, too.
            let _ = thread.join();
        }
    }
}

impl SharedFaults {
    /// What a thread does.
    fn serve_messages(&self) {
        block_signals();
        while let Some(message) = self.next_message() {
            // Others wait for this thread, so it does not end.
            if catch_unwind(AssertUnwindSafe(|| self.answer(message))).is_err() {
                while !self.refuse(round_down(message.address)) {
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// The next touch, or `None` once the threads are to end.
    fn next_message(&self) -> Option<FaultMessage> {
        loop {
            match self.file.next_message() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(_) => thread::sleep(PAUSE),
            }
            let mut polled = [
                PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.end.as_fd(), PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Ok(_) if polled[1].revents().contains(PollFlags::IN) => return None,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn answer(&self, message: FaultMessage) {
        let page = round_down(message.address);
        loop {
            // As long as it is read, the page is still that of the slot whose contents it should have.
            let pagers = self.pagers.read().unwrap_or_else(PoisonError::into_inner);
            let given = self.give(&pagers, page, message.is_write);
            if given != Giving::Never || self.refuse(page) {
                return;
            }
            drop(pagers);
            thread::sleep(PAUSE);
        }
    }

    fn give(
        &self,
        pagers: &BTreeMap<u64, (u64, Arc<dyn Pager>)>,
        page: u64,
        is_write: bool,
    ) -> Giving {
        let pager = pagers.range(..=page).next_back().map(|(_, known)| known);
        let given = match pager.filter(|(end, _)| page < *end) {
            Some((_, pager)) => pager.give(page, is_write),
            // Another thread has served it, and what was there has gone since.
            None => Giving::Already,
        };
        if given == Giving::Already {
            self.file.wake(page..page + PAGE_SIZE);
        }
        given
    }

    /// Has a page refused that cannot be had, so that who waits for it gets a signal, as if nobody served
    /// touches. Whether nobody waits any more.
    fn refuse(&self, page: u64) -> bool {
        match self.file.refuse(page..page + PAGE_SIZE) {
            Ok(()) => true,
            // It came meanwhile, or has gone.
            Err(CallFailure { errno: Errno::EXIST | Errno::NOENT, .. }) => {
                self.file.wake(page..page + PAGE_SIZE);
                true
            }
            Err(_) => false,
        }
    }
}

/// Has other threads of the process get the signals that are sent to it.
fn block_signals() {
    // SAFETY: zeros are a value of the type, which is filled before it is used.
    unsafe {
        let mut all = mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::*;
    use crate::os::page_faults::{
        PageFaults, ServedRange, TouchContents, faults_at_touches, serve_touch,
    };
    use crate::os::reservation::Reservation;
    use crate::os::userfaultfd::RegisterMode;

    /// How many signals it got that nobody served, and the address and thread of the last.
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    static LAST: (AtomicU64, AtomicU32) = (AtomicU64::new(0), AtomicU32::new(0));

    /// Runs a test in a child, which may install handlers.
    fn in_child(body: impl FnOnce()) {
        if !faults_at_touches() {
            return eprintln!("NOT TESTED: this kernel raises no signals at touches");
        }
        // SAFETY: the child uses nothing that other threads might have locked but the heap, whose locks
        // `fork` takes; an alarm ends it, should anything hang.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: concerns this child alone.
            unsafe { libc::alarm(30) };
            let works = catch_unwind(AssertUnwindSafe(|| {
                handle_signals();
                body();
            }));
            // SAFETY: ends this child.
            unsafe { libc::_exit(i32::from(works.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    /// Notes signals that nobody serves, and has the pages be others, of zeros.
    fn handle_signals() {
        unsafe extern "C" fn on_signal(
            _: libc::c_int,
            info: *mut libc::siginfo_t,
            _: *mut libc::c_void,
        ) {
            // SAFETY: the kernel gives valid structures; the page is the test's.
            unsafe {
                let address = (*info).si_addr().addr();
                let is_refused = (*info).si_code == libc::BUS_MCEERR_AR;
                if !is_refused && serve_touch(address, false) {
                    return;
                }
                SIGNALS.fetch_add(1, Ordering::Relaxed);
                LAST.0.store(address as u64, Ordering::Relaxed);
                LAST.1.store(libc::gettid() as u32, Ordering::Relaxed);
                let page = ptr::with_exposed_provenance_mut(round_down(address as u64) as usize);
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(page, PAGE_SIZE as usize, access, flags, -1, 0);
            }
        }
        // SAFETY: zeros are a value of the type, and the handler is async-signal-safe.
        unsafe {
            let mut action = mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
        }
    }

    fn pages(count: u64) -> (Reservation, Range<u64>) {
        let mut pages = Reservation::new(count * PAGE_SIZE, PAGE_SIZE).unwrap();
        pages.commit(0..count * PAGE_SIZE).unwrap();
        let addresses = pages.start() as u64..pages.end() as u64;
        (pages, addresses)
    }

    fn read(address: u64) -> u8 {
        // SAFETY: tests touch pages that are theirs.
        unsafe { ptr::with_exposed_provenance::<u8>(address as usize).read_volatile() }
    }

    /// A pager of which tests say what it does, the how manieth time.
    struct Told<F>(F, AtomicU32);

    impl<F> fmt::Debug for Told<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Told")
        }
    }

    impl<F: Fn(u64, u32) -> Giving + Send + Sync> Pager for Told<F> {
        fn give(&self, address: u64, _: bool) -> Giving {
            (self.0)(address, self.1.fetch_add(1, Ordering::Relaxed))
        }
    }

    /// What cannot be copied is a signal in the thread that touches it, of that address.
    #[test]
    fn what_no_thread_can_copy_is_a_signal_where_it_is_touched() {
        in_child(|| {
            let (mut source, from) = pages(2);
            source.protect(PAGE_SIZE..2 * PAGE_SIZE).unwrap();
            let (_pages, addresses) = pages(2);
            let contents = TouchContents::At(from.start as usize);
            let ranges = vec![ServedRange { addresses: addresses.clone(), contents }];
            // SAFETY: the pages and their contents are the test's, and stay.
            let served = unsafe { PageFaults::new(ranges, 2) }.unwrap();
            assert_eq!(read(addresses.start), 0);
            assert_eq!(SIGNALS.load(Ordering::Relaxed), 0);
            let own = thread::scope(|scope| {
                let touch = scope.spawn(|| {
                    assert_eq!(read(addresses.start + PAGE_SIZE + 9), 0);
                    // SAFETY: only asks.
                    unsafe { libc::gettid() }
                });
                touch.join().unwrap()
            });
            assert_eq!(SIGNALS.load(Ordering::Relaxed), 1);
            // The kernel tells of pages.
            assert_eq!(round_down(LAST.0.load(Ordering::Relaxed)), addresses.start + PAGE_SIZE);
            assert_eq!(LAST.1.load(Ordering::Relaxed), own as u32);
            drop(served);
        });
    }

    /// Others wait for it.
    #[test]
    fn a_thread_that_panics_goes_on_and_who_waits_gets_a_signal() {
        in_child(|| {
            std::panic::set_hook(Box::new(|_| ()));
            let (_pages, addresses) = pages(2);
            let threads = FaultThreads::of_this_process(1).unwrap();
            let file = Arc::clone(threads.file());
            file.register(addresses.clone(), RegisterMode::Missing).unwrap();
            let give = move |page, nth| {
                assert!(nth > 0, "the first time");
                file.zero(Call::CopyPage, page..page + PAGE_SIZE).unwrap();
                Giving::Now
            };
            threads.add(addresses.clone(), Arc::new(Told(give, AtomicU32::new(0))));
            for page in [addresses.start, addresses.start + PAGE_SIZE] {
                assert_eq!(read(page), 0);
            }
            assert_eq!(SIGNALS.load(Ordering::Relaxed), 1);
            threads.remove(addresses);
        });
    }

    /// A thread that a signal has made touch again has two messages. What becomes of the older one, once the page has
    /// come by the newer, is no signal: neither where it ran nor later.
    #[test]
    fn what_an_older_message_comes_to_harms_nobody() {
        in_child(|| {
            // SAFETY: the handler does nothing.
            unsafe {
                extern "C" fn nothing(_: libc::c_int) {}
                libc::signal(libc::SIGUSR1, nothing as *const () as usize);
            }
            let (_pages, addresses) = pages(1);
            let threads = FaultThreads::of_this_process(2).unwrap();
            let file = Arc::clone(threads.file());
            file.register(addresses.clone(), RegisterMode::Missing).unwrap();
            let (is_held, goes_on) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let give = {
                let (is_held, goes_on) = (Arc::clone(&is_held), Arc::clone(&goes_on));
                move |page, nth| match nth {
                    0 => {
                        is_held.store(1, Ordering::Release);
                        while goes_on.load(Ordering::Acquire) == 0 {
                            thread::yield_now();
                        }
                        Giving::Never
                    }
                    _ => {
                        file.zero(Call::CopyPage, page..page + PAGE_SIZE).unwrap();
                        Giving::Now
                    }
                }
            };
            threads.add(addresses.clone(), Arc::new(Told(give, AtomicU32::new(0))));
            let (sender, receiver) = std::sync::mpsc::channel();
            let start = addresses.start;
            let touching = thread::spawn(move || {
                // SAFETY: only asks.
                sender.send(unsafe { libc::gettid() }).unwrap();
                read(start)
            });
            let touching_id = receiver.recv().unwrap();
            while is_held.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            // SAFETY: the thread is the test's, and lives until it has read.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), touching_id, libc::SIGUSR1) };
            assert_eq!(touching.join().unwrap(), 0);
            goes_on.store(1, Ordering::Release);
            threads.remove(addresses);
            drop(threads);
            assert_eq!(SIGNALS.load(Ordering::Relaxed), 0);
            assert_eq!(read(start), 0);
        });
    }

    /// Nobody uses a slot that is closed who may; who does all the same gets what is there then.
    #[test]
    fn who_waits_for_a_page_that_is_served_no_more_goes_on() {
        in_child(|| {
            let (mut pages, addresses) = pages(1);
            let threads = FaultThreads::of_this_process(1).unwrap();
            threads.file().register(addresses.clone(), RegisterMode::Missing).unwrap();
            let asked = Arc::new(AtomicU32::new(0));
            let give = {
                let asked = Arc::clone(&asked);
                // It says so, and does nothing.
                move |_, _| {
                    asked.store(1, Ordering::Release);
                    Giving::Now
                }
            };
            threads.add(addresses.clone(), Arc::new(Told(give, AtomicU32::new(0))));
            thread::scope(|scope| {
                let start = addresses.start;
                let waiting = scope.spawn(move || read(start));
                while asked.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                pages.replace(0..PAGE_SIZE).unwrap();
                pages.commit(0..PAGE_SIZE).unwrap();
                assert!(!waiting.is_finished());
                threads.remove(addresses.clone());
                assert_eq!(waiting.join().unwrap(), 0);
            });
        });
    }

    /// A page that several threads touch at once is often there already when the next message says so.
    #[test]
    fn pages_that_are_there_already_are_no_failure_however_often() {
        in_child(|| {
            let (source, from) = pages(1);
            let (mut pages, addresses) = pages(1);
            for threads in [0, 1] {
                let contents = TouchContents::At(from.start as usize);
                let ranges = vec![ServedRange { addresses: addresses.clone(), contents }];
                // SAFETY: the pages and their contents are the test's, and stay.
                let served = unsafe { PageFaults::new(ranges, threads) }.unwrap();
                for _ in 0..3000 {
                    assert!(serve_touch(addresses.start as usize, false));
                    assert!(serve_touch(addresses.start as usize, false));
                    pages.discard(0..PAGE_SIZE).unwrap();
                }
                pages.replace(0..PAGE_SIZE).unwrap();
                pages.commit(0..PAGE_SIZE).unwrap();
                drop(served);
            }
            drop(source);
        });
    }
}
