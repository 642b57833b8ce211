//! Who looks at what, and when: the call budget. Pure; the fleet's call rate stays the same at any size.
//!
//! **Load balancer.** The [`READERS`] lowest-ranked live members (by instance id) read whole groups every `every_ms`; all
//! others ask for their own target only, so seldom that together they make at most a [`OWN_SHARE`]th of the readers' calls
//! per group. A node that a reader finds something about looks at its own pace of `every_ms` until that is over; where the
//! whole fleet is below its floor, all do, together at most [`FLEET_OWN_PER_S`] calls a second and group. Throttling
//! stretches every pace twofold at each answer of that sort, eightfold at most, and each good answer takes a quarter of
//! the stretch away.
//!
//! **Elasticsearch.** A node's beat is one small write. Members that are readers, next in line ([`WATCHED`] in all), or have
//! something going on (a cycle, a finding about them) beat every `every_ms`; of the others all together at most
//! [`BEATS_PER_S`] a second. Everybody watches the documents of those in line, by id, every `every_ms`, stretched so that the
//! fleet makes at most [`WATCHES_PER_S`] such reads a second: that is how a node hears that a reader finds it out of
//! service, and how the next in line learn that a reader is silent. All documents are read every `every_ms` by the readers, by the
//! others so seldom that they read at most [`DOCUMENTS_PER_S`] documents a second together. The record is one get by
//! id, at the pace of watching. A beat says when the next one comes, and silence is three of those missed: thresholds follow
//! the stretched pace.
//!
//! **Unknown membership.** Who does not know the others reads whole groups itself, at a stretched pace: several too many for
//! a while rather than nobody.

mod agenda;
mod bucket;
mod pace;

pub use agenda::{Agenda, Task};
pub use bucket::{Bucket, Budget};
pub use pace::{
    BEATS_PER_S, DOCUMENTS_PER_S, FLEET_OWN_PER_S, Looker, OWN_SHARE, Pace, READERS, Role, WATCHED, WATCHES_PER_S, pace,
};
pub use throttle::Throttle;

mod throttle;
