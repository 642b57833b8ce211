//! A strict reader of the classic text format (version 0.0.4): stricter than any scraper, so that none can stumble.

use std::collections::{BTreeMap, BTreeSet};

/// One family with its samples.
#[derive(Clone, Debug)]
pub struct Family {
    pub kind: String,
    pub help: String,
    pub samples: Vec<Sample>,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A whole exposition.
#[derive(Clone, Debug)]
pub struct Exposition(pub BTreeMap<String, Family>);

impl Exposition {
    /// Of a metric without labels of its own; `None` = it has no sample.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.with(name, &[])
    }

    /// The one sample of a metric with these labels.
    pub fn with(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let family = self.0.values().flat_map(|f| &f.samples);
        let matching = family
            .filter(|s| s.name == name && labels.iter().all(|(k, v)| s.labels.get(*k).map(String::as_str) == Some(*v)));
        let found: Vec<_> = matching.collect();
        assert!(found.len() < 2, "{name} {labels:?} is not one sample: {found:?}");
        found.first().map(|s| s.value)
    }

    /// The sum over all samples of a metric with these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let all = self.0.values().flat_map(|f| &f.samples).filter(|s| s.name == name);
        all.filter(|s| labels.iter().all(|(k, v)| s.labels.get(*k).map(String::as_str) == Some(*v)))
            .map(|s| s.value)
            .sum()
    }
}

fn name_ok(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Reads it.
pub fn read(text: &str) -> Result<Exposition, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
            .ok_or_else(|| format!("a family begins with its help: {line}"))?;
        if !name_ok(name) || help.trim() != help || help.is_empty() || help.contains('\\') {
            return Err(format!("no name or no help: {line}"));
        }
        let kind = lines.next().and_then(|l| l.strip_prefix(&format!("# TYPE {name} "))).unwrap_or_default();
        if !["gauge", "counter", "histogram"].contains(&kind) {
            return Err(format!("{name}: the type does not follow, or is {kind:?}"));
        }
        let mut family = Family { kind: kind.to_owned(), help: help.to_owned(), samples: Vec::new() };
        let mut seen = BTreeSet::new();
        while let Some(line) = lines.next_if(|l| !l.starts_with('#')) {
            let s = sample(line)?;
            let own = match kind {
                "histogram" => ["_bucket", "_sum", "_count"].iter().any(|end| s.name == format!("{name}{end}")),
                _ => s.name == name,
            };
            let new = seen.insert((s.name.clone(), s.labels.clone()));
            if !own || !new || s.labels.contains_key("le") != s.name.ends_with("_bucket") {
                return Err(format!("not a sample of {name}, or twice: {line}"));
            }
            if kind == "counter" && !(s.value >= 0.0 && name.ends_with("_total")) {
                return Err(format!("no counter: {line}"));
            }
            family.samples.push(s);
        }
        if family.samples.is_empty() {
            return Err(format!("{name} has no samples"));
        }
        if kind == "histogram" {
            histogram(name, &family)?;
        }
        if families.insert(name.to_owned(), family).is_some() {
            return Err(format!("{name} comes twice"));
        }
    }
    Ok(Exposition(families))
}

/// Buckets go up to `+Inf`, which is the count, and each series has its sum.
fn histogram(name: &str, family: &Family) -> Result<(), String> {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for s in family.samples.iter().filter(|s| s.name.ends_with("_bucket")) {
        let mut labels = s.labels.clone();
        let le = labels.remove("le").unwrap_or_default();
        let bound = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| format!("{name}: le={le}"))? };
        series.entry(labels).or_default().push((bound, s.value));
    }
    for (labels, buckets) in series {
        let of = |end: &str| {
            family.samples.iter().find(|s| s.name == format!("{name}{end}") && s.labels == labels).map(|s| s.value)
        };
        let rising = buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1);
        let last = buckets.last().copied().unwrap_or_default();
        if !rising || last.0 != f64::INFINITY || Some(last.1) != of("_count") || of("_sum").is_none() {
            return Err(format!("{name} {labels:?}: {buckets:?}"));
        }
    }
    Ok(())
}

fn sample(line: &str) -> Result<Sample, String> {
    let wrong = || format!("not a sample: {line}");
    let (head, value) = line.rsplit_once(' ').ok_or_else(wrong)?;
    let value: f64 = value.parse().map_err(|_| wrong())?;
    let (name, labels) = match head.split_once('{') {
        None => (head, BTreeMap::new()),
        Some((name, rest)) => (name, labels(rest.strip_suffix('}').ok_or_else(wrong)?).ok_or_else(wrong)?),
    };
    if !name_ok(name) || !value.is_finite() {
        return Err(wrong());
    }
    Ok(Sample { name: name.to_owned(), labels, value })
}

fn labels(mut text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"")?;
        let (mut value, mut end, mut escaped) = (String::new(), None, false);
        for (i, c) in rest.char_indices() {
            match c {
                _ if escaped => {
                    value.push(match c {
                        'n' => '\n',
                        '\\' | '"' => c,
                        _ => return None,
                    });
                    escaped = false;
                }
                '\\' => escaped = true,
                '"' => {
                    end = Some(i);
                    break;
                }
                '\n' => return None,
                _ => value.push(c),
            }
        }
        if !name_ok(name) || labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        match rest.get(end? + 1..)? {
            "" => return Some(labels),
            more => text = more.strip_prefix(',')?,
        }
    }
}

#[test]
fn the_reader_refuses_what_a_scraper_might() {
    let good = "# HELP a A.\n# TYPE a gauge\na{x=\"1\\\"\",y=\"\"} 1\na{x=\"2\",y=\"\"} 0.5\n";
    assert_eq!(read(good).unwrap().with("a", &[("x", "1\"")]), Some(1.0));
    let histogram =
        "# HELP h H.\n# TYPE h histogram\nh_sum 3.0\nh_count 2\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\n";
    read(histogram).unwrap();
    for (bad, why) in [
        ("a 1\n", "no header"),
        ("# HELP a A.\n# TYPE a gauge\na 1", "the last line does not end"),
        ("# HELP a A.\n# TYPE a gauge\n", "no samples"),
        ("# HELP a A.\na 1\n", "no type"),
        ("# HELP a A.\n# TYPE a counter\na_total 1\n", "a sample of another family"),
        ("# HELP a A.\n# TYPE a gauge\na NaN\n", "not a number"),
        ("# HELP a A.\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"1\"} 2\n", "twice"),
        ("# HELP a A.\n# TYPE a gauge\na{x=\"1\",} 1\n", "a comma"),
        ("# HELP a A.\n# TYPE a gauge\na{,x=\"1\"} 1\n", "a comma"),
        ("# HELP a A.\n# TYPE a gauge\na{} 1\n", "no labels in braces"),
        ("# HELP a A.\n# TYPE a gauge\na 1\n# EOF\n", "the end mark of another format"),
        ("# HELP a A.\n# TYPE a gauge\na 1\n# HELP a A.\n# TYPE a gauge\na 1\n", "a family twice"),
    ] {
        read(bad).expect_err(why);
    }
    read(&histogram.replace("h_count 2", "h_count 3")).expect_err("the count is another");
    read(&histogram.replace("le=\"1.0\"} 1", "le=\"1.0\"} 5")).expect_err("falling");
}
