//! One value against its key: type, form and limits, with an answer for every usual slip.

use super::duration::{self, Written};
use super::guess;
use super::keys::{Key, Kind};
use super::problem::{Refusal, quoted};
use super::text::Form;
use toml::de::{DeArray, DeInteger, DeValue};

/// A longer list is a mistake.
const LIST_MAX: usize = 50;

/// The value as the raw document takes it, with `{hostname}` expanded.
pub(super) fn accept(key: &Key, value: &DeValue<'_>, hostname: &str) -> Result<toml::Value, Refusal> {
    match (key.kind, value) {
        (Kind::Duration { min_ms, max_ms }, DeValue::String(text)) => {
            let ms = duration::parse(text)?;
            if (min_ms..=max_ms).contains(&ms) {
                return Ok(toml::Value::from(text.as_ref()));
            }
            let end = if ms < min_ms { ("least", min_ms) } else { ("most", max_ms) };
            Err(Refusal::new(key.expects(), format!("write at {} \"{}\"", end.0, Written(end.1))))
        }
        (Kind::Duration { .. }, DeValue::Integer(number)) => Err(duration::unitless(number.as_str())),
        (Kind::Duration { .. }, DeValue::Float(number)) => Err(duration::unitless(number.as_str())),
        (Kind::Integer { min, max }, DeValue::Integer(number)) => {
            let number = whole(number).ok_or_else(|| Refusal::new(key.expects(), "write a smaller number"))?;
            if (min..=max).contains(&number) {
                return Ok(toml::Value::Integer(number));
            }
            let end = if number < min { ("least", min) } else { ("most", max) };
            Err(Refusal::new(key.expects(), format!("write at {} {}", end.0, end.1)))
        }
        (Kind::Bool, DeValue::Boolean(yes)) => Ok(toml::Value::Boolean(*yes)),
        (Kind::Choice(words), DeValue::String(word)) => {
            if words.contains(&word.as_ref()) {
                return Ok(toml::Value::from(word.as_ref()));
            }
            Err(Refusal::new(key.expects(), choice(key, words, word)))
        }
        (Kind::Text(form), DeValue::String(text)) => expanded(form, text, hostname).map(toml::Value::from),
        (Kind::List(form), DeValue::Array(list)) => listed(key, form, list, hostname),
        (kind, _) => Err(Refusal::new(key.expects(), of_wrong_type(kind, key, value))),
    }
}

