//! What `--keep` leaves beside configs, states and logs: the pages, as they were delivered.

use crate::rehearse::receiver::Received;
use std::io::{self, Write as _};
use std::path::Path;

/// `pages/01-latched.json`, and the same as people read it.
pub(super) fn pages(dir: &Path, received: &[Received]) -> io::Result<()> {
    let dir = dir.join("pages");
    std::fs::DirBuilder::new().create(&dir)?;
    for (i, page) in received.iter().enumerate() {
        let text = |key: &str| page.body.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let (number, kind) = (i.saturating_add(1), text("kind"));
        let refused = if page.accepted { "" } else { "-refused" };
        let name = |ending: &str| dir.join(format!("{number:02}-{kind}{refused}.{ending}"));
        write(&name("json"), &serde_json::to_string_pretty(&page.body).unwrap_or_default())?;
        write(&name("txt"), text("text"))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    std::fs::File::create(file).and_then(|mut file| writeln!(file, "{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_is_kept_as_it_was_delivered_and_as_people_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let page = |kind: &str, accepted| Received {
            at_ms: 0,
            path: "/pages".to_owned(),
            headers: Vec::new(),
            body: json!({"kind": kind, "text": "[CRITICAL]\nWhy"}),
            accepted,
        };
        pages(dir.path(), &[page("latched", false), page("latched", true)]).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join("pages").join(name)).unwrap();
        assert_eq!(read("02-latched.txt"), "[CRITICAL]\nWhy\n");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&read("01-latched-refused.json")).unwrap()["kind"],
            "latched"
        );
    }
}
