//! The drop-in that makes a command a patch job: what `backstop run -- COMMAND` writes, as root, before it asks the agent.
//!
//! How systemd reads `ExecStart=`: words are split at white space, quotes hold a word together, backslashes are C's, then `%x`
//! is a specifier in every word and `$x` a variable in every word but the path. A path may hold no quotes, backslashes or control
//! characters at all.

use crate::core::exit_codes::ExitCodes;
use std::fmt::Write as _;
use std::path::Path;

/// The unit of this instance.
pub fn unit_name(instance: &str) -> String {
    format!("backstop-job@{instance}.service")
}

/// A program's path as systemd takes it.
///
/// # Errors
/// What is wrong with it.
pub fn check_program(path: &str) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err(format!("{path:?} is no absolute path"));
    }
    match path.chars().find(|c| c.is_control() || matches!(c, '"' | '\'' | '\\')) {
        Some(c) => {
            Err(format!("systemd takes no program whose path has {c:?} in it: start it by a shell, or by a link"))
        }
        None => Ok(()),
    }
}

/// The drop-in. `program` passes [`check_program`]; `argv` is the command as it was typed, with its own name first.
pub fn drop_in(name: &str, program: &Path, argv: &[String]) -> String {
    let mut text = String::from("# Written by `backstop run`, and removed when the job has ended.\n[Unit]\n");
    let _ = writeln!(text, "Description=backstop: patch job {}", specifiers(&one_line(name)));
    text.push_str("CollectMode=inactive-or-failed\n\n[Service]\nExecStart=@");
    text.push_str(&quoted(&specifiers(&program.to_string_lossy())));
    for arg in argv {
        text.push(' ');
        text.push_str(&quoted(&variables(&specifiers(arg))));
    }
    text.push('\n');
    let codes = ExitCodes::of_program(argv.first().map_or("", String::as_str));
    if !codes.is_plain() {
        let _ = writeln!(text, "Environment=BACKSTOP_EXIT_CODES={}", codes.label());
    }
    text
}

/// A name as the value of a line.
fn one_line(name: &str) -> String {
    let text: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // A backslash at the end would join the next line to it.
    text.replace('\\', "/")
}

fn specifiers(text: &str) -> String {
    text.replace('%', "%%")
}

fn variables(text: &str) -> String {
    text.replace('$', "$$")
}

