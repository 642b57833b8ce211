//! A server on a raw socket that answers as it is told, down to cut bytes and resets. Plain or TLS.

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A whole request: head and body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `GET`
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    /// Header lines, as sent.
    pub(crate) head: String,
    /// Body.
    pub(crate) body: String,
}

/// How an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Orderly close (TLS: without `close_notify`).
    Fin,
    /// Reset.
    Rst,
    /// Nothing more, until the client gives up.
    Stall,
    /// Wait for the next request on this connection.
    Keep,
}

/// What the server does with one request, or with a connection before it reads.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Sent as they are.
    pub(crate) bytes: Vec<u8>,
    /// One byte at a time, slowly.
    pub(crate) drip: bool,
    /// And then.
    pub(crate) then: Then,
}

impl Shape {
    /// These bytes, then that.
    pub(crate) fn raw(bytes: impl Into<Vec<u8>>, then: Then) -> Shape {
        Shape { bytes: bytes.into(), drip: false, then }
    }

    /// Ends only when the client gives up: give it little patience. With every other shape patience costs nothing, and
    /// keeps a busy machine from turning one failure into another.
    pub(crate) fn waits(&self) -> bool {
        self.drip || self.then == Then::Stall
    }

    /// A complete answer; the connection stays.
    pub(crate) fn http(status: u16, body: &str) -> Shape {
        let head = format!("HTTP/1.1 {status} Some\r\ncontent-length: {}\r\n\r\n", body.len());
        Shape::raw(head + body, Then::Keep)
    }
}

/// What is decided on: a shape at once on accept (before reading), or after a request.
pub(crate) struct Behaviour {
    /// Before anything is read.
    pub(crate) on_accept: Option<Shape>,
    /// After each request.
    #[allow(clippy::type_complexity)]
    pub(crate) on_request: Box<dyn Fn(&Request) -> Shape + Send + Sync>,
    /// TLS on top.
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

impl Behaviour {
    /// Answers requests, without TLS.
    pub(crate) fn answering(on_request: impl Fn(&Request) -> Shape + Send + Sync + 'static) -> Behaviour {
        Behaviour { on_accept: None, on_request: Box::new(on_request), tls: None }
    }

    /// Does this with each connection before reading.
    pub(crate) fn on_accept(shape: Shape) -> Behaviour {
        Behaviour { on_accept: Some(shape), ..Behaviour::answering(|_| Shape::raw("", Then::Fin)) }
    }
}

/// The running server. Ends with its value.
pub(crate) struct Server {
    /// Where it listens: loopback.
    pub(crate) addr: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<Mutex<usize>>,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Listens on a free loopback port.
    pub(crate) fn start(behaviour: Behaviour) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let addr = listener.local_addr().expect("its address");
        let server = Server {
            addr,
            requests: Arc::default(),
            connections: Arc::default(),
            stop: Arc::new(AtomicBool::new(false)),
        };
        let (requests, connections, stop) =
            (Arc::clone(&server.requests), Arc::clone(&server.connections), Arc::clone(&server.stop));
        let behaviour = Arc::new(behaviour);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                *connections.lock().expect("not poisoned") += 1;
                let (behaviour, requests, stop) = (Arc::clone(&behaviour), Arc::clone(&requests), Arc::clone(&stop));
                std::thread::spawn(move || connection(&stream, &behaviour, &requests, &stop));
            }
        });
        server
    }

    /// `http://127.0.0.1:port`
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("not poisoned").clone()
    }

    /// All connections so far.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().expect("not poisoned")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
    }
}

const TICK: Duration = Duration::from_millis(20);

fn connection(socket: &TcpStream, behaviour: &Behaviour, requests: &Mutex<Vec<Request>>, stop: &AtomicBool) {
    let _ = socket.set_read_timeout(Some(TICK));
    if let Some(shape) = &behaviour.on_accept {
        let mut plain = socket.try_clone().expect("a second handle");
        play(socket, &mut plain, shape, stop);
        return;
    }
    let mut stream: Box<dyn ReadWrite> = match &behaviour.tls {
        None => Box::new(socket.try_clone().expect("a second handle")),
        Some(config) => {
            let tls = ServerConnection::new(Arc::clone(config)).expect("a TLS server");
            Box::new(StreamOwned::new(tls, socket.try_clone().expect("a second handle")))
        }
    };
    while let Some(request) = read_request(&mut *stream, stop) {
        requests.lock().expect("not poisoned").push(request.clone());
        let shape = (behaviour.on_request)(&request);
        if !play(socket, &mut *stream, &shape, stop) {
            return;
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// Sends and ends as the shape says. `true` = the connection goes on.
fn play(socket: &TcpStream, stream: &mut dyn ReadWrite, shape: &Shape, stop: &AtomicBool) -> bool {
    let mut rest = [0; 1024];
    for piece in shape.bytes.chunks(if shape.drip { 1 } else { usize::MAX }) {
        if stream.write_all(piece).and_then(|()| stream.flush()).is_err() || stop.load(Ordering::SeqCst) {
            return false;
        }
        if shape.drip {
            // Waits one tick, and notices a client that went away.
            if matches!(stream.read(&mut rest), Ok(0)) {
                return false;
            }
        }
    }
    match shape.then {
        Then::Keep => return true,
        Then::Fin => {
            let _ = socket.shutdown(Shutdown::Both);
        }
        Then::Rst => {
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        Then::Stall => {
            while !stop.load(Ordering::SeqCst) {
                match stream.read(&mut rest) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(_) => break,
                }
            }
        }
    }
    false
}

fn read_request(stream: &mut dyn ReadWrite, stop: &AtomicBool) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while !stop.load(Ordering::SeqCst) {
        if let Some(request) = complete(&bytes) {
            return Some(request);
        }
        match stream.read(&mut piece) {
            Ok(0) => return None,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return None,
        }
    }
    None
}

fn complete(bytes: &[u8]) -> Option<Request> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head
        .lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, v)| v.trim().parse::<usize>().ok())
        .unwrap_or(0);
    if body.len() < length {
        return None;
    }
    let mut first = head.lines().next()?.split(' ');
    Some(Request {
        method: first.next()?.to_owned(),
        path: first.next()?.to_owned(),
        head: head.to_owned(),
        body: body.to_owned(),
    })
}
