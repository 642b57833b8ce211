//! What must be there after a crash, a full disk or a killed process: the state, the record and the jobs.

mod disk;
mod fleet;
mod jobs;
mod processes;
