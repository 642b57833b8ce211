//! Which loops of the agent still turn. Each says at the end of a turn by when the next one ends; systemd's watchdog, the
//! watch outside and the metrics go by that. A task that merely lives proves nothing, and neither does a runtime that
//! turns: a loop that stands still must be noticed, and one that waits for a slow answer must not.

use crate::clock::Clock;
use crate::core::time::Now;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Loops without which a node may stay out, or nobody hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loop {
    /// The one that walks the cycle.
    Agent,
    /// The one that looks.
    Observer,
    /// The one that sees to it that pages are delivered.
    Pages,
    /// The one that answers people.
    Socket,
}

impl Loop {
    /// All of them, for tables.
    pub const ALL: [Loop; 4] = [Loop::Agent, Loop::Observer, Loop::Pages, Loop::Socket];

    /// The stable label.
    pub const fn label(self) -> &'static str {
        match self {
            Loop::Agent => "agent",
            Loop::Observer => "observer",
            Loop::Pages => "pages",
            Loop::Socket => "control-socket",
        }
    }
}

/// A loop that waits says so again after this time, in ms.
pub const WAKE_MS: u64 = 5_000;
/// What a loop may take beyond what it said, in ms: a busy machine, a commit on a slow disk.
pub const SLACK_MS: u64 = 30_000;

/// One loop.
#[derive(Clone, Debug)]
struct Turn {
    /// When it last completed a turn; `None` = it has only begun.
    last: Option<Now>,
    /// From then on its time runs.
    from: Now,
    /// So long, in ms.
    within_ms: u64,
    /// The same of its work: a loop that stumbles turns, and gets nowhere.
    work: (Now, u64),
}

impl Turn {
    fn new(last: Option<Now>, now: &Now, within_ms: u64) -> Turn {
        Turn { last, from: now.clone(), within_ms, work: (now.clone(), within_ms) }
    }
}

/// It is beyond what was said and the slack. A turn that ends while this is asked is not older than the question.
fn late(from: &Now, within_ms: u64, now: &Now) -> bool {
    let elapsed = now.since(from).or_else(|| from.since(now).map(|_| 0));
    elapsed.is_none_or(|ms| ms > within_ms.saturating_add(SLACK_MS))
}

/// Cheap to clone; all are the same.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    inner: Arc<Mutex<BTreeMap<Loop, Turn>>>,
}

impl Turns {
    fn inner(&self) -> MutexGuard<'_, BTreeMap<Loop, Turn>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This loop is about to begin: its first turn ends within this time and the slack. Said by who starts it, so that one
    /// that never gets anywhere is noticed too. One that is started again after a panic has what is left of its time.
    pub fn begin(&self, which: Loop, now: &Now, within_ms: u64) {
        self.inner().entry(which).or_insert_with(|| Turn::new(None, now, within_ms));
    }

    /// This loop has completed a turn; the next one ends within this time and the slack.
    pub fn turned(&self, which: Loop, now: &Now, next_within_ms: u64) {
        self.inner().insert(which, Turn::new(Some(now.clone()), now, next_within_ms));
    }

    /// A turn of this loop ended in a panic, and the next one begins. It does not stand still: a new process would stumble
    /// over the same thing, and each new start would take its time from a node that is on its way back. But it gets nowhere.
    pub fn stumbled(&self, which: Loop, now: &Now, next_within_ms: u64) {
        let mut turns = self.inner();
        let turn = turns.entry(which).or_insert_with(|| Turn::new(None, now, next_within_ms));
        (turn.from, turn.within_ms) = (now.clone(), next_within_ms);
    }

