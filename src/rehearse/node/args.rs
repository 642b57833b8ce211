//! The hidden verb `rehearse-node`: a client node as a process, from arguments that the rehearsal writes.

use super::{NodeFacts, NodeOptions, PeerFacts, run_node, told_to_end};
use crate::jobs::processes::{self, Process};
use crate::rehearse::shapes::Shape;
use rustix::process::Signal;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use tokio::sync::oneshot;

/// Arguments of a process without a node, for the machine of a node that is not ours: it only ends that machine.
pub fn keeper() -> Vec<String> {
    vec![VERB.to_owned()]
}

/// The arguments that [`parse`] reads back.
pub fn to_args(options: &NodeOptions) -> Vec<String> {
    let mut args = vec![VERB.to_owned()];
    let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
    add("--address", options.address.to_string());
    add("--name", options.facts.name.clone());
    for peer in &options.facts.peers {
        add("--peer", format!("{}={}", peer.name, peer.address));
    }
    add("--refused-ms", options.refused_ms.to_string());
    if let Some(shape) = options.shape {
        add("--shape", shape.name().to_owned());
    }
    if let Some(ms) = options.shape_ms {
        add("--shape-ms", ms.to_string());
    }
    add("--not-joined-ms", options.not_joined_ms.to_string());
    add("--search-ms", options.search_ms.to_string());
    args
}

/// Reads the arguments after the verb.
///
/// # Errors
/// An argument that is none.
pub fn parse(args: impl IntoIterator<Item = String>) -> io::Result<NodeOptions> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let number = |text: &str| text.parse::<u64>().map_err(|e| wrong(format!("{text:?}: {e}")));
    let address = |text: &str| text.parse::<SocketAddr>().map_err(|e| wrong(format!("{text:?}: {e}")));
    let mut options = NodeOptions::joined(SocketAddr::from(([127, 0, 0, 1], 0)), NodeFacts::new("es-client"));
    let mut peers: Vec<PeerFacts> = Vec::new();
    let mut args = args.into_iter();
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| wrong(format!("{name} needs a value")))?;
        match name.as_str() {
            "--address" => options.address = address(&value)?,
            "--name" => options.facts = NodeFacts::new(&value),
            "--peer" => {
                let (name, at) = value.split_once('=').ok_or_else(|| wrong(format!("{value:?} is no NAME=ADDRESS")))?;
                peers.push(NodeFacts { address: address(at)?, ..NodeFacts::new(name) }.as_peer());
            }
            "--refused-ms" => options.refused_ms = number(&value)?,
            "--shape" => {
                options.shape = Some(Shape::parse(&value).ok_or_else(|| wrong(format!("no shape {value:?}")))?);
            }
            "--shape-ms" => options.shape_ms = Some(number(&value)?),
            "--not-joined-ms" => options.not_joined_ms = number(&value)?,
            "--search-ms" => options.search_ms = number(&value)?,
            _ => return Err(wrong(format!("unknown argument {name}"))),
        }
    }
    options.facts.peers = peers;
    Ok(options)
}

/// A fork may come between a look and the stop; more often than this none does.
const ROUNDS_MAX: u32 = 20;

/// The verb.
const VERB: &str = "rehearse-node";

/// Names the directory of the node's machine; not for the node itself.
pub const MACHINE: &str = "--machine";

/// Runs the verb: lives until SIGTERM, SIGINT, or the end of its stdin, which its starter holds the other end of. So no
/// node outlives its rehearsal, however that ends; and it takes with it whatever else works
/// in the directory of its machine: an agent cannot notice.
///
/// # Errors
/// Wrong arguments, or the system refuses.
pub async fn run_node_args(args: impl IntoIterator<Item = String>) -> io::Result<()> {
    let orphaned = end_of_stdin();
    let (machine, args) = take_machine(args);
    let living = async { if args.is_empty() { told_to_end().await } else { run_node(parse(args)?).await } };
    tokio::select! {
        ended = living => ended,
        _ = orphaned => {
            end_machine(&machine);
            Ok(())
        }
    }
}

fn take_machine(args: impl IntoIterator<Item = String>) -> (String, Vec<String>) {
    let mut args: Vec<String> = args.into_iter().collect();
    let Some(at) = args.iter().position(|a| a == MACHINE) else { return (String::new(), args) };
    let mut taken = args.split_off(at).into_iter().skip(1);
    let machine = taken.next().unwrap_or_default();
    args.extend(taken);
    (machine, args)
}

/// SIGKILL for all that works in this directory: agent, CLI, supervisor of a job, the job and whatever it started.
fn end_machine(dir: &str) {
    if dir.is_empty() {
        return;
    }
    // All are stopped before the first is killed: a parent that dies no longer tells whose its children are.
    let mut stopped: Vec<Process> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let mut found = processes::working_in(Path::new(dir)).unwrap_or_default();
        found.retain(|p| stopped.iter().all(|s| (s.pid, s.start_ticks) != (p.pid, p.start_ticks)));
        if found.is_empty() {
            break;
        }
        for process in &found {
            let _ = processes::signal(process, Signal::STOP);
        }
        stopped.extend(found);
    }
    for process in &stopped {
        let _ = processes::signal(process, Signal::KILL);
    }
}

/// Ready when stdin ends. A thread, since a read of stdin cannot be called off.
fn end_of_stdin() -> oneshot::Receiver<()> {
    let (send, ended) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 64];
        while matches!(io::stdin().read(&mut buffer), Ok(n) if n > 0) {}
        send.send(()).ok();
    });
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fleet_writes_is_what_the_node_reads() {
        let mut options = NodeOptions::joined("127.1.2.3:9200".parse().unwrap(), NodeFacts::new("es-client-2"));
        options.facts.peers =
            vec![NodeFacts { address: "127.1.2.4:9200".parse().unwrap(), ..NodeFacts::new("es-client-3") }.as_peer()];
        (options.refused_ms, options.shape, options.shape_ms) = (5, Some(Shape::Http2Goaway), Some(7));
        (options.not_joined_ms, options.search_ms) = (11, 13);
        let read = parse(to_args(&options).into_iter().skip(1)).unwrap();
        assert_eq!(format!("{read:?}"), format!("{options:?}"));
        assert!(parse(["--shape".to_owned(), "no-such".to_owned()]).is_err());
        assert!(parse(["--refused-ms".to_owned()]).is_err());
    }
}
