//! Sockets that this process got by the custom of systemd: as the descriptors 3, 4, ..., with
//! their count in `LISTEN_FDS`.

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::state::build_error::BuildError;
use crate::state::builder::WasiCtxBuilder;

/// The first of the descriptors.
const FIRST: i32 = 3;

impl WasiCtxBuilder {
    /// Passes on the sockets that this process got by the custom of systemd (`LISTEN_FDS`), and
    /// the variables `LISTEN_FDS` and `LISTEN_FDNAMES`. Returns the count of the sockets.
    ///
    /// Call this before other sockets are passed in, so that these sockets have the numbers of
    /// the custom. This process keeps its own handles.
    ///
    /// # Errors
    ///
    /// [`BuildError::NoListenFds`] if this process has none, [`BuildError::Socket`] for a
    /// descriptor that is not a stream socket or cannot be duplicated (`pidfd_getfd`, which
    /// some containers forbid).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{BuildError, WasiCtx};
    ///
    /// let mut builder = WasiCtx::builder();
    /// match builder.inherit_listen_fds() {
    ///     Ok(count) => println!("{count} sockets"),
    ///     Err(BuildError::NoListenFds) => builder.preopened_socket(
    ///         std::net::TcpListener::bind("127.0.0.1:0")?,
    ///     ).map(drop)?,
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inherit_listen_fds(&mut self) -> Result<usize, BuildError> {
        let variable = |name: &str| std::env::var(name).ok();
        let own = getpid();
        let count = count(
            variable("LISTEN_FDS").as_deref(),
            variable("LISTEN_PID").as_deref(),
            own.as_raw_nonzero().get(),
        );
        let count = count.ok_or(BuildError::NoListenFds)?;
        for index in 0..count {
            // A bare number does not prove that the descriptor is open, and would have to be
            // trusted. The kernel checks one that is asked for by a handle of the process.
            let socket = i32::try_from(index)
                .ok()
                .and_then(|index| FIRST.checked_add(index))
                .ok_or(rustix::io::Errno::BADF)
                .and_then(|fd| {
                    let process = pidfd_open(own, PidfdFlags::empty())?;
                    pidfd_getfd(process, fd, PidfdGetfdFlags::empty())
                })
                .map_err(|error| BuildError::Socket { index, source: error.into() })?;
            self.preopened_socket(socket)?;
        }
        self.env("LISTEN_FDS", count.to_string());
        if let Some(names) = variable("LISTEN_FDNAMES") {
            self.env("LISTEN_FDNAMES", names);
        }
        Ok(count)
    }
}

/// The count of sockets that the variables announce for the process `own`.
fn count(listen_fds: Option<&str>, listen_pid: Option<&str>, own: i32) -> Option<usize> {
    let for_own = listen_pid.is_none_or(|pid| pid.parse() == Ok(own));
    listen_fds?.parse().ok().filter(|&count| for_own && count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_if_they_are_for_this_process() {
        assert_eq!(count(Some("2"), None, 7), Some(2));
        assert_eq!(count(Some("2"), Some("7"), 7), Some(2));
        assert_eq!(count(Some("2"), Some("8"), 7), None);
        assert_eq!(count(Some("2"), Some("x"), 7), None);
        for fds in [None, Some(""), Some("0"), Some("-1"), Some("two")] {
            assert_eq!(count(fds, None, 7), None, "{fds:?}");
        }
    }
}
