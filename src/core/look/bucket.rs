//! Token buckets. Looking has one of its own: it never takes what moving a target needs.

use super::super::time::Now;

/// Parts of a token: what a rate of a thousandth of a call per second makes in a millisecond is one.
const WHOLE: u64 = 1_000_000;

/// So many calls at once, so many a second in the long run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    capacity: u64,
    per_s: u64,
    level: u64,
    at: Option<Now>,
}

impl Bucket {
    /// A full one. `per_s` is in thousandths of a call per second, at least one.
    pub fn new(capacity: u32, per_s_thousandths: u64) -> Bucket {
        let capacity = u64::from(capacity.max(1)).saturating_mul(WHOLE);
        Bucket { capacity, per_s: per_s_thousandths.max(1), level: capacity, at: None }
    }

    fn refill(&mut self, now: &Now) {
        // Another boot, or a clock that went back: nothing is gained.
        let passed = self.at.as_ref().and_then(|at| now.since(at)).unwrap_or(0);
        self.level = self.level.saturating_add(passed.saturating_mul(self.per_s)).min(self.capacity);
        self.at = Some(now.clone());
    }

    /// Takes what `calls` calls need; else how long to wait for that, in ms. More than fits at all waits for a full one.
    pub fn take(&mut self, calls: u32, now: &Now) -> Result<(), u64> {
        self.refill(now);
        let need = u64::from(calls).saturating_mul(WHOLE).min(self.capacity);
        match self.level.checked_sub(need) {
            Some(left) => {
                self.level = left;
                Ok(())
            }
            None => Err(need.saturating_sub(self.level).div_ceil(self.per_s)),
        }
    }
}

/// What one agent may ask of the load balancer's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Reconcile's reads.
    pub looking: Bucket,
    /// RegisterTargets and DeregisterTargets.
    pub moving: Bucket,
}

impl Budget {
    /// For so many groups, looked at every `every_ms`: twice what a reader needs, two looks at once. Moving: four calls per group
    /// at once and one a second, of the account's twenty and four.
    pub fn new(groups: usize, every_ms: u64) -> Budget {
        let groups = u32::try_from(groups).unwrap_or(u32::MAX).max(1);
        // The list, and the question by name.
        let look = groups.saturating_mul(2);
        let per_s = u64::from(look).saturating_mul(2_000_000).checked_div(every_ms.max(1)).unwrap_or(0);
        Budget {
            looking: Bucket::new(look.saturating_mul(2), per_s),
            moving: Bucket::new(groups.saturating_mul(4), 1_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::time::BootId;
    use super::*;

    fn at(ms: u64) -> Now {
        Now { wall_ms: 0, boot: BootId("a".into()), since_boot_ms: ms }
    }

    #[test]
    fn looking_that_has_used_up_its_share_takes_nothing_from_moving() {
        let mut b = Budget::new(1, 15_000);
        let looks = (0..100).filter(|_| b.looking.take(1, &at(0)).is_ok()).count();
        assert_eq!(looks, 4);
        assert!(b.looking.take(1, &at(0)).is_err());
        assert_eq!((0..4).map(|_| b.moving.take(1, &at(0))).collect::<Result<Vec<_>, _>>(), Ok(vec![(); 4]));
    }

    #[test]
    fn a_refusal_says_how_long_to_wait_and_then_it_is_there() {
        let mut b = Bucket::new(1, 250);
        assert_eq!(b.take(1, &at(10)), Ok(()));
        let wait = b.take(1, &at(10)).unwrap_err();
        assert_eq!(wait, 4_000);
        assert!(b.take(1, &at(10 + wait - 1)).is_err());
        assert_eq!(b.take(1, &at(10 + wait)), Ok(()));
    }

    #[test]
    fn asking_often_gains_and_loses_nothing_and_a_clock_that_goes_back_gives_nothing() {
        let mut b = Bucket::new(2, 100);
        assert_eq!(b.take(2, &at(5_000)), Ok(()));
        let got = (5_000..25_000).filter(|ms| b.take(1, &at(*ms)).is_ok()).count();
        assert_eq!(got, 1, "two in 20 s, the second at its very end");
        assert_eq!(b.take(1, &at(25_000)), Ok(()));
        assert!(b.take(1, &at(1)).is_err());
        let other = Now { boot: BootId("b".into()), ..at(99_000) };
        assert!(b.take(1, &other).is_err());
    }

    #[test]
    fn more_than_fits_waits_for_a_full_one_and_not_for_ever() {
        let mut b = Bucket::new(2, 1_000);
        assert_eq!(b.take(9, &at(0)), Ok(()));
        assert_eq!(b.take(9, &at(0)), Err(2_000));
    }
}
