//! `backstop run -- COMMAND` where jobs are units: root defines the unit of this run before anybody is asked. The agent has
//! no right to.

use super::context::Ctx;
use crate::control::ask::Trouble;
use crate::core::job::RUN_PREFIX;
use crate::dbus::Bus;
use crate::jobs::ended::drop_in_dir;
use crate::jobs::runner::systemd_runs;
use crate::jobs::unit_file::{check_program, drop_in};
use crate::jobs::units::SystemdUnits;
use crate::state::files::{create_dir_durably, replace_public};
use std::path::{Path, PathBuf};

/// Where a program is looked for that is named without a folder: as the process runner does, and not by the caller's PATH.
const PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The unit of one run. Dropped, it goes, unless it was given to a cycle: then the unit removes it when it has ended.
#[derive(Debug)]
pub(super) struct Defined {
    instance: String,
    kept: bool,
}

impl Defined {
    /// Its instance name.
    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    /// A cycle has it now.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Defined {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_dir_all(drop_in_dir(&self.instance));
        }
    }
}

/// Defines the unit for this command. `None` = it needs none, or the caller is not root: the agent then says what to do.
///
/// # Errors
/// What is wrong with the command, or why it cannot be defined.
pub(super) async fn define(ctx: &Ctx<'_>, name: &str, argv: &[String]) -> Result<Option<Defined>, Trouble> {
    let units = ctx.config.as_ref().map_or_else(systemd_runs, |c| c.jobs_are_units(systemd_runs()));
    if !units || argv.is_empty() || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let program = argv.first().map_or("", String::as_str);
    let path = found(program).ok_or_else(|| {
        (
            format!("there is no program {program} that can be executed"),
            format!("an absolute path, or the name of a program in {}", PATH.join(":")),
        )
    })?;
    let told = path.to_string_lossy();
    check_program(&told).map_err(|why| (why, "a program that systemd can start".to_owned()))?;
    let defined = Defined { instance: format!("{RUN_PREFIX}{}", uuid::Uuid::now_v7()), kept: false };
    let dir = drop_in_dir(&defined.instance);
    let cannot = |why: String| {
        let expected = "root on a machine where systemd runs; or job.runner = \"process\" in the config".to_owned();
        (format!("the unit of this run cannot be defined in {}: {why}", dir.display()), expected)
    };
    let text = drop_in(name, &path, argv);
    create_dir_durably(&dir, 0o755).map_err(|e| cannot(e.to_string()))?;
    replace_public(&dir.join("job.conf"), text.as_bytes()).map_err(|e| cannot(e.to_string()))?;
    SystemdUnits::new(Bus::default()).reload().await.map_err(|trouble| cannot(trouble.to_string()))?;
    Ok(Some(defined))
}

/// The program's file.
fn found(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return std::path::absolute(program).ok().filter(|path| executable(path));
    }
    PATH.iter().map(|dir| Path::new(dir).join(program)).find(|path| !program.is_empty() && executable(path))
}

/// Not by access(2), to which root may execute what has any x bit, as systemd does: this is the same question.
fn executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name_by_path_or_not_at_all() {
        assert!(found("sh").is_some_and(|path| path.is_absolute() && path.ends_with("sh")));
        assert_eq!(found("/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(found("no-such-program"), None);
        assert_eq!(found("/nonexistent/sh"), None);
        assert_eq!(found(""), None);
        assert_eq!(found("/usr"), None, "a directory");
        assert_eq!(found("/etc/passwd"), None, "nobody may execute it");
    }
}
