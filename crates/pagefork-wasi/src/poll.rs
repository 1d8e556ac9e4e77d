//! Waiting for clocks and descriptors.

use std::io::{Stderr, Stdin, Stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as Host;
use rustix::time::ClockId;

use crate::abi::{Errno, Event, EventType, Rights, SUBSCRIPTION_SIZE, SubclockFlags};
use crate::clock::now_ns;
use crate::ctx::WasiCtx;
use crate::descriptor::{Descriptor, Handle};
use crate::guest_memory::GuestMemory;
use crate::sock::Socket;
use crate::stdio::{InputSource, OutputKind, StdinKind, unread};
use crate::waiting::{Watch, timespec};

/// Largest count of subscriptions in one call; more is no honest use.
const SUBSCRIPTIONS_MAX: u32 = 1 << 16;

/// How long to sleep between looks at an input pipe when host descriptors are
/// waited for too, since no system call waits for both.
const PIPE_LOOK: Duration = Duration::from_millis(5);

impl WasiCtx {
    /// `poll_oneoff`: waits until at least one subscription has something to
    /// tell, and writes an event for each that has, and their count.
    ///
    /// # Errors
    ///
    /// [`Errno::Inval`] for no or too many subscriptions and for malformed
    /// ones, [`Errno::Fault`], [`Errno::Intr`] if the guest is to be stopped or the
    /// embedder's check asks for it (see [`WasiCtx::set_interrupt_check`]). What is wrong with one subscription's
    /// descriptor or clock is told in its event.
    pub fn poll_oneoff(
        &mut self,
        memory: &mut GuestMemory<'_>,
        subscriptions: u32,
        events: u32,
        count: u32,
        result: u32,
    ) -> Result<(), Errno> {
        if count == 0 || count > SUBSCRIPTIONS_MAX {
            return Err(Errno::Inval);
        }
        memory.check(result, 4)?;
        memory.check_array(subscriptions, count, SUBSCRIPTION_SIZE)?;
        memory.check_array(events, count, EVENT_SIZE)?;
        // In bounds, hence below 4 GiB: the whole array was checked.
        let subscriptions = (0..count)
            .map(|index| Subscription::read(memory, subscriptions + index * SUBSCRIPTION_SIZE))
            .collect::<Result<Vec<_>, _>>()?;

        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let happened = self.wait(&subscriptions, watch)?;

        for (index, event) in (0..count).zip(&happened) {
            memory.write_bytes(events + index * EVENT_SIZE, &event.to_bytes())?;
        }
        memory.write_size(result, happened.len())
    }

    /// Waits until at least one subscription has an event.
    fn wait(&self, subscriptions: &[Subscription], watch: Watch<'_>) -> Result<Vec<Event>, Errno> {
        let streams = Streams::new();
        let subject = |subscription: &Subscription| self.subject(subscription.wish, &streams);
        let subjects: Vec<Subject<'_>> = subscriptions.iter().map(subject).collect();
        loop {
            let hosts = poll_hosts(&subjects, Some(Duration::ZERO))?;
            let mut hosts = hosts.into_iter();
            let mut happened = Vec::new();
            for (subscription, subject) in subscriptions.iter().zip(&subjects) {
                if let Some(outcome) = subject.outcome(&mut hosts) {
                    happened.push(subscription.event(outcome));
                }
            }
            if !happened.is_empty() {
                return Ok(happened);
            }
            watch.check()?;
            block(&subjects, watch.interval())?;
        }
    }

    fn subject<'a>(&'a self, wish: Wish, streams: &'a Streams) -> Subject<'a> {
        match wish {
            Wish::Time(deadline) => Subject::Time(deadline),
            Wish::BadClock => Subject::Known(Err(Errno::Notsup)),
            Wish::Read(fd) => {
                self.subject_to_read(fd, streams).unwrap_or_else(|e| Subject::Known(Err(e)))
            }
            Wish::Write(fd) => {
                self.subject_to_write(fd, streams).unwrap_or_else(|e| Subject::Known(Err(e)))
            }
        }
    }

    fn subject_to_read<'a>(&'a self, fd: u32, streams: &'a Streams) -> Result<Subject<'a>, Errno> {
        let descriptor = self.pollable(fd, Rights::FD_READ)?;
        let offset = descriptor.description.offset;
        Ok(match &descriptor.handle {
            Handle::Stdin => match &self.config.stdin {
                StdinKind::Null => Subject::READY,
                StdinKind::Inherit => Subject::Host(streams.stdin.as_fd(), PollFlags::IN),
                StdinKind::Bytes(bytes) => Subject::ready(unread(bytes, offset).len() as u64),
                StdinKind::Pipe(reader) => Subject::Pipe(reader),
                StdinKind::Source(source) => Subject::Pipe(&**source),
            },
            Handle::Stream(file) => Subject::Host(file.as_fd(), PollFlags::IN),
            Handle::Socket(socket) => {
                Subject::Host(socket.as_fd(), PollFlags::IN | PollFlags::RDHUP)
            }
            Handle::File(file) => Subject::ready(file.metadata()?.len().saturating_sub(offset)),
            Handle::Stdout | Handle::Stderr | Handle::Directory { .. } => Subject::READY,
        })
    }

    fn subject_to_write<'a>(&'a self, fd: u32, streams: &'a Streams) -> Result<Subject<'a>, Errno> {
        let output = |kind: &OutputKind, host| match kind {
            OutputKind::Inherit => Subject::Host(host, PollFlags::OUT),
            OutputKind::Null | OutputKind::Pipe(_) | OutputKind::Sink(_) => Subject::READY,
        };
        Ok(match &self.pollable(fd, Rights::FD_WRITE)?.handle {
            Handle::Stdout => output(&self.config.stdout, streams.stdout.as_fd()),
            Handle::Stderr => output(&self.config.stderr, streams.stderr.as_fd()),
            Handle::Stream(file) => Subject::Host(file.as_fd(), PollFlags::OUT),
            Handle::Socket(socket) => Subject::Host(socket.as_fd(), PollFlags::OUT),
            Handle::Stdin | Handle::File(_) | Handle::Directory { .. } => Subject::READY,
        })
    }

    fn pollable(&self, fd: u32, direction: Rights) -> Result<&Descriptor, Errno> {
        let descriptor = self.table.get(fd)?;
        descriptor.require(Rights::POLL_FD_READWRITE)?;
        descriptor.require(match &descriptor.handle {
            Handle::Directory { .. } => Rights::NONE,
            // To read from a listener is to accept.
            Handle::Socket(Socket::Listener(_)) if direction == Rights::FD_READ => {
                Rights::SOCK_ACCEPT
            }
            _ => direction,
        })?;
        Ok(descriptor)
    }
}

const EVENT_SIZE: u32 = Event::SIZE as u32;

/// What a guest asked to be told of.
#[derive(Debug)]
struct Subscription {
    userdata: u64,
    wish: Wish,
}

#[derive(Clone, Copy, Debug)]
enum Wish {
    Time(Deadline),
    /// A clock that cannot be waited for.
    BadClock,
    Read(u32),
    Write(u32),
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    clock: ClockId,
    time_ns: u64,
}

impl Deadline {
    fn remaining(self) -> Duration {
        Duration::from_nanos(self.time_ns.saturating_sub(now_ns(self.clock)))
    }
}

impl Subscription {
    fn read(memory: &GuestMemory<'_>, address: u32) -> Result<Subscription, Errno> {
        let userdata = memory.read_u64(address)?;
        let wish = match memory.read_u8(address + 8)? {
            0 => {
                let clock = memory.read_u32(address + 16)?;
                let timeout = memory.read_u64(address + 24)?;
                let flags = SubclockFlags::from_guest(memory.read_u16(address + 40)?.into())?;
                Wish::time(clock, timeout, flags.contains(SubclockFlags::ABSTIME))
            }
            1 => Wish::Read(memory.read_u32(address + 16)?),
            2 => Wish::Write(memory.read_u32(address + 16)?),
            _ => return Err(Errno::Inval),
        };
        Ok(Subscription { userdata, wish })
    }

    fn event(&self, outcome: Outcome) -> Event {
        let event_type = match self.wish {
            Wish::Time(_) | Wish::BadClock => EventType::Clock,
            Wish::Read(_) => EventType::FdRead,
            Wish::Write(_) => EventType::FdWrite,
        };
        let ready = outcome.unwrap_or_default();
        Event {
            userdata: self.userdata,
            error: outcome.err(),
            event_type,
            available: ready.available,
            hangup: ready.hangup,
        }
    }
}

impl Wish {
    fn time(clock: u32, timeout_ns: u64, absolute: bool) -> Wish {
        let clock = match clock {
            0 => ClockId::Realtime,
            1 => ClockId::Monotonic,
            _ => return Wish::BadClock,
        };
        Wish::Time(if absolute {
            Deadline { clock, time_ns: timeout_ns }
        } else {
            // A duration must not change when the wall clock is set.
            let clock = ClockId::Monotonic;
            Deadline { clock, time_ns: now_ns(clock).saturating_add(timeout_ns) }
        })
    }
}

/// What there is to tell, or what is wrong with the subscription.
type Outcome = Result<Ready, Errno>;

#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    available: u64,
    hangup: bool,
}