/// One word: in double quotes, with C's escapes for what would end it or the line.
fn quoted(word: &str) -> String {
    let mut text = String::with_capacity(word.len().saturating_add(2));
    text.push('"');
    for c in word.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            c if c.is_ascii_control() => {
                let _ = write!(text, "\\x{:02x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As systemd reads a line: words, quotes, C's escapes (`extract_first_word` with UNQUOTE and CUNESCAPE).
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('\\', _) => {
                    let unescaped = match chars.next().expect("no line ends in a backslash") {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'x' => {
                            let hex: String = chars.by_ref().take(2).collect();
                            char::from(u8::from_str_radix(&hex, 16).unwrap())
                        }
                        c @ ('"' | '\\' | '\'') => c,
                        other => panic!("an escape that systemd does not know: {other:?}"),
                    };
                    word.get_or_insert_default().push(unescaped);
                }
                (c, Some(q)) if c == q => quote = None,
                (c, Some(_)) => word.get_or_insert_default().push(c),
                ('"' | '\'', None) => {
                    word.get_or_insert_default();
                    quote = Some(c);
                }
                (' ' | '\t' | '\n' | '\r', None) => words.extend(word.take()),
                (c, None) => word.get_or_insert_default().push(c),
            }
        }
        assert_eq!(quote, None, "an open quote");
        words.extend(word);
        words
    }

    /// `%%` and `$$` are one each; a single one would be replaced by something.
    fn undoubled(word: &str, sign: char) -> String {
        let mut chars = word.chars();
        let mut text = String::new();
        while let Some(c) = chars.next() {
            if c == sign {
                assert_eq!(chars.next(), Some(sign), "a single {sign} in {word:?}");
            }
            text.push(c);
        }
        text
    }

    /// Path and arguments, as systemd would start them.
    fn started(drop_in: &str) -> (String, Vec<String>) {
        let line = drop_in.lines().find_map(|l| l.strip_prefix("ExecStart=@")).expect("an ExecStart");
        let words = words(line);
        let (path, argv) = words.split_first().unwrap();
        let argv = argv.iter().map(|w| undoubled(&undoubled(w, '%'), '$')).collect();
        (undoubled(path, '%'), argv)
    }

    #[test]
    fn what_means_something_to_systemd_means_nothing_in_an_argument() {
        let argv = [
            "printf",
            "",
            " ",
            "$HOME",
            "${HOME}",
            "$$",
            "%n",
            "%%",
            "a\"b",
            "'",
            "\\",
            "\\n",
            "a\nb",
            "tab\tcr\r",
            ";",
            "#",
            "-@:+!|",
            "\u{1}\u{7f}",
            "äöü\u{202e}",
            "a\\",
            "=",
            "\u{85}\u{2028}",
        ]
        .map(str::to_owned);
        let text = drop_in("patch", Path::new("/opt/100% pure $x/printf"), &argv);
        assert_eq!(started(&text), ("/opt/100% pure $x/printf".to_owned(), argv.to_vec()));
    }

    #[test]
    fn a_name_cannot_add_a_line() {
        let text = drop_in("x\n[Service]\nUser=%u\\", Path::new("/bin/true"), &["true".to_owned()]);
        assert_eq!(text.lines().filter(|l| l.starts_with('[')).count(), 2, "{text}");
        assert!(text.contains("Description=backstop: patch job x [Service] User=%%u/\nCollectMode="), "{text}");
    }

    #[test]
    fn a_package_manager_has_its_table_in_the_unit() {
        let codes = |argv: &str| drop_in("p", Path::new("/usr/bin/x"), &[argv.to_owned()]);
        assert!(codes("zypper").contains("Environment=BACKSTOP_EXIT_CODES=zypper\n"));
        assert!(!codes("sh").contains("BACKSTOP_EXIT_CODES"));
    }

    #[test]
    fn a_path_that_systemd_would_refuse_is_refused_with_a_reason() {
        for bad in ["relative", "", "/a\"b", "/a'b", "/a\\b", "/a\nb"] {
            assert!(check_program(bad).is_err(), "{bad:?}");
        }
        assert!(check_program("/opt/my tools/100%$x").is_ok());
    }

    proptest! {
        #[test]
        fn every_command_arrives_as_it_was_typed(argv in prop::collection::vec("[^\0]{0,20}", 1..6)) {
            let (path, got) = started(&drop_in("patch", Path::new("/usr/bin/x"), &argv));
            prop_assert_eq!((path.as_str(), &got), ("/usr/bin/x", &argv));
        }

        #[test]
        fn signs_in_any_order_arrive(argv in prop::collection::vec("[$%\"'\\\\ \n;{}a]{0,12}", 1..4)) {
            prop_assert_eq!(&started(&drop_in("patch", Path::new("/usr/bin/x"), &argv)).1, &argv);
        }

        #[test]
        fn the_drop_in_has_the_lines_that_it_is_meant_to_have(name in ".{0,30}", argv in prop::collection::vec("[^\0]{0,20}", 1..4)) {
            let text = drop_in(&name, Path::new("/usr/bin/x"), &argv);
            let keys: Vec<&str> = text.split('\n').filter(|l| !l.is_empty() && !l.starts_with(['#', '['])).map(|l| l.split('=').next().unwrap()).collect();
            prop_assert_eq!(&keys[..3], &["Description", "CollectMode", "ExecStart"]);
            prop_assert!(keys[3..].iter().all(|k| *k == "Environment") && keys.len() <= 4, "{:?}", keys);
        }
    }
}
