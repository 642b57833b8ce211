//! `[metrics]` in the config file.

use backstop::config::{Config, Problems, parse, sample};
use std::path::PathBuf;

const REST: &str = r#"
fleet = "f"
outside_watch = "none"
[[target_group]]
arn = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef"
[pager.webhook]
url = "https://pager.example.com/"
[record]
store = "file"
single_host = true
"#;

fn with(metrics: &str) -> Result<Config, Problems> {
    parse("f.toml", format!("{REST}[metrics]\n{metrics}\n").as_bytes(), "host").map(|(config, _)| config)
}

#[test]
fn metrics_are_on_loopback_unless_the_file_says_otherwise() {
    let (config, _) = parse("f.toml", REST.as_bytes(), "host").unwrap_or_else(|p| panic!("{p}"));
    assert_eq!(config.metrics.listen.unwrap().to_string(), "127.0.0.1:9477");
    assert_eq!((config.metrics.socket, config.metrics.textfile), (None, None));
    let listen = |metrics: &str| with(metrics).unwrap_or_else(|p| panic!("{p}")).metrics.listen.map(|a| a.to_string());
    assert_eq!(listen("listen = \"[::1]:9100\"").as_deref(), Some("[::1]:9100"));
    assert_eq!(listen("listen = \"127.8.8.8:9100\"").as_deref(), Some("127.8.8.8:9100"));
    assert_eq!(listen("listen = \"none\""), None);
    assert_eq!(listen("socket = \"/run/backstop/metrics.sock\""), None, "a socket takes the port's place");
    let both = "socket = \"/run/backstop/metrics.sock\"\nlisten = \"127.0.0.1:1\"";
    assert_eq!(listen(both).as_deref(), Some("127.0.0.1:1"));
    let file = with("textfile = \"/x/{hostname}.prom\"").unwrap_or_else(|p| panic!("{p}")).metrics.textfile;
    assert_eq!(file, Some(PathBuf::from("/x/host.prom")));
    assert!(sample().contains("#listen = \"127.0.0.1:9477\""));
}

#[test]
fn what_others_could_reach_or_nobody_would_read_is_refused_with_a_sentence() {
    for (metrics, key, says) in [
        ("listen = \"0.0.0.0:9477\"", "metrics.listen", "ask nobody who they are"),
        ("listen = \"10.0.0.1:9477\"", "metrics.listen", "put a proxy with a login before them"),
        ("listen = \"[::]:9477\"", "metrics.listen", "on loopback"),
        ("listen = \"127.0.0.1:0\"", "metrics.listen", "give the port"),
        ("listen = \"localhost:9477\"", "metrics.listen", "127.0.0.1"),
        ("listen = \"9477\"", "metrics.listen", "write address and port"),
        ("listen = 9477", "metrics.listen", "127.0.0.1:9477"),
        ("socket = \"run/m.sock\"", "metrics.socket", "from / on"),
        ("socket = \"/run/backstop/agent.sock\"", "metrics.socket", "metrics.sock"),
        ("textfile = \"/x/backstop.txt\"", "metrics.textfile", "node_exporter reads no other"),
        ("textfile = \"x.prom\"", "metrics.textfile", "from / on"),
        ("lisen = \"none\"", "metrics.lisen", "listen"),
    ] {
        let problems = with(metrics).expect_err(metrics).to_string();
        assert!(problems.contains(key) && problems.contains(says), "{metrics}: {problems}");
    }
    let long = format!("socket = \"/{}\"", "x".repeat(107));
    assert!(with(&long).unwrap_err().to_string().contains("107 bytes"));
}
