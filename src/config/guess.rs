//! An answer for a key that does not exist: what was probably meant.

use super::keys;
use super::problem::Refusal;
use toml::de::DeValue;

/// Refusal of an unknown key or table: `section` as in the table of keys, and its name there.
pub(super) fn unknown(section: &str, name: &str, value: &DeValue<'_>) -> Refusal {
    let expected =
        if section.is_empty() { "a key of backstop".to_owned() } else { format!("a key of {}", header(section)) };
    Refusal::new(expected, advice(section, name, matches!(value, DeValue::Table(_) | DeValue::Array(_))))
}

fn advice(section: &str, name: &str, nested: bool) -> String {
    if let Some(near) = nearest(name, names_in(section)) {
        return format!("did you mean {near}?");
    }
    // The commonest slip: a key of the whole file below a [table].
    if !nested {
        let places: Vec<_> = keys::all().filter(|key| normal(key.name()) == normal(name)).collect();
        if let [key] = places.as_slice() {
            return match key.section() {
                "" => format!("did you mean {} of the whole file? move it above the first [table]", key.name()),
                other => format!("did you mean {}? move it below {}", key.name(), header(other)),
            };
        }
        if !places.is_empty() {
            let all: Vec<_> = places.iter().map(|key| bracketless(key.path)).collect();
            return format!("did you mean one of {}? move it there", all.join(", "));
        }
    }
    let everywhere = keys::all().map(|key| key.path).chain(keys::SECTIONS.iter().map(|s| s.path));
    let full = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
    match nearest(&full, everywhere).or_else(|| nearest_name(name)) {
        Some(near) => format!("did you mean {}?", bracketless(near)),
        None => "take it out; `backstop config show` lists every key".to_owned(),
    }
}

fn nearest_name(name: &str) -> Option<&'static str> {
    let near = nearest(name, keys::all().map(keys::Key::name))?;
    keys::all().find(|key| key.name() == near).map(|key| key.path)
}

/// Names of the keys and tables directly in a table.
fn names_in(section: &str) -> impl Iterator<Item = &'static str> {
    let tables = keys::SECTIONS.iter().filter_map(|s| {
        let (outer, name) = s.path.rsplit_once('.').unwrap_or(("", s.path));
        Some((outer, name.trim_end_matches("[]"))).filter(|(_, name)| !name.is_empty())
    });
    let keys = keys::all().map(|key| (key.section(), key.name()));
    keys.chain(tables).filter(move |(outer, _)| *outer == section).map(|(_, name)| name)
}

/// The word that differs least, if it differs by little.
pub(super) fn nearest<'a>(word: &str, from: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const COMPARED_MAX: usize = 80;
    if word.len() > COMPARED_MAX {
        return None;
    }
    let word = normal(word);
    let allowed = word.chars().count().checked_div(3).unwrap_or(0).clamp(1, 4);
    from.filter(|other| !other.is_empty())
        .map(|other| (distance(&word, &normal(other)), other))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= allowed)
        .map(|(_, other)| other)
}

fn normal(word: &str) -> String {
    word.to_lowercase().replace(['-', ' '], "_")
}

fn bracketless(path: &str) -> String {
    path.replace("[]", "")
}

fn header(section: &str) -> String {
    section.strip_suffix("[]").map_or_else(|| format!("[{section}]"), |list| format!("[[{list}]]"))
}

/// Levenshtein: letters added, dropped or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut left = i.saturating_add(1);
        let mut next = vec![left];
        for (above, cb) in row.windows(2).zip(&b) {
            let [diagonal, up] = above else { continue };
            let changed = diagonal.saturating_add(usize::from(ca != *cb));
            left = changed.min(up.saturating_add(1)).min(left.saturating_add(1));
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str) -> String {
        {
            let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
            unknown(section, name, &DeValue::Boolean(true)).next
        }
    }

    #[test]
    fn a_misspelled_key_is_answered_with_the_right_one() {
        for (path, next) in [
            ("minimum_healty", "did you mean minimum_healthy?"),
            ("minimum-healthy", "did you mean minimum_healthy?"),
            ("Fleet", "did you mean fleet?"),
            ("deadlines.pach", "did you mean patch?"),
            ("pager.web_hook", "did you mean webhook?"),
            ("target_groups", "did you mean target_group?"),
            ("deadlines.mode", "move it above the first [table]"),
            ("target_group[].mode", "move it above the first [table]"),
            ("single_host", "move it below [record]"),
            ("arn", "move it below [[target_group]]"),
            ("timeout", "pager.webhook.timeout, elasticsearch.timeout"),
            ("pager.pager_duty", "did you mean pagerduty?"),
            ("zzzzzzzzzzzz", "take it out"),
        ] {
            assert!(asked(path).contains(next), "{path}: {}", asked(path));
        }
    }

    #[test]
    fn distance_counts_single_letters() {
        for (a, b, n) in [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("same", "same", 0)] {
            assert_eq!(distance(a, b), n);
            assert_eq!(distance(b, a), n);
        }
    }
}
