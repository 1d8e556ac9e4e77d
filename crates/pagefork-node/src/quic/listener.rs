//! Who connects with a node over QUIC, and whose each datagram is that comes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pagefork_image::SecretKey;
use quinn_proto::{
    Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Endpoint, EndpointEvent,
    Incoming, Transmit,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustls::ServerConfig;

use crate::base::NodeTimes;
use crate::poll::wait_at_most;

use super::config;
use super::socket::{Datagram, DatagramBuffers, QuicSocket};

/// Bytes of datagrams that wait for the thread of their connection: as many as a peer may send unasked,
/// and some. Others are lost.
const WAITING_MAX: usize = 2 << 20;

/// A datagram counts for no less: it is held with what is known of it.
const WAITING_MIN: usize = 512;

/// As many, of a connection of which more is taken.
const WAITING_MAX_IN_BULK: usize = config::BULK as usize + (1 << 20);

/// A node that listens.
pub(crate) struct QuicListener {
    shared: Arc<QuicShared>,
    buffers: Mutex<DatagramBuffers>,
}

/// What connections of a listener have in common.
pub(super) struct QuicShared {
    pub(super) socket: QuicSocket,
    state: Mutex<ListenerState>,
    /// From so many connections on, addresses are checked before anything is done for them.
    many: usize,
}

struct ListenerState {
    endpoint: Endpoint,
    routes: HashMap<ConnectionHandle, Arc<Inbound>>,
    callers: VecDeque<Incoming>,
}

/// Datagrams that wait for the thread of their connection.
pub(super) struct Inbound {
    waiting: Mutex<WaitingDatagrams>,
    /// Is raised when there are any.
    signal: OwnedFd,
}

struct WaitingDatagrams {
    events: Vec<ConnectionEvent>,
    size: usize,
    size_max: usize,
}

impl WaitingDatagrams {
    /// Takes room for one more, if there is.
    fn take_room(&mut self, size: usize) -> bool {
        let size = self.size + size.max(WAITING_MIN);
        let fits = size <= self.size_max;
        if fits {
            self.size = size;
        }
        fits
    }
}

/// Who connects, and is not known yet. Dropped, it is refused.
pub(crate) struct QuicCaller {
    shared: Arc<QuicShared>,
    incoming: Option<Incoming>,
}

impl fmt::Debug for QuicListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QuicListener").field(&self.shared.socket).finish()
    }
}

impl QuicListener {
    pub(crate) fn bind(
        address: SocketAddr,
        key: &SecretKey,
        tls: Arc<ServerConfig>,
        connections_max: usize,
        times: &NodeTimes,
    ) -> io::Result<Self> {
        let socket = QuicSocket::bind(address)?;
        let server = config::server(tls, connections_max, times)?;
        let finds_mtu = !socket.may_fragment();
        let endpoint = config::endpoint(Some(key));
        let endpoint = Endpoint::new(endpoint, Some(server), finds_mtu, None);
        let (routes, callers) = <_>::default();
        let state = Mutex::new(ListenerState { endpoint, routes, callers });
        let many = connections_max / 2;
        let shared = Arc::new(QuicShared { socket, state, many });
        Ok(Self { shared, buffers: Mutex::default() })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.shared.socket.address()
    }

    /// Waits for who connects, and gives out datagrams meanwhile.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn accept(&self) -> io::Result<QuicCaller> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(incoming) = self.shared.lock().callers.pop_front() {
                let shared = Arc::clone(&self.shared);
                return Ok(QuicCaller { shared, incoming: Some(incoming) });
            }
            let mut socket = [PollFd::new(&self.shared.socket, PollFlags::IN)];
            wait_at_most(&mut socket, None)?;
            let now = Instant::now();
            self.shared.socket.receive(&mut buffers, |datagram| self.shared.take(datagram, now))?;
        }
    }
}

