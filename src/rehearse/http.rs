//! The least HTTP/1.1 that the world needs, on raw sockets: a server whose answers may break off anywhere, and a client
//! that says what exactly went wrong. A real HTTP library would repair or hide both.

use super::pace::{self, Task};
use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const HEAD_LIMIT: usize = 64 * 1024;
const BODY_LIMIT: usize = 8 * 1024 * 1024;
/// How long a stop waits for running requests (real).
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A request, read whole.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET`, `POST`, ...
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The client wants the connection kept.
    pub keep_alive: bool,
}

impl Request {
    /// A request without a body.
    pub fn get(target: &str) -> Request {
        Request { method: "GET".to_owned(), target: target.to_owned(), keep_alive: true, ..Request::default() }
    }

    /// The path without its query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Is `name=value` in the query?
    pub fn query_is(&self, name: &str, value: &str) -> bool {
        let query = self.target.split_once('?').map_or("", |(_, q)| q);
        query.split('&').any(|pair| pair.split_once('=') == Some((name, value)))
    }

    /// The first header of that (lower case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

/// An answer, whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case when read; as given when written.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// With a content type.
    pub fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Response {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Response { status, headers, body: body.into() }
    }

    /// JSON.
    pub fn json(status: u16, body: &serde_json::Value) -> Response {
        Response::new(status, "application/json", body.to_string())
    }

    /// One header more.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Response {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The first header of that (lower case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// As bytes on the wire, with the right length.
    pub fn encode(&self, keep_alive: bool) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            write!(text, "{name}: {value}\r\n").ok();
        }
        let connection = if keep_alive { "keep-alive" } else { "close" };
        write!(text, "content-length: {}\r\nconnection: {connection}\r\n\r\n", self.body.len()).ok();
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
}

/// The usual words of a status code.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        302 => "Found",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

/// How a connection ends after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An orderly close.
    Fin,
    /// A reset.
    Rst,
    /// It stays open and says nothing more.
    Stall,
}

/// What a server does with a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Answers.
    Reply(Response),
    /// Sends these bytes, whatever they are, and ends so.
    Raw(Vec<u8>, End),
    /// Sends the first bytes, then the second ones one at a time with a pause (real) before each, then closes.
    Drip(Vec<u8>, Vec<u8>, Duration),
    /// Sends the first bytes, and then the second ones until the client has had enough.
    Endless(Vec<u8>, Vec<u8>),
}

/// A connection with what was read from it and not used yet.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

struct Head {
    first: String,
    headers: Vec<(String, String)>,
}

enum Length {
    None,
    Exactly(usize),
    Chunked,
    UntilClose,
}

impl Connection {
    /// Around an open stream.
    pub fn new(stream: TcpStream) -> Connection {
        // Small messages both ways: waiting to fill a packet only adds latency.
        stream.set_nodelay(true).ok();
        Connection { stream, buffer: Vec::new() }
    }

    /// Opens one.
    pub async fn open(address: SocketAddr) -> io::Result<Connection> {
        TcpStream::connect(address).await.map(Connection::new)
    }

    /// The stream, for what is not HTTP.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The next request; `None` when the client closed in between two.
    pub async fn read_request(&mut self) -> io::Result<Option<Request>> {
        let Some(head) = self.read_head().await? else { return Ok(None) };
        let mut words = head.first.split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default().to_owned();
        let version = words.next().unwrap_or_default();
        if !version.starts_with("HTTP/1.") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not an HTTP/1 request"));
        }
        let close = find(&head.headers, "connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
        let length = length_of(&head.headers)?.unwrap_or(Length::None);
        let body = self.read_body(&length).await?;
        let keep_alive = !close && version == "HTTP/1.1";
        Ok(Some(Request { method, target, headers: head.headers, body, keep_alive }))
    }

    /// Sends a request; `host` as in the header.
    pub async fn write_request(&mut self, request: &Request, host: &str) -> io::Result<()> {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: {host}\r\n", request.method, request.target);
        for (name, value) in &request.headers {
            if !matches!(name.as_str(), "host" | "content-length" | "connection" | "transfer-encoding" | "expect") {
                write!(text, "{name}: {value}\r\n").ok();
            }
        }
        let connection = if request.keep_alive { "keep-alive" } else { "close" };
        write!(text, "content-length: {}\r\nconnection: {connection}\r\n\r\n", request.body.len()).ok();
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&request.body);
        self.send(&bytes).await
    }

    /// The final answer (1xx are skipped), and whether the connection can be used again.
    pub async fn read_response(&mut self, method: &str) -> io::Result<(Response, bool)> {
        loop {
            let head = self.read_head().await?.ok_or_else(|| cut("closed before an answer"))?;
            let status = status_of(&head.first)?;
            if (100..200).contains(&status) {
                continue;
            }
            let length = match length_of(&head.headers)? {
                _ if method == "HEAD" || status == 204 || status == 304 => Length::None,
                Some(length) => length,
                None => Length::UntilClose,
            };
            let body = self.read_body(&length).await?;
            let close = find(&head.headers, "connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
            let reusable = !close && !matches!(length, Length::UntilClose) && head.first.starts_with("HTTP/1.1");
            return Ok((Response { status, headers: head.headers, body }, reusable));
        }
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.buffer.reserve(8192);
        self.stream.read_buf(&mut self.buffer).await
    }

    async fn read_head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                let bytes = self.take(end.saturating_add(4));
                return parse_head(&bytes).map(Some);
            }
            if self.buffer.len() > HEAD_LIMIT {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "message head is too large"));
            }
            if self.fill().await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(cut("closed inside a message head")) };
            }
        }
    }

    async fn read_body(&mut self, length: &Length) -> io::Result<Vec<u8>> {
        match length {
            Length::None => Ok(Vec::new()),
            Length::Exactly(n) => self.read_exactly(*n).await,
            Length::UntilClose => {
                while self.fill().await? > 0 {
                    limit(self.buffer.len())?;
                }
                Ok(std::mem::take(&mut self.buffer))
            }
            Length::Chunked => self.read_chunks().await,
        }
    }

    async fn read_exactly(&mut self, n: usize) -> io::Result<Vec<u8>> {
        limit(n)?;
        while self.buffer.len() < n {
            if self.fill().await? == 0 {
                return Err(cut("closed inside a body"));
            }
        }
        Ok(self.take(n))
    }

    async fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line().await?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "bad chunk size"))?;
            if size == 0 {
                while !self.read_line().await?.is_empty() {}
                return Ok(body);
            }
            let chunk = self.read_exactly(size).await?;
            body.extend_from_slice(&chunk);
            limit(body.len())?;
            self.read_line().await?;
        }
    }

    async fn read_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line = self.take(end.saturating_add(2));
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            limit(self.buffer.len())?;
            if self.fill().await? == 0 {
                return Err(cut("closed inside a chunked body"));
            }
        }
    }

    fn take(&mut self, n: usize) -> Vec<u8> {
        let rest = self.buffer.split_off(n.min(self.buffer.len()));
        std::mem::replace(&mut self.buffer, rest)
    }
}

fn cut(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, what)
}

fn limit(n: usize) -> io::Result<()> {
    if n > BODY_LIMIT { Err(io::Error::new(io::ErrorKind::InvalidData, "body is too large")) } else { Ok(()) }
}

fn parse_head(bytes: &[u8]) -> io::Result<Head> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n").filter(|l| !l.is_empty());
    let first = lines.next().unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) =
            line.split_once(':').ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "bad header line"))?;
        headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Head { first, headers })
}

fn status_of(first: &str) -> io::Result<u16> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP");
    let mut words = first.split_whitespace();
    if !words.next().unwrap_or_default().starts_with("HTTP/1.") {
        return Err(bad());
    }
    words.next().and_then(|w| w.parse().ok()).filter(|s| (100..1000).contains(s)).ok_or_else(bad)
}

fn length_of(headers: &[(String, String)]) -> io::Result<Option<Length>> {
    if find(headers, "transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().contains("chunked")) {
        return Ok(Some(Length::Chunked));
    }
    let mut lengths = headers.iter().filter(|(n, _)| n == "content-length").map(|(_, v)| v.parse::<usize>());
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(None),
        (Some(Ok(n)), None) => Ok(Some(Length::Exactly(n))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "bad content-length")),
    }
}

/// One request on a connection of its own.
pub async fn once(address: SocketAddr, request: &Request) -> io::Result<Response> {
    let mut connection = Connection::open(address).await?;
    connection.write_request(request, &address.to_string()).await?;
    connection.read_response(&request.method).await.map(|(response, _)| response)
}

/// Ends a connection in the given way.
pub async fn finish(mut stream: TcpStream, end: End) {
    match end {
        End::Fin => {
            stream.shutdown().await.ok();
            linger(stream).await;
        }
        End::Rst => {
            stream.set_zero_linger().ok();
        }
        End::Stall => linger(stream).await,
    }
}

/// Reads until the other side is gone, so that a close is no reset and a stall costs nothing once the client gave up.
async fn linger(mut stream: TcpStream) {
    let mut sink = vec![0_u8; 4096];
    let mut total = 0_usize;
    while let Ok(n) = stream.read(&mut sink).await {
        total = total.saturating_add(n);
        if n == 0 || total > BODY_LIMIT {
            return;
        }
    }
}

/// What a server does with each connection.
pub trait Service: Clone + Send + Sync + 'static {
    /// Serves it to its end. `stop` turns true when the server wants to end: finish what runs, then return.
    fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) -> impl Future<Output = ()> + Send;
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: Task,
}

impl Server {
    /// Binds (port 0: a free one) and serves.
    pub async fn start<S: Service>(address: SocketAddr, service: S) -> io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let task = Task::start(accept(listener, service, stopped));
        Ok(Server { address, stop, task })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops to accept, lets running requests end (at most ten seconds), and is gone.
    pub async fn stop(self) {
        self.stop.send(true).ok();
        self.task.join(STOP_LIMIT).await;
    }
}

async fn accept<S: Service>(listener: TcpListener, service: S, mut stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let (service, stop) = (service.clone(), stopped.clone());
                    connections.spawn(async move { service.serve(stream, stop).await });
                } else {
                    // Out of file descriptors, most likely: it passes.
                    pace::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves HTTP on one connection: one request after another until an end, a close or a stop.
pub async fn converse<F, A>(stream: TcpStream, mut stop: watch::Receiver<bool>, mut handle: F)
where
    F: FnMut(Request) -> A + Send,
    A: Future<Output = Answer> + Send,
{
    let mut connection = Connection::new(stream);
    loop {
        // The read is polled first: what has already arrived is answered, only an idle connection is closed by a stop.
        let request = tokio::select! {
            biased;
            request = connection.read_request() => request,
            () = stopping(&mut stop) => return,
        };
        let Ok(Some(request)) = request else { return };
        let keep_alive = request.keep_alive && !*stop.borrow();
        match handle(request).await {
            Answer::Reply(response) => {
                if connection.send(&response.encode(keep_alive)).await.is_err() {
                    return;
                }
                if !keep_alive {
                    finish_bounded(connection.into_stream(), End::Fin, stop).await;
                    return;
                }
            }
            broken @ (Answer::Raw(..) | Answer::Drip(..) | Answer::Endless(..)) => {
                end_with(connection.into_stream(), broken, stop).await;
                return;
            }
        }
    }
}

/// Gives the last answer of a connection, as far as the client listens and the server goes on.
pub async fn end_with(mut stream: TcpStream, answer: Answer, mut stop: watch::Receiver<bool>) {
    let sent = async {
        match answer {
            Answer::Reply(response) => (stream.write_all(&response.encode(false)).await, End::Fin),
            Answer::Raw(bytes, end) => (stream.write_all(&bytes).await, end),
            Answer::Drip(first, bytes, pause) => (drip(&mut stream, &first, &bytes, pause).await, End::Fin),
            Answer::Endless(first, again) => (endless(&mut stream, &first, &again).await, End::Fin),
        }
    };
    let sent = tokio::select! {
        sent = sent => sent,
        () = stopping(&mut stop) => return,
    };
    if let (Ok(()), end) = sent {
        finish_bounded(stream, end, stop).await;
    }
}

async fn drip(stream: &mut TcpStream, first: &[u8], bytes: &[u8], pause: Duration) -> io::Result<()> {
    stream.write_all(first).await?;
    for byte in bytes {
        pace::sleep(pause).await;
        stream.write_all(&[*byte]).await?;
    }
    Ok(())
}

async fn endless(stream: &mut TcpStream, first: &[u8], again: &[u8]) -> io::Result<()> {
    stream.write_all(first).await?;
    loop {
        stream.write_all(again).await?;
        // A loopback client would otherwise keep both sides busy with nothing else.
        pace::sleep(Duration::from_millis(1)).await;
    }
}

/// [`finish`], but a stop does not wait for it.
pub async fn finish_bounded(stream: TcpStream, end: End, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        () = finish(stream, end) => {}
        () = stopping(&mut stop) => {}
    }
}

/// Resolves when the server wants to end (or is gone).
pub async fn stopping(stop: &mut watch::Receiver<bool>) {
    stop.wait_for(|s| *s).await.ok();
}
