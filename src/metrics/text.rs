//! The exposition: the classic text format (version 0.0.4), which everything reads that reads any: Prometheus,
//! promtool, the textfile collector of `node_exporter`. The library writes `OpenMetrics`, whose header of a counter lacks the `_total` of its
//! samples; in the classic format those would be two metrics, one of them without type and help.

use prometheus_client::registry::Registry;
use std::fmt::Write as _;

/// `Content-Type` of what [`encoded`] returns.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything in a registry.
pub(super) fn encoded(registry: &Registry) -> String {
    let mut open = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode_registry(&mut open, registry);
    classic(&open)
}

/// From one format to the other.
fn classic(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut lines = open.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
            let _ = writeln!(out, "{line}");
            continue;
        };
        let kind = lines.next_if(|l| l.starts_with("# TYPE ")).and_then(|l| l.rsplit_once(' ')).map_or("", |(_, k)| k);
        // A family of which nothing was counted yet has a header and no samples.
        if lines.peek().is_none_or(|next| next.starts_with('#')) {
            continue;
        }
        let total = if kind == "counter" { "_total" } else { "" };
        let _ = writeln!(out, "# HELP {name}{total} {help}\n# TYPE {name}{total} {kind}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counters_header_has_the_name_of_its_samples_and_an_empty_family_has_none() {
        let open = "# HELP a Help.\n# TYPE a counter\na_total{x=\"# HELP\"} 1\n# HELP b B.\n# TYPE b counter\n\
                    # HELP c C.\n# TYPE c gauge\nc 1\n";
        let wanted = "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"# HELP\"} 1\n\
                      # HELP c C.\n# TYPE c gauge\nc 1\n";
        assert_eq!(classic(open), wanted);
    }
}