/// What is waited for, resolved.
#[derive(Debug)]
enum Subject<'a> {
    Known(Outcome),
    Time(Deadline),
    Pipe(&'a dyn InputSource),
    Host(BorrowedFd<'a>, PollFlags),
}

impl<'a> Subject<'a> {
    const READY: Self = Subject::Known(Ok(Ready { available: 0, hangup: false }));

    fn host(&self) -> Option<(BorrowedFd<'a>, PollFlags)> {
        match self {
            Subject::Host(host, flags) => Some((*host, *flags)),
            _ => None,
        }
    }

    fn ready(available: u64) -> Self {
        Subject::Known(Ok(Ready { available, hangup: false }))
    }

    /// What there is to tell now. `hosts` yields the outcomes of the host's
    /// descriptors, in order.
    fn outcome(&self, hosts: &mut impl Iterator<Item = Option<Outcome>>) -> Option<Outcome> {
        match self {
            Subject::Known(outcome) => Some(*outcome),
            Subject::Time(deadline) => deadline.remaining().is_zero().then(|| Ok(Ready::default())),
            Subject::Pipe(reader) => reader
                .wait(Some(Duration::ZERO))
                .map(|now| Ok(Ready { available: now.available, hangup: now.hangup })),
            Subject::Host(..) => hosts.next().flatten(),
        }
    }
}

/// Handles of the standard streams, which lend their descriptors.
struct Streams {
    stdin: Stdin,
    stdout: Stdout,
    stderr: Stderr,
}

impl Streams {
    fn new() -> Self {
        let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        Streams { stdin, stdout, stderr }
    }
}

/// Sleeps until something may have changed, at most for `longest`.
fn block(subjects: &[Subject<'_>], longest: Option<Duration>) -> Result<(), Errno> {
    let remaining = |subject: &Subject<'_>| match subject {
        Subject::Time(deadline) => Some(deadline.remaining()),
        _ => None,
    };
    let timeout = subjects.iter().filter_map(remaining).chain(longest).min();
    let pipe = subjects.iter().find_map(|subject| match subject {
        Subject::Pipe(reader) => Some(reader),
        _ => None,
    });
    let has_host = subjects.iter().any(|subject| matches!(subject, Subject::Host(..)));
    match pipe {
        Some(reader) if !has_host => {
            reader.wait(timeout);
        }
        Some(_) => {
            poll_hosts(subjects, Some(timeout.unwrap_or(PIPE_LOOK).min(PIPE_LOOK)))?;
        }
        None => {
            poll_hosts(subjects, timeout)?;
        }
    }
    Ok(())
}

/// Waits for the host's descriptors among the subjects, and tells in order
/// what each has to say. `None` waits for ever.
fn poll_hosts(
    subjects: &[Subject<'_>],
    timeout: Option<Duration>,
) -> Result<Vec<Option<Outcome>>, Errno> {
    let hosts: Vec<_> = subjects.iter().filter_map(Subject::host).collect();
    if hosts.is_empty() && timeout == Some(Duration::ZERO) {
        return Ok(Vec::new());
    }
    let mut fds: Vec<PollFd<'_>> =
        hosts.iter().map(|(host, flags)| PollFd::from_borrowed_fd(*host, *flags)).collect();
    let timeout = timeout.map(timespec);
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        // The caller looks again, and finds out how much time is left.
        Err(Host::INTR) => return Ok(vec![None; fds.len()]),
        Err(error) => return Err(error.into()),
    }
    Ok(fds.iter().zip(hosts).map(|(fd, (host, _))| outcome(fd.revents(), host)).collect())
}

fn outcome(found: PollFlags, host: BorrowedFd<'_>) -> Option<Outcome> {
    if found.contains(PollFlags::NVAL) {
        return Some(Err(Errno::Badf));
    }
    if found.is_empty() {
        return None;
    }
    let available = if found.contains(PollFlags::IN) {
        rustix::io::ioctl_fionread(host).unwrap_or(0)
    } else {
        0
    };
    // The peer of a socket may have closed one direction only, and what it sent
    // is still there to be read.
    let hangup = found.intersects(PollFlags::HUP | PollFlags::RDHUP);
    Some(Ok(Ready { available, hangup }))
}
