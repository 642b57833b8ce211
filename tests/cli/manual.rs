//! `backstop man` and `backstop completions`, which need neither agent nor config.

use crate::world::World;
use std::collections::BTreeSet;

/// Verbs that `--help` lists.
async fn verbs(world: &World) -> Vec<String> {
    let help = world.backstop(&["--help"]).await;
    let (_, listed) = help.exits(0).out.split_once("Commands:\n").expect("a list of commands");
    let verbs: Vec<String> = listed
        .lines()
        .take_while(|l| l.starts_with("  "))
        .filter_map(|l| Some(l.split_whitespace().next()?.into()))
        .collect();
    assert!(verbs.len() > 15, "{verbs:?}");
    verbs
}

#[tokio::test(flavor = "multi_thread")]
async fn man_writes_a_page_for_every_verb_and_none_for_a_hidden_one() {
    let world = World::without_server();
    let dir = world.path("man/deeper");
    world.backstop(&["man", dir.to_str().unwrap()]).await.exits(0);
    let pages: BTreeSet<String> =
        std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    for verb in verbs(&world).await {
        assert!(pages.contains(&format!("backstop-{verb}.1")), "no page of {verb} in {pages:?}");
    }
    for page in ["backstop.1", "backstop-latch-clear.1", "backstop-config-check.1"] {
        assert!(pages.contains(page), "no {page} in {pages:?}");
    }
    for page in &pages {
        assert!(!page.contains("rehearse-node") && !page.contains("job-exec"), "{page} is of a hidden verb");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_page_has_exit_codes_files_and_every_verb() {
    let world = World::without_server();
    let page = world.backstop(&["man"]).await;
    page.exits(0).says(&[
        ".TH BACKSTOP 1",
        ".SH NAME\nbackstop \\-",
        ".SH SYNOPSIS",
        ".SH \"EXIT STATUS\"",
        "latched: a cycle failed",
        ".SH FILES",
        "/etc/backstop/backstop.toml",
        ".SH \"SEE ALSO\"",
    ]);
    assert!(!page.out.contains("job\\-exec") && !page.out.contains("rehearse\\-node"), "{}", page.out);
    for verb in verbs(&world).await {
        assert!(page.out.contains(&format!("backstop\\-{verb}(1)")), "no {verb} in {}", page.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_cannot_be_written_is_said_to_be_so() {
    let world = World::without_server();
    let ran = world.backstop(&["man", "/proc/none"]).await;
    ran.exits(1).complains(&["cannot make /proc/none"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_know_every_verb_and_no_hidden_one() {
    let world = World::without_server();
    let verbs = verbs(&world).await;
    for shell in ["bash", "zsh", "fish"] {
        let ran = world.backstop(&["completions", shell]).await;
        let script = &ran.exits(0).out;
        for verb in &verbs {
            assert!(script.contains(verb.as_str()), "{shell}: no {verb}");
        }
        for hidden in ["job-exec", "job__exec", "rehearse-node", "rehearse__node"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
    world.backstop(&["completions", "cmd.com"]).await.exits(2).complains(&["cmd.com", "bash"]);
}

/// The shell itself completes, with the script that the package ships.
#[tokio::test(flavor = "multi_thread")]
async fn bash_completes_a_verb_and_an_option() {
    let world = World::without_server();
    let script = world.backstop(&["completions", "bash"]).await.out;
    for (line, word, complete) in [("backstop ret", "ret", "retire"), ("backstop run --only", "--only", "--only-if")] {
        let words = line.split(' ').map(|w| format!("'{w}'")).collect::<Vec<_>>().join(" ");
        let last = line.split(' ').count() - 1;
        let asked = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}\n\
             _backstop backstop '{word}' \"${{COMP_WORDS[COMP_CWORD-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let shell = std::process::Command::new("bash").args(["--norc", "-c", &asked]).output().unwrap();
        let said = String::from_utf8_lossy(&shell.stdout);
        assert!(said.lines().any(|l| l == complete), "{line}: {said}{}", String::from_utf8_lossy(&shell.stderr));
    }
}
