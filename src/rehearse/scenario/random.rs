//! Randomness that can be played again: splitmix64.

/// A generator. The same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `end`; 0 where `end` is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// One of these; `None` where there is none.
    pub(super) fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let end = u64::try_from(all.len()).unwrap_or(0);
        all.get(usize::try_from(self.below(end)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut r = Random::new(7);
        let first: Vec<u64> = (0..3).map(|_| r.next()).collect();
        assert_eq!(first, [0x63cb_e1e4_5932_0dd7, 0x044c_3cd7_f43c_661c, 0xe698_4080_bab1_2a02]);
        assert_eq!(Random::new(7).of::<u8>(&[]), None);
    }
}
