//! Waiting for clocks and descriptors.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as Host;
use rustix::time::ClockId;

use crate::base::abi::{self, EVENT_SIZE, EventType, Rights, SUBSCRIPTION_SIZE};
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::base::waiting::StopCheck;
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Descriptor, Handle};
use crate::state::saved::PutOffPoll;
use crate::state::socket::Socket;
use crate::state::sources::host_now_ns;
use crate::state::stdio::{InputSource, OutputKind, OutputSink, Readable, StdinKind, unread};

/// Largest count of subscriptions in one call. No serious program passes more.
const SUBSCRIPTIONS_MAX: u32 = 1 << 16;

/// How long to sleep between two looks at an input source while others are waited for too, or at
/// a sink without room. No system call waits for both.
const SOURCE_INTERVAL: Duration = Duration::from_millis(5);

impl WasiCtx {
    /// `poll_oneoff`: waits until at least one subscription has an event, and writes all
    /// events that there are and their count.
    ///
    /// # Errors
    ///
    /// [`Errno::Inval`] for no or too many subscriptions and for malformed ones,
    /// [`Errno::Fault`], [`Errno::Intr`] if the guest must stop or the embedder's check asks
    /// for it (see [`WasiCtx::set_interrupt_check`]). An error of one subscription's
    /// descriptor or clock stands in its event.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, WasiCtx};
    ///
    /// let mut ctx = WasiCtx::builder().build()?;
    /// // A subscription at 0 with the number 7: the monotonic clock (1), in 5 nanoseconds.
    /// let mut bytes = [0; 84];
    /// (bytes[0], bytes[16], bytes[24]) = (7, 1, 5);
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// ctx.poll_oneoff(memory, 0, 48, 1, 80)?;
    /// // One event, at 48, with the same number.
    /// assert_eq!((memory.read_u32(80)?, memory.read_u32(48)?), (1, 7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_oneoff(
        &mut self,
        memory: &mut GuestMemory<'_>,
        subscriptions: u32,
        events: u32,
        count: u32,
        result: u32,
    ) -> Result {
        if count == 0 || count > SUBSCRIPTIONS_MAX {
            return Err(Errno::Inval);
        }
        memory.check(result, 4)?;
        memory.check_array(subscriptions, count, SUBSCRIPTION_SIZE)?;
        memory.check_array(events, count, EVENT_SIZE)?;
        // In bounds, hence below 4 GiB: the whole array was checked.
        let arguments = [subscriptions, events, count, result];
        self.interrupt.take_put_off();
        let put_off = self.put_off_poll.take().filter(|poll| poll.arguments == arguments);
        let waited_ns = put_off.map_or(0, |poll| poll.waited_ns);
        let began_ns = host_now_ns(ClockId::Monotonic);
        let subscriptions = (0..count)
            .map(|index| {
                let address = subscriptions + index * SUBSCRIPTION_SIZE;
                self.subscription(memory, address, waited_ns)
            })
            .collect::<Result<Vec<_>>>()?;

        let stop = self.interrupt.and(memory.stops());
        let happened = wait(&subscriptions, stop);
        if self.interrupt.is_put_off() {
            let now_ns = host_now_ns(ClockId::Monotonic);
            let waited_ns = waited_ns.saturating_add(now_ns.saturating_sub(began_ns));
            self.put_off_poll = Some(PutOffPoll { arguments, waited_ns });
        }
        let happened = happened?;

        for (index, event) in (0..count).zip(&happened) {
            memory.write_words(events + index * EVENT_SIZE, *event)?;
        }
        memory.write_size(result, happened.len())
    }

    /// Reads a subscription, as [`SUBSCRIPTION_SIZE`] draws it.
    /// The call has waited for `waited_ns` before it was made again.
    fn subscription(
        &self,
        memory: &GuestMemory<'_>,
        address: u32,
        waited_ns: u64,
    ) -> Result<Subscription<'_>> {
        const ABSTIME: u16 = 1;
        let [userdata, tag, number, timeout_ns, _precision, flags] = memory.read_words(address)?;
        // Only the low bytes of these words have a meaning.
        let (number, flags) = (number as u32, flags as u16);
        let (event_type, subject) = match (tag as u8, flags) {
            (0, 0 | ABSTIME) => {
                let deadline = match flags {
                    ABSTIME => self.deadline(number, timeout_ns, true),
                    _ => self.deadline(number, timeout_ns.saturating_sub(waited_ns), false),
                };
                (EventType::Clock, deadline.map(Subject::Time))
            }
            (1, _) => (EventType::FdRead, self.subject_to_read(number)),
            (2, _) => (EventType::FdWrite, self.subject_to_write(number)),
            _ => return Err(Errno::Inval),
        };
        let subject = subject.unwrap_or_else(Subject::Failed);
        Ok(Subscription { userdata, event_type, subject })
    }

    /// # Errors
    ///
    /// [`Errno::Notsup`] for a clock that cannot be waited for.
    fn deadline(&self, number: u32, timeout_ns: u64, absolute: bool) -> Result<ClockDeadline> {
        let sources = &self.grants.shared.sources;
        let duration_ns = match (number, absolute) {
            (0 | 1, false) => timeout_ns,
            (0, true) if sources.wall_clock.is_none() => {
                return Ok(ClockDeadline { clock: ClockId::Realtime, time_ns: timeout_ns });
            }
            (0, true) => timeout_ns.saturating_sub(sources.wall_ns()),
            (1, true) => timeout_ns.saturating_sub(self.monotonic_ns()),
            _ => return Err(Errno::Notsup),
        };
        // A duration must not change when the wall clock is set.
        let clock = ClockId::Monotonic;
        Ok(ClockDeadline { clock, time_ns: host_now_ns(clock).saturating_add(duration_ns) })
    }

    fn subject_to_read(&self, fd: u32) -> Result<Subject<'_>> {
        let descriptor = self.pollable(fd, Rights::FD_READ)?;
        let offset = descriptor.description.offset;
        Ok(match &descriptor.handle {
            Handle::Stdin => match &self.grants.stdin {
                StdinKind::Null => Subject::Ready(0),
                StdinKind::Inherit => Subject::Host(rustix::stdio::stdin(), PollFlags::IN),
                StdinKind::Bytes(bytes) => Subject::Ready(unread(bytes, offset).len() as u64),
                StdinKind::Source(source) => Subject::Source(&**source),
                StdinKind::Awaited => Subject::Awaited,
            },
            Handle::Stream(file) => Subject::Host(file.as_fd(), PollFlags::IN),
            Handle::Socket(socket) => {
                Subject::Host(socket.as_fd(), PollFlags::IN | PollFlags::RDHUP)
            }
            Handle::File(file) => Subject::Ready(file.metadata()?.len().saturating_sub(offset)),
            Handle::Output(_) | Handle::Directory { .. } => Subject::Ready(0),
        })
    }

    fn subject_to_write(&self, fd: u32) -> Result<Subject<'_>> {
        Ok(match &self.pollable(fd, Rights::FD_WRITE)?.handle {
            Handle::Output(stream) => match self.grants.output(*stream) {
                OutputKind::Inherit => Subject::Host(stream.host(), PollFlags::OUT),
                OutputKind::Sink(sink) => Subject::Sink(&**sink),
                OutputKind::Null | OutputKind::Pipe(_) => Subject::Ready(0),
            },
            Handle::Stream(file) => Subject::Host(file.as_fd(), PollFlags::OUT),
            Handle::Socket(socket) => Subject::Host(socket.as_fd(), PollFlags::OUT),
            Handle::Stdin | Handle::File(_) | Handle::Directory { .. } => Subject::Ready(0),
        })
    }

    fn pollable(&self, fd: u32, direction: Rights) -> Result<&Descriptor> {
        let descriptor = self.table.get(fd)?;
        descriptor.require(Rights::POLL_FD_READWRITE)?;
        descriptor.require(match &descriptor.handle {
            Handle::Directory { .. } => Rights::empty(),
            // To read from a listener is to accept.
            Handle::Socket(Socket::Listener(_)) if direction == Rights::FD_READ => {
                Rights::SOCK_ACCEPT
            }
            _ => direction,
        })?;
        Ok(descriptor)
    }
}

