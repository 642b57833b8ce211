//! What would be logged again and again: the first time, and then once a minute with a count.

use crate::core::time::Now;

/// Between two lines about the same trouble, in ms.
const EVERY_MS: u64 = 60_000;

/// One kind of trouble.
#[derive(Debug, Default)]
pub struct Seldom {
    /// The last line.
    told: Option<Now>,
    /// Times since then, this one included.
    times: u64,
}

impl Seldom {
    /// It has happened. `Some` = say so now; so often since the last line.
    pub fn due(&mut self, now: &Now) -> Option<u64> {
        self.times = self.times.saturating_add(1);
        // A line of another boot is none.
        if self.told.as_ref().and_then(|at| now.since(at)).is_some_and(|ms| ms < EVERY_MS) {
            return None;
        }
        self.told = Some(now.clone());
        Some(std::mem::take(&mut self.times))
    }

    /// It is over; true where it had been told.
    pub fn over(&mut self) -> bool {
        self.times = 0;
        self.told.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::BootId;

    #[test]
    fn the_first_time_is_told_and_then_one_line_a_minute_with_a_count() {
        let start = Now { wall_ms: 1, boot: BootId("b".into()), since_boot_ms: 1 };
        let mut log = Seldom::default();
        let told: Vec<_> = (0..40).map(|n| log.due(&start.plus(n * 5_000))).collect();
        let lines: Vec<_> = told.iter().enumerate().filter_map(|(n, times)| times.map(|t| (n, t))).collect();
        assert_eq!(lines, [(0, 1), (12, 12), (24, 12), (36, 12)]);
        assert!(log.over() && !log.over(), "its end is told once");
        assert_eq!(log.due(&start.plus(200_000)), Some(1), "and the next time is a first time");
    }
}
