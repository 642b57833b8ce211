//! The machine as far as a cycle needs it: which boot this is, and who is still connected.

use crate::core::time::BootId;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The present boot's id. An error is no answer: unreadable never means "another boot".
pub fn boot_id() -> io::Result<BootId> {
    boot_id_from(Path::new("/proc/sys/kernel/random/boot_id"))
}

/// As [`boot_id`], from this file.
pub fn boot_id_from(path: &Path) -> io::Result<BootId> {
    let text = std::fs::read_to_string(path)?;
    let id = text.trim_end();
    let fine = id.len() == 36 && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if fine {
        return Ok(BootId(id.into()));
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} does not hold a boot id", path.display())))
}

/// How many connections from elsewhere are established to this local port: none from loopback, from this host itself or
/// from `health_checkers` (the balancer's own addresses). Whoever these are, they are still being served.
pub fn established_connections(port: u16, health_checkers: &[IpAddr]) -> io::Result<usize> {
    let tcp = std::fs::read_to_string("/proc/net/tcp")?;
    let tcp6 = match std::fs::read_to_string("/proc/net/tcp6") {
        Ok(text) => text,
        // A host without IPv6.
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(e),
    };
    count_inbound(&[&tcp, &tcp6], port, health_checkers)
}

/// The pure part of [`established_connections`]: over the text of `/proc/net/tcp` and `/proc/net/tcp6`. A row that
/// cannot be read makes the whole count an error, since it might be a connection.
pub fn count_inbound(tables: &[&str], port: u16, health_checkers: &[IpAddr]) -> io::Result<usize> {
    let mut rows = BTreeSet::new();
    for line in tables.iter().flat_map(|table| table.lines().skip(1)).filter(|line| !line.trim().is_empty()) {
        let row = row(line).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("not a row of the connection table: {:?}", line.trim()))
        })?;
        rows.extend(row);
    }
    let from_elsewhere = |(local, peer): &&(SocketAddr, SocketAddr)| {
        local.port() == port
            && !peer.ip().is_loopback()
            && peer.ip() != local.ip()
            // Its other end is in this table too: both ends are on this host.
            && !rows.contains(&(*peer, *local))
            && !health_checkers.iter().any(|checker| checker.to_canonical() == peer.ip())
    };
    Ok(rows.iter().filter(from_elsewhere).count())
}

/// `None` = no row; `Some(None)` = a row that is not an established connection.
#[expect(clippy::option_option, reason = "unreadable and uninteresting are two answers")]
fn row(line: &str) -> Option<Option<(SocketAddr, SocketAddr)>> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = address(fields.next()?)?;
    let peer = address(fields.next()?)?;
    let state = fields.next()?;
    Some((state == "01").then_some((local, peer)))
}

/// `0100007F:23F0`: words of four bytes in the host's byte order, the port as a number.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| -> Option<[u8; 4]> {
        let hex = ip.get(at..at.checked_add(8)?)?;
        Some(u32::from_str_radix(hex, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0_u8; 16];
            for (chunk, at) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
                chunk.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    /// The kernel's spelling of an address.
    fn hex(address: &str) -> String {
        let address: SocketAddr = address.parse().unwrap();
        let bytes = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let words = bytes.chunks_exact(4).map(|c| format!("{:08X}", u32::from_ne_bytes(c.try_into().unwrap())));
        format!("{}:{:04X}", words.collect::<String>(), address.port())
    }

    fn table(rows: &[(&str, &str, &str)]) -> String {
        let row = |(local, peer, st): &(&str, &str, &str)| {
            format!("   0: {} {} {st} 00000000:00000000 00:00000000 00000000  1000 0 1\n", hex(local), hex(peer))
        };
        HEADER.to_owned() + &rows.iter().map(row).collect::<String>()
    }

    #[test]
    fn the_kernels_own_spelling_is_read() {
        assert_eq!(address("0100007F:23F0"), Some("127.0.0.1:9200".parse().unwrap()));
        assert_eq!(address("0000000000000000FFFF00000100000A:23F0"), Some("10.0.0.1:9200".parse().unwrap()));
        assert_eq!(address("00000000000000000000000001000000:0050"), Some("[::1]:80".parse().unwrap()));
        assert_eq!(address("0100007F"), None);
    }

    #[test]
    fn only_established_connections_from_elsewhere_to_the_port_count() {
        let v4 = table(&[
            ("0.0.0.0:9200", "0.0.0.0:0", "0A"),
            ("10.0.0.5:9200", "10.0.0.9:40000", "01"),
            ("10.0.0.5:9200", "10.0.0.9:40001", "01"),
            ("10.0.0.5:9200", "10.0.0.9:40002", "06"),
            ("10.0.0.5:9300", "10.0.0.9:40003", "01"),
            ("10.0.0.5:40004", "10.0.0.9:9200", "01"),
            ("127.0.0.1:9200", "127.0.0.1:40005", "01"),
            ("10.0.0.5:9200", "10.0.0.5:40006", "01"),
            ("10.0.0.5:9200", "10.0.1.1:40007", "01"),
        ]);
        assert_eq!(count_inbound(&[&v4, ""], 9200, &["10.0.1.1".parse().unwrap()]).unwrap(), 2);
    }

    #[test]
    fn a_connection_from_another_address_of_this_host_is_not_from_elsewhere() {
        let both_ends =
            table(&[("10.0.0.5:9200", "172.17.0.1:40000", "01"), ("172.17.0.1:40000", "10.0.0.5:9200", "01")]);
        assert_eq!(count_inbound(&[&both_ends], 9200, &[]).unwrap(), 0);
    }

    #[test]
    fn version_4_clients_of_a_version_6_socket_are_seen_as_who_they_are() {
        let v6 = table(&[
            ("[::ffff:10.0.0.5]:9200", "[::ffff:10.0.0.9]:40000", "01"),
            ("[::ffff:127.0.0.1]:9200", "[::ffff:127.0.0.1]:40001", "01"),
            ("[::1]:9200", "[::1]:40002", "01"),
            ("[2001:db8::5]:9200", "[2001:db8::9]:40003", "01"),
            ("[::ffff:10.0.0.5]:9200", "[::ffff:10.0.1.1]:40004", "01"),
        ]);
        assert_eq!(count_inbound(&["", &v6], 9200, &["10.0.1.1".parse().unwrap()]).unwrap(), 2);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_no_answer() {
        let torn = format!("{HEADER}   0: 0100007F:23F0 0900\n");
        assert!(count_inbound(&[&torn], 9200, &[]).is_err());
    }

    #[test]
    fn a_real_connection_over_loopback_is_not_from_elsewhere() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let _client = std::net::TcpStream::connect(at).unwrap();
        let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
        assert!(text.contains(&hex(&at.to_string())), "the table of the kernel is spelled otherwise");
        assert_eq!(established_connections(at.port(), &[]).unwrap(), 0);
    }

    #[test]
    fn a_boot_id_that_is_no_boot_id_is_an_error_and_not_another_boot() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        let temp = tempfile::NamedTempFile::new().unwrap();
        assert!(boot_id_from(temp.path()).is_err(), "empty");
        assert!(boot_id_from(Path::new("/nonexistent")).is_err());
    }
}