/// Waits until at least one subscription has an event. Returns the events as they lie in
/// memory.
fn wait(subscriptions: &[Subscription<'_>], stop: StopCheck<'_>) -> Result<Vec<[u64; 4]>> {
    loop {
        let mut hosts = poll_hosts(subscriptions, Some(Duration::ZERO))?.into_iter();
        let happened: Vec<_> = subscriptions
            .iter()
            .filter_map(|one| one.subject.result(&mut hosts).map(|result| one.event(result)))
            .collect();
        if !happened.is_empty() {
            return Ok(happened);
        }
        if subscriptions.iter().any(|one| matches!(one.subject, Subject::Awaited)) {
            stop.check()?;
            return Err(stop.put_off());
        }
        stop.check_wait()?;
        block(subscriptions, stop.interval())?;
    }
}

/// What a guest waits for.
#[derive(Debug)]
struct Subscription<'a> {
    userdata: u64,
    event_type: EventType,
    subject: Subject<'a>,
}

impl Subscription<'_> {
    fn event(&self, result: PollResult) -> [u64; 4] {
        let Readable { available, hangup } =
            result.unwrap_or(Readable { available: 0, hangup: false });
        abi::event(self.userdata, self.event_type, result.err(), available, hangup)
    }
}

#[derive(Clone, Copy, Debug)]
struct ClockDeadline {
    clock: ClockId,
    time_ns: u64,
}

