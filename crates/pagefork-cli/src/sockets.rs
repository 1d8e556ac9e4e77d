//! Sockets for programs.

use std::net::TcpListener;

use pagefork_wasi::WasiCtxBuilder;

use crate::arguments::RunArguments;
use crate::output;

/// Passes sockets to the program: first those that this process was given,
/// then those that it opens itself. The program's `LISTEN_FDS` counts all.
pub(crate) fn pass(arguments: &RunArguments, builder: &mut WasiCtxBuilder) -> Result<(), String> {
    let mut count = 0;
    if arguments.listenfd {
        count += builder.inherit_listen_fds().map_err(|error| error.to_string())?;
    }
    for address in &arguments.tcplisten {
        let listener = TcpListener::bind(address).map_err(|error| {
            format!("cannot listen on {address}: {error}; give a free address of this machine as HOST:PORT")
        })?;
        if address.ends_with(":0")
            && let Ok(chosen) = listener.local_addr()
        {
            output::say(format_args!("listening on {chosen}"));
        }
        builder.preopened_socket(listener).map_err(|error| error.to_string())?;
        count += 1;
    }
    if count > 0 {
        builder.env("LISTEN_FDS", count.to_string());
    }
    Ok(())
}
