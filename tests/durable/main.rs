//! What must be there after a crash, a full disk or a killed process: the state, the record and the jobs.

#![expect(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
#![expect(clippy::wildcard_enum_match_arm, reason = "whatever else it is, it is wrong, and is shown")]

#[cfg(test)]
mod disk;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod job_kill;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod versions;