impl ClockDeadline {
    fn remaining(self) -> Duration {
        Duration::from_nanos(self.time_ns.saturating_sub(host_now_ns(self.clock)))
    }
}

/// What to report of a subscription, or what is wrong with it.
type PollResult = Result<Readable>;

/// What is waited for, resolved.
#[derive(Debug)]
enum Subject<'a> {
    /// Ready from the start, with a number of bytes available.
    Ready(u64),
    Failed(Errno),
    Time(ClockDeadline),
    Source(&'a dyn InputSource),
    Sink(&'a dyn OutputSink),
    /// Input that there is not yet. The call is put off unless something else has happened.
    Awaited,
    Host(BorrowedFd<'a>, PollFlags),
}

impl<'a> Subject<'a> {
    fn host(&self) -> Option<(BorrowedFd<'a>, PollFlags)> {
        match self {
            Subject::Host(host, flags) => Some((*host, *flags)),
            _ => None,
        }
    }

    /// What there is to report now. `hosts` yields the results of the host's descriptors, in
    /// order.
    fn result(&self, hosts: &mut impl Iterator<Item = Option<PollResult>>) -> Option<PollResult> {
        let ready = |available| Ok(Readable { available, hangup: false });
        match self {
            Subject::Ready(available) => Some(ready(*available)),
            Subject::Failed(error) => Some(Err(*error)),
            Subject::Time(deadline) => deadline.remaining().is_zero().then(|| ready(0)),
            Subject::Source(source) => source.wait(Some(Duration::ZERO)).map(Ok),
            Subject::Sink(sink) => sink.wait(Some(Duration::ZERO)).then(|| ready(0)),
            Subject::Awaited => None,
            Subject::Host(..) => hosts.next().flatten(),
        }
    }
}

/// Sleeps until a subject may have changed, at most for `longest`.
fn block(subscriptions: &[Subscription<'_>], longest: Option<Duration>) -> Result {
    let remaining = |subject: &Subject<'_>| match subject {
        Subject::Time(deadline) => Some(deadline.remaining()),
        _ => None,
    };
    let subjects = || subscriptions.iter().map(|one| &one.subject);
    let timeout = subjects().filter_map(remaining).chain(longest).min();
    let source = subjects().find_map(|subject| match subject {
        Subject::Source(source) => Some(source),
        _ => None,
    });
    let has_sink = subjects().any(|subject| matches!(subject, Subject::Sink(_)));
    let has_host = subjects().any(|subject| subject.host().is_some());
    match source {
        Some(source) if !has_host && !has_sink => drop(source.wait(timeout)),
        None if !has_sink => drop(poll_hosts(subscriptions, timeout)?),
        _ => drop(poll_hosts(subscriptions, timeout.into_iter().chain([SOURCE_INTERVAL]).min())?),
    }
    Ok(())
}

/// Waits for the host's descriptors among what is waited for, and returns in their order what there
/// is to report of each. `None` waits for ever.
fn poll_hosts(
    subscriptions: &[Subscription<'_>],
    timeout: Option<Duration>,
) -> Result<Vec<Option<PollResult>>> {
    let hosts: Vec<_> = subscriptions.iter().filter_map(|one| one.subject.host()).collect();
    if hosts.is_empty() && timeout == Some(Duration::ZERO) {
        return Ok(Vec::new());
    }
    let mut fds: Vec<PollFd<'_>> =
        hosts.iter().map(|(host, flags)| PollFd::from_borrowed_fd(*host, *flags)).collect();
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        // The caller looks again, and computes how much time is left.
        Err(Host::INTR) => return Ok(vec![None; fds.len()]),
        Err(error) => return Err(error.into()),
    }
    Ok(fds.iter().zip(hosts).map(|(fd, (host, _))| poll_result(fd.revents(), host)).collect())
}

fn poll_result(found: PollFlags, host: BorrowedFd<'_>) -> Option<PollResult> {
    if found.contains(PollFlags::NVAL) {
        return Some(Err(Errno::Badf));
    }
    if found.is_empty() {
        return None;
    }
    let readable = found.contains(PollFlags::IN);
    let available = if readable { rustix::io::ioctl_fionread(host).unwrap_or(0) } else { 0 };
    // The peer of a socket may have closed one direction only. The data that it sent before
    // can still be read.
    let hangup = found.intersects(PollFlags::HUP | PollFlags::RDHUP);
    Some(Ok(Readable { available, hangup }))
}
