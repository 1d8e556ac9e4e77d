//! An HTTP server in process: each request is handled by a fresh instance, one that
//! traps or takes too long gets its status, and harms no other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use pagefork::{Engine, InstancePre, Linker, Module, StoreLimits, TypedExport};
use pagefork_serve::{
    Failure, FailureKind, Handler, Request, ResponseWriter, Server, ServerConfig,
};

/// Gets the path of a request at 1024, and turns it round where it lies.
const GUEST: &str = r#"(module
    (memory (export "memory") 1)
    (func (export "handle") (param $length i32)
        (local $a i32) (local $b i32) (local $c i32)
        (if (i32.eq (i32.load8_u (i32.const 1025)) (i32.const 33)) (then unreachable)) ;; !
        (if (i32.eq (i32.load8_u (i32.const 1025)) (i32.const 42)) (then (loop (br 0)))) ;; *
        (local.set $a (i32.const 1024))
        (local.set $b (i32.add (i32.const 1023) (local.get $length)))
        (loop $next
            (local.set $c (i32.load8_u (local.get $a)))
            (i32.store8 (local.get $a) (i32.load8_u (local.get $b)))
            (i32.store8 (local.get $b) (local.get $c))
            (local.set $a (i32.add (local.get $a) (i32.const 1)))
            (local.set $b (i32.sub (local.get $b) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $a) (local.get $b))))))"#;

struct Reverser {
    pre: InstancePre<()>,
    handle: TypedExport<u32, ()>,
}

impl Handler for Reverser {
    fn handle(&self, request: Request, response: &ResponseWriter) -> Result<(), Failure> {
        let body = self.reverse(request.head.uri.path(), response);
        let body = body.map_err(|error| Failure::new(FailureKind::Trap, error.to_string()))?;
        response.start(StatusCode::OK, HeaderMap::new());
        response
            .write(&body)
            .map_err(|error| Failure::new(FailureKind::ClientGone, error.to_string()))
    }
}

impl Reverser {
    fn reverse(&self, path: &str, response: &ResponseWriter) -> pagefork::Result<Vec<u8>> {
        let mut guard = None;
        let limits = StoreLimits::new().memory_total(1 << 20);
        // When the server gives the request up, the guest is interrupted.
        let (mut store, instance) = self.pre.spawn_limited(0, (), limits, |handle| {
            guard = Some(response.on_give_up(move || handle.interrupt()));
        })?;
        let memory = instance.get_memory(&mut store, "memory").expect("it exports one");
        memory.write(&mut store, 1024, path.as_bytes())?;
        let handle = instance.get_typed_export(&store, &self.handle)?;
        handle.call(&mut store, path.len() as u32)?;
        Ok(memory.data(&store)[1024..1024 + path.len()].to_vec())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let (handle, pre) =
        (module.get_typed_export("handle")?, Linker::new(&engine).instantiate_pre(&module)?);
    // Port 0: the system chooses one.
    let mut config = ServerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.timeout = Duration::from_millis(500);
    config.log(Box::new(std::io::sink()));
    let server = Server::start(config, Reverser { pre, handle })?;

    for path in ["/stressed", "/!", "/*", "/desserts"] {
        let mut client = TcpStream::connect(server.address())?;
        write!(client, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("an answer has a head")?;
        println!("{path}: {}", body.lines().next().unwrap_or_default());
    }
    server.stop_handle().stop();
    println!("{} requests", server.wait().requests);
    Ok(())
}
