//! How much a source has asked to be left alone.

use super::super::error::{Class, Fault};

/// The longest stretch: eightfold, in eighths.
const MOST: u64 = 64;
/// None, in eighths.
const NONE: u64 = 8;

/// The present stretch of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    eighths: u64,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle { eighths: NONE }
    }
}

impl Throttle {
    /// Takes in how one read ended. Only throttling stretches; only a good answer relaxes.
    pub fn saw(&mut self, result: Result<(), &Fault>) {
        self.eighths = match result {
            Ok(()) => self.eighths.saturating_sub(self.eighths.div_ceil(4)).max(NONE),
            Err(fault) if fault.class == Class::Throttled => self.eighths.saturating_mul(2).min(MOST),
            Err(_) => self.eighths,
        };
    }

    /// A pace, stretched.
    pub fn stretch(self, ms: u64) -> u64 {
        ms.saturating_mul(self.eighths).checked_div(NONE).unwrap_or(ms)
    }

    /// It is stretched at all.
    pub fn stretched(self) -> bool {
        self.eighths > NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_throttled_answer_doubles_up_to_eightfold_and_good_ones_bring_it_back() {
        let mut t = Throttle::default();
        let throttled = Fault::new(Class::Throttled, "Rate exceeded");
        let mut paces = vec![t.stretch(15_000)];
        for _ in 0..5 {
            t.saw(Err(&throttled));
            paces.push(t.stretch(15_000));
        }
        assert_eq!(paces, [15_000, 30_000, 60_000, 120_000, 120_000, 120_000]);
        t.saw(Err(&Fault::transport("refused")));
        assert_eq!(t.stretch(15_000), 120_000, "another fault changes nothing");
        let good: Vec<u64> = std::iter::repeat_with(|| {
            t.saw(Ok(()));
            t.stretch(15_000)
        })
        .take(12)
        .collect();
        assert!(good.is_sorted_by(|a, b| a >= b) && good.first() == Some(&90_000), "{good:?}");
        assert_eq!((good.last(), t.stretched()), (Some(&15_000), false));
    }
}
