//! The patch job, which outlives whoever asked for it.
//!
//! A job is a directory `jobs/<cycle>/` in the state directory ([`verdict`]) and a supervisor process of its own
//! ([`supervise`]) that starts the command, bounds it, and writes down how it ended. The agent only starts the
//! supervisor and reads the directory ([`process`]).
//!
//! Why a job never runs twice: the supervisor runs the command only after *it* has created the file `started` durably, by
//! a link that only one process can win. So as long as there is no `started`, nothing has run (`New`, safe to start);
//! once it is there, no later supervisor runs anything, whatever became of the first (`Running`, `Ended` or `Lost`).
//! Between those two lies no third case: the directory, the specification and even a supervisor on its way count for
//! nothing before the link. A supervisor on its way gives up when the process that started it is gone, and
//! [`crate::ports::Jobs::kill`] takes `started` itself where nobody has it yet. So **whoever saw `New` and decides
//! against the job must `kill` it**, to be certain that it will never run.

//!
//! Where there is systemd a job is a unit instead ([`systemd`], [`units`]): the same directory holds a note of what was started,
//! and the unit writes the verdict ([`ended`], [`mod@line`]). [`runner`] chooses.

pub mod ended;
pub mod kill;
pub mod line;
pub mod output;
pub mod process;
pub mod processes;
pub mod runner;
pub mod supervise;
pub mod systemd;
pub mod unit_file;
pub mod units;
pub mod verdict;
