//! Arguments of `pagefork serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::common::{
    EnvironmentArguments, ProgramArguments, SessionArguments, UnknownImports, size, time,
};
use super::strategies::StrategyArguments;

#[derive(Args)]
#[command(
    override_usage = "pagefork serve [OPTIONS] FILE [ARGUMENTS]...",
    after_help = "The program is a CGI program (RFC 3875): it finds the request in its environment \
                  (REQUEST_METHOD, PATH_INFO, QUERY_STRING, HTTP_*) and its body in standard input, \
                  and writes header fields, an empty line and the body to standard output. Each \
                  request runs in a fresh instance.\n\n\
                  SIGTERM or SIGINT ends the server when the requests under way have ended, a \
                  second one at once. SIGHUP reopens the logs: after their files were renamed, \
                  they go on in new ones."
)]
pub(crate) struct ServeArguments {
    /// Listen at this address; with port 0, at a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) addr: SocketAddr,

    /// Show the status page at this address; also /metrics, /healthz, and /readyz, which says
    /// whether requests are answered: from the start on, while the program is still compiled
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) admin: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) environment: EnvironmentArguments,

    /// End a request with 504 when its program has run this long: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    pub(crate) timeout: Duration,

    /// Drop clients that pause this long while they send or receive
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    pub(crate) client_timeout: Duration,

    /// Memory that an instance may have: 64KiB, 256MiB, 1GiB
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256MiB")]
    pub(crate) memory_max: u64,

    /// Size that a request's body may have; 413 beyond
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16MiB")]
    pub(crate) body_max: u64,

    /// Requests that run at once
    #[arg(long, value_name = "COUNT", default_value = "64", value_parser = count)]
    pub(crate) concurrency: usize,

    /// Requests that wait while others run; 503 beyond
    #[arg(long, value_name = "COUNT", default_value = "1024")]
    pub(crate) queue: usize,

    /// End a request with 503 when it has waited this long
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    pub(crate) queue_timeout: Duration,

    /// Connections that are open at once
    #[arg(long, value_name = "COUNT", default_value = "8192", value_parser = count)]
    pub(crate) connections: usize,

    /// How long requests may go on after SIGTERM
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) grace: Duration,

    /// Write failures, and standard error of programs, to FILE and not to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Write a line a request to FILE; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,

    /// The format of these lines
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,

    /// Keep the id that a request brings in `X-Request-Id`: behind a proxy that sets it
    #[arg(long)]
    pub(crate) keep_request_id: bool,

    /// Pass the field `Authorization` to the program
    #[arg(long)]
    pub(crate) authorization: bool,

    /// Start the program once, up to its first read of standard input, and answer each request by a
    /// fork of it: the request's variables come on standard input, as in SCGI, then its body
    #[arg(long)]
    pub(crate) warm: bool,

    #[command(flatten)]
    pub(crate) session: SessionArguments,

    /// What to do about imported functions that the command does not define
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    pub(crate) unknown_imports: UnknownImports,

    #[command(flatten)]
    pub(crate) strategies: StrategyArguments,

    #[command(flatten)]
    pub(crate) program: ProgramArguments,
}

/// The format of the access log's lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// The Common Log Format, with seconds and request id
    #[default]
    Common,
    /// An object a line
    Json,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1 is needed".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("give a whole number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{CliCommand, Pagefork};
    use super::*;
    use clap::Parser;

    fn serve(line: &str) -> Result<ServeArguments, String> {
        match Pagefork::try_parse_from(line.split(' ')) {
            Ok(Pagefork { command: CliCommand::Serve(serve) }) => Ok(serve),
            Ok(_) => panic!("not parsed as serve: {line}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn options_end_at_the_program() {
        let serve =
            serve("pagefork serve --memory-max 1GiB --timeout 500ms a.wasm --addr x").unwrap();
        assert_eq!(serve.program.file(), Path::new("a.wasm"));
        assert_eq!(serve.program.arguments(), ["--addr", "x"]);
        assert_eq!((serve.memory_max, serve.timeout), (1 << 30, Duration::from_millis(500)));
        assert_eq!(serve.addr.to_string(), "127.0.0.1:8080");
        assert_eq!(serve.log_format, LogFormat::Common);
    }

    #[test]
    fn mistakes_are_explained() {
        for (line, expected) in [
            ("pagefork serve", "FILE"),
            ("pagefork serve --addr 8080 a.wasm", "--addr"),
            ("pagefork serve --memory-max 1G a.wasm", "64KiB, 256MiB, 1GiB"),
            ("pagefork serve --memory-max 99999999999GiB a.wasm", "no size"),
            ("pagefork serve --concurrency 0 a.wasm", "at least 1"),
            ("pagefork serve --concurrency x a.wasm", "whole number"),
            ("pagefork serve --timeout 5 a.wasm", "500ms, 10s, 2m"),
        ] {
            let message = serve(line).map(|_| ()).expect_err(line);
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
