//! What the exit codes of package managers mean. A code that no table knows is a failure.

use serde::{Deserialize, Serialize};

/// Whose codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExitCodes {
    /// 0 is success.
    #[default]
    Plain,
    /// apt, apt-get, aptitude, dpkg.
    Apt,
    /// dnf, yum.
    Dnf,
    /// zypper.
    Zypper,
    /// The job's unit: systemd called it a success, by the unit's own `SuccessExitStatus=`.
    Unit,
}

/// What one code means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Means {
    Good,
    GoodReboot,
    Failed,
}

/// One row: the code, what it stands for, and for people.
type Row = (i32, Means, &'static str);

/// apt-get(8): "returns zero on normal operation, decimal 100 on error".
const APT: &[Row] = &[(0, Means::Good, "done"), (100, Means::Failed, "an error")];

/// dnf(8). `check-update` alone ends with 100 for "there are updates": no success of a patch.
const DNF: &[Row] = &[
    (0, Means::Good, "done"),
    (1, Means::Failed, "an error, handled by dnf"),
    (3, Means::Failed, "an error in the middle"),
    (100, Means::Failed, "check-update found updates, and installed none"),
    (200, Means::Failed, "another process has the lock"),
];

/// zypper(8). 100 and 101 come of `patch-check`, which installs nothing. After 103 there may be more to install, and what
/// was installed is whole: the next run does the rest. 106 and 107 are no success, whatever zypper calls them: repositories
/// were left out, a script of a package failed.
const ZYPPER: &[Row] = &[
    (0, Means::Good, "done"),
    (1, Means::Failed, "a bug in zypper"),
    (2, Means::Failed, "wrong usage"),
    (3, Means::Failed, "wrong arguments"),
    (4, Means::Failed, "an error of the resolver or a package"),
    (5, Means::Failed, "not enough privileges"),
    (6, Means::Failed, "no repositories"),
    (7, Means::Failed, "another process has the lock"),
    (8, Means::Failed, "a dependency is not met"),
    (100, Means::Failed, "patch-check found updates, and installed none"),
    (101, Means::Failed, "patch-check found security updates, and installed none"),
    (102, Means::GoodReboot, "done, a reboot is needed"),
    (103, Means::Good, "done, zypper itself was replaced and a further run may install more"),
    (104, Means::Failed, "a package was not found"),
    (105, Means::Failed, "interrupted by a signal"),
    (106, Means::Failed, "repositories were skipped"),
    (107, Means::Failed, "a script of a package failed"),
];

impl ExitCodes {
    /// All tables.
    pub const ALL: [ExitCodes; 5] =
        [ExitCodes::Plain, ExitCodes::Apt, ExitCodes::Dnf, ExitCodes::Zypper, ExitCodes::Unit];

    /// Those that a unit may name.
    pub const TABLES: [ExitCodes; 4] = [ExitCodes::Plain, ExitCodes::Apt, ExitCodes::Dnf, ExitCodes::Zypper];

    /// Its name, as `BACKSTOP_EXIT_CODES=` of a unit has it.
    pub const fn label(self) -> &'static str {
        match self {
            ExitCodes::Plain => "plain",
            ExitCodes::Apt => "apt",
            ExitCodes::Dnf => "dnf",
            ExitCodes::Zypper => "zypper",
            ExitCodes::Unit => "unit",
        }
    }

    /// By its name.
    pub fn from_label(label: &str) -> Option<ExitCodes> {
        ExitCodes::ALL.into_iter().find(|codes| codes.label() == label)
    }

    /// By the program that a command starts, with or without its folder. A shell line is plain: its code is the shell's.
    pub fn of_program(program: &str) -> ExitCodes {
        match program.rsplit('/').next().unwrap_or_default() {
            "apt" | "apt-get" | "aptitude" | "dpkg" => ExitCodes::Apt,
            "dnf" | "dnf-3" | "dnf5" | "microdnf" | "yum" => ExitCodes::Dnf,
            "zypper" => ExitCodes::Zypper,
            _ => ExitCodes::Plain,
        }
    }

    /// The least of them; not stored.
    pub fn is_plain(&self) -> bool {
        *self == ExitCodes::Plain
    }

    fn row(self, code: i32) -> Option<&'static Row> {
        let rows = match self {
            ExitCodes::Plain | ExitCodes::Unit => return None,
            ExitCodes::Apt => APT,
            ExitCodes::Dnf => DNF,
            ExitCodes::Zypper => ZYPPER,
        };
        rows.iter().find(|(c, ..)| *c == code)
    }

    /// The code stands for success.
    pub fn good(self, code: i32) -> bool {
        match (self, self.row(code)) {
            (ExitCodes::Unit, _) => true,
            (_, Some((_, means, _))) => *means != Means::Failed,
            (_, None) => code == 0,
        }
    }

    /// The code asks for a restart of the machine.
    pub fn wants_reboot(self, code: i32) -> bool {
        self.row(code).is_some_and(|(_, means, _)| *means == Means::GoodReboot)
    }

    /// What the code means, for people.
    pub fn said(self, code: i32) -> Option<&'static str> {
        self.row(code).map(|(.., said)| *said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_a_success_only_where_its_table_says_so() {
        let good = |codes: ExitCodes| -> Vec<i32> { (-1..=255).filter(|code| codes.good(*code)).collect() };
        assert_eq!(good(ExitCodes::Plain), [0]);
        assert_eq!(good(ExitCodes::Apt), [0]);
        assert_eq!(good(ExitCodes::Dnf), [0]);
        assert_eq!(good(ExitCodes::Zypper), [0, 102, 103]);
    }

    #[test]
    fn only_zypper_tells_by_its_code_that_a_reboot_is_needed() {
        let all = ExitCodes::ALL.into_iter().flat_map(|codes| (0..=255).map(move |code| (codes, code)));
        let wants: Vec<_> = all.filter(|(codes, code)| codes.wants_reboot(*code)).collect();
        assert_eq!(wants, [(ExitCodes::Zypper, 102)]);
    }

    #[test]
    fn a_command_has_the_table_of_its_program_and_a_shell_line_has_none() {
        let cases = [
            ("/usr/bin/apt-get", ExitCodes::Apt),
            ("apt", ExitCodes::Apt),
            ("/usr/bin/dnf", ExitCodes::Dnf),
            ("yum", ExitCodes::Dnf),
            ("/usr/bin/zypper", ExitCodes::Zypper),
            ("/opt/zypper/patch.sh", ExitCodes::Plain),
            ("sh", ExitCodes::Plain),
            ("", ExitCodes::Plain),
        ];
        for (program, codes) in cases {
            assert_eq!(ExitCodes::of_program(program), codes, "{program}");
        }
    }

    #[test]
    fn every_table_is_found_by_its_name_and_has_each_code_once() {
        for codes in ExitCodes::ALL {
            assert_eq!(ExitCodes::from_label(codes.label()), Some(codes));
        }
        for rows in [APT, DNF, ZYPPER] {
            let codes: std::collections::BTreeSet<i32> = rows.iter().map(|(code, ..)| *code).collect();
            assert_eq!(codes.len(), rows.len());
        }
        assert_eq!(ExitCodes::from_label("pacman"), None);
    }
}