impl QuicShared {
    fn lock(&self) -> MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, datagram: Datagram, now: Instant) {
        let Datagram { from, to, ecn, bytes } = datagram;
        let (size, mut answer) = (bytes.len(), Vec::new());
        let mut state = self.lock();
        let event = state.endpoint.handle(now, from, to, ecn, bytes, &mut answer);
        let answered = match event {
            None => return,
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(inbound) = state.routes.get(&handle) {
                    inbound.push(event, size);
                }
                return;
            }
            // Whoever it is, it first shows that it is where it says, so that nobody takes the places
            // of others with addresses that are not its own.
            Some(DatagramEvent::NewConnection(incoming))
                if !incoming.remote_address_validated()
                    && state.endpoint.open_connections() >= self.many =>
            {
                match state.endpoint.retry(incoming, &mut answer) {
                    Ok(transmit) => transmit,
                    Err(error) => return state.endpoint.ignore(error.into_incoming()),
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                return state.callers.push_back(incoming);
            }
            Some(DatagramEvent::Response(transmit)) => transmit,
        };
        drop(state);
        self.answer(&answered, &answer);
    }

    /// Says what no connection says. If it is lost, it is asked for again.
    fn answer(&self, transmit: &Transmit, contents: &[u8]) {
        let _ = self.socket.send(transmit, contents);
    }

    /// Tells the endpoint of what has happened to a connection. Returns what the connection is to know.
    pub(super) fn tell(
        &self,
        handle: ConnectionHandle,
        event: EndpointEvent,
    ) -> Option<ConnectionEvent> {
        let mut state = self.lock();
        if event.is_drained() {
            state.routes.remove(&handle);
        }
        state.endpoint.handle_event(handle, event)
    }
}

impl Inbound {
    fn new() -> io::Result<Arc<Self>> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let waiting = WaitingDatagrams { events: Vec::new(), size: 0, size_max: WAITING_MAX };
        Ok(Arc::new(Self { waiting: Mutex::new(waiting), signal }))
    }

    fn lock(&self) -> MutexGuard<'_, WaitingDatagrams> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: ConnectionEvent, size: usize) {
        let mut waiting = self.lock();
        if !waiting.take_room(size) {
            return;
        }
        let was_empty = waiting.events.is_empty();
        waiting.events.push(event);
        if was_empty {
            let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
        }
    }

    /// Has more of them wait.
    pub(super) fn hold_more(&self) {
        self.lock().size_max = WAITING_MAX_IN_BULK;
    }

    /// Takes what has come.
    pub(super) fn take(&self) -> Vec<ConnectionEvent> {
        let mut waiting = self.lock();
        if !waiting.events.is_empty() {
            let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        }
        waiting.size = 0;
        std::mem::take(&mut waiting.events)
    }
}

impl AsFd for Inbound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

impl QuicCaller {
    /// From where it connects.
    pub(crate) fn address(&self) -> SocketAddr {
        let incoming = self.incoming.as_ref().expect("it is there until it is begun with");
        incoming.remote_address()
    }

    /// Begins with it.
    ///
    /// # Errors
    /// If what it has sent first is nonsense.
    pub(super) fn begin(
        mut self,
    ) -> io::Result<(Connection, ConnectionHandle, Arc<QuicShared>, Arc<Inbound>)> {
        let inbound = Inbound::new()?;
        let incoming = self.incoming.take().expect("it is begun with once");
        let mut answer = Vec::new();
        let mut state = self.shared.lock();
        match state.endpoint.accept(incoming, Instant::now(), &mut answer, None) {
            Ok((handle, connection)) => {
                state.routes.insert(handle, Arc::clone(&inbound));
                drop(state);
                Ok((connection, handle, Arc::clone(&self.shared), inbound))
            }
            Err(error) => {
                drop(state);
                if let Some(transmit) = error.response {
                    self.shared.answer(&transmit, &answer);
                }
                Err(error.cause.into())
            }
        }
    }
}

impl Drop for QuicCaller {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        let mut answer = Vec::new();
        let transmit = self.shared.lock().endpoint.refuse(incoming, &mut answer);
        self.shared.answer(&transmit, &answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_wait_by_what_holding_them_takes() {
        let mut waiting = WaitingDatagrams { events: Vec::new(), size: 0, size_max: WAITING_MAX };
        let small = (0..WAITING_MAX).take_while(|_| waiting.take_room(30)).count();
        assert_eq!(small, WAITING_MAX / WAITING_MIN);
        assert!(!waiting.take_room(0));
        waiting.size = 0;
        assert!(waiting.take_room(WAITING_MAX) && !waiting.take_room(1));
    }
}