fn whole(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn choice(key: &Key, words: &[&str], word: &str) -> String {
    if key.path == "asg_health_check" {
        return "set the group's health check type to EC2 first: a check of type ELB ends an instance that left"
            .to_owned();
    }
    match guess::nearest(word, words.iter().copied()) {
        Some(near) => format!("write \"{near}\""),
        None => format!("write one of {}", key.expects()),
    }
}

fn of_wrong_type(kind: Kind, key: &Key, value: &DeValue<'_>) -> String {
    let text = if let DeValue::String(text) = value { Some(text.trim()) } else { None };
    match (kind, text) {
        (Kind::Integer { .. }, Some(text)) if text.parse::<i64>().is_ok() => format!("write {text} without quotes"),
        (Kind::Bool, Some(text)) if matches!(text, "true" | "false") => format!("write {text} without quotes"),
        (Kind::List(_), Some(text)) => format!("put brackets around it: [{}]", quoted(text)),
        (Kind::Integer { .. }, _) => "write a number without quotes or fraction".to_owned(),
        (Kind::Bool, _) => "write true or false without quotes".to_owned(),
        (Kind::List(_), _) => format!("write it as in {}", key.example),
        (Kind::Duration { .. }, _) => "write text such as \"30s\"".to_owned(),
        (Kind::Choice(_) | Kind::Text(_), _) => "write text in quotes".to_owned(),
    }
}

/// Text with `{hostname}` replaced, then held against its form.
fn expanded(form: Form, text: &str, hostname: &str) -> Result<String, Refusal> {
    if !form.takes_hostname() {
        form.check(text)?;
        return Ok(text.to_owned());
    }
    let usable = Form::HostText.check(hostname).is_ok();
    if text.contains("{hostname}") && !usable {
        return Err(Refusal::new(
            format!("a host name for {{hostname}}: {}", Form::HostText.expects()),
            "give this host a usable name, or write the name out",
        ));
    }
    let text = text.replace("{hostname}", hostname);
    if text.contains(['{', '}']) {
        return Err(Refusal::new(form.expects(), "only {hostname} is replaced: write it so, or write the value out"));
    }
    form.check(&text)?;
    Ok(text)
}

fn listed(key: &Key, form: Form, list: &DeArray<'_>, hostname: &str) -> Result<toml::Value, Refusal> {
    if list.is_empty() || list.len() > LIST_MAX {
        return Err(Refusal::new(key.expects(), format!("name 1 to {LIST_MAX}, or leave the key out")));
    }
    let mut accepted: Vec<String> = Vec::new();
    for (i, entry) in list.iter().enumerate() {
        let DeValue::String(text) = entry.get_ref() else {
            return Err(Refusal::new(key.expects(), format!("write entry {i} in quotes (counted from 0)")));
        };
        let mut text = expanded(form, text, hostname)
            .map_err(|r| Refusal::new(key.expects(), format!("entry {i} (counted from 0): {}", r.next)))?;
        if form == Form::BaseUrl {
            text.truncate(text.trim_end_matches('/').len());
        }
        if accepted.contains(&text) {
            return Err(Refusal::new(
                key.expects(),
                format!("entry {i} (counted from 0) is there already: take it out"),
            ));
        }
        accepted.push(text);
    }
    Ok(toml::Value::from(accepted))
}

/// What stands there, for people, with nothing that may be a secret.
pub(super) fn found(value: &DeValue<'_>, key: Option<&Key>) -> String {
    match value {
        DeValue::String(text) if key.is_some_and(|key| shy(key, text)) => {
            "text (not shown: it may hold a secret)".to_owned()
        }
        DeValue::String(text) => quoted(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(yes) => yes.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(list) => format!("a list of {}", list.len()),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// People paste the key itself where its file is asked for, and passwords into URLs.
fn shy(key: &Key, text: &str) -> bool {
    let secret_in_place_of_file = key.name().ends_with("_file") && !text.starts_with(['/', '.', '~']);
    let url = matches!(key.kind, Kind::Text(Form::BaseUrl | Form::MetadataUrl) | Kind::List(Form::BaseUrl));
    key.secret() || secret_in_place_of_file || url && text.contains(['@', '?', '#'])
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::*;

    fn refusal(path: &str, toml: &str) -> Refusal {
        let (value, errors) = DeValue::parse_recoverable(toml);
        assert_eq!(errors, [], "{toml}");
        accept(keys::find(path).expect(path), value.get_ref(), "es-1").expect_err(toml)
    }

    #[test]
    fn a_value_of_the_wrong_type_is_answered_with_how_to_write_it() {
        for (path, toml, next) in [
            ("minimum_healthy", "\"3\"", "write 3 without quotes"),
            ("minimum_healthy", "0", "write at least 1"),
            ("minimum_healthy", "3.0", "without quotes or fraction"),
            ("minimum_healthy", "99999999999999999999", "smaller"),
            ("elbv2.register_probe", "\"false\"", "write false without quotes"),
            ("elbv2.register_probe", "0", "true or false"),
            ("deadlines.patch", "3600", "which unit? write \"3600s\""),
            ("deadlines.patch", "\"0s\"", "write at least \"1s\""),
            ("deadlines.patch", "\"30d\"", "write at most \"1d\""),
            ("deadlines.patch", "1.5", "which unit?"),
            ("mode", "\"observed\"", "write \"observe\""),
            ("mode", "true", "in quotes"),
            ("asg_health_check", "\"ELB\"", "EC2 first"),
            ("fleet", "7", "in quotes"),
            ("fleet", "\"AU_Search\"", "write \"au-search\""),
            ("elasticsearch.record_endpoints", "\"https://a:1\"", "brackets"),
            ("elasticsearch.record_endpoints", "[\"https://a:1\", 5]", "entry 1"),
            ("elasticsearch.record_endpoints", "[\"https://a:1\", \"https://a:1/\"]", "there already"),
            ("elasticsearch.record_endpoints", "[]", "leave the key out"),
            ("reconcile.other_nodes", "[\"*\"]", "to be looked at"),
            ("reconcile.other_nodes", "[\"es-*-1\"]", "one * at the end"),
            ("reconcile.other_nodes", "\"kibana-*\"", "put brackets around it: [\"kibana-*\"]"),
            ("reconcile.patch_overdue_after", "\"1h\"", "write at least \"1d\""),
            ("elasticsearch.url", "\"https://{host}:9200\"", "only {hostname} is replaced"),
        ] {
            let next_said = refusal(path, toml).next;
            assert!(next_said.contains(next), "{path} = {toml}: {next_said}");
        }
    }

    #[test]
    fn a_secret_in_the_wrong_place_is_not_repeated() {
        for (path, text) in [
            ("elasticsearch.api_key_file", "VnVhQ2ZHY0JDZGJrUW0tZTVhT3g6dWkybHAyYXhUTm1zeWFrdzl0dk5udw=="),
            ("pager.webhook.url", "http://hooks.example.com/hunter2"),
            ("elasticsearch.url", "https://elastic:hunter2@es-1:9200"),
        ] {
            let shown = found(&DeValue::String(text.into()), keys::find(path));
            assert!(shown.contains("not shown"), "{path}: {shown}");
        }
    }

    #[test]
    fn the_host_name_is_expanded_and_must_be_usable() {
        let key = keys::find("elasticsearch.url").expect("key");
        let value = DeValue::String("https://{hostname}:9200".into());
        assert_eq!(accept(key, &value, "es-1"), Ok(toml::Value::from("https://es-1:9200")));
        assert!(accept(key, &value, "").expect_err("empty").next.contains("usable name"));
        assert!(accept(key, &value, "a b/c").is_err());
    }
}
