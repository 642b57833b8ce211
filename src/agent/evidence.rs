//! Positive evidence that what the cycle machine raised is over. Unknown is none.

use super::shared::Observed;
use crate::core::alert::Book;
use crate::core::cycle::Durable;
use crate::core::finding::{About, Kind};
use crate::core::page::Page;
use crate::core::record::Record;
use crate::core::target::Own;
use crate::core::time::Now;

/// A read that is older than this tells nothing, in ms.
const FRESH_MS: u64 = 60_000;

/// After each look: what of the alerts with a page is over. `problem`: the config cannot be used.
pub(super) fn judge(book: &mut Book, durable: &Durable, seen: &Observed, problem: bool, now: &Now) {
    let raised: Vec<(About, Page)> =
        book.alerts().iter().filter(|a| a.fires()).filter_map(|a| Some((a.about(), a.page.clone()?))).collect();
    for (about, page) in raised {
        // A fault of the agent ends by time alone (`core/alert`).
        let over = (about.0 == Kind::Latched && unlatched(&page, durable, seen, now))
            || (about.0 == Kind::ReleaseStuck && released(&page, durable, seen, now))
            || (about.0 == Kind::ConfigUnusable && !problem);
        if over {
            book.over(&about, now);
        } else if about.0 == Kind::OutOfService && in_service(&page, durable, seen, now) {
            book.seems_over(&about, now);
        } else if about.0 == Kind::OutOfService {
            book.not_over(&about);
        }
    }
}

/// `at` is later than that. A time of another boot is: what was read in this one came after it.
fn after(at: &Now, that: &Now) -> bool {
    at.boot != that.boot || at.since_boot_ms > that.since_boot_ms
}

/// The record by a read that succeeded, is fresh, and began after all of these.
fn record<'a>(seen: &'a Observed, since: &[&Now], now: &Now) -> Option<&'a Record> {
    let (record, at) = seen.record.as_ref().filter(|_| !seen.faults.contains_key("fleet record"))?;
    let fresh = now.since(at).is_some_and(|ms| ms <= FRESH_MS);
    (fresh && since.iter().all(|that| after(at, that))).then_some(record)
}

/// The cycle is over, its last write acknowledged, and the record has no open latch of it (any more).
fn unlatched(page: &Page, durable: &Durable, seen: &Observed, now: &Now) -> bool {
    let Some(cycle) = &page.cycle else { return false };
    let under_way = durable.cycle.as_ref().is_some_and(|c| c.plan.id == *cycle);
    let ended = durable.last.as_ref().filter(|e| e.cycle == *cycle).map_or(&page.raised, |e| &e.at);
    let record = record(seen, &[&page.raised, ended], now);
    let open = |r: &Record| r.open_latches().any(|(id, _)| id == cycle.latch());
    durable.doubt.is_none() && !under_way && record.is_some_and(|r| !open(r))
}

fn released(page: &Page, durable: &Durable, seen: &Observed, now: &Now) -> bool {
    let record = record(seen, &[&page.raised], now);
    durable.cycle.is_none() && record.is_some_and(|r| !r.slots.contains_key(&durable.instance))
}

/// In every group, by a fresh read, and no cycle late.
fn in_service(page: &Page, durable: &Durable, seen: &Observed, now: &Now) -> bool {
    let Some(at) = seen.own_at.as_ref().filter(|_| !seen.faults.contains_key("load balancer")) else { return false };
    let fresh = now.since(at).is_some_and(|ms| ms <= FRESH_MS) && after(at, &page.raised);
    let late = durable.cycle.as_ref().is_some_and(|c| c.late.is_some());
    fresh && !late && !seen.own.is_empty() && seen.own.iter().all(|own| *own == Own::InService)
}