    /// Every loop that has begun goes on. `Err`: the first one that stands still.
    pub fn fresh(&self, now: &Now) -> Result<(), &'static str> {
        self.first(|t| late(&t.from, t.within_ms, now))
    }

    /// Every loop that has begun completed a turn lately. `Err`: the first one that did not; it stands still, or stumbles.
    pub fn works(&self, now: &Now) -> Result<(), &'static str> {
        self.first(|t| late(&t.work.0, t.work.1, now))
    }

    fn first(&self, is: impl Fn(&Turn) -> bool) -> Result<(), &'static str> {
        match self.inner().iter().find(|(_, t)| is(t)) {
            Some((which, _)) => Err(which.label()),
            None => Ok(()),
        }
    }

    /// When each loop last completed a turn, in ms since 1970.
    pub fn last(&self) -> Vec<(&'static str, u64)> {
        self.inner().iter().filter_map(|(which, t)| Some((which.label(), t.last.as_ref()?.wall_ms))).collect()
    }

    /// Never returns: for as long as it is polled, in the very `select!` that the loop waits in, the loop is at its wait and
    /// free to go on, which counts as turning. Nothing is written meanwhile.
    pub async fn waiting<C: Clock>(&self, which: Loop, clock: &C) {
        loop {
            self.turned(which, &clock.now(), WAKE_MS);
            clock.sleep_ms(WAKE_MS).await;
        }
    }

    /// As `waiting`, beside a loop that has no waits but for its next caller. What runs inside it on tasks of its own does
    /// not count.
    pub async fn serving<C: Clock, T>(&self, which: Loop, clock: &C, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            done = work => done,
            // Cannot be: it never returns.
            () = self.waiting(which, clock) => std::future::pending().await,
        }
    }
}

/// Says again and again whether all loops turn: to systemd, which ends an agent of whom it hears nothing.
pub async fn feed<C: Clock>(turns: Turns, clock: C, every_ms: u64, say: impl Fn(Result<(), &'static str>)) {
    loop {
        say(turns.fresh(&clock.now()));
        clock.sleep_ms(every_ms).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::supervisor::{Task, keep, spawn};
    use crate::clock::ManualClock;
    use crate::core::time::BootId;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::sync::{mpsc, watch};

    const EVERY_MS: u64 = 10_000;

    fn clock() -> ManualClock {
        ManualClock::new(Now { wall_ms: 1_000, boot: BootId("b".into()), since_boot_ms: 1_000 })
    }

    /// What the watchdog says, one word for each time it looks.
    fn watched(turns: &Turns, clock: &ManualClock) -> (Task<()>, mpsc::UnboundedReceiver<Result<(), &'static str>>) {
        let (send, said) = mpsc::unbounded_channel();
        let say = move |word| {
            let _ = send.send(word);
        };
        (spawn(feed(turns.clone(), clock.clone(), EVERY_MS, say)), said)
    }

    /// Lets every other task do what it can do without the clock.
    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_loop_is_late_only_beyond_what_it_said_and_the_slack() {
        let (turns, clock) = (Turns::default(), clock());
        assert_eq!(turns.fresh(&clock.now()), Ok(()), "nothing has begun");
        turns.begin(Loop::Observer, &clock.now(), 60_000);
        turns.turned(Loop::Agent, &clock.now(), 120_000);
        clock.advance(60_000 + SLACK_MS);
        assert_eq!(turns.fresh(&clock.now()), Ok(()));
        clock.advance(1);
        assert_eq!(turns.fresh(&clock.now()), Err("observer"), "it has begun, and never completed a turn");
        turns.turned(Loop::Observer, &clock.now(), 600_000);
        assert_eq!(turns.fresh(&clock.now()), Ok(()), "an effect may take as long as it said");
        clock.advance(60_000);
        assert_eq!(turns.fresh(&clock.now()), Err("agent"));
    }

    #[test]
    fn a_loop_that_has_only_begun_has_no_last_turn_and_beginning_again_gives_no_more_time() {
        let (turns, clock) = (Turns::default(), clock());
        turns.begin(Loop::Pages, &clock.now(), 0);
        assert!(turns.last().is_empty());
        clock.advance(SLACK_MS + 1);
        turns.begin(Loop::Pages, &clock.now(), 0);
        assert_eq!(turns.fresh(&clock.now()), Err("pages"));
        turns.turned(Loop::Pages, &clock.now(), 0);
        assert_eq!(turns.last(), [("pages", clock.now().wall_ms)]);
    }

    #[test]
    fn a_clock_of_another_boot_is_no_proof_and_one_read_a_moment_early_is_no_doubt() {
        let (turns, clock) = (Turns::default(), clock());
        let early = clock.now();
        clock.advance(5);
        turns.turned(Loop::Agent, &clock.now(), 0);
        assert_eq!(turns.fresh(&early), Ok(()));
        clock.reboot(BootId("c".into()), 1);
        assert_eq!(turns.fresh(&clock.now()), Err("agent"));
    }

    #[tokio::test]
    async fn a_loop_that_waits_is_fresh_for_ever_and_one_that_stands_still_stops_the_feeding() {
        let (turns, clock) = (Turns::default(), clock());
        let (hang, told) = watch::channel(false);
        let (waits, at) = (turns.clone(), clock.clone());
        let mut gate = told;
        let _loop = spawn(async move {
            tokio::select! {
                () = waits.waiting(Loop::Agent, &at) => {}
                _ = gate.wait_for(|hang| *hang) => {}
            }
            std::future::pending::<()>().await; // an effect that never comes back
        });
        settle().await;
        let (_watchdog, mut said) = watched(&turns, &clock);
        for _ in 0..400 {
            settle().await;
            clock.advance(EVERY_MS / 4);
        }
        settle().await;
        let words = std::iter::from_fn(|| said.try_recv().ok()).collect::<Vec<_>>();
        assert!(words.len() > 90 && words.iter().all(Result::is_ok), "{words:?}");
        hang.send(true).unwrap();
        settle().await;
        for _ in 0..((WAKE_MS + SLACK_MS + 2 * EVERY_MS) / EVERY_MS) {
            clock.advance(EVERY_MS);
            settle().await;
        }
        let words = std::iter::from_fn(|| said.try_recv().ok()).collect::<Vec<_>>();
        assert_eq!(words.last(), Some(&Err("agent")), "{words:?}");
    }

    #[test]
    fn a_loop_that_stumbles_does_not_stand_still_and_gets_nowhere() {
        let (turns, clock) = (Turns::default(), clock());
        turns.turned(Loop::Observer, &clock.now(), 60_000);
        let worked = clock.now().wall_ms;
        for _ in 0..18 {
            clock.advance(5_000);
            turns.stumbled(Loop::Observer, &clock.now(), 1_000);
            assert_eq!((turns.fresh(&clock.now()), turns.works(&clock.now())), (Ok(()), Ok(())));
        }
        clock.advance(1_000);
        assert_eq!((turns.fresh(&clock.now()), turns.works(&clock.now())), (Ok(()), Err("observer")));
        assert_eq!(turns.last(), [("observer", worked)], "a turn that came to nothing is none");
        clock.advance(1_000 + SLACK_MS);
        assert_eq!(turns.fresh(&clock.now()), Err("observer"), "and now it does not even stumble");
        turns.turned(Loop::Observer, &clock.now(), 60_000);
        assert_eq!((turns.fresh(&clock.now()), turns.works(&clock.now())), (Ok(()), Ok(())));
    }

    #[tokio::test]
    async fn a_loop_that_panics_is_started_again_and_fed_again() {
        let (turns, clock) = (Turns::default(), clock());
        let panics = Arc::new(AtomicBool::new(true));
        turns.begin(Loop::Observer, &clock.now(), WAKE_MS);
        let (broken, own, at) = (panics.clone(), turns.clone(), clock.clone());
        let looks = move || {
            let (broken, own, at) = (broken.clone(), own.clone(), at.clone());
            async move {
                assert!(!broken.load(Ordering::SeqCst), "told to panic");
                own.waiting(Loop::Observer, &at).await;
            }
        };
        let pause = {
            let at = clock.clone();
            move || {
                let at = at.clone();
                async move { at.sleep_ms(1_000).await }
            }
        };
        let _observer = keep("observer", looks, |_, _| {}, pause);
        for _ in 0..60 {
            settle().await;
            clock.advance(1_000);
        }
        assert_eq!(turns.fresh(&clock.now()), Err("observer"), "it lives, and gets nowhere");
        panics.store(false, Ordering::SeqCst);
        for _ in 0..3 {
            settle().await;
            clock.advance(1_000);
        }
        settle().await;
        assert_eq!(turns.fresh(&clock.now()), Ok(()));
    }
}
